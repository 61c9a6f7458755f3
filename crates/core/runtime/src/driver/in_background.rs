//! What the background thread does with the driver, behind the threads of the application, and how these wake it.
//!
//! A wake-up costs the caller a system call, and makes the background thread poll once more. So it is woken only while it rests; while it is
//! awake, it will see by itself what the call has left.

use std::os::fd::AsFd;
use std::time::Duration;

use super::{Core, Driver};
use crate::calls::Leader;
use crate::driven::Driven;
use crate::fds::{set, sleep_on};
use crate::limit::LONGEST_SLEEP;
use crate::sync::MutexGuard;

impl<D: Driven> Driver<D> {
    /// Locks the state for the background thread, after threads that wait for it; `None` while another thread holds the lock
    /// and an application thread polls, so that the background thread never delays it.
    ///
    /// The thread then rests, unless it calls [`stay_awake`](Self::stay_awake) before it unlocks.
    pub(crate) fn lock_in_background(&self) -> Option<MutexGuard<'_, Core<D>>> {
        if self.has_callers() {
            self.background_rest.begin();
            return self.core.try_lock();
        }
        let core = self.core.lock_behind_waiting();
        self.background_rest.begin();
        Some(core)
    }

    /// The background thread polls, or leads, and then looks again.
    pub(crate) fn stay_awake(&self) {
        self.background_rest.end();
    }

    /// Sleeps as leader in the background thread, until a link is readable, a deadline is reached or a call wakes it.
    pub(crate) fn lead_in_background<'a>(
        &'a self,
        mut core: MutexGuard<'a, Core<D>>,
    ) -> MutexGuard<'a, Core<D>> {
        core.calls.leader = Leader::Background;
        let mut core = self.sleep_on_links(core, &self.wake_background, LONGEST_SLEEP);
        if core.calls.leader == Leader::Background {
            core.calls.leader = Leader::Nobody;
        }
        core
    }

    /// Sleeps in the background thread without leading, at most `at_most` or until it is woken.
    pub(crate) fn rest_in_background(&self, at_most: Duration) {
        sleep_on(&self.wake_background, &[], at_most);
        self.background_rest.end();
    }

    /// The background thread has slept while a thread of the program led.
    pub(crate) fn end_sleep_of_background(&self) {
        self.core.lock().background_sleeps = false;
    }

    /// Makes the background thread look at what a call has left, if it rests. Must be called without the lock, when the caller
    /// does not count as one any more.
    pub(super) fn wake_background_from_rest(&self) {
        if self.background_rest.may_have_begun() {
            set(self.wake_background.as_fd());
        }
    }
}
