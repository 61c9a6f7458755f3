//! A call that waits: it polls, pauses, sleeps as leader, or parks behind the leader.

use std::sync::atomic::Ordering;
use std::time::Duration;

use wire::Instant;

use super::{Core, Driver, TURN};
use crate::calls::{Leader, Parked};
use crate::driven::Driven;
use crate::limit::{LONGEST_SLEEP, NotReady, Wait, WaitLimit};
use crate::spin::Pause;
use crate::sync::MutexGuard;

/// Guard of a call; it must be dropped after the lock.
struct Caller<'a, D: Driven> {
    driver: &'a Driver<D>,
    /// Counts as one of [`Driver::callers`].
    may_wait: bool,
    /// The background thread must lead after this caller.
    wakes_background: bool,
}

impl<'a, D: Driven> Caller<'a, D> {
    fn enter(driver: &'a Driver<D>, limit: WaitLimit) -> Self {
        let may_wait = limit != WaitLimit::Never;
        driver.callers.fetch_add(may_wait.into(), Ordering::Relaxed);
        Self {
            driver,
            may_wait,
            wakes_background: false,
        }
    }
}

impl<D: Driven> Drop for Caller<'_, D> {
    fn drop(&mut self) {
        self.driver
            .callers
            .fetch_sub(self.may_wait.into(), Ordering::SeqCst);
        // Only now: the background thread rests for a tick if it finds a caller, or the lock taken.
        if self.wakes_background {
            self.driver.wake_background_from_rest();
        }
    }
}

impl<D: Driven> Core<D> {
    /// Notes that a call with the limit `limit` polls. After a call that must not wait, a program may sleep until an fd
    /// is readable, and only the background thread can make it so.
    fn note_foreground(&mut self, limit: WaitLimit, now: Instant) {
        if limit != WaitLimit::Never || !self.driven.awaits_fd() {
            self.last_foreground = Some(now);
        }
    }
}

impl<D: Driven> Driver<D> {
    /// Returns whether a thread of the program is inside a call that may wait.
    pub(crate) fn has_callers(&self) -> bool {
        self.callers.load(Ordering::SeqCst) > 0
    }

    /// Calls `attempt` until it returns a result or the limit is reached, and polls in between.
    ///
    /// # Errors
    /// The limit is reached.
    pub fn wait_for<T>(
        &self,
        wait: Wait,
        mut attempt: impl FnMut(&mut D, Instant) -> Option<T>,
    ) -> Result<T, NotReady> {
        let mut caller = Caller::enter(self, wait.limit);
        let mut core = self.core.lock();
        let started = self.now();
        let mut now = started;
        let mut idle_since = None;
        let mut polled = false;
        let mut rest = wait.idling.rest();
        let mut turn_began = core.received;
        loop {
            core.note_foreground(wait.limit, now);
            if let Some(result) = attempt(&mut core.driven, now) {
                self.after_call(&mut core, now);
                if !polled && core.is_poll_overdue(wait.awaits.stack, now) {
                    self.poll(&mut core);
                }
                caller.wakes_background = self.leave(&mut core);
                return Ok(result);
            }
            // A call that must not wait polls only once: other sockets could keep it receiving without end.
            let looks = wait.limit != WaitLimit::Never || !polled;
            polled = true;
            if looks && self.poll_at(&mut core, &mut now) {
                if idle_since.take().is_some() {
                    core.spin.on_work();
                }
                if core.received - turn_began >= TURN {
                    core = self.core.hand_over(core);
                    turn_began = core.received;
                    now = self.now();
                }
                continue;
            }
            if let Some(reason) = wait.limit.over(started, now) {
                caller.wakes_background = self.leave_unready(&mut core, reason);
                return Err(reason);
            }
            let idle = now.saturating_since(*idle_since.get_or_insert(now));
            let left = wait.limit.left(started, now);
            let pause = core.pause(&self.clock, wait, now, idle, left, &mut rest);
            core.pauses.note(pause);
            core = match pause {
                Pause::Look => self.look_again(core, std::hint::spin_loop),
                Pause::Yield => self.yield_and_look(core, now),
                Pause::Nap(nap) => self.look_again(core, || std::thread::sleep(nap)),
                Pause::Sleep => {
                    core.spin.on_sleep();
                    idle_since = None;
                    self.sleep(core, wait, started)
                }
            };
            turn_began = core.received;
            now = self.now();
        }
    }

    /// Wakes one parked thread as the next leader before this thread leaves the driver. Returns whether the background thread must
    /// be woken: because it sleeps without a tick, or because the program may wait for an fd next.
    fn leave(&self, core: &mut Core<D>) -> bool {
        if core.calls.leader == Leader::Nobody
            && let Some(parked) = core.calls.parked.first()
        {
            parked.thread.unpark();
        }
        core.take_background_wanted() || core.background_sleeps || self.rests_too_long(core)
    }

    /// Leaves without a result. A non-blocking caller may wait for an fd of its sockets, so the background thread leads until it
    /// returns; if it cannot wait for an fd, it polls, and a wake-up at each attempt would cost it more than the attempt. Returns as
    /// [`leave`](Self::leave).
    fn leave_unready(&self, core: &mut Core<D>, reason: NotReady) -> bool {
        core.background_wanted |= reason == NotReady::WouldBlock && core.driven.awaits_fd();
        self.leave(core)
    }

    /// Sleeps until the link is readable, a deadline is reached or another thread wakes it: as leader in poll(2), and then it may
    /// rest; else parked.
    fn sleep<'a>(
        &'a self,
        mut core: MutexGuard<'a, Core<D>>,
        wait: Wait,
        started: Instant,
    ) -> MutexGuard<'a, Core<D>> {
        let now = self.now();
        let left = wait.limit.left(started, now);
        if let Leader::Program(..) = core.calls.leader {
            return self.park(core, wait, left);
        }
        core.calls.leader = Leader::Program(wait.awaits);
        let mut core = self.sleep_on_links(core, &self.wake_leader, left);
        core.calls.leader = Leader::Nobody;
        let woken = self.now();
        let (slept, left) = (woken.saturating_since(now), wait.limit.left(started, woken));
        match core.rest_awake(&self.clock, wait.idling, slept, left) {
            Duration::ZERO => core,
            rest => self.look_again(core, || std::thread::sleep(rest)),
        }
    }

    /// Parks until the leader finds this thread's socket ready or stops leading.
    fn park<'a>(
        &'a self,
        mut core: MutexGuard<'a, Core<D>>,
        wait: Wait,
        left: Duration,
    ) -> MutexGuard<'a, Core<D>> {
        core.calls.parked.push(Parked {
            awaits: wait.awaits,
            thread: std::thread::current(),
        });
        drop(core);
        std::thread::park_timeout(left.min(LONGEST_SLEEP));
        let mut core = self.core.lock();
        let me = std::thread::current().id();
        core.calls.parked.retain(|it| it.thread.id() != me);
        core
    }

    /// Lets other threads run: the peer, or a process that forwards its frames, may share this processor. The thread has looked at
    /// `looked`, and found nothing.
    fn yield_and_look<'a>(
        &'a self,
        core: MutexGuard<'a, Core<D>>,
        looked: Instant,
    ) -> MutexGuard<'a, Core<D>> {
        let mut ended = looked;
        let mut core = self.look_again(core, || {
            std::thread::yield_now();
            ended = self.now();
        });
        core.spin.on_yield(looked, ended);
        core
    }

    /// Releases the lock while `pause` runs.
    fn look_again<'a>(
        &'a self,
        core: MutexGuard<'a, Core<D>>,
        pause: impl FnOnce(),
    ) -> MutexGuard<'a, Core<D>> {
        drop(core);
        pause();
        self.core.lock()
    }
}
