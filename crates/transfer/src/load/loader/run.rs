//! A running load: connections that fetch pieces until all are whole.

use std::ops::ControlFlow;
use std::time::{Duration, Instant};

use client::http::Client;
use client::{Cause, LoadError, Notice, Piece};
use devmem_tcp::Netdev;

use crate::load::active::Active;
use crate::load::connection::Connection;
use crate::load::connection::wire::Counts;
use crate::load::landing::Landing;
use crate::load::loaded::Loaded;
use crate::load::session::Fault;
use crate::load::source::{Connecting, NewConnection, Opened, Rules, Source};
use crate::load::stale_location::StaleLocation;
use crate::parallel::{
    AfterFailure, Idle, LEAST_BYTES, Pieces, Progress, Settings, Slots, Window, turn_all,
};

/// Told of the progress of a run; may end it.
type Report<'a> = dyn FnMut(Progress) -> ControlFlow<()> + 'a;

/// Most times that a file is found again without a byte between them.
const MAX_MOVES: u32 = 4;
/// How often connections that are being made are looked at.
const CONNECTING_POLL: Duration = Duration::from_millis(1);

/// Counts how often files were found again.
#[derive(Clone, Copy, Debug, Default)]
struct Moves {
    count: u32,
    /// Bytes of the load at the last one.
    at: u64,
}

/// What a load does, and by which rules.
#[derive(Clone, Copy)]
pub(super) struct Job<'a> {
    pub(super) nic: &'a Netdev,
    pub(super) settings: &'a Settings,
    pub(super) notice: &'a Notice,
    pub(super) source: &'a Source,
}

/// A running load.
pub(super) struct Run<'a> {
    job: Job<'a>,
    pieces: Pieces,
    /// Requests in flight on one connection.
    window: Window,
    landing: Landing<'a>,
    slots: Slots<Connection>,
    /// Connections that are being made, by their slots.
    connecting: Vec<(usize, Box<Connecting<'a>>)>,
    /// The last moves of files without progress between them.
    moves: Moves,
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
        job: Job<'a>,
        pieces: Pieces,
        landing: Landing<'a>,
        connections: usize,
        window: Window,
    ) -> Result<Self, LoadError> {
        let idle = Idle::new(job.nic).map_err(LoadError::Wait)?;
        let now = Instant::now();
        Ok(Self {
            job,
            pieces,
            window,
            landing,
            slots: Slots::new(connections, job.settings.attempts()),
            connecting: Vec::new(),
            moves: Moves::default(),
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
    /// Those of `Loader::load`.
    pub(super) fn run(mut self, progress: &mut Report<'_>) -> Result<Loaded, LoadError> {
        let start = Instant::now();
        while !self.pieces.is_done() {
            let so_far = self.progress();
            if progress(so_far).is_break() {
                return Err(LoadError::Cancelled);
            }
            self.job.source.keep_alive();
            self.active.choose(so_far, Instant::now());
            self.finish_connecting()?;
            self.prepare_all(progress)?;
            let spin = self.idle.spin();
            if !turn_all(self.slots.indices(), spin, |index| {
                self.turn(index, progress)
            })? {
                self.wait()?;
            }
        }
        self.landing.finish()?;
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
        if !self.connecting.is_empty() {
            let soon = Instant::now() + CONNECTING_POLL;
            due = Some(soon);
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

    /// Prepares as many slots as connections are in use. Their connections are made beside each other.
    fn prepare_all(&mut self, progress: &mut Report<'_>) -> Result<(), LoadError> {
        let mut from = 0;
        for _ in 0..self.active.used() {
            let Some(index) = self.slots.next_turn(from) else {
                break;
            };
            from = index + 1;
            if !self.connecting.iter().any(|(slot, _)| *slot == index) {
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
        }
        if self.slots.is_due(index) {
            self.connect(index, next, progress)?;
        }
        let is_wary = self.slots.is_wary(index);
        let Some(connection) = self.slots.get_mut(index) else {
            return Ok(());
        };
        // A server that closes its connection with requests that it has not read may destroy the answer before them. So after a
        // failure requests are sent one by one, until a piece is whole (RFC 9112 9.3.2).
        let window = match is_wary {
            true => Window::of(1),
            false => self.window,
        };
        let in_flight = |open: &Connection| (open.session.outstanding(), open.asked_bytes());
        let (requests, bytes) = in_flight(connection);
        if !window.is_worth_a_packet(requests, bytes) {
            return Ok(());
        }
        while let Some(next) = self.pieces.peek()
            && let (requests, bytes) = in_flight(connection)
            && window.has_room(requests, bytes)
            && connection.session.accepts(next)
        {
            connection.request(next);
            self.pieces.next();
        }
        Ok(())
    }

    /// Begins the connection of a slot, for `next` first.
    fn connect(
        &mut self,
        index: usize,
        next: Piece,
        progress: &mut Report<'_>,
    ) -> Result<(), LoadError> {
        let nic = self.job.nic;
        let so_far = self.progress();
        let mut cancel_check = || progress(so_far);
        let rules = Rules {
            window: self.window.most(),
            limit: self.job.settings.idle_limit(),
        };
        match self
            .job
            .source
            .begin(nic, rules, next.start, &mut cancel_check)
        {
            Ok(NewConnection::Open(transport, session)) => {
                self.connected(index, Ok((transport, session)))
            }
            Ok(NewConnection::Connecting(connecting)) => {
                self.connecting.push((index, connecting));
                self.finish_connecting()
            }
            Err(error) => self.connected(index, Err(error)),
        }
    }

    /// Puts the connections that are made now into their slots.
    fn finish_connecting(&mut self) -> Result<(), LoadError> {
        let mut connecting = std::mem::take(&mut self.connecting);
        let mut outcomes = Vec::new();
        connecting.retain_mut(|(index, connecting)| {
            let outcome = connecting.poll();
            let is_over = outcome.is_some();
            outcomes.extend(outcome.map(|outcome| (*index, outcome)));
            !is_over
        });
        self.connecting = connecting;
        let mut outcomes = outcomes.into_iter();
        outcomes.try_for_each(|(index, outcome)| self.connected(index, outcome))
    }

    /// Takes the outcome of an attempt to connect.
    fn connected(
        &mut self,
        index: usize,
        outcome: Result<Opened, LoadError>,
    ) -> Result<(), LoadError> {
        match outcome {
            Ok((transport, session)) => {
                self.loaded.connections += 1;
                let round_trip = transport.stream().tcp_info().map(|info| info.min_rtt);
                self.active.on_connected(round_trip, Instant::now());
                self.slots.put(index, Connection::new(transport, session));
                Ok(())
            }
            Err(error) => self.failed(index, error.into_breakage()?, None),
        }
    }

    /// Lets one connection receive. Returns whether it did or has ended.
    fn turn(&mut self, index: usize, progress: &mut Report<'_>) -> Result<bool, LoadError> {
        let Some(connection) = self.slots.get_mut(index) else {
            return Ok(false);
        };
        let now = Instant::now();
        let turned = connection.turn(&mut self.landing, now);
        let limit = self.job.settings.idle_limit();
        let mut has_progress = false;
        while let Some(piece) = connection.completed(now) {
            self.pieces.finish(piece);
            has_progress = true;
        }
        while let Some(piece) = connection.left_out() {
            self.pieces.put_back(piece);
        }
        let has_pace = connection.check_pace(now, limit);
        let stalls = connection.stalls_with_several(now, limit);
        if has_progress {
            self.slots.progressed(index);
        }
        match turned.and_then(|heard| has_pace.map(|()| heard)) {
            Ok(false) if stalls => {
                // Learned once, for all connections.
                self.window = Window::of(1);
                let cause = "the server does not go on with several requests at a time";
                self.fault(index, Fault::Broken(cause.into()), progress)?;
                Ok(true)
            }
            Ok(heard) => Ok(heard),
            Err(fault) => self.fault(index, fault, progress).map(|()| true),
        }
    }

    /// Ends a connection after a fault.
    fn fault(
        &mut self,
        index: usize,
        fault: Fault,
        progress: &mut Report<'_>,
    ) -> Result<(), LoadError> {
        let had_whole = self.slots.get(index).is_some_and(|open| open.whole > 0);
        let has_progress = self.end(index) >= LEAST_BYTES || had_whole;
        let (cause, wait) = match fault {
            Fault::Fatal(error) => return Err(error),
            Fault::StaleLocation(stale) => return self.find_again(*stale, progress),
            // Servers close after a number of requests.
            Fault::Closed if has_progress => return Ok(()),
            Fault::Closed => ("the server closed the connection".into(), None),
            // Many servers do so with requests that they have not read: the bytes so far show that it works.
            Fault::Broken(_) if has_progress => {
                self.loaded.broken += 1;
                self.slots.broke_later(index);
                return Ok(());
            }
            Fault::Broken(cause) => (cause, None),
            Fault::Busy { cause, wait } => (cause, wait),
        };
        self.loaded.broken += 1;
        self.failed(index, cause, wait)
    }

    /// Ends the connection of a slot, and takes its pieces back. The next one may be made at once. Returns how many bytes of a piece that is not
    /// whole stay.
    fn end(&mut self, index: usize) -> u64 {
        let Some(mut connection) = self.slots.take(index) else {
            return 0;
        };
        for piece in connection.session.take_outstanding() {
            self.pieces.give_back(piece);
        }
        let mut kept = 0;
        while let Some(part) = connection.session.completed() {
            kept += part.len();
            self.pieces.keep(part);
        }
        let Counts {
            mispredicted,
            decrypted,
        } = connection.counts();
        self.loaded.mispredicted += mispredicted;
        self.loaded.decrypted += decrypted;
        let counted = connection.close(self.job.source.pool(), self.job.nic);
        self.loaded.add_stats(counted);
        kept
    }

    /// Finds a file again, which its place does not have any more.
    fn find_again(
        &mut self,
        stale: StaleLocation,
        progress: &mut Report<'_>,
    ) -> Result<(), LoadError> {
        let StaleLocation {
            file,
            location,
            refusal,
        } = stale;
        let so_far = self.progress();
        let client = Client {
            nic: self.job.nic,
            pool: file.pool(),
            limit: self.job.settings.idle_limit(),
            notice: self.job.notice,
        };
        if !file.find_again(client, &location, &mut || progress(so_far))? {
            return Ok(());
        }
        let done = self.pieces.done();
        let count = match done > self.moves.at {
            true => 1,
            false => self.moves.count + 1,
        };
        self.moves = Moves { count, at: done };
        match count > MAX_MOVES {
            true => Err(refusal),
            false => Ok(()),
        }
    }

    /// Counts a failure of a slot.
    fn failed(
        &mut self,
        index: usize,
        cause: Cause,
        wait: Option<Duration>,
    ) -> Result<(), LoadError> {
        let attempts = self.job.settings.attempts();
        match self.slots.failed(index, wait) {
            AfterFailure::Continue => {
                self.say_wait(&cause);
                Ok(())
            }
            AfterFailure::GiveUp => Err(LoadError::GaveUp { attempts, cause }),
        }
    }

    /// Says why nothing happens, if no connection is left and the next one is made later.
    fn say_wait(&self, cause: &Cause) {
        let is_idle = self.slots.open().next().is_none() && self.connecting.is_empty();
        if is_idle && let Some(due) = self.slots.next_due() {
            let wait = due.saturating_duration_since(Instant::now());
            self.job.notice.waits(cause, wait);
        }
    }
}
