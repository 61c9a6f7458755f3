//! One connection of a load: moves bytes between the wire and the session, and payload to its place.

mod decrypted;
mod direct;
mod host_bytes;
pub(super) mod wire;

use std::time::{Duration, Instant};

use client::{Cause, Piece, Pool, Remedy, Setting, Transport};
use devmem_tcp::{Interest, Netdev, Stream, stats::StreamStats};

use self::decrypted::Decrypted;
use self::direct::Direct;
use self::wire::{Counts, Received, Wire, to_usize};
use super::landing::Landing;
use super::session::{Fault, Next, Session};
use crate::parallel::{Connected, Pace};

/// Most headers that one turn reads after each other: the end of one response, and the head of the next.
const HEADERS_AT_ONCE: usize = 4;
/// Divisor: a connection with several requests that brings nothing for a third of the limit is tried with one at a time.
const STALL: u32 = 3;

/// Bytes that are worth a turn, if so many must come. A server that is slower than this receiver wakes it for each packet otherwise: with one that sends
/// 100 MB/s in portions of 16 KiB, the thread then takes a third more CPU time. They fit into the second-level cache.
const TURN_BYTES: usize = 256 << 10;

/// A connection.
#[derive(Debug)]
pub(crate) struct Connection {
    wire: Box<dyn Wire>,
    /// Its counters before the load, for what it has received before, perhaps with no memory bound.
    before: StreamStats,
    pub(crate) session: Box<dyn Session>,
    /// Its payload so far, since a request is awaited.
    pace: Pace,
    /// Bytes of the pieces that were requested and are not whole.
    asked_bytes: u64,
    /// Payload bytes that were placed.
    pub(crate) placed: u64,
    /// Payload bytes of its whole pieces.
    pub(crate) whole: u64,
}

impl Connected for Connection {
    fn stream(&self) -> &Stream {
        self.wire.stream()
    }

    fn interests(&self) -> &'static [Interest] {
        match self.session.is_waiting() {
            true => &[Interest::Receive],
            // The server may have closed it, which does no harm.
            false => &[],
        }
    }

    fn least_bytes(&self) -> usize {
        let left = match self.session.next() {
            Next::Payload { len, .. } | Next::Skip(len) => to_usize(len),
            Next::Nothing | Next::Text(_) | Next::Header(_) | Next::Zeros { .. } => 0,
        };
        // Those that were received and not given away do not come again.
        let left = left.saturating_sub(self.wire.held());
        left.clamp(1, TURN_BYTES)
    }
}

impl Connection {
    pub(crate) fn new(transport: Transport, session: Box<dyn Session>) -> Self {
        transport.stream().set_nonblocking(true);
        let before = transport.stream().stats();
        Self {
            wire: match transport {
                Transport::Tcp(stream) => Box::new(Direct::new(stream)),
                Transport::Tls(tls) => Box::new(Decrypted::new(tls)),
            },
            before,
            session,
            pace: Pace::new(Instant::now()),
            asked_bytes: 0,
            placed: 0,
            whole: 0,
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
            && let Some(mut word) = self.session.last_word()
        {
            let _ = self.wire.send(&mut word);
        }
        turned
    }

    fn send_and_receive(&mut self, landing: &mut Landing<'_>, now: Instant) -> Result<bool, Fault> {
        if !self.session.outgoing().is_empty() {
            // A server nearby answers at once.
            self.wire.place_next(&*self.session, landing)?;
        }
        self.send()?;
        let mut heard = false;
        // The NIC has to know where payload belongs before it arrives, so the headers before it are read at once.
        for _ in 0..=HEADERS_AT_ONCE {
            let has_bytes = self.step(landing, now)?;
            heard |= has_bytes;
            self.wire.place_next(&*self.session, landing)?;
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

    /// Receives once. Returns whether any bytes came.
    fn step(&mut self, landing: &mut Landing<'_>, now: Instant) -> Result<bool, Fault> {
        let mut received = Received::default();
        match self.session.next() {
            Next::Nothing => {}
            next @ Next::Zeros { at, len } => {
                landing.zeros(at, len)?;
                self.session.on_bytes(len)?;
                received.count(next, len);
            }
            Next::Text(_) | Next::Header(_) | Next::Payload { .. } | Next::Skip(_) => {
                let came = self.wire.receive(&mut *self.session, landing);
                // What came before a fault stays.
                landing.settle()?;
                received = came?.unwrap_or_default();
            }
        }
        self.placed += received.payload;
        self.pace.add(received.payload + received.skipped, now);
        Ok(received.bytes > 0)
    }

    /// Requests a piece, which its session accepts.
    pub(crate) fn request(&mut self, piece: Piece) {
        self.asked_bytes += piece.len();
        self.session.request(piece);
    }

    /// Returns the bytes of the pieces that were requested and are not whole.
    pub(crate) fn asked_bytes(&self) -> u64 {
        self.asked_bytes
    }

    /// Returns a part of a requested piece that the server leaves out of its answer, once.
    pub(crate) fn left_out(&mut self) -> Option<Piece> {
        let piece = self.session.left_out()?;
        self.asked_bytes -= piece.len();
        Some(piece)
    }

    /// Returns a piece that has become whole, once.
    pub(crate) fn completed(&mut self, now: Instant) -> Option<Piece> {
        let piece = self.session.completed()?;
        self.asked_bytes -= piece.len();
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
            let remedy = Remedy::Set(
                "of a server that needs longer for its first byte: {}",
                Setting::IdleLimit,
            );
            Fault::Broken(Cause::from(format!("the server sent {slow}")).with_remedy(remedy))
        };
        checked.map_err(slow)
    }

    /// Returns what the wire has counted.
    pub(crate) fn counts(&self) -> Counts {
        self.wire.counts()
    }

    /// Ends the connection, unless `pool` keeps it for another session, and returns what it has counted during the load.
    pub(crate) fn close(mut self, pool: Option<&Pool>, nic: &Netdev) -> StreamStats {
        if !self.session.is_waiting() {
            self.session.say_goodbye();
            // The server also notices the end of the connection.
            let _ = self.send();
        }
        let key = self.session.reusable().zip(pool);
        if key.is_none() {
            self.wire.say_end();
        }
        let counted = |stream: &Stream| stream.stats().since(self.before);
        let Some((key, pool)) = key else {
            return counted(self.wire.stream());
        };
        let ended = counted(self.wire.stream());
        match self.wire.into_transport() {
            Some(transport) => {
                let counted = counted(transport.stream());
                pool.keep(nic, key, transport);
                counted
            }
            None => ended,
        }
    }

    /// Returns whether it waits with several requests for longer than a server needs for one, which some servers cannot answer.
    pub(crate) fn stalls_with_several(&self, now: Instant, limit: Duration) -> bool {
        let has_several = self.session.answers_in_order() && self.session.outstanding() > 1;
        has_several && self.pace.check(now, limit / STALL).is_err()
    }

    fn send(&mut self) -> Result<(), Fault> {
        self.wire.send(self.session.outgoing())
    }
}

#[cfg(test)]
mod tests;
