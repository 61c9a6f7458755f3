//! What a waiting thread does when a poll finds nothing, before it sleeps on the links: it spins, for the shortest delay, or rests, for the
//! least CPU time. NICs do the same when they interrupt only after some microseconds (ethtool: rx-usecs).

use std::sync::MutexGuard;
use std::time::Duration;

use wire::Instant;

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

/// When a thread rests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Resting {
    /// When a poll has found nothing: the next packets come before the rest is over.
    #[default]
    BeforeSleep,
    /// When the first packet has woken it: those that come with it gather meanwhile. A rest before a sleep has found nothing, so
    /// the packets come in bursts, and one in the gap between two would be in vain.
    AfterSleep,
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
                turns: stack.turns(),
                lends,
            };
            return self.spin.pause(idle, traffic);
        }
        let may_rest = self.resting == Resting::BeforeSleep && self.may_rest();
        match rest.take().filter(|_| may_rest) {
            Some(rest) => Pause::Nap(rest.min(left).min(self.until_deadline())),
            None => {
                self.resting = Resting::AfterSleep;
                Pause::Sleep
            }
        }
    }

    /// Returns how long a thread rests that was woken after it had slept for `slept`, before it looks; it may wait for `left`. The
    /// first packet of a burst has woken it. If it slept for less than a rest, the next rest is before the sleep again.
    pub(super) fn rest_awake(
        &mut self,
        idling: Idling,
        slept: Duration,
        left: Duration,
    ) -> Duration {
        let Some(rest) = idling.rest() else {
            return Duration::ZERO;
        };
        if slept < rest {
            self.resting = Resting::BeforeSleep;
        }
        match self.resting == Resting::AfterSleep && self.may_rest() {
            true => rest.min(left).min(self.until_deadline()),
            false => Duration::ZERO,
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
    /// Sleeps until the link is readable, a deadline is reached or another thread wakes it: as leader in poll(2), and then it may
    /// rest; else parked.
    pub(super) fn sleep<'a>(
        &'a self,
        mut core: MutexGuard<'a, Core>,
        wait: Wait,
        started: Instant,
    ) -> MutexGuard<'a, Core> {
        let now = core.clock.now();
        let left = wait.limit.left(started, now);
        if let Leader::Application(..) = core.leader {
            return self.follow(core, wait, left);
        }
        core.leader = Leader::Application(wait.awaits());
        let mut core = self.sleep_on_links(core, &self.wake_leader, left);
        core.leader = Leader::Nobody;
        let woken = core.clock.now();
        let (slept, left) = (woken.saturating_since(now), wait.limit.left(started, woken));
        match core.rest_awake(wait.idling, slept, left) {
            Duration::ZERO => core,
            rest => self.look_again(core, || std::thread::sleep(rest)),
        }
    }

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
