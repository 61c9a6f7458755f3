//! The driver of a user-space NIC's stacks, in real or in virtual time, and what its lock protects.
//!
//! Nothing of it may be used in a child of fork(2) of the process that opened the NIC, where another thread may hold the lock for ever.
//! `backend` checks that, through which all calls of programs go, and so does each `Drop` ([`Driver::undo`]).

use std::collections::HashMap;
use std::ops::{Deref, DerefMut};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use devmem_uapi::DmabufId;
use netmem::MemoryObserver;
use runtime::{Awaited, Background, Calls, Clock, Driven, Guard, VirtualDriver, VirtualGuard};
pub(crate) use runtime::{Idling, StackIndex, WaitLimit};
use stack::{SocketId, Stack};
use wire::Instant;

use crate::error::{Forked, NotReady};
use crate::home::Home;
use crate::signals::{ReadinessChange, Signals, TaskSignal};
use crate::watchers::Watchers;

/// Stacks, and what a program waits for on their sockets.
#[derive(Debug)]
pub(crate) struct Stacks {
    pub(crate) stacks: Vec<Stack>,
    /// Bound memories by id, to find the memory of a frag.
    pub(crate) memories: HashMap<(StackIndex, DmabufId), MemoryObserver>,
    /// Eventfds of sockets that were requested.
    signals: Signals,
    /// Sockets that pollers wait for.
    pub(crate) watchers: Watchers,
    /// Buffer for events, kept to reuse its allocation.
    events: Vec<SocketId>,
}

impl Stacks {
    fn new(stacks: Vec<Stack>) -> Self {
        Self {
            stacks,
            memories: HashMap::new(),
            signals: Signals::default(),
            watchers: Watchers::default(),
            events: Vec::new(),
        }
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

    fn readiness_fd(
        &mut self,
        at: StackIndex,
        socket: SocketId,
    ) -> rustix::io::Result<Arc<OwnedFd>> {
        // A closed socket is not ready for anything: only its owner could ask for the fd.
        let ready = self.stacks[at.0].readiness(socket).unwrap_or_default();
        self.signals.readiness_fd((at, socket), ready)
    }

    /// Forgets a closed socket.
    pub(crate) fn forget(&mut self, at: StackIndex, socket: SocketId) {
        self.signals.forget((at, socket));
        self.watchers.forget((at, socket));
    }
}

impl Driven for Stacks {
    fn stacks(&self) -> &[Stack] {
        &self.stacks
    }

    fn stacks_mut(&mut self) -> &mut [Stack] {
        &mut self.stacks
    }

    /// Wakes waiting threads, and writes to the eventfds, of the sockets whose readiness changed.
    fn tell_events(&mut self, calls: &mut Calls) {
        for index in 0..self.stacks.len() {
            let at = StackIndex(index);
            let mut events = std::mem::take(&mut self.events);
            events.extend(self.stacks[index].take_events());
            for socket in events.drain(..) {
                calls.wake(at, socket);
                self.watchers.tell((at, socket));
                // A closed socket is not ready for anything.
                let ready = self.stacks[index].readiness(socket).unwrap_or_default();
                if self.signals.tell((at, socket), ready) == ReadinessChange::NotReady {
                    calls.note_drained_fd();
                }
            }
            self.events = events;
            if self.signals.any_lacks_memory() && self.stacks[index].has_send_memory() {
                self.signals.tell_memory(at);
            }
        }
        let stacks = &self.stacks;
        self.signals
            .tell_armed(|(at, socket)| stacks[at.0].readiness(socket).unwrap_or_default());
    }

    fn has_events(&self) -> bool {
        self.stacks.iter().any(Stack::has_events)
    }

    fn awaits_fd(&self) -> bool {
        self.signals.is_awaited()
    }
}

/// The socket that a call waits for, and its limit.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wait {
    pub(crate) stack: StackIndex,
    /// `None`: several sockets. A change of any one of the stack is an attempt.
    pub(crate) socket: Option<SocketId>,
    pub(crate) limit: WaitLimit,
    pub(crate) idling: Idling,
}

/// The driver of one stack, or of two in virtual time.
#[derive(Clone, Debug)]
pub(crate) struct Driver {
    home: Home,
    time: Time,
}

#[derive(Clone, Debug)]
enum Time {
    Real(Arc<runtime::Driver<Stacks>>),
    Virtual(Arc<VirtualDriver<Stacks>>),
}

/// The locked state of a driver.
pub(crate) enum Locked<'a> {
    Real(Guard<'a, Stacks>),
    Virtual(VirtualGuard<'a, Stacks>),
}

impl Deref for Locked<'_> {
    type Target = Stacks;

    fn deref(&self) -> &Stacks {
        match self {
            Self::Real(guard) => guard,
            Self::Virtual(guard) => guard,
        }
    }
}

impl DerefMut for Locked<'_> {
    fn deref_mut(&mut self) -> &mut Stacks {
        match self {
            Self::Real(guard) => guard,
            Self::Virtual(guard) => guard,
        }
    }
}

/// Returns a driver in real time; `links` are duplicates of the fds on which the link of the stack signals input.
pub(crate) fn in_real_time(
    stack: Stack,
    clock: Clock,
    links: Vec<OwnedFd>,
) -> rustix::io::Result<Arc<runtime::Driver<Stacks>>> {
    runtime::Driver::new(Stacks::new(vec![stack]), clock, links)
}

impl From<Arc<runtime::Driver<Stacks>>> for Driver {
    fn from(driver: Arc<runtime::Driver<Stacks>>) -> Self {
        Self {
            home: Home::here(),
            time: Time::Real(driver),
        }
    }
}

impl Driver {
    /// Returns a driver in virtual time.
    pub(crate) fn in_virtual_time(stacks: Vec<Stack>) -> Self {
        Self {
            home: Home::here(),
            time: Time::Virtual(Arc::new(VirtualDriver::new(Stacks::new(stacks)))),
        }
    }

    /// Starts the background thread. In virtual time there is none: calls advance the clock.
    pub(crate) fn start_background(&self) -> std::io::Result<Option<Background<Stacks>>> {
        match &self.time {
            Time::Real(driver) => Background::start(driver, "devmem-tcp").map(Some),
            Time::Virtual(_) => Ok(None),
        }
    }

    pub(crate) fn is_virtual(&self) -> bool {
        matches!(self.time, Time::Virtual(_))
    }

    /// Returns whether both are the same.
    pub(crate) fn is(&self, other: &Self) -> bool {
        match (&self.time, &other.time) {
            (Time::Real(a), Time::Real(b)) => Arc::ptr_eq(a, b),
            (Time::Virtual(a), Time::Virtual(b)) => Arc::ptr_eq(a, b),
            (Time::Real(_), Time::Virtual(_)) | (Time::Virtual(_), Time::Real(_)) => false,
        }
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

    /// Locks the state.
    pub(crate) fn lock(&self) -> Locked<'_> {
        debug_assert!(self.is_here(), "a caller has not checked for fork(2)");
        match &self.time {
            Time::Real(driver) => Locked::Real(driver.lock()),
            Time::Virtual(driver) => Locked::Virtual(driver.lock()),
        }
    }

    /// Returns the time of the clock.
    pub(crate) fn now(&self) -> Instant {
        match &self.time {
            Time::Real(driver) => driver.now(),
            Time::Virtual(driver) => driver.now(),
        }
    }

    /// Runs `call` on one stack and wakes the threads that wait for its effects.
    pub(crate) fn with<T>(&self, at: StackIndex, call: impl FnOnce(&mut Stack, Instant) -> T) -> T {
        let (mut call, mut result) = (Some(call), None);
        self.run(at, &mut |stack, now| {
            result = call.take().map(|call| call(stack, now));
        });
        result.expect("the driver makes each call once")
    }

    /// The part of [`with`](Self::with) that is compiled once, not for each kind of call.
    fn run(&self, at: StackIndex, call: &mut dyn FnMut(&mut Stack, Instant)) {
        debug_assert!(self.is_here(), "a caller has not checked for fork(2)");
        let call = |driven: &mut Stacks, now| call(&mut driven.stacks[at.0], now);
        match &self.time {
            Time::Real(driver) => driver.call(call),
            Time::Virtual(driver) => driver.call(call),
        }
    }

    /// Runs `call` on one stack, for a `Drop`: in a child of fork(2), where what is dropped belongs to the parent, it does nothing.
    pub(crate) fn undo(&self, at: StackIndex, call: impl FnOnce(&mut Stack)) {
        if self.is_here() {
            self.with(at, |stack, _| call(stack));
        }
    }

    /// Calls `attempt` until it returns a result or the limit is reached, and polls in between.
    pub(crate) fn wait_for<T>(
        &self,
        wait: Wait,
        mut attempt: impl FnMut(&mut Stack, Instant) -> Option<T>,
    ) -> Result<T, NotReady> {
        let mut result = None;
        self.attempt(wait, &mut |stack, now| {
            result = attempt(stack, now);
            result.is_some()
        })?;
        Ok(result.expect("the wait ends with the attempt that succeeds"))
    }

    /// The part of [`wait_for`](Self::wait_for) that is compiled once. `attempt` returns whether it has succeeded.
    fn attempt(
        &self,
        wait: Wait,
        attempt: &mut dyn FnMut(&mut Stack, Instant) -> bool,
    ) -> Result<(), NotReady> {
        debug_assert!(self.is_here(), "a caller has not checked for fork(2)");
        let Wait {
            stack,
            socket,
            limit,
            idling,
        } = wait;
        let attempt =
            |driven: &mut Stacks, now| attempt(&mut driven.stacks[stack.0], now).then_some(());
        let awaits = Awaited { stack, socket };
        let wait = runtime::Wait {
            awaits,
            limit,
            idling,
        };
        match &self.time {
            Time::Real(driver) => driver.wait_for(wait, attempt),
            Time::Virtual(driver) => driver.wait_for(limit, attempt),
        }
    }

    /// Lets the threads that wait for several sockets of a stack attempt again.
    pub(crate) fn wake_any(&self, at: StackIndex) {
        match &self.time {
            Time::Real(driver) => driver.wake_any(at),
            Time::Virtual(driver) => driver.wake_any(at),
        }
    }

    /// Returns the readiness fd of a socket. From now on the background thread keeps it up to date.
    pub(crate) fn readiness_fd(
        &self,
        at: StackIndex,
        socket: SocketId,
    ) -> std::io::Result<Arc<OwnedFd>> {
        let fd = self.lock().readiness_fd(at, socket)?;
        if let Time::Real(driver) = &self.time {
            driver.expect_fd_waits();
        }
        Ok(fd)
    }

    /// Polls until the connections of dropped streams are closed in both directions, for `at_most`. Once all data and FINs
    /// are acknowledged, it waits for the FINs of the peers for `grace` only. Returns whether all are closed.
    pub(crate) fn linger(&self, at_most: Duration, grace: Duration) -> bool {
        match &self.time {
            Time::Real(driver) => driver.linger(at_most, grace),
            Time::Virtual(driver) => driver.linger(at_most, grace),
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use std::net::SocketAddr;

    use nic::{Nic, NicConfig, WireLink, WireOptions};
    use stack::{Secret, StackConfig};

    use super::*;

    /// Returns a stack with `count` listeners, and the other end of its wire.
    fn listening(count: u16) -> (Stack, Vec<SocketId>, WireLink) {
        let (link, other) = WireLink::pair(WireOptions::default()).expect("eventfds");
        let nic = Nic::new(Box::new(link), NicConfig::default()).expect("a NIC");
        let config = StackConfig::new([10, 77, 0, 2].into(), 24, Secret::from_seed(1));
        let mut stack = Stack::new(nic, config).expect("a stack");
        let listen = |port| {
            let address = SocketAddr::from(([10, 77, 0, 2], port));
            stack.listen(address, 1).expect("a free port")
        };
        let listeners = (1..=count).map(listen).collect();
        (stack, listeners, other)
    }

    /// Returns `count` sockets of one stack.
    pub(crate) fn sockets(count: u16) -> Vec<(StackIndex, SocketId)> {
        let (_, sockets, _other) = listening(count);
        sockets.into_iter().map(|of| (StackIndex(0), of)).collect()
    }

    #[test]
    fn a_task_signal_is_awaited_while_it_is_armed_and_a_readiness_fd_always() {
        let (stack, sockets, _other) = listening(2);
        let (at, mut stacks) = (StackIndex(0), Stacks::new(vec![stack]));
        let _signal = stacks.task_fd(at, sockets[0], TaskSignal::Send);
        assert!(!stacks.awaits_fd(), "it tells nothing before it is armed");
        stacks.arm(at, sockets[0], TaskSignal::Send);
        assert!(stacks.awaits_fd());
        stacks.forget(at, sockets[0]);
        assert!(!stacks.awaits_fd());
        stacks.readiness_fd(at, sockets[1]).expect("an eventfd");
        assert!(stacks.awaits_fd());
    }
}
