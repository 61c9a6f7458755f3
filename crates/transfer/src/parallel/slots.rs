//! Places for connections: which are open, when the others are tried again, and the wait for any of them.

use std::io;
use std::ops::Range;
use std::time::{Duration, Instant};

use devmem_tcp::Stream;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::piece::Piece;
use super::retry;

/// Longest wait without a call of the progress function.
const LOOK_AROUND: Duration = Duration::from_millis(100);
/// Time to poll all connections in turn before sleeping.
const SPIN: Duration = Duration::from_micros(50);

/// A connection in a slot.
pub(crate) trait Connected {
    /// Returns its stream.
    fn stream(&self) -> &Stream;
}

/// How long one turn of a connection may wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Patience {
    /// Not at all.
    None,
    /// This long.
    Limit(Duration),
}

/// What follows from a failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub(crate) enum Failed {
    /// Another attempt later, or the other connections do the work.
    GoOn,
    /// No connection is left.
    GiveUp,
}

/// Places for connections.
#[derive(Debug)]
pub(crate) struct Slots<C> {
    slots: Vec<Slot<C>>,
    /// Failures in a row after which a slot is retired.
    attempts: u32,
}

#[derive(Debug)]
struct Slot<C> {
    state: State<C>,
    /// Failures in a row without progress.
    failures: u32,
}

#[derive(Debug)]
enum State<C> {
    /// No connection before this time.
    Closed(Instant),
    Open(Box<C>),
    /// Given up, because it failed too often; others go on.
    Retired,
}

impl<C> Slots<C> {
    /// Returns `count` slots without a connection.
    pub(crate) fn new(count: usize, attempts: u32) -> Self {
        let closed = |_| Slot {
            state: State::Closed(Instant::now()),
            failures: 0,
        };
        Self {
            slots: (0..count).map(closed).collect(),
            attempts,
        }
    }

    pub(crate) fn indices(&self) -> Range<usize> {
        0..self.slots.len()
    }

    /// Returns the open connections.
    pub(crate) fn open(&self) -> impl Iterator<Item = &C> {
        self.indices().filter_map(|index| self.get(index))
    }

    pub(crate) fn get(&self, index: usize) -> Option<&C> {
        match &self.slots[index].state {
            State::Open(connection) => Some(connection),
            State::Closed(_) | State::Retired => None,
        }
    }

    pub(crate) fn get_mut(&mut self, index: usize) -> Option<&mut C> {
        match &mut self.slots[index].state {
            State::Open(connection) => Some(connection),
            State::Closed(_) | State::Retired => None,
        }
    }

    /// Returns whether it is time to connect a slot.
    pub(crate) fn is_due(&self, index: usize) -> bool {
        matches!(self.slots[index].state, State::Closed(until) if until <= Instant::now())
    }

    /// Puts a new connection into a slot.
    pub(crate) fn put(&mut self, index: usize, connection: C) {
        self.slots[index].state = State::Open(Box::new(connection));
    }

    /// Takes the connection out of a slot, if there is one. The next one may be made at once.
    pub(crate) fn take(&mut self, index: usize) -> Option<C> {
        let state = &mut self.slots[index].state;
        if !matches!(state, State::Open(_)) {
            return None;
        }
        match std::mem::replace(state, State::Closed(Instant::now())) {
            State::Open(connection) => Some(*connection),
            State::Closed(_) | State::Retired => None,
        }
    }

    /// Records progress of a slot.
    pub(crate) fn progressed(&mut self, index: usize) {
        self.slots[index].failures = 0;
    }

    /// Records progress that all slots share.
    pub(crate) fn all_progressed(&mut self) {
        self.indices().for_each(|index| self.progressed(index));
    }

    /// Counts a failure of a slot without a connection, and chooses the time of its next attempt. `asked` is the server's
    /// wish for it.
    pub(crate) fn failed(&mut self, index: usize, asked: Option<Duration>) -> Failed {
        let attempts = self.attempts;
        let slot = &mut self.slots[index];
        slot.failures += 1;
        if slot.failures < attempts {
            let wait = retry::delay(slot.failures, asked);
            slot.state = State::Closed(Instant::now() + wait);
            return Failed::GoOn;
        }
        slot.state = State::Retired;
        match self.open().next() {
            Some(_) => Failed::GoOn,
            None => Failed::GiveUp,
        }
    }

    /// Returns how long a turn may wait. `next` is the piece that is requested next: for it, another slot may be connected.
    pub(crate) fn patience(&self, next: Option<Piece>) -> Patience {
        let is_closed = |slot: &Slot<C>| matches!(slot.state, State::Closed(_));
        let may_open = next.is_some() && self.slots.iter().any(is_closed);
        match self.open().count() == 1 && !may_open {
            true => Patience::Limit(LOOK_AROUND),
            false => Patience::None,
        }
    }
}

impl<C: Connected> Slots<C> {
    /// Waits until a connection is ready, or the time of the next attempt if there is a piece for it, for 100 ms at most.
    ///
    /// # Errors
    /// The connections cannot be waited for.
    pub(crate) fn sleep(&self, next: Option<Piece>) -> io::Result<()> {
        let now = Instant::now();
        let mut limit = LOOK_AROUND;
        let mut fds = Vec::with_capacity(self.slots.len());
        for slot in &self.slots {
            match &slot.state {
                State::Open(connection) => {
                    let fd = connection.stream().readiness_fd()?;
                    fds.push(PollFd::from_borrowed_fd(fd, PollFlags::IN));
                }
                State::Closed(until) if next.is_some() => {
                    limit = limit.min(until.saturating_duration_since(now));
                }
                State::Closed(_) | State::Retired => {}
            }
        }
        let limit = Timespec::try_from(limit).expect("a tenth of a second fits");
        match poll(&mut fds, Some(&limit)) {
            // The progress function checks for signals.
            Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
            Err(errno) => Err(errno.into()),
        }
    }
}

/// Gives every slot a turn, again and again for a short time. Returns whether any moved bytes or ended, or has waited.
///
/// # Errors
/// The first error of a turn.
pub(crate) fn turn_all<E>(
    indices: Range<usize>,
    patience: Patience,
    mut turn: impl FnMut(usize) -> Result<bool, E>,
) -> Result<bool, E> {
    let start = Instant::now();
    loop {
        let mut moved = false;
        for index in indices.clone() {
            moved |= turn(index)?;
        }
        if moved || patience != Patience::None {
            return Ok(true);
        }
        if start.elapsed() > SPIN {
            return Ok(false);
        }
    }
}

/// Returns whether an error of a stream says that a later turn may do better.
pub(crate) fn is_not_ready(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut | io::ErrorKind::Interrupted
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    const NEXT: Option<Piece> = Some(Piece { start: 0, end: 1 });

    #[test]
    fn a_slot_is_retired_after_its_attempts_and_the_last_one_gives_up() {
        let mut slots: Slots<u8> = Slots::new(2, 2);
        slots.put(1, 7);
        assert_eq!(slots.failed(0, None), Failed::GoOn);
        assert!(!slots.is_due(0), "it waits before the next attempt");
        assert_eq!(slots.failed(0, None), Failed::GoOn, "the other one is open");
        assert_eq!(slots.patience(NEXT), Patience::Limit(LOOK_AROUND));
        assert_eq!(slots.take(0), None);
        assert!(!slots.is_due(0), "it stays retired");

        assert_eq!(slots.take(1), Some(7));
        assert!(slots.is_due(1));
        assert_eq!(slots.failed(1, None), Failed::GoOn);
        slots.progressed(1);
        assert_eq!(slots.failed(1, None), Failed::GoOn);
        assert_eq!(slots.failed(1, None), Failed::GiveUp);
    }

    #[test]
    fn only_a_connection_that_stays_alone_may_wait() {
        let mut slots: Slots<u8> = Slots::new(2, 8);
        assert_eq!(slots.patience(None), Patience::None);
        slots.put(0, 7);
        assert_eq!(slots.patience(NEXT), Patience::None);
        assert_eq!(slots.patience(None), Patience::Limit(LOOK_AROUND));
        slots.put(1, 7);
        assert_eq!(slots.patience(None), Patience::None);
    }
}
