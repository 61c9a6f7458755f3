//! One connection of a load: moves bytes between the stream and the session, and payload to its place.

mod foretelling;
mod plan;

use std::collections::VecDeque;
use std::io::Write;
use std::time::{Duration, Instant};

use devmem_tcp::{Interest, Netdev, RecvError, RxBatch, Stream, stats::StreamStats};

use super::error::LoadError;
use super::landing::Landing;
use super::pool::Pool;
use super::session::{Fault, Next, Session};
use crate::parallel::{Connected, Pace, Piece, is_not_ready, retry};
use plan::Plan;

/// Most frags of one receive.
const BATCH_FRAGS: usize = 1024;
/// Most headers that one turn reads after each other: the end of one response, and the head of the next.
const HEADERS_AT_ONCE: usize = 4;
/// Divisor: a connection with several requests that brings nothing for a third of the limit is tried with one at a time.
const STALL: u32 = 3;
/// Most bytes to look at in search of the end of a header.
const TEXT_BYTES: usize = 4096;

/// A connection.
#[derive(Debug)]
pub(crate) struct Connection {
    stream: Stream,
    /// Its counters before the load, for what it has received before, perhaps with no memory bound.
    before: StreamStats,
    pub(crate) session: Box<dyn Session>,
    batch: RxBatch,
    text: Vec<u8>,
    /// What the NIC was told of the places of the next bytes.
    plan: Plan,
    /// Received bytes that lay in the place of other payload than was foretold.
    moved: VecDeque<u8>,
    /// Bytes that the session has taken.
    taken: u64,
    /// Its payload so far, since a request is awaited.
    pace: Pace,
    /// Payload bytes that were placed.
    pub(crate) placed: u64,
    /// Payload bytes of its whole pieces.
    pub(crate) whole: u64,
    /// How often other payload came than was foretold.
    pub(crate) mispredicted: u64,
}

impl Connected for Connection {
    fn stream(&self) -> &Stream {
        &self.stream
    }

    fn interests(&self) -> &'static [Interest] {
        match self.session.is_waiting() {
            true => &[Interest::Receive],
            // The server may have closed it, which does no harm.
            false => &[],
        }
    }
}

impl Connection {
    pub(crate) fn new(stream: Stream, session: Box<dyn Session>) -> Self {
        stream.set_nonblocking(true);
        Self {
            before: stream.stats(),
            stream,
            session,
            batch: RxBatch::with_capacity(BATCH_FRAGS),
            text: Vec::new(),
            plan: Plan::default(),
            moved: VecDeque::new(),
            taken: 0,
            pace: Pace::new(Instant::now()),
            placed: 0,
            whole: 0,
            mispredicted: 0,
        }
    }

    /// Sends what is to be sent and receives once. Returns whether any bytes came.
    ///
    /// # Errors
    /// The connection has ended or is of no more use.
    pub(crate) fn turn(&mut self, landing: &mut Landing<'_>, now: Instant) -> Result<bool, Fault> {
        let turned = self.send_and_receive(landing, now);
        // In the middle of a request it would be a part of that.
        if turned.is_err()
            && self.session.outgoing().is_empty()
            && let Some(word) = self.session.last_word()
        {
            let _ = self.stream.write(&word);
        }
        turned
    }

    fn send_and_receive(&mut self, landing: &mut Landing<'_>, now: Instant) -> Result<bool, Fault> {
        if !self.session.outgoing().is_empty() {
            // A server nearby answers at once.
            self.place_next(landing)?;
        }
        self.send()?;
        let mut heard = false;
        // The NIC has to know where payload belongs before it arrives, so the headers before it are read at once.
        for _ in 0..=HEADERS_AT_ONCE {
            let received = self.step(landing, now)?;
            let has_bytes = received.is_some_and(|bytes| bytes > 0);
            heard |= has_bytes;
            self.taken += received.unwrap_or(0) as u64;
            self.place_next(landing)?;
            let is_header = matches!(self.session.next(), Next::Text(_) | Next::Header(_));
            if !has_bytes || !is_header {
                break;
            }
        }
        if !self.session.is_waiting() {
            self.pace.restart(now);
        }
        Ok(heard)
    }

    /// Receives once. Returns the number of bytes, `None` if there are none yet.
    fn step(&mut self, landing: &mut Landing<'_>, now: Instant) -> Result<Option<usize>, Fault> {
        let received = match self.session.next() {
            Next::Nothing => return Ok(Some(0)),
            next if !self.moved.is_empty() && !matches!(next, Next::Zeros { .. }) => {
                return self.take_moved(next, landing, now);
            }
            Next::Text(most) => return self.read_text(most),
            Next::Header(len) => return self.read_header(len),
            Next::Payload { at, len } => self.read_payload(at, len, landing)?,
            Next::Zeros { at, len } => {
                landing.zeros(at, len)?;
                self.placed += len;
                self.session.on_bytes(len)?;
                Some(to_usize(len))
            }
            // Of a file that was sent whole: it ends.
            Next::Skip(len) => self.skip(len)?,
        };
        self.pace.add(received.unwrap_or(0) as u64, now);
        Ok(received)
    }

    /// Returns a piece that has become whole, once.
    pub(crate) fn completed(&mut self, now: Instant) -> Option<Piece> {
        let piece = self.session.completed()?;
        self.whole += piece.len();
        self.pace.restart(now);
        Some(piece)
    }

    /// Checks that requested payload comes: heads, trailers and empty chunks are no progress.
    ///
    /// # Errors
    /// Too little came within `limit`.
    pub(crate) fn check_pace(&self, now: Instant, limit: Duration) -> Result<(), Fault> {
        if !self.session.is_waiting() {
            return Ok(());
        }
        let checked = self.pace.check(now, limit);
        let slow = |slow| {
            let remedy = "of a server that needs longer for its first byte: --idle-limit SECONDS";
            Fault::Broken(format!("the server sent {slow}\n  {remedy}"))
        };
        checked.map_err(slow)
    }

    /// Ends the connection, unless `pool` keeps it for another session, and returns what it has counted during the load.
    pub(crate) fn close(mut self, pool: Option<&Pool>, nic: &Netdev) -> StreamStats {
        if !self.session.is_waiting() {
            self.session.say_goodbye();
            // The server also notices the end of the connection.
            let _ = self.send();
        }
        // The counters then show frags that could not be returned.
        let is_released = self.batch.release().is_ok();
        let counted = self.stream.stats().since(self.before);
        if let Some(hop) = self.session.reusable()
            && let Some(pool) = pool
            && is_released
        {
            pool.keep(nic, hop, self.stream);
        }
        counted
    }

    /// Returns whether it waits with several requests for longer than a server needs for one, which some servers cannot answer.
    pub(crate) fn stalls_with_several(&self, now: Instant, limit: Duration) -> bool {
        let has_several = self.session.answers_in_order() && self.session.outstanding() > 1;
        has_several && self.pace.check(now, limit / STALL).is_err()
    }

    fn send(&mut self) -> Result<(), Fault> {
        let outgoing = self.session.outgoing();
        while !outgoing.is_empty() {
            match self.stream.write(outgoing) {
                Ok(sent) => drop(outgoing.drain(..sent)),
                Err(error) if is_not_ready(&error) => break,
                Err(error) => return Err(Fault::Broken(format!("send a request: {error}"))),
            }
        }
        Ok(())
    }

    /// Looks at the next bytes, and takes those of the header. The rest may be payload, which must not be copied here.
    fn read_text(&mut self, most: usize) -> Result<Option<usize>, Fault> {
        self.text.resize(most.min(TEXT_BYTES), 0);
        let seen = match self.stream.peek(&mut self.text) {
            Ok(0) => return Err(self.session.on_end()),
            Ok(seen) => seen,
            Err(error) => return none_yet(error),
        };
        let of_header = self.session.on_text(&self.text[..seen])?.min(seen);
        let mut left = of_header;
        while left > 0 {
            // These bytes are queued, so no receive waits.
            match self.stream.recv_at_most(&mut self.batch, left) {
                Ok(0) => return Err(self.session.on_end()),
                Ok(received) => left -= received.min(left),
                Err(error) => return Err(broken(error)),
            }
        }
        self.release()?;
        Ok(Some(of_header))
    }

    /// Receives the next bytes, all of which belong to a header.
    fn read_header(&mut self, len: usize) -> Result<Option<usize>, Fault> {
        let received = match self.receive(len.min(TEXT_BYTES)) {
            Ok(received) => received,
            Err(error) => return none_yet(error),
        };
        if received == 0 {
            return Err(self.session.on_end());
        }
        self.text.resize(received, 0);
        let copied = self.batch.copy_to(&mut self.text);
        copied.map_err(LoadError::Gather)?;
        self.release()?;
        self.session.on_text(&self.text)?;
        Ok(Some(received))
    }

    fn read_payload(
        &mut self,
        at: u64,
        len: u64,
        landing: &mut Landing<'_>,
    ) -> Result<Option<usize>, Fault> {
        let most = to_usize(len.min(landing.room(at)));
        let received = match self.receive(most) {
            Ok(received) => received,
            Err(error) => return none_yet(error),
        };
        if received == 0 {
            return Err(self.session.on_end());
        }
        landing.place(at, &mut self.batch, self.session.checksum())?;
        self.release()?;
        self.placed += received as u64;
        self.session.on_bytes(received as u64)?;
        Ok(Some(received))
    }

    fn skip(&mut self, len: u64) -> Result<Option<usize>, Fault> {
        let received = match self.receive(to_usize(len)) {
            Ok(received) => received,
            Err(error) => return none_yet(error),
        };
        if received == 0 {
            return Err(self.session.on_end());
        }
        self.release()?;
        self.session.on_bytes(received as u64)?;
        Ok(Some(received))
    }

    fn receive(&mut self, most: usize) -> Result<usize, RecvError> {
        self.stream.recv_at_most(&mut self.batch, most.max(1))
    }

    /// Returns the tokens at once: the memory is needed for the next bytes.
    fn release(&mut self) -> Result<(), Fault> {
        match self.batch.release() {
            Ok(_) => Ok(()),
            Err(error) => Err(broken(error.into())),
        }
    }
}

fn to_usize(len: u64) -> usize {
    usize::try_from(len).unwrap_or(usize::MAX)
}

/// Returns `None` if there are no bytes yet.
fn none_yet<T>(error: RecvError) -> Result<Option<T>, Fault> {
    match error {
        RecvError::WouldBlock | RecvError::TimedOut { .. } => Ok(None),
        error => Err(broken(error)),
    }
}

fn broken(error: RecvError) -> Fault {
    match retry::may_help(error.kind()) {
        true => Fault::Broken(error.to_string()),
        false => Fault::Fatal(error.into()),
    }
}
