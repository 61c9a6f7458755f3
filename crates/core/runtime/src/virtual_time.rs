//! Stacks in virtual time: two user-space NICs on a wire whose both ends are here.
//!
//! Time stands still while there is work. Any waiting thread polls all stacks, and the clock advances to the next deadline when none
//! has work. There is no thread in the background, and nothing sleeps on a link.

use std::ops::{Deref, DerefMut};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use stack::{FlushScope, PollUntil};
use wire::Instant;

use crate::calls::{Calls, StackIndex};
use crate::driven::{Driven, next_deadline, poll_stacks};
use crate::limit::{NotReady, WaitLimit};
use crate::linger::Linger;

/// How long, in real time, a waiter waits for other threads before it lets its own timeout expire.
const OTHERS_TURN: Duration = Duration::from_millis(200);

/// Drives stacks in virtual time.
#[derive(Debug)]
pub struct VirtualDriver<D> {
    core: Mutex<Core<D>>,
    /// Notified when the state changes.
    changed: Condvar,
}

#[derive(Debug)]
struct Core<D> {
    driven: D,
    now: Instant,
    /// Nobody is in it: all threads that wait look again after each change.
    calls: Calls,
    /// Number of changes that a thread may be waiting for.
    epoch: u64,
}

/// The locked state of a driver in virtual time.
#[derive(Debug)]
pub struct VirtualGuard<'a, D>(MutexGuard<'a, Core<D>>);

impl<D> Deref for VirtualGuard<'_, D> {
    type Target = D;

    fn deref(&self) -> &D {
        &self.0.driven
    }
}

impl<D> DerefMut for VirtualGuard<'_, D> {
    fn deref_mut(&mut self) -> &mut D {
        &mut self.0.driven
    }
}

impl<D: Driven> Core<D> {
    fn next_deadline(&self) -> Option<Instant> {
        next_deadline(self.driven.stacks())
    }

    /// Moves the clock forward to `at`.
    fn jump_to(&mut self, at: Instant) {
        self.now = self.now.max(at);
    }
}

impl<D: Driven> VirtualDriver<D> {
    /// Creates a driver whose clock shows 0.
    pub fn new(driven: D) -> Self {
        Self {
            core: Mutex::new(Core {
                driven,
                now: Instant::ZERO,
                calls: Calls::default(),
                epoch: 0,
            }),
            changed: Condvar::new(),
        }
    }

    fn enter(&self) -> MutexGuard<'_, Core<D>> {
        self.core.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the time.
    pub fn now(&self) -> Instant {
        self.enter().now
    }

    /// As [`Driver::lock`](crate::Driver::lock).
    pub fn lock(&self) -> VirtualGuard<'_, D> {
        VirtualGuard(self.enter())
    }

    /// As [`Driver::call`](crate::Driver::call).
    pub fn call<T>(&self, call: impl FnOnce(&mut D, Instant) -> T) -> T {
        let mut core = self.enter();
        let now = core.now;
        let result = call(&mut core.driven, now);
        self.after_call(&mut core);
        result
    }

    fn after_call(&self, core: &mut Core<D>) {
        core.epoch += 1;
        for stack in core.driven.stacks_mut() {
            if stack.wants_flush() {
                stack.flush(FlushScope::All, core.now);
            }
        }
        core.driven.tell_events(&mut core.calls);
        self.changed.notify_all();
    }

    fn poll(&self, core: &mut Core<D>) -> bool {
        let now = core.now;
        let received = poll_stacks(core.driven.stacks_mut(), PollUntil::Empty, || now);
        let worked = received > 0 || core.driven.has_events();
        if worked {
            self.after_call(core);
        }
        worked
    }

    /// Lets the threads that wait attempt again.
    pub fn wake_any(&self, _: StackIndex) {
        self.enter().epoch += 1;
        self.changed.notify_all();
    }

    /// As [`Driver::wait_for`](crate::Driver::wait_for). A call that must not wait, or whose time is over, advances the clock by one
    /// step, so that a program that repeats it gets on.
    ///
    /// # Errors
    /// The limit is reached.
    pub fn wait_for<T>(
        &self,
        limit: WaitLimit,
        mut attempt: impl FnMut(&mut D, Instant) -> Option<T>,
    ) -> Result<T, NotReady> {
        let mut core = self.enter();
        let started = core.now;
        loop {
            let now = core.now;
            if let Some(result) = attempt(&mut core.driven, now) {
                self.after_call(&mut core);
                return Ok(result);
            }
            if self.poll(&mut core) {
                continue;
            }
            if let Some(reason) = limit.over(started, now) {
                if let Some(deadline) = core.next_deadline() {
                    core.jump_to(deadline);
                }
                return Err(reason);
            }
            core = self.jump(core, limit.end(started));
        }
    }

    /// Advances the clock to the next deadline. If there is none, waits for other threads; if these change nothing, advances
    /// to the caller's own time limit.
    fn jump<'a>(
        &'a self,
        mut core: MutexGuard<'a, Core<D>>,
        until: Option<Instant>,
    ) -> MutexGuard<'a, Core<D>> {
        let deadline = core.next_deadline();
        if let Some(deadline) = deadline
            && until.is_none_or(|until| deadline <= until)
        {
            core.jump_to(deadline);
            // Another thread may wait for the lock: without a pause this one would lock it again at once, and hours
            // of virtual time could pass before the other thread gets it.
            drop(core);
            std::thread::yield_now();
            return self.enter();
        }
        let epoch = core.epoch;
        let (mut core, waited) = self
            .changed
            .wait_timeout_while(core, OTHERS_TURN, |core| core.epoch == epoch)
            .unwrap_or_else(PoisonError::into_inner);
        if let Some(until) = until
            && waited.timed_out()
        {
            core.jump_to(until);
        }
        core
    }

    /// As [`Driver::linger`](crate::Driver::linger).
    pub fn linger(&self, at_most: Duration, grace: Duration) -> bool {
        let mut core = self.enter();
        let mut linger = Linger::new(core.now, at_most, grace);
        loop {
            let now = core.now;
            let until = match linger.until(core.driven.stacks(), now) {
                Ok(until) => until,
                Err(all_closed) => return all_closed,
            };
            if self.poll(&mut core) {
                continue;
            }
            let Some(deadline) = core.next_deadline() else {
                return false;
            };
            core.jump_to(deadline.min(until));
        }
    }
}
