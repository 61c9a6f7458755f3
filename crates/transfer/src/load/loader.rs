//! The loader: connections that fetch pieces until all are whole.

use std::ops::{ControlFlow, Range};
use std::time::{Duration, Instant};

use devmem_tcp::{Netdev, StreamStats};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::connection::{Connection, Patience};
use super::error::LoadError;
use super::landing::{Landed, Landing, Take};
use super::part::{Layout, Part};
use super::piece::Pieces;
use super::retry;
use super::session::Fault;
use super::source::Source;

/// Longest wait without a call of the progress function.
const LOOK_AROUND: Duration = Duration::from_millis(100);
/// Time to poll all connections in turn before sleeping.
const SPIN: Duration = Duration::from_micros(50);
/// Most connections: a server counts them, and each takes its share of the bound memory.
const MAX_CONNECTIONS: usize = 1024;
/// Smallest piece: a request for less costs more than its bytes.
const MIN_PIECE_BYTES: u64 = 4 << 10;

/// Loads parts of a source over several connections.
///
/// Memory must be bound to the NIC for receiving, and the NIC set up to steer these connections there
/// ([`Netdev::plan_receive`] with port 0); otherwise the payload passes through host memory.
#[derive(Clone, Debug)]
pub struct Loader {
    nic: Netdev,
    connections: usize,
    piece_bytes: u64,
    pipeline: usize,
    idle_limit: Duration,
    attempts: u32,
}

/// How far a load is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// Bytes in their place.
    pub bytes: u64,
    /// Bytes of the whole load.
    pub total: u64,
    /// Open connections.
    pub connections: usize,
}

/// The outcome of a load.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Loaded {
    /// Bytes in their place.
    pub bytes: u64,
    /// Time from the first request on.
    pub elapsed: Duration,
    /// Pieces that were requested.
    pub pieces: u64,
    /// Pieces that were requested again, because their connection broke.
    pub repeated: u64,
    /// Connections that were made.
    pub connections: u64,
    /// Connections that broke.
    pub broken: u64,
    /// Counters of all connections. Headers and repeated pieces are included.
    pub stats: StreamStats,
}

impl Loaded {
    /// Adds the outcome of a load that followed.
    pub(crate) fn add(&mut self, next: &Self) {
        self.bytes += next.bytes;
        self.elapsed += next.elapsed;
        self.pieces += next.pieces;
        self.repeated += next.repeated;
        self.connections += next.connections;
        self.broken += next.broken;
        self.add_stats(next.stats);
    }

    fn add_stats(&mut self, stats: StreamStats) {
        self.stats.device_bytes += stats.device_bytes;
        self.stats.linear_bytes += stats.linear_bytes;
        self.stats.device_frags += stats.device_frags;
        self.stats.tokens_returned += stats.tokens_returned;
        self.stats.receives += stats.receives;
    }
}

impl Loader {
    /// Returns a loader with 4 connections, pieces of 16 MiB and 2 requests at a time on each connection.
    pub fn new(nic: &Netdev) -> Self {
        Self {
            nic: nic.clone(),
            connections: 4,
            piece_bytes: 16 << 20,
            pipeline: 2,
            idle_limit: Duration::from_secs(30),
            attempts: 8,
        }
    }

    /// Returns the NIC.
    pub fn nic(&self) -> &Netdev {
        &self.nic
    }

    /// Sets the number of connections, from 1 to 1024. A server that does not serve ranges is asked over one.
    #[must_use]
    pub fn connections(mut self, connections: usize) -> Self {
        self.connections = connections.clamp(1, MAX_CONNECTIONS);
        self
    }

    /// Sets the length of a piece, at least 4 KiB: what one request asks for, and what a broken connection loses.
    #[must_use]
    pub fn piece_bytes(mut self, bytes: u64) -> Self {
        self.piece_bytes = bytes.max(MIN_PIECE_BYTES);
        self
    }

    /// Sets how many requests one connection may have open, at least 1. More than 1 hides the round trip between pieces.
    #[must_use]
    pub fn pipeline(mut self, requests: usize) -> Self {
        self.pipeline = requests.max(1);
        self
    }

    /// Sets the time after which a connection that answers nothing counts as broken; 30 s by default.
    #[must_use]
    pub fn idle_limit(mut self, limit: Duration) -> Self {
        self.idle_limit = limit;
        self
    }

    /// Sets how often a connection may fail in a row, without a whole piece, before the load fails; 8 by default. Between
    /// the attempts it waits, up to 5 s each time.
    #[must_use]
    pub fn attempts(mut self, attempts: u32) -> Self {
        self.attempts = attempts.max(1);
        self
    }

    /// Loads `parts` of `source` to their places, device to device. `progress` is called at least every 100 ms, and may end
    /// the load.
    ///
    /// # Errors
    /// The parts do not fit, the server refuses or fails too often, or `progress` ended the load. Some parts may have been
    /// written.
    pub fn load(
        &self,
        source: impl Into<Source>,
        parts: &[Part],
        progress: &mut dyn FnMut(Progress) -> ControlFlow<()>,
    ) -> Result<Loaded, LoadError> {
        let layout = Layout::new(parts)?;
        let ranges = layout.ranges();
        self.run(&source.into(), ranges, Landing::Memory(&layout), progress)
    }

    /// Loads `ranges` of `source` and hands every batch to `take`, where it lies in the bound memory. Pieces of different
    /// connections are interleaved, and after a broken connection the bytes of its pieces come again.
    ///
    /// # Errors
    /// As [`load`](Self::load), and those of `take`.
    pub fn deliver(
        &self,
        source: impl Into<Source>,
        ranges: &[Range<u64>],
        take: &mut dyn FnMut(Landed<'_>) -> std::io::Result<()>,
        progress: &mut dyn FnMut(Progress) -> ControlFlow<()>,
    ) -> Result<Loaded, LoadError> {
        let mut ranges: Vec<_> = ranges.iter().filter(|r| !r.is_empty()).cloned().collect();
        ranges.sort_by_key(|range| range.start);
        let overlapping = |pair: &&[Range<u64>]| pair[0].end > pair[1].start;
        if let Some([first, second]) = ranges.windows(2).find(overlapping) {
            return Err(super::PartError::Overlap {
                first: first.clone(),
                second: second.clone(),
            }
            .into());
        }
        let take: &mut Take<'_> = take;
        self.run(&source.into(), ranges, Landing::Caller(take), progress)
    }

    /// Loads `len` bytes of `source` from `start` on into host memory, for what the CPU must read.
    ///
    /// # Errors
    /// As [`load`](Self::load).
    pub(crate) fn read(&self, source: &Source, start: u64, len: u32) -> Result<Vec<u8>, LoadError> {
        let mut bytes = vec![0; len as usize];
        let mut take = |landed: Landed<'_>| {
            // Zeros are there already.
            if let Landed::Frags { at, batch } = landed {
                let place = usize::try_from(at - start).map_err(std::io::Error::other)?;
                let out = bytes.get_mut(place..).unwrap_or_default();
                batch.copy_to(out).map_err(std::io::Error::other)?;
            }
            Ok(())
        };
        let end = start.saturating_add(u64::from(len));
        let mut always = |_| ControlFlow::Continue(());
        self.deliver(source.clone(), &[start..end], &mut take, &mut always)?;
        Ok(bytes)
    }

    fn run<'a>(
        &'a self,
        source: &'a Source,
        ranges: Vec<Range<u64>>,
        landing: Landing<'a>,
        progress: &mut dyn FnMut(Progress) -> ControlFlow<()>,
    ) -> Result<Loaded, LoadError> {
        if let (Some(size), Some(last)) = (source.size(), ranges.last())
            && last.end > size
        {
            let end = last.end;
            return Err(LoadError::PastEnd { end, size });
        }
        let (longest, block) = source.piece_limits();
        let unaligned = |range: &&Range<u64>| {
            !range.start.is_multiple_of(block) || !range.end.is_multiple_of(block)
        };
        if let Some(&Range { start, end }) = ranges.iter().find(unaligned) {
            return Err(LoadError::Unaligned { start, end, block });
        }
        let piece_bytes = self
            .piece_bytes
            .checked_next_multiple_of(block)
            .unwrap_or(longest)
            .min(longest);
        let connections = match source.takes_many_connections() {
            true => self.connections,
            false => 1,
        };
        let run = Run {
            loader: self,
            source,
            pieces: Pieces::new(ranges, piece_bytes),
            landing,
            slots: (0..connections).map(|_| Slot::new()).collect(),
            loaded: Loaded::default(),
        };
        run.run(progress)
    }
}

/// A place for a connection.
#[derive(Debug)]
struct Slot {
    state: State,
    /// Failures in a row without a whole piece.
    failures: u32,
}

#[derive(Debug)]
enum State {
    /// No connection before this time.
    Closed(Instant),
    Open {
        connection: Box<Connection>,
        /// Payload bytes of its whole pieces.
        whole: u64,
    },
    /// Given up, because it failed too often; others go on.
    Retired,
}

impl Slot {
    fn new() -> Self {
        Self {
            state: State::Closed(Instant::now()),
            failures: 0,
        }
    }

    fn connection(&self) -> Option<&Connection> {
        match &self.state {
            State::Open { connection, .. } => Some(connection),
            State::Closed(_) | State::Retired => None,
        }
    }
}

/// A running load.
struct Run<'a> {
    loader: &'a Loader,
    source: &'a Source,
    pieces: Pieces,
    landing: Landing<'a>,
    slots: Vec<Slot>,
    loaded: Loaded,
}

impl Run<'_> {
    fn run(
        mut self,
        progress: &mut dyn FnMut(Progress) -> ControlFlow<()>,
    ) -> Result<Loaded, LoadError> {
        let start = Instant::now();
        while !self.pieces.is_done() {
            if progress(self.progress()).is_break() {
                return Err(LoadError::Cancelled);
            }
            self.prepare_all()?;
            if !self.receive()? {
                self.sleep()?;
            }
        }
        for slot in std::mem::take(&mut self.slots) {
            if let State::Open { connection, .. } = slot.state {
                self.close(*connection);
            }
        }
        self.loaded.elapsed = start.elapsed();
        self.loaded.bytes = self.pieces.done();
        self.loaded.pieces = self.pieces.finished();
        self.loaded.repeated = self.pieces.repeated();
        // Its result does not matter: all bytes are there.
        let _ = progress(self.progress());
        Ok(self.loaded)
    }

    fn progress(&self) -> Progress {
        let mut progress = Progress {
            bytes: self.pieces.done(),
            total: self.pieces.total(),
            connections: 0,
        };
        for slot in &self.slots {
            if let State::Open { connection, whole } = &slot.state {
                progress.bytes += connection.placed - whole;
                progress.connections += 1;
            }
        }
        progress
    }

    /// Prepares all slots. At most one connection is made, which takes a round trip in which the others are not served.
    fn prepare_all(&mut self) -> Result<(), LoadError> {
        let before = self.loaded.connections;
        for index in 0..self.slots.len() {
            if self.loaded.connections == before || self.slots[index].connection().is_some() {
                self.prepare(index)?;
            }
        }
        Ok(())
    }

    /// Connects a slot if there is work for it, and requests pieces on it.
    fn prepare(&mut self, index: usize) -> Result<(), LoadError> {
        let Some(next) = self.pieces.peek() else {
            return Ok(());
        };
        match &self.slots[index].state {
            State::Closed(until) if *until <= Instant::now() => self.connect(index)?,
            State::Open { connection, .. }
                if !connection.session.is_waiting() && !connection.session.accepts(next) =>
            {
                // The server has ended it, or it is past the piece.
                self.end(index);
                self.connect(index)?;
            }
            State::Closed(_) | State::Open { .. } | State::Retired => {}
        }
        let State::Open { connection, .. } = &mut self.slots[index].state else {
            return Ok(());
        };
        while let Some(next) = self.pieces.peek()
            && connection.session.accepts(next)
        {
            connection.session.request(next);
            self.pieces.next();
        }
        Ok(())
    }

    fn connect(&mut self, index: usize) -> Result<(), LoadError> {
        let connected = self.source.connect(&self.loader.nic, self.loader.pipeline);
        match connected {
            Ok((stream, session)) => {
                self.loaded.connections += 1;
                self.slots[index].state = State::Open {
                    connection: Box::new(Connection::new(stream, session)),
                    whole: 0,
                };
                Ok(())
            }
            Err(error @ (LoadError::Connect { .. } | LoadError::Broken { .. })) => {
                self.failed(index, error.to_string(), None)
            }
            Err(error) => Err(error),
        }
    }

    /// Gives every connection a turn. Returns whether any received bytes or ended.
    fn receive(&mut self) -> Result<bool, LoadError> {
        let is_open = |slot: &&Slot| slot.connection().is_some();
        let others = |slot: &Slot| matches!(slot.state, State::Closed(_));
        let alone = self.slots.iter().filter(is_open).count() == 1
            && (self.pieces.peek().is_none() || !self.slots.iter().any(others));
        let start = Instant::now();
        loop {
            let mut heard = false;
            for index in 0..self.slots.len() {
                let patience = match alone {
                    true => Patience::Limit(LOOK_AROUND),
                    false => Patience::None,
                };
                heard |= self.turn(index, patience)?;
            }
            if heard || alone {
                return Ok(true);
            }
            if start.elapsed() > SPIN {
                return Ok(false);
            }
        }
    }

    /// Lets one connection receive. Returns whether it did or has ended.
    fn turn(&mut self, index: usize, patience: Patience) -> Result<bool, LoadError> {
        let slot = &mut self.slots[index];
        let State::Open { connection, whole } = &mut slot.state else {
            return Ok(false);
        };
        let turned = connection.turn(&mut self.landing, patience);
        while let Some(piece) = connection.session.completed() {
            *whole += piece.len();
            slot.failures = 0;
            self.pieces.finish(piece);
        }
        let is_silent =
            connection.session.is_waiting() && connection.silence() > self.loader.idle_limit;
        let fault = match turned {
            Ok(_) if is_silent => Fault::Broken(format!(
                "the server sent nothing for {:?}",
                self.loader.idle_limit
            )),
            Ok(heard) => return Ok(heard),
            Err(fault) => fault,
        };
        self.fault(index, fault)?;
        Ok(true)
    }

    /// Ends a connection after a fault.
    fn fault(&mut self, index: usize, fault: Fault) -> Result<(), LoadError> {
        let has_progress =
            matches!(&self.slots[index].state, State::Open { whole, .. } if *whole > 0);
        let (cause, wait) = match fault {
            Fault::Fatal(error) => return Err(error),
            // Servers close after a number of requests.
            Fault::Closed if has_progress => {
                self.end(index);
                return Ok(());
            }
            Fault::Closed => ("the server closed the connection".to_owned(), None),
            // Many servers do so with requests that they have not read: the pieces so far show that it works.
            Fault::Broken(_) if has_progress => {
                self.loaded.broken += 1;
                self.end(index);
                return Ok(());
            }
            Fault::Broken(cause) => (cause, None),
            Fault::Busy { cause, wait } => (cause, wait),
        };
        self.loaded.broken += 1;
        self.end(index);
        self.failed(index, cause, wait)
    }

    /// Drops the connection of a slot, and takes its pieces back. The next one may be made at once.
    fn end(&mut self, index: usize) {
        let closed = State::Closed(Instant::now());
        let state = std::mem::replace(&mut self.slots[index].state, closed);
        if let State::Open { mut connection, .. } = state {
            for piece in connection.session.take_outstanding() {
                self.pieces.give_back(piece);
            }
            self.close(*connection);
        }
    }

    fn close(&mut self, connection: Connection) {
        self.loaded.add_stats(connection.close());
    }

    /// Counts a failure of a slot, and chooses the time of its next attempt.
    fn failed(
        &mut self,
        index: usize,
        cause: String,
        wait: Option<Duration>,
    ) -> Result<(), LoadError> {
        let attempts = self.loader.attempts;
        let others = self.slots.iter().filter(|slot| slot.connection().is_some());
        let goes_on = others.count() > 0;
        let slot = &mut self.slots[index];
        slot.failures += 1;
        let failures = slot.failures;
        if failures < attempts {
            let wait = retry::delay(failures, wait);
            slot.state = State::Closed(Instant::now() + wait);
            return Ok(());
        }
        slot.state = State::Retired;
        match goes_on {
            true => Ok(()),
            false => Err(LoadError::GaveUp { attempts, cause }),
        }
    }

    /// Waits until a connection is readable, or the time of the next attempt, for 100 ms at most.
    fn sleep(&self) -> Result<(), LoadError> {
        let now = Instant::now();
        let mut limit = LOOK_AROUND;
        let mut fds = Vec::with_capacity(self.slots.len());
        for slot in &self.slots {
            match &slot.state {
                State::Open { connection, .. } => {
                    let fd = connection.stream().readiness_fd();
                    let fd = fd.map_err(LoadError::Wait)?;
                    fds.push(PollFd::from_borrowed_fd(fd, PollFlags::IN));
                }
                State::Closed(until) if self.pieces.peek().is_some() => {
                    limit = limit.min(until.saturating_duration_since(now));
                }
                State::Closed(_) | State::Retired => {}
            }
        }
        let limit = Timespec::try_from(limit).expect("a tenth of a second fits");
        match poll(&mut fds, Some(&limit)) {
            // The progress function checks for signals.
            Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
            Err(errno) => Err(LoadError::Wait(errno.into())),
        }
    }
}
