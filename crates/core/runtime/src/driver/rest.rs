//! What a waiting thread does when a poll finds nothing, before it sleeps on the links: it spins, for the shortest delay, or rests, for the
//! least CPU time. NICs do the same when they interrupt only after some microseconds (ethtool: rx-usecs).

use std::time::Duration;

use wire::Instant;

use crate::calls::Leader;
use crate::clock::Clock;
use crate::driven::Driven;
use crate::limit::{Idling, Wait};
use crate::spin::{Pause, Traffic};

use super::Core;

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

impl<D: Driven> Core<D> {
    /// Returns what a thread does in `wait` that has found nothing for `idle`, and may sleep for `left`. `rest` is its rest, if it has
    /// not rested yet; one that has sleeps. Where the link borrows the sender's memory, which is little, nobody rests.
    pub(super) fn pause(
        &mut self,
        clock: &Clock,
        wait: Wait,
        now: Instant,
        idle: Duration,
        left: Duration,
        rest: &mut Option<Duration>,
    ) -> Pause {
        let stack = &self.driven.stacks()[wait.awaits.stack.0];
        let borrows = stack.nic().link_caps().borrows;
        if wait.idling == Idling::Spin || borrows {
            let traffic = Traffic {
                received: self.received,
                turns: stack.turns(),
                borrows,
            };
            return self.spin.pause(now, idle, traffic);
        }
        let may_rest = self.resting == Resting::BeforeSleep && self.may_rest();
        match rest.take().filter(|_| may_rest) {
            Some(rest) => Pause::Nap(rest.min(left).min(self.until_deadline(clock))),
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
        clock: &Clock,
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
            true => rest.min(left).min(self.until_deadline(clock)),
            false => Duration::ZERO,
        }
    }

    /// Returns whether no other thread depends on the polls of this one.
    pub(super) fn may_rest(&self) -> bool {
        self.calls.leader == Leader::Nobody && self.calls.parked.is_empty()
    }

    /// Returns how long it is until a stack must be polled again.
    fn until_deadline(&self, clock: &Clock) -> Duration {
        let now = clock.now();
        let deadline = self.next_deadline();
        deadline.map_or(Duration::MAX, |deadline| deadline.saturating_since(now))
    }
}
