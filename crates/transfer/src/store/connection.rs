//! One connection of a store: sends headers from host memory and payload from bound memory, and receives replies.

use std::collections::VecDeque;
use std::io::Write as _;
use std::ops::Range;
use std::time::{Duration, Instant};

use client::retry::is_not_ready;
use client::{Cause, retry};
use devmem_tcp::{
    BoundTx, Completions, Interest, RecvError, RxBatch, SendId, Stream, stats::SendCounts,
};

use super::error::StoreError;
use super::ledger::Moment;
use super::received::Received;
use super::session::{Fault, Outgoing, Session, Write};
use super::supply::Supplied;
use crate::checksum::Crc32c;
use crate::load::LoadError;
use crate::parallel::{Connected, InFlight, Pace};

/// Most bytes of one send: its completion makes a sleeping thread look for room again.
const SEND_BYTES: usize = 256 << 10;
/// Bytes that are sent in one turn, more or less: then replies are looked for. What they let a session send may go before what waits.
const TURN_BYTES: usize = 1 << 20;
/// Most bytes of one receive: many replies, which have no payload.
const RECEIVE_BYTES: usize = 4 << 10;
/// Most receives of one turn: what they let a session send leaves together.
const TURN_RECEIVES: usize = 16;
/// Most frags of one receive.
const BATCH_FRAGS: usize = 16;

/// A connection.
#[derive(Debug)]
pub(crate) struct Connection {
    stream: Stream,
    completions: Completions,
    pub(crate) session: Box<dyn Session>,
    /// When it was made.
    pub(crate) since: Moment,
    batch: RxBatch,
    received: Received,
    /// What is being sent.
    sending: Sending,
    /// Requests without a reply, by their name.
    flights: InFlight<Flight>,
    /// Sends of acknowledged pieces that may be incomplete, and their chunks.
    leaving: VecDeque<(SendId, usize)>,
    /// Its payload and replies so far, since a reply is awaited.
    pace: Pace,
}

impl Connected for Connection {
    fn stream(&self) -> &Stream {
        &self.stream
    }

    fn interests(&self) -> &'static [Interest] {
        // A complete send leaves room for the next one.
        &[Interest::Receive, Interest::Complete]
    }
}

/// The rest of what is being sent: headers, in one send, and the payload behind them.
#[derive(Debug, Default)]
struct Sending {
    /// Bytes in host memory.
    text: Vec<u8>,
    /// The request whose payload it is.
    id: u64,
    /// The places of the payload.
    places: VecDeque<Range<usize>>,
}

impl Sending {
    fn is_over(&self) -> bool {
        self.text.is_empty() && self.places.is_empty()
    }
}

/// The memory of a request.
#[derive(Debug)]
struct Flight {
    requested: Moment,
    /// The places of the payload, in order.
    places: Vec<Range<usize>>,
    chunk: Option<usize>,
    last: Option<SendId>,
    /// Bytes of the payload that are not sent yet.
    unsent: u64,
}

/// A request that was acknowledged.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Acknowledged {
    pub(crate) write: Write,
    pub(crate) requested: Moment,
}

impl Connection {
    /// Takes over a connection. Dropping it resets it, unless it was [closed](Self::close): the server may still have
    /// requests that will be made again on another connection.
    pub(crate) fn new(stream: Stream, session: Box<dyn Session>, since: Moment) -> Self {
        stream.set_nonblocking(true);
        // Cannot fail: the NIC belongs to this process, which has just connected.
        let _ = stream.set_linger(Some(Duration::ZERO));
        Self {
            completions: stream.completions(),
            stream,
            session,
            since,
            batch: RxBatch::with_capacity(BATCH_FRAGS),
            received: Received::default(),
            sending: Sending::default(),
            flights: InFlight::default(),
            leaving: VecDeque::new(),
            pace: Pace::new(Instant::now()),
        }
    }

    /// Queues a request, which the session accepts.
    pub(crate) fn request(&mut self, write: Write, supplied: Supplied, requested: Moment) {
        if !self.session.is_waiting() {
            self.pace.restart(Instant::now());
        }
        let id = self.session.request(write);
        let Supplied { places, chunk, .. } = supplied;
        let flight = Flight {
            requested,
            places,
            chunk,
            last: None,
            unsent: write.payload_bytes(),
        };
        self.flights.add(id, flight);
    }

    /// Sends what there is room for, and receives what has come. Returns whether anything was sent or received.
    ///
    /// # Errors
    /// The connection has ended or is of no more use.
    pub(crate) fn turn(&mut self, tx: &BoundTx) -> Result<bool, Fault> {
        let turned = self.send_and_receive(tx);
        // In the middle of a request it would be a part of that.
        if turned.is_err()
            && self.sending.is_over()
            && let Some(word) = self.session.last_word()
        {
            let _ = self.stream.write(&word);
            // The reset would overtake it.
            let _ = self.stream.set_linger(None);
        }
        turned
    }

    fn send_and_receive(&mut self, tx: &BoundTx) -> Result<bool, Fault> {
        self.session.check()?;
        // Also ends the readiness of the stream.
        let completed = self.completions.try_next();
        completed.map_err(|error| Fault::Broken(Cause::of(&error)))?;
        let mut moved = self.send(tx)?;
        for _ in 0..TURN_RECEIVES {
            if !self.receive()? {
                break;
            }
            moved = true;
        }
        Ok(moved)
    }

    /// Checks that the server takes payload or answers: a part of a reply is no progress.
    ///
    /// # Errors
    /// It did neither within `limit`.
    pub(crate) fn check_pace(&self, limit: Duration) -> Result<(), Fault> {
        if !self.session.is_waiting() {
            return Ok(());
        }
        let checked = self.pace.check(Instant::now(), limit);
        checked.map_err(|slow| {
            Fault::Broken(format!("the server answered no request and took {slow}").into())
        })
    }

    /// Sends until there is no more room, or the turn is over. Returns whether anything was sent.
    fn send(&mut self, tx: &BoundTx) -> Result<bool, Fault> {
        let mut total = 0;
        while total < TURN_BYTES {
            match self.send_once(tx)? {
                0 => break,
                sent => total += sent,
            }
        }
        Ok(total > 0)
    }

    /// Sends text, or one part of a payload. Returns how many bytes.
    fn send_once(&mut self, tx: &BoundTx) -> Result<usize, Fault> {
        if self.sending.is_over() {
            self.take_outgoing(tx)?;
        }
        match self.sending.text.is_empty() {
            false => self.send_text(),
            true => self.send_payload(tx),
        }
    }

    /// Takes the texts up to the next payload, and that: a packet has bytes of host memory or of bound memory, so that texts which
    /// are sent together are one packet less.
    fn take_outgoing(&mut self, tx: &BoundTx) -> Result<(), Fault> {
        while self.sending.places.is_empty()
            && let Some(next) = self.session.outgoing()
        {
            match next {
                Outgoing::Text(text) if self.sending.text.is_empty() => self.sending.text = text,
                Outgoing::Text(text) => self.sending.text.extend(text),
                Outgoing::Payload { id, range } => {
                    (self.sending.id, self.sending.places) = (id, self.places_of(id, range));
                }
                Outgoing::Digest { id, range } => {
                    let mut sum = Crc32c::default();
                    for place in self.places_of(id, range) {
                        let added = sum.add_memory(tx.memory(), place);
                        added.map_err(|error| Fault::Fatal(StoreError::Digest(error.into())))?;
                    }
                    self.sending.text.extend(sum.value().to_le_bytes());
                }
            }
        }
        Ok(())
    }

    fn places_of(&self, id: u64, range: Range<u64>) -> VecDeque<Range<usize>> {
        let flight = self.flights.get(id);
        flight.map_or_else(VecDeque::new, |flight| part_of(&flight.places, range))
    }

    fn send_text(&mut self) -> Result<usize, Fault> {
        match self.stream.write(&self.sending.text) {
            Ok(sent) => {
                self.sending.text.drain(..sent);
                Ok(sent)
            }
            Err(error) if is_not_ready(&error) => Ok(0),
            Err(error) => Err(Fault::Broken(Cause::of_io(error).during("send a request"))),
        }
    }

    fn send_payload(&mut self, tx: &BoundTx) -> Result<usize, Fault> {
        let Sending { id, places, .. } = &mut self.sending;
        if places.is_empty() {
            return Ok(0);
        }
        let sent = match self.stream.send(tx, &first_bytes(places)) {
            Ok(sent) => sent,
            Err(error) if error.kind().is_not_ready() => return Ok(0),
            Err(error) => return Err(of_send(error)),
        };
        advance(places, sent.bytes());
        self.pace.add(sent.bytes() as u64, Instant::now());
        if let Some(flight) = self.flights.get_mut(*id) {
            flight.last = Some(sent);
            flight.unsent = flight.unsent.saturating_sub(sent.bytes() as u64);
        }
        Ok(sent.bytes())
    }

    /// Receives what has come of replies. Returns whether that was anything.
    fn receive(&mut self) -> Result<bool, Fault> {
        let given = self.received.give(&mut *self.session)?;
        if self.session.missing() == 0 {
            return Ok(given);
        }
        let received = match self.stream.recv_at_most(&mut self.batch, RECEIVE_BYTES) {
            Ok(0) => return Err(self.session.on_end()),
            Ok(received) => received,
            Err(RecvError::WouldBlock | RecvError::TimedOut { .. }) => return Ok(given),
            Err(error) => return Err(of_receive(error)),
        };
        let copied = self.batch.copy_to(self.received.room(received));
        copied.map_err(|error| of_receive(error.into()))?;
        let released = self.batch.release();
        released.map_err(|error| Fault::Broken(Cause::of(&error)))?;
        self.received.give(&mut *self.session)?;
        Ok(true)
    }

    /// Returns a request that was acknowledged, once.
    ///
    /// # Errors
    /// It was acknowledged before the server had all of it.
    pub(crate) fn acknowledged(&mut self) -> Result<Option<Acknowledged>, Fault> {
        let Some((id, write)) = self.session.completed() else {
            return Ok(None);
        };
        let flight = self.flights.remove(id).filter(|it| it.unsent == 0);
        let Some(flight) = flight else {
            return Err(self
                .session
                .invalid("a reply before the end of its request"));
        };
        if let (Some(last), Some(chunk)) = (flight.last, flight.chunk) {
            self.leaving.push_back((last, chunk));
        }
        self.pace.restart(Instant::now());
        let requested = flight.requested;
        Ok(Some(Acknowledged { write, requested }))
    }

    /// Returns a chunk that is free again: its piece is acknowledged, and its send complete.
    pub(crate) fn next_free(&mut self) -> Option<usize> {
        let (last, chunk) = *self.leaving.front()?;
        // An error breaks the connection elsewhere.
        if !self.completions.is_complete(last).unwrap_or(false) {
            return None;
        }
        self.leaving.pop_front();
        Some(chunk)
    }

    /// Resets a broken connection. Returns the chunks that are free once no send is in flight.
    pub(crate) fn reset(mut self) -> (SendCounts, Vec<usize>) {
        let counts = self.completions.counts().unwrap_or_default();
        let waiting = self.flights.take().filter_map(|flight| flight.chunk);
        let leaving = self.leaving.into_iter().map(|(_, chunk)| chunk);
        (counts, leaving.chain(waiting).collect())
    }

    /// Ends a connection that awaits nothing.
    pub(crate) fn close(mut self) -> SendCounts {
        let goodbye = self.session.goodbye();
        // The server also notices the end of the connection.
        let _ = self.stream.write(&goodbye);
        let _ = self.stream.set_linger(None);
        self.completions.counts().unwrap_or_default()
    }
}

/// Returns the places of a range of the bytes that `places` have in order.
fn part_of(places: &[Range<usize>], range: Range<u64>) -> VecDeque<Range<usize>> {
    let (mut before, mut part) = (0, VecDeque::new());
    for place in places {
        let end = before + place.len() as u64;
        let (from, to) = (range.start.max(before), range.end.min(end));
        if from < to {
            // Both are inside of the place.
            let inside = |at: u64| place.start + usize::try_from(at - before).unwrap_or(0);
            part.push_back(inside(from)..inside(to));
        }
        before = end;
    }
    part
}

/// Returns the first bytes of `places`, for one send.
fn first_bytes(places: &VecDeque<Range<usize>>) -> Vec<Range<usize>> {
    let mut room = SEND_BYTES;
    let mut first = Vec::new();
    for place in places {
        let len = place.len().min(room);
        if len > 0 {
            first.push(place.start..place.start + len);
        }
        room -= len;
    }
    first
}

/// Removes the first `sent` bytes, and empty places.
fn advance(places: &mut VecDeque<Range<usize>>, mut sent: usize) {
    while let Some(first) = places.front_mut() {
        let now = first.len().min(sent);
        first.start += now;
        sent -= now;
        if first.start < first.end {
            return;
        }
        places.pop_front();
    }
}

fn of_receive(error: RecvError) -> Fault {
    match retry::may_help(error.kind()) {
        true => Fault::Broken(error.into()),
        false => LoadError::from(error).into(),
    }
}

fn of_send(error: devmem_tcp::Error) -> Fault {
    match retry::may_help(error.kind()) {
        true => Fault::Broken(Cause::of(&error).during("send a payload")),
        false => Fault::Fatal(StoreError::Send(error)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_of_a_payload_has_its_places_and_no_others() {
        let places = [100..110, 5..5, 40..60];
        for (range, expected) in [
            (0..30, vec![100..110, 40..60]),
            (9..11, vec![109..110, 40..41]),
            (10..12, vec![40..42]),
            (29..40, vec![59..60]),
            (30..40, vec![]),
        ] {
            assert_eq!(part_of(&places, range), expected);
        }
    }

    #[test]
    fn a_payload_of_many_places_is_sent_in_parts_without_a_gap() {
        let places = [0..SEND_BYTES - 10, 900_000..900_030, 5..5, 800_000..800_001];
        let mut places: VecDeque<_> = places.into();
        assert_eq!(first_bytes(&places), [0..SEND_BYTES - 10, 900_000..900_010]);
        advance(&mut places, SEND_BYTES - 3);
        assert_eq!(first_bytes(&places), [900_007..900_030, 800_000..800_001]);
        advance(&mut places, 23);
        assert_eq!(first_bytes(&places), [800_000..800_001]);
        advance(&mut places, 1);
        assert!(places.is_empty());
    }
}
