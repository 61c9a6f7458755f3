//! The driver of stacks in real time: which thread polls them, and when. It runs to completion.
//!
//! The thread that waits for a socket polls the NIC itself, so received data is not passed between threads. It spins for a
//! while where that is useful (`spin.rs`), or rests if the program asks for that (`rest.rs`), then sleeps in poll(2) on the
//! link. Of several waiting threads one is the *leader*, which sleeps on the link; the others park until the leader finds their
//! socket ready or stops leading. When no thread of the program is inside a call, the background thread leads, so that ACKs,
//! timers and neighbour discovery continue (`background.rs`); a thread of the program takes the lead from it.
//!
//! A thread that polls receives for all sockets, also for those of other threads. When it has received [`TURN`] packets, it
//! hands the lock to the threads that wait for it, so that they can take what was received (`handover.rs`).
//!
//! Each shard of a NIC has a driver.

mod in_background;
mod rest;
#[cfg(test)]
mod tests;
mod unsent;
mod wait;

use std::ops::{Deref, DerefMut};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use rustix::event::{EventfdFlags, eventfd};
use stack::{FlushScope, POLL_BUDGET, PollUntil, Stack};
use wire::Instant;

use crate::background_rest::BackgroundRest;
use crate::calls::{Calls, Leader, StackIndex};
use crate::clock::Clock;
use crate::driven::{Driven, end_sleep, next_deadline, poll_stacks, prepare_sleep};
use crate::fds::{set, sleep_on};
use crate::handover::HandoverMutex;
use crate::limit::LONGEST_SLEEP;
use crate::linger::Linger;
use crate::spin::{Pauses, Spin};
use crate::sync::MutexGuard;
use rest::Resting;
use unsent::UnsentRests;

/// Packets that a thread receives before it hands the lock to threads that wait for it: those of one poll with much to do.
const TURN: u64 = POLL_BUDGET as u64;

/// Drives stacks in real time. See the page of this crate.
#[derive(Debug)]
pub struct Driver<D> {
    core: HandoverMutex<Core<D>>,
    clock: Clock,
    /// The links' fds, to sleep on without the lock.
    links: Vec<OwnedFd>,
    /// Ends the sleep of the background thread.
    wake_background: OwnedFd,
    background_rest: BackgroundRest,
    /// Ends the sleep of a leader that is a thread of the program.
    wake_leader: OwnedFd,
    closing: AtomicBool,
    /// Number of threads of the program inside a [`Driver::wait_for`] that may wait: they poll, or sleep and will be woken.
    callers: AtomicUsize,
    /// A call has left something to send since the background thread last found that there is nothing.
    has_unsent: AtomicBool,
}

/// The state protected by the lock.
#[derive(Debug)]
pub(crate) struct Core<D> {
    driven: D,
    pub(crate) calls: Calls,
    /// When the leader's sleep times out; `None` if it is awake or has been woken.
    sleeps_until: Option<Instant>,
    /// Threads that sleep on the links: the background thread may still do so when a thread of the program has taken the lead.
    sleepers: usize,
    /// When a call last polled after which the program is likely to call again: one that may wait, or any call of a
    /// program that waits for no fd. `None` if it left polling to the background thread.
    pub(crate) last_foreground: Option<Instant>,
    /// The background thread sleeps without a tick: a thread that leaves a call must wake it.
    pub(crate) background_sleeps: bool,
    unsent_rests: UnsentRests,
    /// A program may be about to wait for an fd: when no thread is inside a call, the background thread must lead at
    /// once, not at its next tick.
    background_wanted: bool,
    /// Number of packets that were received; a poll that had other work counts as one.
    received: u64,
    spin: Spin,
    pauses: Pauses,
    resting: Resting,
}

/// The locked state of a driver.
#[derive(Debug)]
pub struct Guard<'a, D>(MutexGuard<'a, Core<D>>);

impl<D> Deref for Guard<'_, D> {
    type Target = D;

    fn deref(&self) -> &D {
        &self.0.driven
    }
}

impl<D> DerefMut for Guard<'_, D> {
    fn deref_mut(&mut self) -> &mut D {
        &mut self.0.driven
    }
}

impl<D: Driven> Core<D> {
    fn next_deadline(&self) -> Option<Instant> {
        next_deadline(self.driven.stacks())
    }

    /// Returns whether a stack has work that needs no packet: a poll of it must come before a sleep.
    pub(crate) fn wants_flush(&self) -> bool {
        self.driven.stacks().iter().any(Stack::wants_flush)
    }

    /// Returns whether the leader would sleep past a deadline that was set after it went to sleep.
    fn sleeper_is_late(&self) -> bool {
        let Some(until) = self.sleeps_until else {
            return false;
        };
        self.next_deadline()
            .is_some_and(|deadline| deadline < until)
    }

    /// Makes the background thread lead from now on, if that is wanted; returns whether it must be woken for that. While a thread
    /// of the program leads, the wish stays until that one leaves.
    fn take_background_wanted(&mut self) -> bool {
        if let Leader::Program(..) = self.calls.leader {
            return false;
        }
        let wanted = std::mem::take(&mut self.background_wanted);
        if wanted {
            // Also if the background thread leads: its sleep may have ended, and it waits for the lock. It would rest for a tick
            // if a thread of the program had polled last.
            self.last_foreground = None;
        }
        wanted && self.calls.leader == Leader::Nobody
    }
}

impl<D: Driven> Driver<D> {
    /// Creates a driver; `links` are duplicates of the fds on which the links of the stacks signal input.
    ///
    /// # Errors
    /// The eventfds cannot be made.
    pub fn new(mut driven: D, clock: Clock, links: Vec<OwnedFd>) -> rustix::io::Result<Arc<Self>> {
        end_sleep(driven.stacks_mut());
        let new_eventfd = || eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC);
        Ok(Arc::new(Self {
            core: HandoverMutex::new(Core {
                driven,
                calls: Calls::default(),
                sleeps_until: None,
                sleepers: 0,
                last_foreground: None,
                background_sleeps: false,
                unsent_rests: UnsentRests::default(),
                background_wanted: false,
                received: 0,
                spin: Spin::default(),
                pauses: Pauses::default(),
                resting: Resting::default(),
            }),
            clock,
            links,
            wake_background: new_eventfd()?,
            background_rest: BackgroundRest::default(),
            wake_leader: new_eventfd()?,
            closing: AtomicBool::new(false),
            callers: AtomicUsize::new(0),
            has_unsent: AtomicBool::new(false),
        }))
    }

    /// Returns the time.
    pub fn now(&self) -> Instant {
        self.clock.now()
    }

    /// Locks the state. A poisoned lock is locked as usual: a stack is consistent between calls, and destructors must still return
    /// tokens.
    pub fn lock(&self) -> Guard<'_, D> {
        Guard(self.core.lock())
    }

    /// Returns what waiting threads have done so far when they found nothing.
    pub fn pauses(&self) -> Pauses {
        self.core.lock().pauses
    }

    /// Runs a call that does not wait, and wakes the threads that wait for its effects.
    pub fn call<T>(&self, call: impl FnOnce(&mut D, Instant) -> T) -> T {
        let mut core = self.core.lock();
        let now = self.now();
        let result = call(&mut core.driven, now);
        self.end_call(core, now);
        result
    }

    /// Ends a call: a function of its own, so that it is compiled once and not for each kind of call.
    fn end_call(&self, mut core: MutexGuard<'_, Core<D>>, now: Instant) {
        self.after_call(&mut core, now);
        let wakes_background = core.take_background_wanted() || self.rests_too_long(&mut core);
        drop(core);
        if wakes_background {
            self.wake_background_from_rest();
        }
    }

    /// Polls the stacks and wakes the threads whose sockets became ready. Returns whether there was work.
    pub(crate) fn poll(&self, core: &mut Core<D>) -> bool {
        self.poll_at(core, &mut self.now())
    }

    /// As [`poll`](Self::poll), at a time that the caller has just read from the clock. It is read again after each packet: if there was
    /// work, `now` is the time of the last one.
    fn poll_at(&self, core: &mut Core<D>, now: &mut Instant) -> bool {
        let mut reads = 0;
        let received = poll_stacks(core.driven.stacks_mut(), PollUntil::LikelyEmpty, || {
            if reads > 0 {
                *now = self.now();
            }
            reads += 1;
            *now
        });
        core.received += received;
        let worked = received > 0 || core.driven.has_events();
        if worked {
            self.tell_events(core);
        }
        if worked && reads <= 1 {
            *now = self.now();
        }
        worked
    }

    /// Flushes the stacks and tells their events. Must follow every call that may have changed a socket; the call began at `now`.
    ///
    /// What does not fill a super-packet may stay until the next poll, if no thread sleeps on the links that would have to be woken
    /// for it.
    fn after_call(&self, core: &mut Core<D>, now: Instant) {
        let scope = match core.calls.leader {
            Leader::Nobody => FlushScope::Full,
            _ => FlushScope::All,
        };
        for stack in core.driven.stacks_mut() {
            if stack.wants_flush() {
                stack.flush(scope, now);
            }
        }
        self.tell_events(core);
    }

    /// Tells the events of the stacks, and wakes the leader if it has to do something before it would wake.
    fn tell_events(&self, core: &mut Core<D>) {
        core.driven.tell_events(&mut core.calls);
        let due = core.calls.take_due_wakes();
        if due.leader || core.sleeper_is_late() {
            core.sleeps_until = None;
            match core.calls.leader {
                Leader::Program(..) => set(self.wake_leader.as_fd()),
                Leader::Background => set(self.wake_background.as_fd()),
                Leader::Nobody => {}
            }
        }
        core.background_wanted |= due.is_fd_drained;
    }

    /// Lets the threads that wait for any change of a stack attempt again.
    pub fn wake_any(&self, stack: StackIndex) {
        let mut core = self.core.lock();
        core.calls.wake_any(stack);
        if core.calls.take_due_wakes().leader {
            set(self.wake_leader.as_fd());
        }
    }

    /// Notes that the program has a file descriptor, and may sleep on it from now on: the background thread keeps it up to date.
    pub fn expect_fd_waits(&self) {
        self.core.lock().last_foreground = None;
        self.wake_background_from_rest();
    }

    /// Polls until the connections of closed sockets are closed in both directions, for `at_most`. Once all data and FINs
    /// are acknowledged, it waits for the FINs of the peers for `grace` only. Returns whether all are closed.
    pub fn linger(&self, at_most: Duration, grace: Duration) -> bool {
        let mut core = self.core.lock();
        let mut linger = Linger::new(self.now(), at_most, grace);
        loop {
            let until = match linger.until(core.driven.stacks(), self.now()) {
                Ok(until) => until,
                Err(all_closed) => return all_closed,
            };
            if !self.poll(&mut core) {
                let left = until.saturating_since(self.now());
                core = self.sleep_on_links(core, &self.wake_leader, left);
            }
        }
    }

    /// Makes the background thread end.
    pub(crate) fn close(&self) {
        self.closing.store(true, Ordering::Release);
        set(self.wake_background.as_fd());
    }

    /// Returns whether [`close`](Self::close) was called.
    pub(crate) fn is_closing(&self) -> bool {
        self.closing.load(Ordering::Acquire)
    }

    /// Releases the lock and sleeps until a link or `wake` is readable, for at most `at_most` or until the next deadline. Does not sleep if
    /// a link has something that its descriptor does not show.
    fn sleep_on_links<'a>(
        &'a self,
        mut core: MutexGuard<'a, Core<D>>,
        wake: &OwnedFd,
        at_most: Duration,
    ) -> MutexGuard<'a, Core<D>> {
        let now = self.now();
        let until_deadline = core
            .next_deadline()
            .map_or(LONGEST_SLEEP, |deadline| deadline.saturating_since(now));
        let timeout = until_deadline.min(at_most).min(LONGEST_SLEEP);
        if prepare_sleep(core.driven.stacks_mut()) {
            core.sleeps_until = Some(now + timeout);
            core.sleepers += 1;
            drop(core);
            sleep_on(wake, &self.links, timeout);
            core = self.core.lock();
            core.sleepers -= 1;
            core.sleeps_until = None;
        }
        if core.sleepers == 0 {
            end_sleep(core.driven.stacks_mut());
        }
        core
    }
}
