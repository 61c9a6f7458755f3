//! What the background thread does with the driver, behind the threads of the application, and how these wake it.
//!
//! A wake-up costs the thread that writes it a system call, and the background thread a turn: it ends the sleep on the links that
//! it has just begun. So it is woken only while it rests. If it is awake, it has yet to look at what the call has left.

use std::sync::MutexGuard;
use std::sync::atomic::{AtomicBool, Ordering, fence};
use std::time::Duration;

use super::fds::{set, sleep_on};
use super::{AsFd, Core, Driver, LONGEST_SLEEP, Leader};

/// Whether the background thread rests, or may do so next without a look at what calls leave from now on.
#[derive(Debug)]
pub(super) struct BackgroundRest(AtomicBool);

impl Default for BackgroundRest {
    /// Of a thread that has not looked yet.
    fn default() -> Self {
        Self(AtomicBool::new(true))
    }
}

impl BackgroundRest {
    /// The thread looks at the state, and rests if that asks for nothing. All that it decides by must be read after this.
    fn begin(&self) {
        self.0.store(true, Ordering::SeqCst);
        fence(Ordering::SeqCst);
    }

    /// The thread will look again before it rests.
    fn end(&self) {
        self.0.store(false, Ordering::SeqCst);
    }

    /// Returns whether the thread must be woken to see what was written before this.
    fn may_have_begun(&self) -> bool {
        fence(Ordering::SeqCst);
        self.0.load(Ordering::SeqCst)
    }
}

impl Core {
    /// Returns whether a stack has work that needs no packet: a poll of it must come before a sleep.
    pub(crate) fn wants_flush(&self) -> bool {
        self.stacks.iter().any(|stack| stack.wants_flush())
    }
}

impl Driver {
    /// Locks the state for the background thread, after threads that wait for it; `None` while another thread holds the lock
    /// and an application thread polls, so that the background thread never delays it.
    ///
    /// The thread then rests, unless it calls [`stay_awake`](Self::stay_awake) before it unlocks.
    pub(crate) fn lock_in_background(&self) -> Option<MutexGuard<'_, Core>> {
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
        mut core: MutexGuard<'a, Core>,
    ) -> MutexGuard<'a, Core> {
        core.leader = Leader::Background;
        let mut core = self.sleep_on_links(core, &self.wake_background, LONGEST_SLEEP);
        if core.leader == Leader::Background {
            core.leader = Leader::Nobody;
        }
        core
    }

    /// Sleeps in the background thread without leading, at most `at_most` or until it is woken.
    pub(crate) fn rest_in_background(&self, at_most: Duration) {
        sleep_on(&self.wake_background, &[], at_most);
        self.background_rest.end();
    }

    /// Makes the background thread look at what a call has left, if it rests. Must be called without the lock, when the caller
    /// does not count as one any more.
    pub(super) fn wake_background_from_rest(&self) {
        if self.background_rest.may_have_begun() {
            set(self.wake_background.as_fd());
        }
    }
}
