//! A running store: connections that write pieces until all are acknowledged and flushed.

use std::ops::ControlFlow;
use std::time::{Duration, Instant};

use client::{Cause, Piece};
use devmem_tcp::{BoundTx, Dmabuf, Netdev, stats::SendCounts};

use crate::load::LoadError;
use crate::parallel::{AfterFailure, Idle, Pieces, Progress, Settings, Slots, Window, turn_all};
use crate::store::connection::{Acknowledged, Connection};
use crate::store::error::{Operation, StoreError};
use crate::store::ledger::Ledger;
use crate::store::session::{Acknowledge, Fault, Write};
use crate::store::sink::Sink;
use crate::store::stored::Stored;
use crate::store::supply::{Supplied, Supply};

/// Requests in flight on one connection, by default.
const REQUESTS: usize = 16;
/// A flush is requested after so many bytes: what a server that is restarted makes us write again.
const FLUSH_BYTES: u64 = 1 << 30;
/// The same after many broken connections.
const LEAST_FLUSH_BYTES: u64 = 16 << 20;
/// Longest wait for sends whose bytes the server has acknowledged, or whose connection was reset.
const SETTLE_LIMIT: Duration = Duration::from_secs(5);
/// A flush has no range.
const NOWHERE: Piece = Piece { start: 0, end: 0 };

/// The memory of a slot.
struct Lane {
    /// A binding for this connection alone: its sends in flight are those of the connection.
    tx: BoundTx,
    /// Chunks of a connection that was reset. They are free when no send is in flight.
    stuck: Vec<usize>,
}

/// Whether acknowledged pieces are flushed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Flushes {
    Wanted,
    /// Not wanted, or not possible.
    Never,
}

/// What a store does.
pub(crate) struct Job<'a> {
    pub(crate) nic: &'a Netdev,
    pub(crate) settings: &'a Settings,
    pub(crate) sink: &'a Sink,
    pub(crate) supply: Supply<'a>,
    pub(crate) acknowledge: Acknowledge,
    pub(crate) flushes: Flushes,
}

/// Told of the progress of a run; may end it.
type Report<'a> = dyn FnMut(Progress) -> ControlFlow<()> + 'a;

/// A running store. Its fields are dropped in their order: the connections are reset before the caller gets its memory back.
pub(crate) struct Run<'a> {
    slots: Slots<Connection>,
    idle: Idle,
    /// One for each slot.
    lanes: Vec<Lane>,
    job: Job<'a>,
    pieces: Pieces,
    /// Empty without flushes.
    ledger: Ledger,
    flush_bytes: u64,
    stored: Stored,
}

impl<'a> Run<'a> {
    /// Binds the memory for each of the connections.
    ///
    /// # Errors
    /// The memory cannot be bound; the process has no free file descriptor.
    pub(crate) fn new(
        job: Job<'a>,
        memory: &Dmabuf,
        pieces: Pieces,
        connections: usize,
    ) -> Result<Self, StoreError> {
        let lane = |_| {
            Ok(Lane {
                tx: job.nic.bind_tx(memory).map_err(StoreError::Bind)?,
                stuck: Vec::new(),
            })
        };
        let lanes = (0..connections).map(lane);
        Ok(Self {
            slots: Slots::new(connections, job.settings.attempts()),
            idle: Idle::new(job.nic).map_err(StoreError::Wait)?,
            lanes: lanes.collect::<Result<_, StoreError>>()?,
            job,
            pieces,
            ledger: Ledger::default(),
            flush_bytes: FLUSH_BYTES,
            stored: Stored::default(),
        })
    }

    /// Runs to the end.
    ///
    /// # Errors
    /// Those of `Storer::store`.
    pub(crate) fn run(mut self, progress: &mut Report<'_>) -> Result<Stored, StoreError> {
        let start = Instant::now();
        let ended = self.run_to_end(progress);
        for index in self.slots.indices() {
            match ended {
                Ok(()) => self.close(index),
                Err(_) => drop(self.reset(index)),
            }
        }
        if !self.settles() {
            let outcome = ended.err().map(|error| error.to_string());
            let outcome = outcome.unwrap_or_else(|| "all bytes are stored".to_owned());
            return Err(StoreError::Incomplete { outcome });
        }
        ended?;
        self.stored.elapsed = start.elapsed();
        self.stored.bytes = self.pieces.done();
        self.stored.pieces = self.pieces.finished();
        self.stored.repeated = self.pieces.repeated();
        // Its result does not matter: all bytes are there.
        let _ = progress(self.progress());
        Ok(self.stored)
    }

    fn run_to_end(&mut self, progress: &mut Report<'_>) -> Result<(), StoreError> {
        while !self.is_done() {
            if progress(self.progress()).is_break() {
                return Err(self.cancelled());
            }
            self.job.sink.keep_alive();
            self.prepare_all(progress)?;
            self.flush();
            let spin = self.idle.spin();
            if !turn_all(self.slots.indices(), spin, |index| self.turn(index))? {
                let next = self.pieces.peek();
                let due = next.and_then(|_| self.slots.next_due());
                let waited = self.idle.wait(&self.slots, due);
                waited.map_err(StoreError::Wait)?;
            }
        }
        Ok(())
    }

    fn cancelled(&self) -> StoreError {
        StoreError::Cancelled {
            acknowledged: self.pieces.done(),
            total: self.pieces.total(),
        }
    }

    fn is_done(&self) -> bool {
        self.pieces.is_done() && self.ledger.is_empty()
    }

    fn progress(&self) -> Progress {
        Progress {
            bytes: self.pieces.done(),
            total: self.pieces.total(),
            connections: self.slots.open().count(),
        }
    }

    /// Prepares all slots. At most one connection is made, which takes round trips in which the others are not served.
    fn prepare_all(&mut self, progress: &mut Report<'_>) -> Result<(), StoreError> {
        let before = self.stored.connections;
        for index in self.slots.indices() {
            self.free_chunks(index);
            if self.stored.connections == before || self.slots.get(index).is_some() {
                self.prepare(index, progress)?;
            }
        }
        Ok(())
    }

    /// Frees the chunks of a slot that nobody needs any more.
    fn free_chunks(&mut self, index: usize) {
        let Lane { tx, stuck } = &mut self.lanes[index];
        if !stuck.is_empty() && tx.in_flight() == 0 {
            stuck
                .drain(..)
                .for_each(|chunk| self.job.supply.free(chunk));
        }
        if let Some(connection) = self.slots.get_mut(index) {
            while let Some(chunk) = connection.next_free() {
                self.job.supply.free(chunk);
            }
        }
    }

    /// Connects a slot if there is work for it, and requests pieces on it.
    fn prepare(&mut self, index: usize, progress: &mut Report<'_>) -> Result<(), StoreError> {
        if self.pieces.peek().is_none() {
            return Ok(());
        }
        if self.slots.is_due(index) && self.lanes[index].stuck.is_empty() {
            self.connect(index, progress)?;
        }
        let Some(connection) = self.slots.get_mut(index) else {
            return Ok(());
        };
        while connection.session.accepts()
            && self.job.supply.has_room()
            && let Some(piece) = self.pieces.next()
        {
            let supplied = self.job.supply.next(piece)?;
            let operation = supplied.operation;
            connection.request(Write { operation, piece }, supplied, self.ledger.moment());
        }
        Ok(())
    }

    fn connect(&mut self, index: usize, progress: &mut Report<'_>) -> Result<(), StoreError> {
        let Job {
            nic,
            settings,
            sink,
            acknowledge,
            ..
        } = self.job;
        // The server accepts the connection after this moment.
        let since = self.ledger.moment();
        let so_far = self.progress();
        let window = settings.window(Window::of(REQUESTS)).most();
        match sink.connect(nic, window, acknowledge, &mut || progress(so_far)) {
            Ok((stream, session)) => {
                self.stored.connections += 1;
                let connection = Connection::new(stream, session, since);
                self.slots.put(index, connection);
                Ok(())
            }
            Err(LoadError::Cancelled) => Err(self.cancelled()),
            Err(error) => self.failed(index, error.into_breakage()?),
        }
    }

    /// Returns the slot of the oldest connection.
    fn oldest(&self) -> Option<usize> {
        let since = |index: &usize| self.slots.get(*index).map(|open| open.since);
        let open = self.slots.indices().filter(|index| since(index).is_some());
        open.min_by_key(|index| since(index))
    }

    /// Requests a flush when it is due.
    fn flush(&mut self) {
        let is_due = self.pieces.is_done() || self.ledger.bytes() >= self.flush_bytes;
        if !is_due || self.ledger.is_empty() || self.ledger.is_flushing() {
            return;
        }
        if let Some(index) = self.oldest()
            && let Some(connection) = self.slots.get_mut(index)
        {
            let flush = Write {
                operation: Operation::Flush,
                piece: NOWHERE,
            };
            let supplied = Supplied::nothing(Operation::Flush);
            connection.request(flush, supplied, self.ledger.moment());
            self.ledger.begin_flush();
        }
    }

    /// Lets one connection send and receive. Returns whether it did or has ended.
    fn turn(&mut self, index: usize) -> Result<bool, StoreError> {
        let Some(connection) = self.slots.get_mut(index) else {
            return Ok(false);
        };
        let turned = connection.turn(&self.lanes[index].tx);
        let limit = self.job.settings.idle_limit();
        let acknowledged = self.take_acknowledged(index);
        let open = self.slots.get(index);
        let has_pace = open.map_or(Ok(()), |open| open.check_pace(limit));
        let fault = match acknowledged
            .and(turned)
            .and_then(|moved| has_pace.map(|()| moved))
        {
            Ok(moved) => return Ok(moved),
            Err(fault) => fault,
        };
        match fault {
            Fault::Fatal(error) if error.refuses_zeros() && self.job.supply.send_zeros() => {
                // Other requests of the connection may have the same answer.
                self.broken(index);
                Ok(true)
            }
            Fault::Fatal(error) => Err(error),
            Fault::Broken(cause) => {
                self.broken(index);
                self.failed(index, cause)?;
                Ok(true)
            }
        }
    }

    /// Takes the acknowledged requests of a connection.
    fn take_acknowledged(&mut self, index: usize) -> Result<(), Fault> {
        while let Some(connection) = self.slots.get_mut(index)
            && let Some(acknowledged) = connection.acknowledged()?
        {
            self.on_acknowledged(acknowledged);
        }
        Ok(())
    }

    fn on_acknowledged(&mut self, acknowledged: Acknowledged) {
        let Acknowledged { write, requested } = acknowledged;
        let Write { operation, piece } = write;
        match operation {
            Operation::Flush => {
                self.ledger.on_flushed();
                self.stored.flushes += 1;
            }
            Operation::Write => self.pieces.finish(piece),
            Operation::WriteZeroes | Operation::Trim => {
                self.pieces.finish(piece);
                self.stored.unsent_bytes += piece.len();
            }
        }
        match (operation, self.job.flushes) {
            // The server may still lose it: no progress until the flush.
            (Operation::Write | Operation::WriteZeroes | Operation::Trim, Flushes::Wanted) => {
                self.ledger.acknowledge(requested, piece);
            }
            (Operation::Flush, _) | (_, Flushes::Never) => {
                self.slots.all_progressed();
            }
        }
    }

    /// Resets a broken connection. Its pieces are written again, and those that no flush can cover any more.
    fn broken(&mut self, index: usize) {
        self.stored.broken += 1;
        let was_flushing = self.reset(index);
        if was_flushing {
            self.ledger.on_flush_lost();
        }
        let oldest = self.oldest().and_then(|index| self.slots.get(index));
        for piece in self
            .ledger
            .take_lost(oldest.map(|connection| connection.since))
        {
            self.pieces.reopen(piece);
        }
        // Less is written again the next time.
        self.flush_bytes = (self.flush_bytes / 2).max(LEAST_FLUSH_BYTES);
    }

    /// Resets the connection of a slot, and takes its pieces back. Returns whether a flush was among its requests.
    fn reset(&mut self, index: usize) -> bool {
        let Some(mut connection) = self.slots.take(index) else {
            return false;
        };
        let mut was_flushing = false;
        for Write { operation, piece } in connection.session.take_outstanding() {
            match operation {
                Operation::Flush => was_flushing = true,
                Operation::Write | Operation::WriteZeroes | Operation::Trim => {
                    self.pieces.give_back(piece);
                }
            }
        }
        let (counts, chunks) = connection.reset();
        self.lanes[index].stuck.extend(chunks);
        self.count(counts);
        was_flushing
    }

    /// Ends the connection of a slot, which awaits nothing.
    fn close(&mut self, index: usize) {
        if let Some(connection) = self.slots.take(index) {
            self.count(connection.close());
        }
    }

    fn count(&mut self, counts: SendCounts) {
        self.stored.sends += counts.sent;
        self.stored.copied_sends += counts.copied;
    }

    /// Counts a failure of a slot.
    fn failed(&mut self, index: usize, cause: Cause) -> Result<(), StoreError> {
        match self.slots.failed(index, None) {
            AfterFailure::Continue => Ok(()),
            AfterFailure::GiveUp => Err(StoreError::GaveUp {
                attempts: self.job.settings.attempts(),
                cause,
                acknowledged: self.pieces.done(),
                total: self.pieces.total(),
            }),
        }
    }

    /// Waits until no send is in flight. Returns whether that was in time.
    fn settles(&self) -> bool {
        let start = Instant::now();
        while self.lanes.iter().any(|lane| lane.tx.in_flight() > 0) {
            if start.elapsed() > SETTLE_LIMIT {
                return false;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        true
    }
}
