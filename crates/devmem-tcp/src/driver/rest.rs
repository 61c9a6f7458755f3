//! What a waiting thread does when a poll finds nothing, before it sleeps on the links: it spins, for the shortest delay, or rests, for the
//! least CPU time. NICs do the same when they interrupt only after some microseconds (ethtool: rx-usecs).

use std::sync::MutexGuard;
use std::time::Duration;

use super::{Core, Driver, Leader, Wait};
use crate::spin::{Pause, Traffic};

/// What a thread does when a poll finds nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Idling {
    /// Polls again and again, as long as that finds work often enough.
    Spin,
    /// Sleeps for this long once per call, and polls then: packets that arrive meanwhile are received together.
    Rest(Duration),
}

impl Idling {
    /// Returns how long to rest.
    pub(super) fn rest(self) -> Option<Duration> {
        match self {
            Self::Spin => None,
            Self::Rest(rest) => Some(rest),
        }
    }
}

impl Core {
    /// Returns what a thread does in `wait` that has found nothing for `idle`, and may sleep for `left`. `rest` is its rest, if it has
    /// not rested yet; one that has sleeps. Where the link lends the sender's memory, which is little, nobody rests.
    pub(super) fn pause(
        &mut self,
        wait: Wait,
        idle: Duration,
        left: Duration,
        rest: &mut Option<Duration>,
    ) -> Pause {
        let stack = &self.stacks[wait.stack.0];
        let lends = stack.nic().link_caps().lends;
        if wait.idling == Idling::Spin || lends {
            let traffic = Traffic {
                received: self.received,
                sends: stack.sends(),
                lends,
            };
            return self.spin.pause(idle, traffic);
        }
        match rest.take().filter(|_| self.may_rest()) {
            Some(rest) => Pause::Nap(rest.min(left).min(self.until_deadline())),
            None => Pause::Sleep,
        }
    }

    /// Returns whether no other thread depends on the polls of this one.
    pub(super) fn may_rest(&self) -> bool {
        self.leader == Leader::Nobody && self.waiters.is_empty()
    }

    /// Returns how long it is until a stack must be polled again.
    fn until_deadline(&self) -> Duration {
        let now = self.clock.now();
        let deadline = self.next_deadline();
        deadline.map_or(Duration::MAX, |deadline| deadline.saturating_since(now))
    }
}

impl Driver {
    /// Releases the lock while `pause` runs.
    pub(super) fn look_again<'a>(
        &'a self,
        core: MutexGuard<'a, Core>,
        pause: impl FnOnce(),
    ) -> MutexGuard<'a, Core> {
        drop(core);
        pause();
        self.lock()
    }
}
