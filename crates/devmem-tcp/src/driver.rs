//! The driver of a stack: which thread polls it, and when. It runs to completion.
//!
//! The thread that waits for a socket polls the NIC itself, so received data is not passed between threads. It spins for a
//! while where that is useful (`spin.rs`), or rests if the program asks for that (`rest.rs`), then sleeps in poll(2) on the
//! link. Of several waiting threads one is the *leader*, which sleeps on the link; the others park until the leader finds their
//! socket ready or stops leading. When no thread of the application is inside a call, the background thread leads, so that ACKs,
//! timers and neighbour discovery continue (`background.rs`); a thread of the application takes the lead from it.
//!
//! A thread that polls receives for all sockets, also for those of other threads. When it has received [`TURN`] packets, it
//! hands the lock to the threads that wait for it, so that they can take what was received (`handover.rs`).
//!
//! Each shard of a NIC has a driver (`shards.rs`).
//!
//! Two user-space NICs on a virtual-time wire share one driver. Any waiting thread polls both, and the clock advances to the
//! next deadline when neither has work.

mod behind;
mod fds;
mod leftovers;
mod rest;
mod wait;

use std::collections::HashMap;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, MutexGuard, PoisonError};
use std::thread::Thread;
use std::time::Duration;

use netmem::MemoryObserver;
use rustix::event::{EventfdFlags, eventfd};
use stack::{POLL_BUDGET, SocketId, Stack};
use wire::Instant;

use devmem_uapi::DmabufId;

use crate::clock::Clock;
use crate::error::Forked;
use crate::handover::HandoverMutex;
use crate::home::Home;
use crate::signals::{ReadinessChange, Signals, TaskSignal};
use crate::spin::{Pause, Spin};
use crate::watchers::Watchers;
use behind::BackgroundRest;
use fds::sleep_on;
pub(crate) use fds::{clear, set, sleep_until_readable};
use leftovers::Leftovers;
pub(crate) use rest::Idling;
use rest::Resting;
pub(crate) use wait::{Awaited, NotReady, Wait, WaitLimit};

/// Longest single sleep: bounds the delay of a missed wake-up.
const LONGEST_SLEEP: Duration = Duration::from_millis(500);

/// How long, in real time, a waiter in virtual time waits for other threads before it lets its own timeout expire.
const OTHERS_TURN: Duration = Duration::from_millis(200);

/// Packets that a thread receives before it hands the lock to threads that wait for it: those of one poll with much to do.
const TURN: u64 = POLL_BUDGET as u64;

/// Index of a stack in its driver (a virtual-time pair has two stacks).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct StackIndex(pub(crate) usize);

/// A thread that is parked until a socket is ready.
#[derive(Debug)]
struct Waiter {
    awaits: Awaited,
    thread: Thread,
}

/// The thread that sleeps in poll(2) on the links.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Leader {
    /// None: every thread is awake, or outside of the driver.
    Nobody,
    /// The background thread.
    Background,
    /// A thread of the application.
    Application(Awaited),
}

/// The state protected by the lock.
pub(crate) struct Core {
    pub(crate) stacks: Vec<Stack>,
    pub(crate) clock: Clock,
    /// Bound memories by id, to find the memory of a frag.
    pub(crate) memories: HashMap<(StackIndex, DmabufId), MemoryObserver>,
    /// Eventfds of sockets that were requested.
    signals: Signals,
    /// Sockets that pollers wait for.
    pub(crate) watchers: Watchers,
    waiters: Vec<Waiter>,
    /// Buffer for events, kept to reuse its allocation.
    events: Vec<SocketId>,
    pub(crate) leader: Leader,
    /// When the leader's sleep times out; `None` if it is awake or has been woken.
    sleeps_until: Option<Instant>,
    /// When a call last polled after which the application is likely to call again: one that may wait, or any call of a
    /// program that waits for no eventfd. `None` if it left polling to the background thread.
    pub(crate) last_foreground: Option<Instant>,
    /// The background thread sleeps without a tick: a thread that leaves a call must wake it.
    pub(crate) background_sleeps: bool,
    leftovers: Leftovers,
    /// A program may be about to wait for a readiness fd: when no thread is inside a call, the background thread must lead at
    /// once, not at its next tick.
    background_wanted: bool,
    /// Number of changes that a waiter of a virtual-time pair may be waiting for.
    epoch: u64,
    /// Number of packets that were received; a poll that had other work counts as one.
    received: u64,
    spin: Spin,
    resting: Resting,
}

/// Effects of [`Core::tell_events`].
#[derive(Clone, Copy, Debug, Default)]
struct Told {
    /// The socket that the leader waits for has changed.
    leader: bool,
    /// A readiness fd is not readable any more.
    drained: bool,
}

impl Core {
    /// Polls every stack once. Returns whether any of them had work.
    fn poll_stacks(&mut self) -> bool {
        let mut worked = false;
        for stack in &mut self.stacks {
            let polled = stack.poll_by(&mut || self.clock.now());
            if polled.worked {
                worked = true;
                self.received += polled.received.max(1) as u64;
            }
        }
        worked
    }

    /// Returns the earliest time at which a stack must be polled again.
    pub(crate) fn next_deadline(&self) -> Option<Instant> {
        self.stacks.iter().filter_map(Stack::next_deadline).min()
    }

    /// Wakes waiters, and writes to the eventfds, of the sockets whose readiness changed.
    fn tell_events(&mut self) -> Told {
        let mut told = Told::default();
        for index in 0..self.stacks.len() {
            let at = StackIndex(index);
            let mut events = std::mem::take(&mut self.events);
            events.extend(self.stacks[index].take_events());
            for socket in events.drain(..) {
                self.waiters
                    .iter()
                    .filter(|waiter| waiter.awaits.is(at, socket))
                    .for_each(|waiter| waiter.thread.unpark());
                told.leader |=
                    matches!(self.leader, Leader::Application(awaits) if awaits.is(at, socket));
                self.watchers.tell((at, socket));
                // A closed socket is not ready for anything.
                let ready = self.stacks[index].readiness(socket).unwrap_or_default();
                let change = self.signals.tell((at, socket), ready);
                told.drained |= change == ReadinessChange::NotReady;
            }
            self.events = events;
            if self.signals.any_lacks_memory() && self.stacks[index].has_send_memory() {
                self.signals.tell_memory(at);
            }
        }
        let stacks = &self.stacks;
        self.signals
            .tell_armed(|(at, socket)| stacks[at.0].readiness(socket).unwrap_or_default());
        told
    }

    /// Returns whether the leader would sleep past a deadline that was set after it went to sleep.
    fn sleeper_is_late(&self) -> bool {
        let Some(until) = self.sleeps_until else {
            return false;
        };
        self.next_deadline()
            .is_some_and(|deadline| deadline < until)
    }

    /// Returns the eventfd of a task signal; the first call creates it.
    pub(crate) fn task_fd(
        &mut self,
        at: StackIndex,
        socket: SocketId,
        signal: TaskSignal,
    ) -> rustix::io::Result<Arc<OwnedFd>> {
        self.signals.task_fd((at, socket), signal)
    }

    /// Arms a task signal for one event. An attempt of the call must follow.
    pub(crate) fn arm(&mut self, at: StackIndex, socket: SocketId, signal: TaskSignal) {
        if let Ok(ready) = self.stacks[at.0].readiness(socket) {
            self.signals.arm((at, socket), signal, ready);
        }
    }

    /// Notes that a call with the limit `limit` polls. After a call that must not wait, a program may sleep until an eventfd
    /// is readable, and only the background thread can make it so.
    fn note_foreground(&mut self, limit: WaitLimit, now: Instant) {
        if limit != WaitLimit::Never || !self.signals.is_awaited() {
            self.last_foreground = Some(now);
        }
    }

    /// Makes the background thread lead from now on, if that is wanted; returns whether it must be woken for that. While a thread
    /// of the application leads, the wish stays until that one leaves.
    fn take_background_wanted(&mut self) -> bool {
        if let Leader::Application(..) = self.leader {
            return false;
        }
        let wanted = std::mem::take(&mut self.background_wanted);
        if wanted {
            // Also if the background thread leads: its sleep may have ended, and it waits for the lock. It would rest for a tick
            // if an application thread had polled last.
            self.last_foreground = None;
        }
        wanted && self.leader == Leader::Nobody
    }

    /// Forgets a closed socket.
    pub(crate) fn forget(&mut self, at: StackIndex, socket: SocketId) {
        self.signals.forget((at, socket));
        self.watchers.forget((at, socket));
    }
}

/// One or two stacks, their clock, and the threads that drive them.
pub(crate) struct Driver {
    home: Home,
    core: HandoverMutex<Core>,
    /// Notified when a virtual-time pair changes; in real time, threads wait for the link's fd.
    changed: Condvar,
    /// The links' fds, to sleep on without the lock.
    links: Vec<OwnedFd>,
    /// Ends the sleep of the background thread.
    wake_background: OwnedFd,
    background_rest: BackgroundRest,
    /// Ends the sleep of a leader that is a thread of the application.
    wake_leader: OwnedFd,
    closing: AtomicBool,
    /// Number of application threads inside a [`Driver::wait_for`] that may wait: they poll, or sleep and will be woken.
    callers: AtomicUsize,
    /// A call has left something to send since the background thread last found that there is nothing.
    has_leftovers: AtomicBool,
}

/// Guard of a call; it must be dropped after the lock.
struct Caller<'a> {
    driver: &'a Driver,
    /// Counts as one of [`Driver::callers`].
    may_wait: bool,
    /// The background thread must lead after this caller.
    wakes_background: bool,
}

impl<'a> Caller<'a> {
    fn enter(driver: &'a Driver, limit: WaitLimit) -> Self {
        let may_wait = limit != WaitLimit::Never;
        driver.callers.fetch_add(may_wait.into(), Ordering::Relaxed);
        Self {
            driver,
            may_wait,
            wakes_background: false,
        }
    }
}

impl Drop for Caller<'_> {
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

impl Driver {
    /// Creates a driver for `stacks`; `links` are duplicates of the fds on which their links signal input.
    pub(crate) fn new(
        stacks: Vec<Stack>,
        clock: Clock,
        links: Vec<OwnedFd>,
    ) -> rustix::io::Result<Arc<Self>> {
        Ok(Arc::new(Self {
            home: Home::here(),
            core: HandoverMutex::new(Core {
                stacks,
                clock,
                memories: HashMap::new(),
                signals: Signals::default(),
                watchers: Watchers::default(),
                waiters: Vec::new(),
                events: Vec::new(),
                leader: Leader::Nobody,
                sleeps_until: None,
                last_foreground: None,
                background_sleeps: false,
                leftovers: Leftovers::default(),
                background_wanted: false,
                epoch: 0,
                received: 0,
                spin: Spin::default(),
                resting: Resting::default(),
            }),
            changed: Condvar::new(),
            links,
            wake_background: eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC)?,
            background_rest: BackgroundRest::default(),
            wake_leader: eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC)?,
            closing: AtomicBool::new(false),
            callers: AtomicUsize::new(0),
            has_leftovers: AtomicBool::new(false),
        }))
    }

    /// Fails in a child of fork(2) of the process that created the driver.
    #[inline]
    pub(crate) fn check(&self) -> Result<(), Forked> {
        self.home.check()
    }

    /// Returns whether this process created the driver.
    pub(crate) fn is_here(&self) -> bool {
        self.home.is_here()
    }

    /// Locks the state; fails in a child of fork(2).
    pub(crate) fn enter(&self) -> Result<MutexGuard<'_, Core>, Forked> {
        self.check()?;
        Ok(self.lock())
    }

    /// Locks the state; must not be called in a child of fork(2). A poisoned lock is locked as usual: the stack is consistent
    /// between calls, and destructors must still return tokens.
    pub(crate) fn lock(&self) -> MutexGuard<'_, Core> {
        self.core.lock()
    }

    /// Returns whether a thread of the application is inside a call that may wait.
    pub(crate) fn has_callers(&self) -> bool {
        self.callers.load(Ordering::SeqCst) > 0
    }

    /// Runs `call` on one stack and wakes the threads that wait for its effects. Does nothing in a child of fork(2).
    pub(crate) fn with<T>(
        &self,
        at: StackIndex,
        call: impl FnOnce(&mut Stack, Instant) -> T,
    ) -> Result<T, Forked> {
        let mut core = self.enter()?;
        let now = core.clock.now();
        let result = call(&mut core.stacks[at.0], now);
        self.after_call(&mut core);
        let wakes_background = core.take_background_wanted() || self.rests_too_long(&mut core);
        drop(core);
        if wakes_background {
            self.wake_background_from_rest();
        }
        Ok(result)
    }

    /// Polls the stacks and wakes the threads whose sockets became ready. Returns whether there was work.
    pub(crate) fn poll(&self, core: &mut Core) -> bool {
        let worked = core.poll_stacks() || core.stacks.iter().any(Stack::has_events);
        if worked {
            self.after_call(core);
        }
        worked
    }

    /// Flushes the stacks and signals events. Must follow every call that may have changed a socket.
    ///
    /// What does not fill a super-packet may stay until the next poll, if no thread sleeps on the links that would have to be woken
    /// for it.
    fn after_call(&self, core: &mut Core) {
        core.epoch += 1;
        let now = core.clock.now();
        let gathers = core.leader == Leader::Nobody && !core.clock.is_virtual();
        for stack in &mut core.stacks {
            match stack.wants_flush() {
                true if gathers => stack.flush_full(now),
                true => stack.flush(now),
                false => {}
            }
        }
        let told = core.tell_events();
        if told.leader || core.sleeper_is_late() {
            core.sleeps_until = None;
            match core.leader {
                Leader::Application(..) => set(self.wake_leader.as_fd()),
                Leader::Background => set(self.wake_background.as_fd()),
                Leader::Nobody => {}
            }
        }
        core.background_wanted |= told.drained;
        if core.clock.is_virtual() {
            self.changed.notify_all();
        }
    }

    /// Lets the threads that wait for several sockets of a stack attempt again.
    pub(crate) fn wake_any(&self, at: StackIndex) {
        let Ok(mut core) = self.enter() else {
            return;
        };
        let waiters = core.waiters.iter();
        waiters
            .filter(|waiter| waiter.awaits.is_any(at))
            .for_each(|waiter| waiter.thread.unpark());
        if matches!(core.leader, Leader::Application(awaits) if awaits.is_any(at)) {
            set(self.wake_leader.as_fd());
        }
        if core.clock.is_virtual() {
            core.epoch += 1;
            self.changed.notify_all();
        }
    }

    /// Returns the readiness fd of a socket. From now on the background thread keeps it up to date.
    pub(crate) fn readiness_fd(
        &self,
        at: StackIndex,
        socket: SocketId,
    ) -> std::io::Result<Arc<OwnedFd>> {
        let mut core = self.enter()?;
        core.last_foreground = None;
        // A closed socket is not ready for anything: only its owner could ask for the fd.
        let ready = core.stacks[at.0].readiness(socket).unwrap_or_default();
        let fd = core.signals.readiness_fd((at, socket), ready)?;
        drop(core);
        self.wake_background_from_rest();
        Ok(fd)
    }

    /// Polls until the connections of dropped streams are closed in both directions, for `at_most`. Once all data and FINs
    /// are acknowledged, it waits for the FINs of the peers for `grace` only. Returns whether all are closed.
    pub(crate) fn linger(&self, at_most: Duration, grace: Duration) -> bool {
        let mut core = self.lock();
        let last = core.clock.now() + at_most;
        let mut until = last;
        let mut was_acknowledged = false;
        loop {
            let all_closed = core.stacks.iter().all(|stack| stack.stats().orphans == 0);
            let now = core.clock.now();
            if all_closed || now >= until {
                return all_closed;
            }
            let acknowledged = !core.stacks.iter().any(Stack::has_unacknowledged_orphan);
            if acknowledged && !was_acknowledged {
                until = last.min(now + grace);
            }
            was_acknowledged = acknowledged;
            if self.poll(&mut core) {
                continue;
            }
            let left = until.saturating_since(core.clock.now());
            if core.clock.is_virtual() {
                let Some(deadline) = core.next_deadline() else {
                    return false;
                };
                core.clock.jump_to(deadline.min(until));
            } else {
                core = self.sleep_on_links(core, &self.wake_leader, left);
            }
        }
    }

    /// Returns the time of the clock.
    pub(crate) fn now(&self) -> Instant {
        self.lock().clock.now()
    }

    /// Makes the background thread end.
    pub(crate) fn close(&self) {
        self.closing.store(true, Ordering::Release);
        set(self.wake_background.as_fd());
    }

    /// Returns whether [`Driver::close`] was called.
    pub(crate) fn is_closing(&self) -> bool {
        self.closing.load(Ordering::Acquire)
    }

    /// Calls `attempt` until it returns a result or the limit is reached, and polls in between.
    pub(crate) fn wait_for<T>(
        &self,
        wait: Wait,
        mut attempt: impl FnMut(&mut Stack, Instant) -> Option<T>,
    ) -> Result<T, NotReady> {
        self.check()?;
        let mut caller = Caller::enter(self, wait.limit);
        let mut core = self.lock();
        let started = core.clock.now();
        let mut idle_since = None;
        let mut polled = false;
        let mut rest = wait.idling.rest();
        let mut turn_began = core.received;
        loop {
            let now = core.clock.now();
            core.note_foreground(wait.limit, now);
            if let Some(result) = attempt(&mut core.stacks[wait.stack.0], now) {
                self.after_call(&mut core);
                if !polled && core.is_poll_overdue(wait.stack, now) {
                    self.poll(&mut core);
                }
                caller.wakes_background = self.leave(&mut core);
                return Ok(result);
            }
            // A call that must not wait polls only once: other sockets could keep it receiving without end.
            let looks = wait.limit != WaitLimit::Never || !polled || core.clock.is_virtual();
            polled = true;
            if looks && self.poll(&mut core) {
                if idle_since.take().is_some() {
                    core.spin.on_work();
                }
                core = self.share(core, &mut turn_began);
                continue;
            }
            if let Some(reason) = wait.limit.over(started, now) {
                caller.wakes_background = self.leave_unready(&mut core, reason);
                return Err(reason);
            }
            let idle = now.saturating_since(*idle_since.get_or_insert(now));
            core = if core.clock.is_virtual() {
                self.jump(core, wait.limit.end(started))
            } else {
                let left = wait.limit.left(started, now);
                match core.pause(wait, idle, left, &mut rest) {
                    // The peer, or a process that forwards its frames, may share this processor.
                    Pause::Yield => self.look_again(core, std::thread::yield_now),
                    Pause::Nap(nap) => self.look_again(core, || std::thread::sleep(nap)),
                    Pause::Sleep => {
                        core.spin.on_sleep();
                        idle_since = None;
                        self.sleep(core, wait, started)
                    }
                }
            };
            turn_began = core.received;
        }
    }

    /// Hands the lock to the threads that wait for it, if this thread has received [`TURN`] packets since `turn_began`.
    fn share<'a>(
        &'a self,
        core: MutexGuard<'a, Core>,
        turn_began: &mut u64,
    ) -> MutexGuard<'a, Core> {
        if core.received - *turn_began < TURN {
            return core;
        }
        let core = self.core.hand_over(core);
        *turn_began = core.received;
        core
    }

    /// Wakes one parked thread as the next leader before this thread leaves the driver. Returns whether the background thread must
    /// be woken: because it sleeps without a tick, or because the program may wait for a readiness fd next.
    fn leave(&self, core: &mut Core) -> bool {
        if core.leader == Leader::Nobody
            && let Some(waiter) = core.waiters.first()
        {
            waiter.thread.unpark();
        }
        core.take_background_wanted() || core.background_sleeps || self.rests_too_long(core)
    }

    /// Leaves without a result. A non-blocking caller may wait for an fd of its sockets, so the background thread leads until it
    /// returns; if it cannot wait for an fd, it polls, and a wake-up at each attempt would cost it more than the attempt. In virtual time, such a call advances the clock by one step. Returns as [`leave`](Self::leave).
    fn leave_unready(&self, core: &mut Core, reason: NotReady) -> bool {
        if core.clock.is_virtual() {
            if let Some(deadline) = core.next_deadline() {
                core.clock.jump_to(deadline);
            }
        } else {
            core.background_wanted |= reason == NotReady::WouldBlock && core.signals.is_awaited();
        }
        self.leave(core)
    }

    /// Advances virtual time to the next deadline. If there is none, waits for other threads; if these change nothing, advances
    /// to the caller's own time limit.
    fn jump<'a>(
        &'a self,
        mut core: MutexGuard<'a, Core>,
        until: Option<Instant>,
    ) -> MutexGuard<'a, Core> {
        let deadline = core.next_deadline();
        if let Some(deadline) = deadline
            && until.is_none_or(|until| deadline <= until)
        {
            core.clock.jump_to(deadline);
            // Another thread may wait for the lock: without a pause this one would lock it again at once, and hours
            // of virtual time could pass before the other thread gets it.
            drop(core);
            std::thread::yield_now();
            return self.lock();
        }
        let epoch = core.epoch;
        let (mut core, waited) = self
            .changed
            .wait_timeout_while(core, OTHERS_TURN, |core| core.epoch == epoch)
            .unwrap_or_else(PoisonError::into_inner);
        if let Some(until) = until
            && waited.timed_out()
        {
            core.clock.jump_to(until);
        }
        core
    }

    /// Parks until the leader finds this thread's socket ready or stops leading.
    fn follow<'a>(
        &'a self,
        mut core: MutexGuard<'a, Core>,
        wait: Wait,
        left: Duration,
    ) -> MutexGuard<'a, Core> {
        core.waiters.push(Waiter {
            awaits: wait.awaits(),
            thread: std::thread::current(),
        });
        drop(core);
        std::thread::park_timeout(left.min(LONGEST_SLEEP));
        let mut core = self.lock();
        let me = std::thread::current().id();
        core.waiters.retain(|waiter| waiter.thread.id() != me);
        core
    }

    /// Releases the lock and sleeps until a link or `wake` is readable, for at most `at_most` or until the next deadline.
    fn sleep_on_links<'a>(
        &'a self,
        mut core: MutexGuard<'a, Core>,
        wake: &OwnedFd,
        at_most: Duration,
    ) -> MutexGuard<'a, Core> {
        let now = core.clock.now();
        let until_deadline = core
            .next_deadline()
            .map_or(LONGEST_SLEEP, |deadline| deadline.saturating_since(now));
        let timeout = until_deadline.min(at_most).min(LONGEST_SLEEP);
        core.sleeps_until = Some(now + timeout);
        drop(core);
        sleep_on(wake, &self.links, timeout);
        let mut core = self.lock();
        core.sleeps_until = None;
        core
    }
}

#[cfg(test)]
pub(crate) mod tests;
