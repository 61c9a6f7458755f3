//! An endpoint: one end of the connections between two processes, for messages.

use std::fmt;
use std::ops::Range;
use std::sync::{Arc, MutexGuard};
use std::time::{Duration, Instant};

use crate::core::{Core, EndpointStats};
use crate::error::{Cause, PostError, PublishError};
use crate::inner::FabricInner;
use crate::limits::{MAX_NOTIFY_BYTES, MAX_PARTS};
use crate::linger::Lingering;
use crate::operations::{Event, Incoming, Parts};
use crate::options::Engine;
use crate::record::Record;
use crate::region::{Access, Region, RegionKey};
use crate::shared::Shared;
use crate::wires::Wires;

/// One part of a receive: room for one message.
#[derive(Clone, Debug)]
pub struct Part<'a> {
    /// Where the message goes.
    pub region: &'a Region,
    /// The bytes of the region that it may fill.
    pub range: Range<usize>,
    /// The tag of the message.
    pub tag: u32,
}

/// How to close an endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Closing {
    /// What was sent still arrives, in the background, for two seconds at most.
    Linger,
    /// The data streams are reset: what the peer has not acknowledged is lost, and no memory is read any more.
    Now,
}

/// Longest sleep in [`Endpoint::wait_event`]: another thread may have posted an operation that waits for something else.
const SLICE: Duration = Duration::from_millis(10);

/// A limit from which on one more [`SLICE`] does not matter: it counts from the end of the first wait that brings no event, so that a message
/// which comes at once needs no look at the clock.
const LONG_LIMIT: Duration = Duration::from_secs(1);

/// One end of a connection between two processes. Its functions do not wait, apart from [`wait_event`](Self::wait_event); any
/// thread may call them.
///
/// Operations are posted with a number of the caller, `user`, and end with one [`Event`] each, in any order. They make
/// progress whenever [`progress`](Self::progress) is called, or all the time with [`Engine::Thread`].
///
/// Dropping it closes it: at once if an operation is not done, otherwise as [`Closing::Linger`].
pub struct Endpoint {
    fabric: Arc<FabricInner>,
    shared: Arc<Shared>,
}

impl fmt::Debug for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Endpoint")
            .field("stats", &self.stats())
            .finish_non_exhaustive()
    }
}

impl Endpoint {
    pub(crate) fn new(fabric: Arc<FabricInner>, wires: Wires, chunk: usize) -> Self {
        let shared = Shared::new(Core::new(Arc::clone(&fabric.state), wires, chunk));
        fabric.serve(&shared);
        Self { fabric, shared }
    }

    fn core(&self) -> MutexGuard<'_, Core> {
        self.shared.core()
    }

    /// Tells the thread what it has to watch after a call of the program, and threads that wait for an event that there is one.
    fn tell(&self, core: MutexGuard<'_, Core>) {
        let connections = &self.fabric.state.connections;
        if connections.engine == Engine::Calls {
            return;
        }
        self.shared.tell(&core);
        let wakes = core.is_waiting_for_tcp();
        drop(core);
        if wakes {
            connections.poller.wake();
        }
    }

    /// Posts a receive: room for one message per part. It is done when each part has its message, which may be shorter than
    /// the part.
    ///
    /// # Errors
    /// [`PostError`]; nothing was posted then.
    pub fn receive(&self, parts: &[Part<'_>], user: u64) -> Result<(), PostError> {
        if !(1..=MAX_PARTS).contains(&parts.len()) {
            return Err(PostError::Parts { parts: parts.len() });
        }
        let mut tags = [0; MAX_PARTS];
        for (tag, part) in tags.iter_mut().zip(parts) {
            *tag = part.tag;
        }
        let room = |part: &Part<'_>| {
            let span = part.region.span(self.fabric.state.id, part.range.clone());
            span.map(Incoming::new)
        };
        let rooms = match parts {
            [part] => Parts::One([room(part)?]),
            parts => Parts::Several(parts.iter().map(room).collect::<Result<_, _>>()?),
        };
        let mut core = self.core();
        if !core.has_room() || !core.ops.has_room_to_receive() {
            return Err(PostError::Full);
        }
        core.receive(user, rooms, &tags[..parts.len()]);
        self.tell(core);
        Ok(())
    }

    /// Posts a send of bytes that must not change until it is done. It goes to the first part of its tag that the peer has
    /// posted, now or later.
    ///
    /// # Errors
    /// [`PostError`]; nothing was posted then.
    pub fn send(
        &self,
        region: &Region,
        range: Range<usize>,
        tag: u32,
        user: u64,
    ) -> Result<(), PostError> {
        let span = region.span(self.fabric.state.id, range)?;
        let mut core = self.room_to_send()?;
        core.send(user, span, tag);
        self.tell(core);
        Ok(())
    }

    /// Lets the peer of this endpoint put into a region or get from it, as the region's [`Access`] says, and returns the key by which it
    /// names the region. No other endpoint accepts the key. It is valid until the last handle of the region is dropped; the same region has the
    /// same key again.
    ///
    /// # Errors
    /// [`PublishError`]: the region is private, or one of another fabric.
    pub fn publish(&self, region: &Region) -> Result<RegionKey, PublishError> {
        if !region.is_of(self.fabric.state.id) {
            return Err(PublishError::OtherFabric);
        }
        if region.inner().access == Access::PRIVATE {
            return Err(PublishError::Private);
        }
        let key = self.core().published.publish(region.inner());
        key.map_err(PublishError::System)
    }

    /// Posts a put: copies bytes to `offset` of a region that the peer has published. Puts are not ordered among each other.
    ///
    /// # Errors
    /// [`PostError`]; nothing was posted then. A region or range that is not published breaks the endpoint.
    pub fn put(
        &self,
        region: &Region,
        range: Range<usize>,
        to: RegionKey,
        offset: u64,
        user: u64,
    ) -> Result<(), PostError> {
        let span = region.span(self.fabric.state.id, range)?;
        let mut core = self.room_to_send()?;
        core.put(user, span, to, offset);
        self.tell(core);
        Ok(())
    }

    /// Posts a get: copies the bytes at `offset` of a region that the peer has published to `range` of a region here.
    ///
    /// # Errors
    /// [`PostError`]; nothing was posted then. A region or range that is not published breaks the endpoint.
    pub fn get(
        &self,
        from: RegionKey,
        offset: u64,
        region: &Region,
        range: Range<usize>,
        user: u64,
    ) -> Result<(), PostError> {
        let span = region.span(self.fabric.state.id, range)?;
        let mut core = self.core();
        if !core.has_room() || !core.ops.has_room_to_receive() {
            return Err(PostError::Full);
        }
        core.get(user, span, from, offset);
        self.tell(core);
        Ok(())
    }

    /// Sends a notification, which arrives when the puts posted before it are in place.
    ///
    /// # Errors
    /// [`PostError`]; nothing was posted then.
    pub fn notify(&self, bytes: &[u8]) -> Result<(), PostError> {
        if bytes.len() > MAX_NOTIFY_BYTES {
            return Err(PostError::NotifyTooLong { bytes: bytes.len() });
        }
        let mut core = self.room_to_send()?;
        if !core.ops.has_room_to_notify() {
            return Err(PostError::Full);
        }
        core.notify(bytes.to_vec());
        self.tell(core);
        Ok(())
    }

    fn room_to_send(&self) -> Result<MutexGuard<'_, Core>, PostError> {
        let core = self.core();
        match core.has_room() && core.ops.has_room_to_send() {
            true => Ok(core),
            false => Err(PostError::Full),
        }
    }

    /// Moves what can be moved without waiting: at most a few MiB and a few hundred records, whatever the peer sends. Returns whether it
    /// moved anything; if so, more may be there.
    pub fn progress(&self) -> bool {
        self.fabric.state.connections.step_lingering();
        let mut core = self.core();
        let worked = core.turn();
        self.tell(core);
        worked
    }

    /// Returns the next event. A program that does not take them stops a peer that notifies it: see [`Event::Notified`].
    pub fn next_event(&self) -> Option<Event> {
        let connections = &self.fabric.state.connections;
        let (event, reads_again) = self.core().next_event();
        if reads_again && connections.engine == Engine::Thread {
            // It does not watch for records that it would not read.
            connections.poller.wake();
        }
        event
    }

    /// Makes progress until there is an event, for `at_most`; `None`: there was none in that time. Spins for a short time, then
    /// sleeps.
    pub fn wait_event(&self, at_most: Duration) -> Option<Event> {
        match self.fabric.state.connections.engine {
            Engine::Thread => self.sleep_until_event(at_most),
            Engine::Calls => self.progress_until_event(at_most),
        }
    }

    /// Waits for the thread. Another thread of the program may take the event that has ended the sleep.
    fn sleep_until_event(&self, at_most: Duration) -> Option<Event> {
        let started = Instant::now();
        loop {
            let left = at_most.saturating_sub(started.elapsed());
            match self.next_event() {
                None if !left.is_zero() => self.shared.wait(left),
                event => return event,
            }
        }
    }

    /// Waits for what a turn needs before it makes one: one that finds nothing costs as much as one that receives a message.
    fn progress_until_event(&self, at_most: Duration) -> Option<Event> {
        let connections = &self.fabric.state.connections;
        let mut core = self.core();
        if let (Some(event), _) = core.next_event() {
            return Some(event);
        }
        let mut started = (at_most < LONG_LIMIT).then(Instant::now);
        let mut left = at_most;
        loop {
            if !core.needs_turn() && !left.is_zero() {
                let mut wait = core.begin_wait();
                drop(core);
                wait.run(&connections.poller, left.min(SLICE));
                core = self.core();
                core.end_wait(wait);
            }
            let worked = core.turn();
            if let (Some(event), _) = core.next_event() {
                return Some(event);
            }
            drop(core);
            connections.step_lingering();
            let started = started.get_or_insert_with(Instant::now);
            left = at_most.saturating_sub(started.elapsed());
            if !worked && left.is_zero() {
                return None;
            }
            core = self.core();
        }
    }

    /// Returns why the endpoint broke, if it has.
    pub fn cause(&self) -> Option<Arc<Cause>> {
        self.core().cause().cloned()
    }

    /// Returns what the endpoint has moved.
    pub fn stats(&self) -> EndpointStats {
        self.core().stats()
    }

    /// Closes the endpoint, and returns at once. Operations that are not done have no event any more.
    pub fn close(self, closing: Closing) {
        self.shut(closing);
    }

    fn shut(&self, closing: Closing) {
        let mut core = self.core();
        let Some(mut wires) = core.take_wires() else {
            return;
        };
        core.ops.fail_all();
        drop(core);
        wires.control.queue(Record::Bye);
        if closing == Closing::Now {
            for data in wires.data.drain(..) {
                data.reset();
            }
        }
        self.fabric.state.connections.linger(Lingering::new(wires));
    }
}

impl Drop for Endpoint {
    fn drop(&mut self) {
        self.fabric.stop_serving(&self.shared);
        let closing = match self.core().ops.is_busy() {
            true => Closing::Now,
            false => Closing::Linger,
        };
        self.shut(closing);
    }
}

#[cfg(test)]
mod tests {
    use devmem_tcp::{Impairment, Netdev};

    use super::*;
    use crate::record::Failure;
    use crate::region::{Buffer, Memory};
    use crate::{Fabric, Options};

    /// Two endpoints in virtual time, connected to each other, and their fabrics.
    fn pair() -> [(Endpoint, Fabric); 2] {
        let (a, b) = Netdev::pair(Impairment::NONE).unwrap();
        let [a, b] = [a, b].map(|nic| Fabric::open(nic, Options::default()).unwrap());
        let listener = b.listen().unwrap();
        let mut dial = a.dial(&listener.ticket()).unwrap();
        let (mut ours, mut theirs) = (None, None);
        while ours.is_none() || theirs.is_none() {
            ours = ours.or(dial.poll().unwrap());
            theirs = theirs.or(listener.poll().unwrap());
        }
        [(ours.unwrap(), a), (theirs.unwrap(), b)]
    }

    /// Makes turns until neither end has anything to do.
    fn settle(ends: &[(Endpoint, Fabric); 2]) {
        let mut idle = 0;
        while idle < 4 {
            idle = match ends[0].0.progress() | ends[1].0.progress() {
                true => 0,
                false => idle + 1,
            };
        }
    }

    fn region(fabric: &Fabric) -> Region {
        let memory = Memory::Host(Buffer::new(vec![0; 8]));
        fabric.register(memory, Access::PRIVATE).unwrap()
    }

    fn receive(end: &Endpoint, region: &Region) {
        let (range, tag) = (0..8, 0);
        end.receive(&[Part { region, range, tag }], 1).unwrap();
    }

    #[test]
    fn a_wait_begins_with_a_turn_only_for_what_tcp_does_not_tell() {
        let ends = pair();
        settle(&ends);
        let [(ours, a), (theirs, b)] = &ends;
        let needs_turn = |end: &Endpoint| end.core().needs_turn();
        assert!(!needs_turn(ours) && !needs_turn(theirs));
        let (source, target) = (region(a), region(b));
        receive(theirs, &target);
        assert!(needs_turn(theirs), "a record has to leave");
        settle(&ends);
        ours.send(&source, 0..8, 0, 2).unwrap();
        assert!(!needs_turn(ours), "the message has left");
        let is_sent = matches!(
            ours.wait_event(Duration::ZERO),
            Some(Event::Sent { user: 2 })
        );
        assert!(is_sent && !needs_turn(theirs));
        let arrived = theirs.wait_event(Duration::from_secs(1));
        assert!(matches!(arrived, Some(Event::Received { user: 1, .. })));
        assert!(!needs_turn(theirs), "all records are read");
        receive(theirs, &target);
        assert!(needs_turn(theirs), "a record has to leave");
        receive(ours, &source);
        settle(&ends);
        receive(theirs, &target);
        theirs.send(&target, 0..8, 0, 3).unwrap();
        assert!(!needs_turn(theirs), "it has left with the message");
    }

    #[test]
    fn a_thread_that_waits_reads_and_turns_of_others_do_not() {
        let ends = pair();
        settle(&ends);
        let [(ours, _), (theirs, _)] = &ends;
        let poller = &theirs.fabric.state.connections.poller;
        let mut wait = theirs.core().begin_wait();
        ours.notify(b"first").unwrap();
        ours.progress();
        wait.run(poller, Duration::from_secs(1));
        ours.notify(b"second").unwrap();
        ours.progress();
        while theirs.progress() {}
        assert!(theirs.next_event().is_none(), "a turn has overtaken it");
        let mut other = theirs.core().begin_wait();
        other.run(poller, Duration::from_secs(1));
        theirs.core().end_wait(other);
        theirs.core().end_wait(wait);
        assert!(
            theirs.core().needs_turn(),
            "what it has read is not handled"
        );
        let texts = std::iter::from_fn(|| theirs.wait_event(Duration::ZERO));
        let texts: Vec<_> = texts.map(|event| format!("{event:?}")).collect();
        let expected = [&b"first"[..], b"second"].map(<[u8]>::to_vec);
        let expected = expected.map(|bytes| format!("{:?}", Event::Notified { bytes }));
        assert_eq!(texts, expected);
    }

    /// Breaks the endpoint of a peer that has `said` why and reset its connections, by `fail`, while a thread reads. Returns the cause.
    fn cause_after(said: Option<Failure>, fail: impl FnOnce(&Endpoint, &Fabric)) -> String {
        let ends = pair();
        settle(&ends);
        let [(ours, _), (theirs, b)] = &ends;
        let wait = theirs.core().begin_wait();
        let mut wires = ours.core().take_wires().unwrap();
        if let Some(said) = said {
            wires.control.queue(Record::Failed(said));
        }
        wires.control.flush().unwrap();
        let resets = wires.control.stream.set_linger(Some(Duration::ZERO));
        resets.unwrap();
        drop(wires);
        fail(theirs, b);
        settle(&ends);
        assert!(theirs.cause().is_none(), "nobody has read why");
        theirs.core().end_wait(wait);
        settle(&ends);
        theirs.cause().unwrap().to_string()
    }

    /// Fails to send a record: the reset has arrived before.
    fn post(end: &Endpoint, fabric: &Fabric) {
        let listener = fabric.listen().unwrap();
        for _ in 0..4 {
            assert!(listener.poll().unwrap().is_none());
        }
        receive(end, &region(fabric));
        assert!(!end.progress(), "the record was sent");
    }

    #[test]
    fn what_the_peer_has_said_is_the_cause_although_another_thread_reads() {
        let said = Some(Failure::Region);
        let cause = Cause::of_failure(Failure::Region).to_string();
        assert_eq!(cause_after(said, post), cause, "records cannot be sent");
        let breaks = |end: &Endpoint, _: &Fabric| end.core().settle(Err(Cause::MemoryGone));
        assert_eq!(cause_after(said, breaks), cause);
    }

    #[test]
    fn what_the_reader_finds_is_the_cause_if_the_peer_has_said_nothing() {
        let found = Cause::PeerClosed.to_string();
        assert_eq!(cause_after(None, post), found, "not what the send found");
    }

    #[test]
    fn connections_that_break_while_a_thread_waits_linger_to_their_end() {
        let ends = pair();
        settle(&ends);
        let [(ours, _), (theirs, _)] = ends;
        let board = Arc::clone(&theirs.fabric.state.connections);
        let wait = theirs.core().begin_wait();
        theirs.core().break_with(Cause::PeerClosed);
        theirs.core().end_wait(wait);
        let mut left = board.step_lingering();
        assert_eq!(left, 1);
        for _ in 0..20 {
            ours.progress();
            left = board.step_lingering();
        }
        assert_eq!(left, 0, "it waits for the time limit");
    }

    #[test]
    fn a_wait_goes_on_with_what_a_budget_has_left() {
        let ends = pair();
        settle(&ends);
        let [(ours, _), (theirs, _)] = &ends;
        // More records than a turn reads.
        let all = 300;
        for _ in 0..all {
            ours.notify(b"eight by").unwrap();
            ours.progress();
        }
        let mut taken = 1;
        assert!(theirs.wait_event(Duration::ZERO).is_some());
        assert!(theirs.core().needs_turn(), "records are left");
        while theirs.wait_event(Duration::ZERO).is_some() {
            taken += 1;
        }
        assert_eq!(taken, all);
        assert!(!theirs.core().needs_turn());
    }
}
