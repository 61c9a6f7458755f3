//! What a call leaves to send, and who sends it if the program makes no further call.
//!
//! A call that need not wait returns at once. What it has queued may be held back (`FlushScope::Full`), or wait for an ACK, which
//! only a poll receives. The next call polls if nobody has for [`POLL_INTERVAL`]. Without a next call the background thread does:
//! the first call that leaves something wakes it, and it rests briefly as long as calls leave something. A program that sends all
//! the time polls by itself, so these rests become longer.

use std::sync::atomic::Ordering;
use std::time::Duration;

use stack::Stack;
use wire::Instant;

use super::{Core, Driver};
use crate::calls::{Leader, StackIndex};
use crate::driven::Driven;

/// How often the background thread checks whether the program still polls. While it does, the thread does nothing else.
pub(super) const TICK: Duration = Duration::from_millis(10);

/// Time since the last poll after which a call polls that need not wait, or the background thread if something is left to send. A
/// program that only sends, more often than the background thread takes over (`background.rs`), would otherwise receive no ACK
/// until its send buffer is full, and no timer would expire.
pub(super) const POLL_INTERVAL: Duration = Duration::from_millis(1);

/// Longest rest of the background thread while calls leave something to send and poll by themselves. Each end of a rest costs a
/// sender on the same processor 40 us.
const LONGEST_REST: Duration = Duration::from_millis(4);

/// The background thread's rests while calls leave something to send.
#[derive(Debug)]
pub(super) struct UnsentRests {
    /// When its current rest ends, or will after it was woken; in the past if that is unknown.
    rests_until: Instant,
    /// Its next rest, if the program still polls.
    rest: Duration,
}

impl Default for UnsentRests {
    fn default() -> Self {
        Self {
            rests_until: Instant::ZERO,
            rest: POLL_INTERVAL,
        }
    }
}

impl<D: Driven> Core<D> {
    /// Returns whether a call that need not wait polls: nobody has polled for [`POLL_INTERVAL`], and no thread sleeps on the link,
    /// which would be woken if there was work.
    pub(super) fn is_poll_overdue(&self, at: StackIndex, now: Instant) -> bool {
        let last_poll = self.driven.stacks()[at.0].last_poll();
        self.calls.leader == Leader::Nobody && now.saturating_since(last_poll) >= POLL_INTERVAL
    }

    /// Returns when somebody has to poll for what the calls have left to send; `None` if they have left nothing.
    fn unsent_due(&self) -> Option<Instant> {
        let is_left = |stack: &&Stack| stack.wants_flush() || stack.has_unsent();
        let last_polls = self
            .driven
            .stacks()
            .iter()
            .filter(is_left)
            .map(Stack::last_poll);
        Some(last_polls.min()? + POLL_INTERVAL)
    }
}

impl<D: Driven> Driver<D> {
    /// Returns whether a call that ends must wake the background thread: it has left something to send, and that thread rests for
    /// longer than it would then.
    pub(super) fn rests_too_long(&self, core: &mut Core<D>) -> bool {
        if core.calls.leader != Leader::Nobody {
            return false;
        }
        let Some(due) = core.unsent_due() else {
            return false;
        };
        self.has_unsent.store(true, Ordering::Relaxed);
        let now = self.now();
        let until = core.unsent_rests.rests_until;
        let wakes_in_time = now < until && until <= now + LONGEST_REST;
        if !wakes_in_time {
            core.unsent_rests.rests_until = due;
        }
        !wakes_in_time
    }

    /// Returns how long the background thread rests from `now` on, because the application polls; `None`: it does not any more,
    /// and has left something to send.
    pub(crate) fn rest(&self, core: &mut Core<D>, now: Instant) -> Option<Duration> {
        let due = core.unsent_due();
        self.has_unsent.store(due.is_some(), Ordering::Relaxed);
        let rest = core.unsent_rests.rest;
        core.unsent_rests.rest = POLL_INTERVAL;
        let rest = match due {
            None => TICK,
            // A thread inside a call polls by itself.
            Some(due) if due <= now && !self.has_callers() => return None,
            Some(_) => {
                core.unsent_rests.rest = (2 * rest).min(LONGEST_REST);
                rest
            }
        };
        core.unsent_rests.rests_until = now + rest;
        Some(rest)
    }

    /// Returns how long the background thread rests while it cannot lock the state.
    pub(crate) fn blind_rest(&self) -> Duration {
        match self.has_unsent.load(Ordering::Relaxed) {
            true => POLL_INTERVAL,
            false => TICK,
        }
    }
}
