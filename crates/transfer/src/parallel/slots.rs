//! Places for connections: which are open, and when the others are tried again.

use std::ops::Range;
use std::time::{Duration, Instant};

use client::retry;

/// What follows from a failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub(crate) enum AfterFailure {
    /// Another attempt later, or the other connections do the work, which may wait for their next attempt.
    Continue,
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
    /// Its last connection broke, and none has completed a request since.
    is_wary: bool,
    /// It had a connection, or tried to make one.
    is_used: bool,
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
            is_wary: false,
            is_used: false,
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

    /// Returns the first slot from `from` on that has a connection or may make one now. One that waits for its next attempt leaves
    /// its turn to another.
    pub(crate) fn next_turn(&self, from: usize) -> Option<usize> {
        let mut later = from..self.slots.len();
        later.find(|&index| self.get(index).is_some() || self.is_due(index))
    }

    /// Puts a new connection into a slot.
    pub(crate) fn put(&mut self, index: usize, connection: C) {
        self.slots[index].is_used = true;
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

    /// Returns whether the last connection of a slot broke, and none has completed a request since.
    pub(crate) fn is_wary(&self, index: usize) -> bool {
        self.slots[index].is_wary
    }

    /// Records progress of a slot: a request is complete.
    pub(crate) fn progressed(&mut self, index: usize) {
        self.slots[index].failures = 0;
        self.slots[index].is_wary = false;
    }

    /// Records that the connection of a slot broke after it had made progress.
    pub(crate) fn broke_later(&mut self, index: usize) {
        self.slots[index].failures = 0;
        self.slots[index].is_wary = true;
    }

    /// Records progress that all slots share.
    pub(crate) fn all_progressed(&mut self) {
        self.indices().for_each(|index| self.progressed(index));
    }

    /// Counts a failure of a slot without a connection, and chooses the time of its next attempt. `retry_after` is what the server
    /// asked for.
    pub(crate) fn failed(&mut self, index: usize, retry_after: Option<Duration>) -> AfterFailure {
        let attempts = self.attempts;
        let slot = &mut self.slots[index];
        slot.failures += 1;
        (slot.is_wary, slot.is_used) = (true, true);
        if slot.failures < attempts {
            let wait = retry::delay(slot.failures, retry_after);
            slot.state = State::Closed(Instant::now() + wait);
            return AfterFailure::Continue;
        }
        slot.state = State::Retired;
        // Those that were never needed would fail in the same way.
        let has_attempts = |slot: &Slot<C>| match slot.state {
            State::Open(_) => true,
            State::Closed(_) => slot.is_used,
            State::Retired => false,
        };
        match self.slots.iter().any(has_attempts) {
            true => AfterFailure::Continue,
            false => AfterFailure::GiveUp,
        }
    }

    /// Returns the earliest time at which a slot without a connection is due.
    pub(crate) fn next_due(&self) -> Option<Instant> {
        let due = self.slots.iter().filter_map(|slot| match slot.state {
            State::Closed(until) => Some(until),
            State::Open(_) | State::Retired => None,
        });
        due.min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slot_is_wary_until_a_request_is_complete() {
        let mut slots = Slots::<()>::new(1, 3);
        assert!(!slots.is_wary(0));
        assert_eq!(slots.failed(0, None), AfterFailure::Continue);
        assert!(slots.is_wary(0));
        slots.progressed(0);
        assert!(!slots.is_wary(0));
        slots.broke_later(0);
        assert!(slots.is_wary(0));
    }

    #[test]
    fn a_load_goes_on_while_any_slot_has_attempts_left() {
        let mut slots = Slots::<()>::new(16, 2);
        for index in 0..3 {
            assert_eq!(slots.failed(index, None), AfterFailure::Continue);
        }
        // The others wait, and one that works has just been ended by its server.
        assert_eq!(slots.failed(0, None), AfterFailure::Continue);
        assert_eq!(slots.failed(1, None), AfterFailure::Continue);
        slots.put(3, ());
        assert_eq!(slots.take(3), Some(()));
        assert_eq!(slots.failed(2, None), AfterFailure::Continue);
        assert_eq!(slots.failed(3, None), AfterFailure::Continue);
        assert_eq!(
            slots.failed(3, None),
            AfterFailure::GiveUp,
            "12 were never needed"
        );
    }

    #[test]
    fn a_slot_that_waits_leaves_its_turn_to_another() {
        let mut slots = Slots::new(4, 2);
        slots.put(3, ());
        let turns = |slots: &Slots<()>| {
            let next = |last: &usize| slots.next_turn(last + 1);
            std::iter::successors(slots.next_turn(0), next).collect::<Vec<_>>()
        };
        assert_eq!(turns(&slots), [0, 1, 2, 3]);
        assert_eq!(slots.failed(0, None), AfterFailure::Continue);
        assert_eq!(turns(&slots), [1, 2, 3], "0 waits for its next attempt");
        assert_eq!(slots.failed(0, None), AfterFailure::Continue);
        assert_eq!(slots.failed(2, None), AfterFailure::Continue);
        assert_eq!(turns(&slots), [1, 3], "0 is retired");
    }

    #[test]
    fn a_slot_is_retired_after_its_attempts_and_the_last_one_gives_up() {
        let mut slots: Slots<u8> = Slots::new(2, 2);
        slots.put(1, 7);
        assert_eq!(slots.failed(0, None), AfterFailure::Continue);
        assert!(!slots.is_due(0), "it waits before the next attempt");
        assert_eq!(
            slots.failed(0, None),
            AfterFailure::Continue,
            "the other one is open"
        );
        assert_eq!(slots.next_due(), None, "the other two need no attempt");
        assert_eq!(slots.take(0), None);
        assert!(!slots.is_due(0), "it stays retired");

        assert_eq!(slots.take(1), Some(7));
        assert!(slots.is_due(1));
        assert_eq!(slots.failed(1, None), AfterFailure::Continue);
        slots.progressed(1);
        assert_eq!(slots.failed(1, None), AfterFailure::Continue);
        assert_eq!(slots.failed(1, None), AfterFailure::GiveUp);
    }
}
