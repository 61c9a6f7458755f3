//! A running load: connections that fetch pieces until all are whole.

use std::ops::ControlFlow;
use std::time::{Duration, Instant};

use super::active::Active;
use super::connection::Connection;
use super::error::LoadError;
use super::landing::Landing;
use super::loader::{Loaded, Loader};
use super::session::Fault;
use super::source::Source;
use crate::parallel::{Failed, Idle, Pieces, Progress, Slots, turn_all};

/// Told of the progress of a run; may end it.
type Report<'a> = dyn FnMut(Progress) -> ControlFlow<()> + 'a;

/// A running load.
pub(super) struct Run<'a> {
    loader: &'a Loader,
    source: &'a Source,
    pieces: Pieces,
    /// Requests in flight on one connection.
    window: usize,
    landing: Landing<'a>,
    slots: Slots<Connection>,
    active: Active,
    idle: Idle,
    loaded: Loaded,
}

impl<'a> Run<'a> {
    /// Prepares a run.
    ///
    /// # Errors
    /// The process has no free file descriptor.
    pub(super) fn new(
        loader: &'a Loader,
        source: &'a Source,
        pieces: Pieces,
        landing: Landing<'a>,
        connections: usize,
        window: usize,
    ) -> Result<Self, LoadError> {
        let idle = Idle::new(&loader.nic).map_err(LoadError::Wait)?;
        let now = Instant::now();
        Ok(Self {
            loader,
            source,
            pieces,
            window,
            landing,
            slots: Slots::new(connections, loader.settings.attempts()),
            active: match idle.serves_alone() {
                true => Active::some(connections, now),
                false => Active::all(connections, now),
            },
            idle,
            loaded: Loaded::default(),
        })
    }

    /// Runs to the end.
    ///
    /// # Errors
    /// Those of [`Loader::load`].
    pub(super) fn run(mut self, progress: &mut Report<'_>) -> Result<Loaded, LoadError> {
        let start = Instant::now();
        while !self.pieces.is_done() {
            let so_far = self.progress();
            if progress(so_far).is_break() {
                return Err(LoadError::Cancelled);
            }
            self.source.keep_alive();
            self.active.choose(so_far, Instant::now());
            self.prepare_all(progress)?;
            let spin = self.idle.spin();
            if !turn_all(self.slots.indices(), spin, |index| self.turn(index))? {
                self.wait()?;
            }
        }
        for index in self.slots.indices() {
            self.end(index);
        }
        self.loaded.elapsed = start.elapsed();
        self.loaded.bytes = self.pieces.done();
        self.loaded.pieces = self.pieces.finished();
        self.loaded.repeated = self.pieces.repeated();
        // Its result does not matter: all bytes are there.
        let _ = progress(self.progress());
        Ok(self.loaded)
    }

    /// Waits until a connection has bytes, or something else is to be done.
    fn wait(&mut self) -> Result<(), LoadError> {
        let start = Instant::now();
        let mut due = self.active.next_choice();
        if self.pieces.peek().is_some() && self.slots.open().count() < self.active.used() {
            due = [due, self.slots.next_due()].into_iter().flatten().min();
        }
        let waited = self.idle.wait(&self.slots, due);
        self.active.on_waited(start.elapsed());
        waited.map_err(LoadError::Wait)
    }

    fn progress(&self) -> Progress {
        // Bytes of pieces that are not whole.
        let partial = self.slots.open().map(|open| open.placed - open.whole);
        Progress {
            bytes: self.pieces.done() + partial.sum::<u64>(),
            total: self.pieces.total(),
            connections: self.slots.open().count(),
        }
    }

    /// Prepares as many slots as connections are in use. At most one connection is made, which takes a round trip in which the
    /// others are not served.
    fn prepare_all(&mut self, progress: &mut Report<'_>) -> Result<(), LoadError> {
        let before = self.loaded.connections;
        let mut from = 0;
        for _ in 0..self.active.used() {
            let Some(index) = self.slots.next_turn(from) else {
                break;
            };
            from = index + 1;
            if self.loaded.connections == before || self.slots.get(index).is_some() {
                self.prepare(index, progress)?;
            }
        }
        Ok(())
    }

    /// Connects a slot if there is work for it, and requests pieces on it.
    fn prepare(&mut self, index: usize, progress: &mut Report<'_>) -> Result<(), LoadError> {
        let Some(next) = self.pieces.peek() else {
            return Ok(());
        };
        // The server has ended it, or it is past the piece.
        let is_useless =
            |open: &Connection| !open.session.is_waiting() && !open.session.accepts(next);
        if self.slots.get(index).is_some_and(is_useless) {
            self.end(index);
            self.connect(index, progress)?;
        } else if self.slots.is_due(index) {
            self.connect(index, progress)?;
        }
        let has_failed = self.slots.has_failed(index);
        let Some(connection) = self.slots.get_mut(index) else {
            return Ok(());
        };
        // A server that closes its connection with requests that it has not read may destroy the answer before them. So after a
        // failure requests are sent one by one, until a piece is whole (RFC 9112 9.3.2).
        let window = match has_failed {
            true => 1,
            false => self.window,
        };
        if !is_worth_a_packet(connection.session.outstanding(), window) {
            return Ok(());
        }
        while let Some(next) = self.pieces.peek()
            && connection.session.outstanding() < window
            && connection.session.accepts(next)
        {
            connection.session.request(next);
            self.pieces.next();
        }
        Ok(())
    }

    fn connect(&mut self, index: usize, progress: &mut Report<'_>) -> Result<(), LoadError> {
        let nic = &self.loader.nic;
        let so_far = self.progress();
        let mut go_on = || progress(so_far);
        match self.source.connect(nic, self.window, &mut go_on) {
            Ok((stream, session)) => {
                self.loaded.connections += 1;
                let round_trip = stream.tcp_info().map(|info| info.min_rtt);
                self.active.on_connected(round_trip, Instant::now());
                self.slots.put(index, Connection::new(stream, session));
                Ok(())
            }
            Err(error @ (LoadError::Connect { .. } | LoadError::Broken { .. })) => {
                self.failed(index, error.to_string(), None)
            }
            Err(error) => Err(error),
        }
    }

    /// Lets one connection receive. Returns whether it did or has ended.
    fn turn(&mut self, index: usize) -> Result<bool, LoadError> {
        let Some(connection) = self.slots.get_mut(index) else {
            return Ok(false);
        };
        let now = Instant::now();
        let turned = connection.turn(&mut self.landing, now);
        let limit = self.loader.settings.idle_limit();
        let mut has_progress = false;
        while let Some(piece) = connection.completed(now) {
            self.pieces.finish(piece);
            has_progress = true;
        }
        let has_pace = connection.check_pace(now, limit);
        if has_progress {
            self.slots.progressed(index);
        }
        match turned.and_then(|heard| has_pace.map(|()| heard)) {
            Ok(heard) => Ok(heard),
            Err(fault) => self.fault(index, fault).map(|()| true),
        }
    }

    /// Ends a connection after a fault.
    fn fault(&mut self, index: usize, fault: Fault) -> Result<(), LoadError> {
        let open = self.slots.get(index);
        let has_progress = open.is_some_and(|open| open.whole > 0);
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
        if let Some(mut connection) = self.slots.take(index) {
            for piece in connection.session.take_outstanding() {
                self.pieces.give_back(piece);
            }
            self.loaded.mispredicted += connection.mispredicted;
            self.loaded.add_stats(connection.close());
        }
    }

    /// Counts a failure of a slot.
    fn failed(
        &mut self,
        index: usize,
        cause: String,
        wait: Option<Duration>,
    ) -> Result<(), LoadError> {
        let attempts = self.loader.settings.attempts();
        match self.slots.failed(index, wait) {
            Failed::GoOn => Ok(()),
            Failed::GiveUp => Err(LoadError::GaveUp { attempts, cause }),
        }
    }
}

/// Returns whether a connection with so many requests in flight sends others: a quarter of the window together, because a packet
/// with one request costs as much as one with several.
fn is_worth_a_packet(outstanding: usize, window: usize) -> bool {
    outstanding <= window - window / 4
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_sent_a_quarter_of_the_window_together() {
        let least = |window: usize| {
            let all = (0..=window).filter(|&outstanding| is_worth_a_packet(outstanding, window));
            all.max().map(|most| window - most)
        };
        assert_eq!([1, 2, 3].map(least), [Some(0); 3]);
        assert_eq!([4, 16, 64].map(least), [Some(1), Some(4), Some(16)]);
    }
}
