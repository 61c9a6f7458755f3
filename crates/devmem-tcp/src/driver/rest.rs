//! What a waiting thread does when a poll finds nothing, before it sleeps on the links: it spins, for the shortest delay, or rests, for the
//! least CPU time. NICs do the same when they interrupt only after some microseconds (ethtool: rx-usecs).

use std::sync::MutexGuard;
use std::time::Duration;

use super::{Core, Driver, Leader, Wait};

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
    /// Returns whether a rest in `wait` delays nobody else: neither a thread that depends on the polls of this one, nor a sender whose
    /// memory the link lends, which is little.
    pub(super) fn may_rest(&self, wait: Wait) -> bool {
        let lends = self.stacks[wait.stack.0].nic().link_caps().lends;
        self.leader == Leader::Nobody && self.waiters.is_empty() && !lends
    }
}

impl Driver {
    /// Releases the lock and sleeps for `rest`, or until the next deadline, whatever arrives.
    pub(super) fn rest_in_wait<'a>(
        &'a self,
        core: MutexGuard<'a, Core>,
        rest: Duration,
    ) -> MutexGuard<'a, Core> {
        let now = core.clock.now();
        let until_deadline = core
            .next_deadline()
            .map_or(rest, |deadline| deadline.saturating_since(now));
        drop(core);
        std::thread::sleep(rest.min(until_deadline));
        self.lock()
    }
}
