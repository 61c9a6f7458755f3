//! The engine of one endpoint: moves records and chunks between its operations and its connections. Never waits.

use std::sync::Arc;

use devmem_tcp::{Interest, Watch};

use crate::budget::{Budget, TURN_BYTES};
use crate::control::Control;
use crate::cut::{Cut, cut_message, cut_notification};
use crate::data::{DataStream, Expected, Owner, Progress};
use crate::error::{Cause, Violation};
use crate::fabric_state::FabricState;
use crate::limits::MAX_PARTS;
use crate::linger::Lingering;
use crate::matching::Room;
use crate::notifications::Notifications;
use crate::operations::{Active, Announced, Destination, Event, Operations, Parts, Purpose};
use crate::options::{Engine, Placement};
use crate::published_regions::PublishedRegions;
use crate::record::{Carrier, Record};
use crate::region::{RegionKey, Span};
use crate::wait::Wait;
use crate::wires::Wires;

/// Turns in a row that do nothing, after each of which the connections are looked at for a peer that is gone.
const IDLE_TURNS_PER_CHECK: u32 = 32;

/// Announced chunks and unanswered gets from which on no further records are read: TCP stops the peer. The limits of notifications are those of
/// [`Notifications`].
const MAX_ANNOUNCED: usize = 4096;
const MAX_ANSWERS: usize = 256;

/// What an endpoint has moved.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EndpointStats {
    /// Payload bytes that were sent and may be changed.
    pub sent_bytes: u64,
    /// Payload bytes that are in place.
    pub received_bytes: u64,
    /// Bytes of them that the NIC had written to the memory of [`Options::pool`](crate::Options::pool).
    pub received_by_device: u64,
}

/// The state behind the lock of an endpoint.
pub(crate) struct Core {
    fabric: Arc<FabricState>,
    /// `None` once the endpoint is broken.
    wires: Option<Wires>,
    pub(crate) ops: Operations,
    chunk: usize,
    /// Chunks announced by the peer so far.
    announced: u64,
    /// Announced chunks that have not arrived.
    outstanding: usize,
    notifications: Notifications,
    /// The regions that the peer may name.
    pub(crate) published: PublishedRegions,
    /// The control stream brings nothing more. Bytes that were announced may still arrive.
    ending: Option<Cause>,
    broken: Option<Arc<Cause>>,
    /// Breaks the endpoint once the records that have arrived can be read.
    unsettled: Option<Cause>,
    stats: EndpointStats,
    /// Reused in every turn.
    progress: Progress,
    /// Counts turns.
    turns: usize,
    /// Turns in a row that did nothing.
    idle_turns: u32,
    /// The next turn reads records that no watch shows: none were read yet, or none while notifications had no room.
    reads_again: bool,
    /// What is left to do does not only wait for TCP.
    may_go_on: bool,
    /// Reused by every wait.
    watches: Vec<Watch>,
}

impl Core {
    pub(crate) fn new(fabric: Arc<FabricState>, mut wires: Wires, chunk: usize) -> Self {
        wires.control.begin();
        Self {
            fabric,
            wires: Some(wires),
            ops: Operations::default(),
            chunk,
            announced: 0,
            outstanding: 0,
            notifications: Notifications::default(),
            published: PublishedRegions::default(),
            ending: None,
            broken: None,
            unsettled: None,
            stats: EndpointStats::default(),
            progress: Progress::default(),
            turns: 0,
            idle_turns: 0,
            reads_again: true,
            may_go_on: true,
            watches: Vec::new(),
        }
    }

    pub(crate) fn cause(&self) -> Option<&Arc<Cause>> {
        self.broken.as_ref()
    }

    pub(crate) fn stats(&self) -> EndpointStats {
        self.stats
    }

    /// Returns whether another operation can be taken. A broken endpoint takes all, and fails them.
    pub(crate) fn has_room(&self) -> bool {
        self.wires
            .as_ref()
            .is_none_or(|wires| wires.control.has_room())
    }

    /// Takes the next event. Returns also whether records of the peer are read again, because it was a notification.
    pub(crate) fn next_event(&mut self) -> (Option<Event>, bool) {
        let event = self.ops.events.pop_front();
        let Some(Event::Notified { bytes }) = &event else {
            return (event, false);
        };
        let was_full = !self.notifications.has_room();
        self.notifications.on_taken(bytes.len());
        let reads_again = was_full && self.notifications.has_room();
        self.reads_again |= reads_again;
        (event, reads_again)
    }

    /// Posts a receive. Its records leave with what is sent next, or in the next turn: often that is one packet. If turns
    /// are made by a thread, which may sleep, they leave at once.
    pub(crate) fn receive(&mut self, user: u64, parts: Parts, tags: &[u32]) {
        let mut lens = [0; MAX_PARTS];
        for (len, part) in lens.iter_mut().zip(&*parts) {
            *len = part.room();
        }
        let op = self.ops.receive(user, parts);
        let Some(wires) = &mut self.wires else {
            return self.ops.fail_all();
        };
        for (part, (&tag, len)) in (0..).zip(tags.iter().zip(lens)) {
            wires.control.queue(Record::Posted { op, part, len, tag });
        }
        if !wires.control.has_room() || self.fabric.connections.engine == Engine::Thread {
            let flushed = self.flush_control();
            self.settle(flushed);
        }
        self.may_go_on = true;
    }

    /// Posts a send.
    pub(crate) fn send(&mut self, user: u64, span: Span, tag: u32) {
        let sent = self.ops.send(user, span, tag);
        self.after_post(sent);
    }

    /// Posts a put.
    pub(crate) fn put(&mut self, user: u64, span: Span, key: RegionKey, offset: u64) {
        if span.len() == 0 && self.wires.is_some() {
            return self.ops.events.push_back(Event::Put { user });
        }
        let destination = Destination::Region { key: key.0, offset };
        self.ops.message(Purpose::Put { user }, span, destination);
        self.after_post(Ok(()));
    }

    /// Posts a get.
    pub(crate) fn get(&mut self, user: u64, span: Span, key: RegionKey, offset: u64) {
        if span.len() == 0 && self.wires.is_some() {
            return self.ops.events.push_back(Event::Got { user });
        }
        let len = span.len() as u64;
        let op = self.ops.get(user, span);
        if let Some(wires) = &mut self.wires {
            let key = key.0;
            wires.control.queue(Record::Get {
                op,
                key,
                offset,
                len,
            });
        }
        self.after_post(Ok(()));
    }

    /// Queues a notification behind the puts before it.
    pub(crate) fn notify(&mut self, bytes: Vec<u8>) {
        self.ops.notify(bytes);
        self.after_post(Ok(()));
    }

    fn after_post(&mut self, posted: Result<(), Cause>) {
        if self.wires.is_none() {
            return self.ops.fail_all();
        }
        match posted {
            Ok(()) => self.push(),
            Err(cause) => self.break_with(cause),
        }
    }

    /// Announces and sends what can be sent now.
    fn push(&mut self) {
        let pushed = self.try_push();
        self.settle(pushed);
        self.may_go_on = true;
    }

    /// Goes on with what was not sent yet: most messages are sent when they are posted.
    fn push_rest(&mut self) -> Result<(), Cause> {
        match !self.ops.active.is_empty() || self.is_waiting_for_tcp() {
            true => self.try_push(),
            false => Ok(()),
        }
    }

    /// Sends queued records. When the connection has ended, what arrived before still counts.
    fn flush_control(&mut self) -> Result<(), Cause> {
        let Some(wires) = &mut self.wires else {
            return Ok(());
        };
        if self.ending.is_some() {
            return Ok(());
        }
        match wires.control.flush() {
            Ok(worked) => {
                self.progress.worked |= worked;
                Ok(())
            }
            Err(cause) => {
                self.read_records(Budget::last_records())?;
                self.ending.get_or_insert(cause);
                Ok(())
            }
        }
    }

    /// Makes one turn. Returns whether it did something.
    pub(crate) fn turn(&mut self) -> bool {
        self.progress.worked = false;
        self.turns = self.turns.wrapping_add(1);
        let turned = match self.unsettled.take() {
            Some(cause) => Err(cause),
            None => self.try_turn().and_then(|()| self.look_for_peer()),
        };
        self.settle(turned);
        self.reads_again = false;
        // What a turn has left that did nothing waits for TCP.
        self.may_go_on = self.progress.worked;
        self.progress.worked
    }

    /// Returns whether a turn may do something although TCP has no news: a budget has ended the last one, records wait to leave with what is
    /// sent next, or the end of the connection was noticed by a call that only sends.
    pub(crate) fn needs_turn(&self) -> bool {
        self.reads_again || self.may_go_on && self.has_leftovers()
    }

    fn has_leftovers(&self) -> bool {
        let has_records = |wires: &Wires| !wires.control.is_flushed() || wires.control.has_unread();
        self.ending.is_some()
            || !self.ops.active.is_empty()
            || self.wires.as_ref().is_some_and(has_records)
    }

    fn try_turn(&mut self) -> Result<(), Cause> {
        self.read_records(Budget::records())?;
        self.push_rest()?;
        if self.outstanding > 0 {
            self.pull()?;
            // What was sent may have made room for further chunks.
            self.push_rest()?;
        }
        self.deliver_notifications();
        match self.ending.is_some() && self.is_settled() {
            true => Err(Cause::PeerClosed),
            false => Ok(()),
        }
    }

    /// Ends the endpoint if the peer does not answer. A connection without bytes in flight is probed by TCP (`keep_alive`); one with
    /// bytes in flight is not, and TCP tries to send them again for a quarter of an hour.
    fn look_for_peer(&mut self) -> Result<(), Cause> {
        self.idle_turns = match self.progress.worked {
            true => 0,
            false => self.idle_turns.wrapping_add(1),
        };
        let Some(wires) = &self.wires else {
            return Ok(());
        };
        if self.idle_turns == 0 || !self.idle_turns.is_multiple_of(IDLE_TURNS_PER_CHECK) {
            return Ok(());
        }
        let data = wires.data.iter().map(DataStream::silence);
        match std::iter::once(wires.control.silence())
            .chain(data)
            .flatten()
            .next()
        {
            Some(cause) => Err(cause),
            None => Ok(()),
        }
    }

    /// Returns whether nothing more happens after the end of the peer's records: everything that it had announced has arrived,
    /// and it has acknowledged all that TCP has taken. It may have received a message whole, and told of its end before the
    /// acknowledgements of the data streams, which are other connections.
    fn is_settled(&self) -> bool {
        self.outstanding == 0
            && self
                .wires
                .as_ref()
                .is_some_and(|wires| !wires.data.iter().any(DataStream::awaits_acknowledgement))
    }

    /// Breaks the endpoint after an error: at once, or in the turn of the thread that reads in its wait.
    pub(crate) fn settle(&mut self, result: Result<(), Cause>) {
        let Err(cause) = result else {
            return;
        };
        if self
            .wires
            .as_ref()
            .is_some_and(|wires| wires.control.is_read_by_waiter())
        {
            self.unsettled.get_or_insert(cause);
            return;
        }
        // The peer may have said why before its connections ended. An error here comes second, and does not count.
        let _ = self.read_records(Budget::last_records());
        let cause = self.ending.take().unwrap_or(cause);
        self.break_with(cause);
    }

    /// Ends all operations, and tells the peer.
    pub(crate) fn break_with(&mut self, cause: Cause) {
        let Some(mut wires) = self.wires.take() else {
            return;
        };
        if let Some(failure) = cause.to_failure() {
            wires.control.queue(Record::Failed(failure));
        }
        let cause = Arc::new(cause);
        self.broken = Some(Arc::clone(&cause));
        self.ops.events.push_back(Event::Broken(cause));
        self.ops.fail_all();
        self.notifications.drop_waiting();
        self.published.clear();
        self.outstanding = 0;
        self.fabric.connections.linger(Lingering::new(wires));
    }

    /// Takes the connections out, to close the endpoint.
    pub(crate) fn take_wires(&mut self) -> Option<Wires> {
        self.wires.take()
    }

    fn reads_records(&self) -> bool {
        self.ending.is_none()
            && self.outstanding < MAX_ANNOUNCED
            && self.ops.answers() < MAX_ANSWERS
            && self.notifications.has_room()
    }

    /// Takes out what a thread needs to wait without the lock until another turn can do something. It reads the records that end its wait;
    /// the next turn handles them.
    pub(crate) fn begin_wait(&mut self) -> Wait {
        let mut watches = std::mem::take(&mut self.watches);
        watches.clear();
        let reads = self.reads_records();
        let control = self.wires.as_mut().map(|wires| &mut wires.control);
        let reading = control.filter(|_| reads).and_then(Control::take_reading);
        match reading {
            Some(_) => self.watch_others(&mut watches),
            // Another thread has it, or there is nothing to read.
            None => self.watch(&mut watches),
        }
        Wait { watches, reading }
    }

    /// Puts back what a wait has taken.
    pub(crate) fn end_wait(&mut self, wait: Wait) {
        self.watches = wait.watches;
        if let (Some(reading), Some(wires)) = (wait.reading, &mut self.wires) {
            wires.control.put_back(reading);
            self.reads_again |= wires.control.has_unread();
        }
    }

    /// Adds what must happen before another turn can do something.
    pub(crate) fn watch(&self, watches: &mut Vec<Watch>) {
        if let Some(wires) = &self.wires
            && self.reads_records()
        {
            watches.push(wires.control.stream.watch(Interest::Receive));
        }
        self.watch_others(watches);
    }

    /// Adds that, apart from the arrival of records.
    fn watch_others(&self, watches: &mut Vec<Watch>) {
        let Some(wires) = &self.wires else {
            return;
        };
        if self.ending.is_none() && !wires.control.is_flushed() {
            watches.push(wires.control.stream.watch(Interest::Send));
        }
        wires.data.iter().for_each(|data| data.watch(watches));
    }

    /// Returns whether something is left to do that no record of the peer announces: the thread must watch for it.
    pub(crate) fn is_waiting_for_tcp(&self) -> bool {
        self.wires.as_ref().is_some_and(|wires| {
            !wires.control.is_flushed() || wires.data.iter().any(DataStream::is_sending)
        })
    }

    /// Handles the records that have arrived, as far as the budget goes. What it leaves counts as work: there may be nothing to wait for.
    fn read_records(&mut self, mut budget: Budget) -> Result<(), Cause> {
        while self.reads_records() && budget.left() > 0 {
            let Some(wires) = &mut self.wires else {
                return Ok(());
            };
            match wires.control.next() {
                Ok(Some(record)) => {
                    self.progress.worked = true;
                    budget.spend(record.inline_bytes());
                    self.on_record(record)?;
                }
                Ok(None) if wires.control.has_ended() => self.ending = Some(Cause::PeerClosed),
                Ok(None) => return Ok(()),
                Err(cause @ Cause::Stream { .. }) => self.ending = Some(cause),
                Err(cause) => return Err(cause),
            }
        }
        Ok(())
    }

    fn on_record(&mut self, record: Record) -> Result<(), Cause> {
        match record {
            Record::Posted { op, part, len, tag } => {
                self.ops.on_posted(Room { op, part, len, tag })
            }
            Record::Chunk {
                op,
                part,
                carrier,
                offset,
                len,
                total,
            } => {
                let it = Announced {
                    op,
                    part,
                    offset,
                    len,
                    total,
                };
                self.on_chunk(it, carrier)
            }
            Record::Put {
                key,
                carrier,
                offset,
                len,
            } => self.on_put(key, carrier, offset, len),
            Record::Get {
                op,
                key,
                offset,
                len,
            } => self.on_get(op, key, offset, len),
            Record::Notify { .. } => {
                self.on_notify();
                Ok(())
            }
            Record::Bye => {
                self.ending = Some(Cause::PeerClosed);
                Ok(())
            }
            Record::Failed(failure) => {
                self.ending = Some(Cause::of_failure(failure));
                Ok(())
            }
            Record::Hello(_) | Record::Address { .. } | Record::Ready => {
                Err(Violation::Order.into())
            }
        }
    }

    /// Takes the bytes that follow the record of a chunk, or notes that they arrive on a data stream.
    fn on_chunk(&mut self, it: Announced, carrier: Carrier) -> Result<(), Cause> {
        let owner = Owner::Part {
            op: it.op,
            part: it.part,
        };
        match (self.ops.on_chunk(it, self.chunk as u64)?, carrier) {
            (None, _) => Ok(()),
            (Some(place), Carrier::Control) => {
                let bytes = inline(self.wires.as_ref());
                place.copy_in(bytes)?;
                self.on_inline(owner, bytes.len());
                Ok(())
            }
            (Some(place), Carrier::Data(stream)) => {
                let span = place.to_span().ok_or(Violation::Chunk)?;
                self.expect(stream, span, owner)
            }
        }
    }

    fn on_put(&mut self, key: u64, carrier: Carrier, offset: u64, len: u64) -> Result<(), Cause> {
        if len == 0 || len > self.chunk as u64 {
            return Err(Violation::Chunk.into());
        }
        let span = self.published(key, offset, len, |access| access.put)?;
        match carrier {
            Carrier::Data(stream) => self.expect(stream, span, Owner::Put),
            Carrier::Control => {
                let bytes = inline(self.wires.as_ref());
                span.copy_in(0, bytes)?;
                self.on_inline(Owner::Put, bytes.len());
                Ok(())
            }
        }
    }

    fn on_get(&mut self, op: u64, key: u64, offset: u64, len: u64) -> Result<(), Cause> {
        if len == 0 {
            return Err(Violation::Chunk.into());
        }
        let span = self.published(key, offset, len, |access| access.get)?;
        let destination = Destination::Part { op, part: 0 };
        self.ops.message(Purpose::Answer, span, destination);
        Ok(())
    }

    /// Returns a range of a region, if it is published for this.
    fn published(
        &self,
        key: u64,
        offset: u64,
        len: u64,
        permits: impl Fn(crate::region::Access) -> bool,
    ) -> Result<Span, Cause> {
        let region = self.published.find(RegionKey(key));
        let region = region.filter(|region| permits(region.access));
        let range = usize::try_from(offset)
            .ok()
            .zip(usize::try_from(len).ok())
            .and_then(|(offset, len)| Some(offset..offset.checked_add(len)?));
        let span = region
            .zip(range)
            .and_then(|(region, range)| Span::new(&region, range));
        span.ok_or_else(|| Violation::Region.into())
    }

    /// Notes bytes that followed a record, and are in place.
    fn on_inline(&mut self, owner: Owner, bytes: usize) {
        self.stats.received_bytes += bytes as u64;
        self.ops.on_placed(owner, bytes);
    }

    fn expect(&mut self, stream: u16, span: Span, owner: Owner) -> Result<(), Cause> {
        let wires = self.wires.as_mut();
        let stream = wires.and_then(|wires| wires.data.get_mut(usize::from(stream)));
        let stream = stream.ok_or(Violation::UnknownStream)?;
        stream.expect(Expected {
            owner,
            span,
            number: self.announced,
        });
        self.announced += 1;
        self.outstanding += 1;
        Ok(())
    }

    fn on_notify(&mut self) {
        if let Some(wires) = &self.wires {
            let bytes = wires.control.inline().to_vec();
            self.notifications.add(self.announced, bytes);
        }
    }

    fn deliver_notifications(&mut self) {
        let Some(wires) = &self.wires else {
            return;
        };
        let missing = wires
            .data
            .iter()
            .filter_map(DataStream::first_expected)
            .min();
        while let Some(bytes) = self.notifications.next_ready(missing) {
            self.progress.worked = true;
            self.ops.events.push_back(Event::Notified { bytes });
        }
    }

    /// Cuts active messages into chunks, sends the records, and then the chunks.
    fn try_push(&mut self) -> Result<(), Cause> {
        let until = self.stats.sent_bytes.saturating_add(TURN_BYTES as u64);
        let mut budget = Budget::payload();
        loop {
            if self.ending.is_none() {
                self.cut()?;
            }
            self.flush_control()?;
            let Some(wires) = &mut self.wires else {
                return Ok(());
            };
            let before = self.progress.sent.len();
            for stream in wires.in_turn(self.turns) {
                stream.push(&self.fabric.nic, &mut budget, &mut self.progress)?;
            }
            let sent = self.progress.sent.len() > before;
            for (op, bytes) in self.progress.sent.drain(..) {
                self.stats.sent_bytes += bytes as u64;
                self.ops.on_sent(op, bytes);
            }
            if !sent || self.ops.active.is_empty() || self.stats.sent_bytes >= until {
                return Ok(());
            }
        }
    }

    /// Cuts what is active, in order, until the streams have enough to do.
    fn cut(&mut self) -> Result<(), Cause> {
        let Some(wires) = &mut self.wires else {
            return Ok(());
        };
        while let Some(first) = self.ops.active.front()
            && wires.control.has_room()
        {
            let op = match first {
                Active::Notify(bytes) => {
                    cut_notification(&mut wires.control, bytes)?;
                    self.ops.finish_active();
                    continue;
                }
                Active::Message(op) => *op,
            };
            let Some(message) = self.ops.outgoing_mut(op) else {
                self.ops.finish_active();
                continue;
            };
            match cut_message(op, message, wires, self.chunk, &self.fabric.nic)? {
                Cut::Copied(bytes) => {
                    self.progress.sent.push((op, bytes));
                    self.ops.finish_active();
                }
                Cut::Whole => self.ops.finish_active(),
                Cut::Part => {}
                Cut::NoRoom => break,
            }
        }
        Ok(())
    }

    /// Receives what has arrived of the announced chunks.
    fn pull(&mut self) -> Result<(), Cause> {
        let Some(wires) = &mut self.wires else {
            return Ok(());
        };
        let pool = self.fabric.pool_memory();
        let mut budget = Budget::payload();
        let mut pulled = Ok(());
        for stream in wires.in_turn(self.turns) {
            if self.fabric.options.placement == Placement::Direct {
                stream.place(&self.fabric.nic);
            }
            pulled = stream.pull(pool, &mut budget, &mut self.progress);
            if pulled.is_err() {
                break;
            }
        }
        for placed in self.progress.placed.drain(..) {
            self.stats.received_bytes += placed.bytes as u64;
            self.stats.received_by_device += placed.from_device as u64;
            self.outstanding -= usize::from(placed.is_whole);
            self.ops.on_placed(placed.owner, placed.bytes);
        }
        pulled
    }
}

/// Returns the bytes that follow the record that was read last.
fn inline(wires: Option<&Wires>) -> &[u8] {
    wires.map_or(&[], |wires| wires.control.inline())
}
