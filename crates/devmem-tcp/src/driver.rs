//! Who polls the stack, and when: run to completion.
//!
//! The thread that waits for a socket polls the NIC itself, so a received byte crosses no thread. It spins for
//! a while where that pays (`spin.rs`), then sleeps in poll(2) on the link. Of several waiting threads one *leads* (sleeps on the link) and
//! the others park until the leader finds their socket ready or hands the lead over. When no thread of the
//! application is inside a call, the background thread leads, so that ACKs, timers and neighbour discovery go
//! on (`background.rs`); a thread of the application takes the lead from it.
//!
//! Two user-space NICs on a virtual-time wire share one driver; whoever waits moves both, and the clock jumps
//! to the next deadline when neither has work.

use std::collections::HashMap;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, TryLockError};
use std::thread::Thread;
use std::time::Duration;

use netmem::MemoryObserver;
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use stack::{Readiness, SocketId, Stack};
use wire::Instant;

use devmem_uapi::DmabufId;

use crate::clock::Clock;
use crate::error::Forked;
use crate::home::Home;
use crate::send_signal::SendSignals;
use crate::spin::Spin;

/// Longest single sleep: bounds what a missed wake-up could cost.
const LONGEST_SLEEP: Duration = Duration::from_millis(500);

/// How long, in real time, a waiter in virtual time leaves the other threads to do something.
const OTHERS_TURN: Duration = Duration::from_millis(200);

/// What makes a readiness fd readable.
const INTEREST: Readiness = Readiness::READABLE
    .union(Readiness::ACCEPTABLE)
    .union(Readiness::READ_CLOSED)
    .union(Readiness::ERROR)
    .union(Readiness::ERROR_QUEUE);

/// Which stack of a driver a handle belongs to (a virtual-time pair has two).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct StackIndex(pub(crate) usize);

/// What a call waits for, and how long.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wait {
    pub(crate) stack: StackIndex,
    pub(crate) socket: SocketId,
    pub(crate) limit: WaitLimit,
}

/// How long a call may wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WaitLimit {
    /// Not at all: a non-blocking socket.
    Never,
    /// Until it is ready.
    Forever,
    /// At most this long.
    For(Duration),
}

/// Why [`Driver::wait_for`] came back without a result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NotReady {
    /// The socket is non-blocking.
    WouldBlock,
    /// The time given is over.
    TimedOut,
    /// The driver is in the process that forked this one.
    Forked(Forked),
}

impl From<Forked> for NotReady {
    fn from(forked: Forked) -> Self {
        Self::Forked(forked)
    }
}

/// A thread parked for a socket.
#[derive(Debug)]
struct Waiter {
    stack: StackIndex,
    socket: SocketId,
    thread: Thread,
}

/// Who sleeps in poll(2) on the links.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Leader {
    /// Nobody: every thread is awake or away.
    Nobody,
    /// The background thread.
    Background,
    /// A thread of the application, which waits for this socket.
    Application(StackIndex, SocketId),
}

/// What the lock protects.
pub(crate) struct Core {
    pub(crate) stacks: Vec<Stack>,
    pub(crate) clock: Clock,
    /// Bound memories by id, so that a frag finds its bytes.
    pub(crate) memories: HashMap<(StackIndex, DmabufId), MemoryObserver>,
    /// Eventfds of sockets whose user asked for one.
    readiness: HashMap<(StackIndex, SocketId), Arc<OwnedFd>>,
    /// Sockets whose user waits for room without a thread.
    pub(crate) senders: SendSignals,
    waiters: Vec<Waiter>,
    /// Events being told; kept for its allocation.
    events: Vec<SocketId>,
    pub(crate) leader: Leader,
    /// When the leader's sleep ends by itself; `None`: it is awake, or woken already.
    sleeps_until: Option<Instant>,
    /// When a thread of the application last polled; `None`: it said that it is going away.
    pub(crate) last_foreground: Option<Instant>,
    /// The background thread sleeps without a tick: whoever leaves a call must wake it.
    pub(crate) background_sleeps: bool,
    /// Counts changes that another waiter of a virtual-time pair might be waiting for.
    epoch: u64,
    spin: Spin,
}

impl Core {
    /// Polls every stack once. Returns whether any of them found something to do.
    fn poll_stacks(&mut self) -> bool {
        let mut worked = false;
        for stack in &mut self.stacks {
            worked |= stack.poll_by(&mut || self.clock.now()).worked;
        }
        worked
    }

    /// The earliest time at which a stack wants to be polled again.
    pub(crate) fn next_deadline(&self) -> Option<Instant> {
        self.stacks.iter().filter_map(Stack::next_deadline).min()
    }

    /// Wakes waiters and sets or clears eventfds of the sockets whose readiness changed. Returns whether the
    /// socket that the leader waits for is among them.
    fn tell_events(&mut self) -> bool {
        let mut leader_concerned = false;
        for index in 0..self.stacks.len() {
            let at = StackIndex(index);
            let mut events = std::mem::take(&mut self.events);
            events.extend(self.stacks[index].take_events());
            for socket in events.drain(..) {
                self.waiters
                    .iter()
                    .filter(|waiter| waiter.stack == at && waiter.socket == socket)
                    .for_each(|waiter| waiter.thread.unpark());
                leader_concerned |= self.leader == Leader::Application(at, socket);
                self.update_readiness(at, socket);
            }
            self.events = events;
        }
        leader_concerned
    }

    /// Whether the leader would sleep past a deadline that came up since it lay down.
    fn sleeper_is_late(&self) -> bool {
        let Some(until) = self.sleeps_until else {
            return false;
        };
        self.next_deadline()
            .is_some_and(|deadline| deadline < until)
    }

    /// Makes a socket's eventfd readable exactly while the socket is ready.
    fn update_readiness(&mut self, at: StackIndex, socket: SocketId) {
        let Some(fd) = self.readiness.get(&(at, socket)) else {
            return;
        };
        // A connection can nearly always be written to: an fd that said so would never be quiet.
        let ready = self.stacks[at.0]
            .readiness(socket)
            .is_ok_and(|ready| ready.intersects(INTEREST));
        if ready {
            set(fd.as_fd());
        } else {
            clear(fd.as_fd());
        }
    }

    /// The eventfd of a socket, made when first asked for.
    fn readiness_fd(
        &mut self,
        at: StackIndex,
        socket: SocketId,
    ) -> rustix::io::Result<Arc<OwnedFd>> {
        if let Some(fd) = self.readiness.get(&(at, socket)) {
            return Ok(Arc::clone(fd));
        }
        let fd = Arc::new(eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC)?);
        self.readiness.insert((at, socket), Arc::clone(&fd));
        self.update_readiness(at, socket);
        Ok(fd)
    }

    /// Forgets a closed socket.
    pub(crate) fn forget(&mut self, at: StackIndex, socket: SocketId) {
        self.readiness.remove(&(at, socket));
        self.senders.forget((at, socket));
    }
}

/// One or two stacks, their clock, and the threads that drive them.
pub(crate) struct Driver {
    home: Home,
    core: Mutex<Core>,
    /// Signalled when a virtual-time pair changes; real time uses the link's fd.
    changed: Condvar,
    /// The links' fds, to sleep on without the lock.
    links: Vec<OwnedFd>,
    /// Ends the sleep of the background thread.
    wake_background: OwnedFd,
    /// Ends the sleep of a leading thread of the application.
    wake_leader: OwnedFd,
    closing: AtomicBool,
    /// Threads of the application inside [`Driver::wait_for`]: they poll, or sleep and will be woken.
    callers: AtomicUsize,
}

/// One of [`Driver::callers`].
struct Caller<'a>(&'a AtomicUsize);

impl<'a> Caller<'a> {
    fn enter(callers: &'a AtomicUsize) -> Self {
        callers.fetch_add(1, Ordering::Relaxed);
        Self(callers)
    }
}

impl Drop for Caller<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Driver {
    /// A driver for `stacks`; `links` are duplicates of what their links can be waited on by.
    pub(crate) fn new(
        stacks: Vec<Stack>,
        clock: Clock,
        links: Vec<OwnedFd>,
    ) -> rustix::io::Result<Arc<Self>> {
        Ok(Arc::new(Self {
            home: Home::here(),
            core: Mutex::new(Core {
                stacks,
                clock,
                memories: HashMap::new(),
                readiness: HashMap::new(),
                senders: SendSignals::default(),
                waiters: Vec::new(),
                events: Vec::new(),
                leader: Leader::Nobody,
                sleeps_until: None,
                last_foreground: None,
                background_sleeps: false,
                epoch: 0,
                spin: Spin::default(),
            }),
            changed: Condvar::new(),
            links,
            wake_background: eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC)?,
            wake_leader: eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC)?,
            closing: AtomicBool::new(false),
            callers: AtomicUsize::new(0),
        }))
    }

    /// Refuses in a child by fork(2) of the process that made it.
    #[inline]
    pub(crate) fn check(&self) -> Result<(), Forked> {
        self.home.check()
    }

    /// Whether this process made it.
    pub(crate) fn is_here(&self) -> bool {
        self.home.is_here()
    }

    /// The lock, in the process that made it.
    pub(crate) fn enter(&self) -> Result<MutexGuard<'_, Core>, Forked> {
        self.check()?;
        Ok(self.lock())
    }

    /// The lock, for who runs in the process that made it. A panic of another thread while it held it leaves the stack consistent between calls, so a
    /// poisoned lock is taken all the same: destructors must still return tokens.
    pub(crate) fn lock(&self) -> MutexGuard<'_, Core> {
        self.core.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The lock for the background thread: it never makes a thread of the application wait, and so gets none while one
    /// is at work. Left to the lock's own order, the background thread could keep it for as long as there is work: the
    /// application's would not get in to show that it is there.
    pub(crate) fn lock_in_background(&self) -> Option<MutexGuard<'_, Core>> {
        if self.callers.load(Ordering::Relaxed) == 0 {
            return Some(self.lock());
        }
        match self.core.try_lock() {
            Ok(core) => Some(core),
            Err(TryLockError::Poisoned(core)) => Some(core.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    /// Whether a thread of the application is inside a call.
    pub(crate) fn has_callers(&self) -> bool {
        self.callers.load(Ordering::Relaxed) > 0
    }

    /// Runs `call` on one stack and lets those know whom its effects concern; in a child by fork(2), nothing.
    pub(crate) fn with<T>(
        &self,
        at: StackIndex,
        call: impl FnOnce(&mut Stack, Instant) -> T,
    ) -> Result<T, Forked> {
        let mut core = self.enter()?;
        let now = core.clock.now();
        let result = call(&mut core.stacks[at.0], now);
        self.after_call(&mut core);
        Ok(result)
    }

    /// Polls the stacks and tells those who wait what became ready. Returns whether there was work.
    pub(crate) fn poll(&self, core: &mut Core) -> bool {
        let worked = core.poll_stacks() || core.stacks.iter().any(Stack::has_events);
        if worked {
            self.after_call(core);
        }
        worked
    }

    /// What follows everything that may have changed a socket.
    fn after_call(&self, core: &mut Core) {
        core.epoch += 1;
        let now = core.clock.now();
        for stack in &mut core.stacks {
            if stack.wants_flush() {
                stack.flush(now);
            }
        }
        core.senders.tell(&core.stacks);
        if core.tell_events() || core.sleeper_is_late() {
            core.sleeps_until = None;
            match core.leader {
                Leader::Application(..) => set(self.wake_leader.as_fd()),
                Leader::Background => set(self.wake_background.as_fd()),
                Leader::Nobody => {}
            }
        }
        if core.clock.is_virtual() {
            self.changed.notify_all();
        }
    }

    /// The readiness fd of a socket; from now on the background thread keeps it true.
    pub(crate) fn readiness_fd(
        &self,
        at: StackIndex,
        socket: SocketId,
    ) -> std::io::Result<Arc<OwnedFd>> {
        let mut core = self.enter()?;
        core.last_foreground = None;
        let fd = core.readiness_fd(at, socket)?;
        drop(core);
        set(self.wake_background.as_fd());
        Ok(fd)
    }

    /// Lets connections say goodbye before the last handle goes: polls until no stack has one left that waits
    /// for its peer, for `at_most`.
    pub(crate) fn linger(&self, at_most: Duration) {
        let mut core = self.lock();
        let until = core.clock.now() + at_most;
        while core.clock.now() < until && core.stacks.iter().any(|stack| stack.stats().orphans > 0)
        {
            if self.poll(&mut core) {
                continue;
            }
            let left = until.saturating_since(core.clock.now());
            if core.clock.is_virtual() {
                let Some(deadline) = core.next_deadline() else {
                    return;
                };
                core.clock.jump_to(deadline.min(until));
            } else {
                core = self.sleep_on_links(core, &self.wake_leader, left);
            }
        }
    }

    /// Tells the background thread to end.
    pub(crate) fn close(&self) {
        self.closing.store(true, Ordering::Release);
        set(self.wake_background.as_fd());
    }

    /// Whether [`Driver::close`] was called.
    pub(crate) fn is_closing(&self) -> bool {
        self.closing.load(Ordering::Acquire)
    }

    /// Calls `attempt` until it has a result, polling in between, within the limit.
    pub(crate) fn wait_for<T>(
        &self,
        wait: Wait,
        mut attempt: impl FnMut(&mut Stack, Instant) -> Option<T>,
    ) -> Result<T, NotReady> {
        self.check()?;
        let _caller = Caller::enter(&self.callers);
        let mut core = self.lock();
        let started = core.clock.now();
        let mut idle_since = None;
        let mut polled = false;
        loop {
            let now = core.clock.now();
            core.last_foreground = Some(now);
            if let Some(result) = attempt(&mut core.stacks[wait.stack.0], now) {
                self.after_call(&mut core);
                self.leave(&core);
                return Ok(result);
            }
            // A call that must not wait looks once what has come: others may receive without end.
            let looks = wait.limit != WaitLimit::Never || !polled || core.clock.is_virtual();
            polled = true;
            if looks && self.poll(&mut core) {
                if idle_since.take().is_some() {
                    core.spin.on_work();
                }
                continue;
            }
            if let Some(reason) = wait.limit.over(started, now) {
                self.leave_unready(&mut core, reason);
                return Err(reason);
            }
            let spinning_since = *idle_since.get_or_insert(now);
            core = if core.clock.is_virtual() {
                self.jump(core, wait.limit.end(started))
            } else if now.saturating_since(spinning_since) < core.spin.limit() {
                drop(core);
                // The peer, or who carries its frames, may share this processor.
                std::thread::yield_now();
                self.lock()
            } else {
                core.spin.on_sleep();
                idle_since = None;
                self.sleep(core, wait, started)
            };
        }
    }

    /// Lets one parked thread lead when this one leaves, and the background thread look after the rest.
    fn leave(&self, core: &Core) {
        if core.leader == Leader::Nobody
            && let Some(waiter) = core.waiters.first()
        {
            waiter.thread.unpark();
        }
        if core.background_sleeps {
            set(self.wake_background.as_fd());
        }
    }

    /// A caller that found nothing comes back by its readiness fd or not at all: until then the background
    /// thread leads. In virtual time the call was one step, and moves the clock.
    fn leave_unready(&self, core: &mut Core, reason: NotReady) {
        self.leave(core);
        if core.clock.is_virtual() {
            if let Some(deadline) = core.next_deadline() {
                core.clock.jump_to(deadline);
            }
        } else if reason == NotReady::WouldBlock && core.leader == Leader::Nobody {
            core.last_foreground = None;
            set(self.wake_background.as_fd());
        }
    }

    /// Virtual time: go to the next deadline; with none, see whether another thread does something, and only then
    /// let the caller's own time run out.
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
            // Another thread may want the lock: without a pause this one would take it again at once, and hours
            // of virtual time could pass before that thread has its turn.
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

    /// Sleeps until the link, a deadline or another thread has something: as leader in poll(2), else parked.
    fn sleep<'a>(
        &'a self,
        mut core: MutexGuard<'a, Core>,
        wait: Wait,
        started: Instant,
    ) -> MutexGuard<'a, Core> {
        let now = core.clock.now();
        let left = match wait.limit {
            WaitLimit::For(limit) => (started + limit).saturating_since(now),
            WaitLimit::Never | WaitLimit::Forever => LONGEST_SLEEP,
        };
        if let Leader::Application(..) = core.leader {
            return self.follow(core, wait, left);
        }
        let me = Leader::Application(wait.stack, wait.socket);
        core.leader = me;
        let mut core = self.sleep_on_links(core, &self.wake_leader, left);
        core.leader = Leader::Nobody;
        core
    }

    /// Parks until the leader finds this thread's socket ready or leaves.
    fn follow<'a>(
        &'a self,
        mut core: MutexGuard<'a, Core>,
        wait: Wait,
        left: Duration,
    ) -> MutexGuard<'a, Core> {
        core.waiters.push(Waiter {
            stack: wait.stack,
            socket: wait.socket,
            thread: std::thread::current(),
        });
        drop(core);
        std::thread::park_timeout(left.min(LONGEST_SLEEP));
        let mut core = self.lock();
        let me = std::thread::current().id();
        core.waiters.retain(|waiter| waiter.thread.id() != me);
        core
    }

    /// The background thread leads: sleeps until a link, a deadline or a call wants something.
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

    /// The background thread does not lead: sleeps at most `at_most` or until it is woken.
    pub(crate) fn rest_in_background(&self, at_most: Duration) {
        sleep_on(&self.wake_background, &[], at_most);
    }

    /// Gives the lock up and sleeps until a link is readable, `wake`, the next deadline, or `at_most` is over.
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

/// poll(2) on `wake`, which is cleared, and `links`. Errors (EINTR) only end the sleep early.
fn sleep_on(wake: &OwnedFd, links: &[OwnedFd], timeout: Duration) {
    let mut fds: Vec<PollFd<'_>> = vec![PollFd::new(wake, PollFlags::IN)];
    fds.extend(links.iter().map(|fd| PollFd::new(fd, PollFlags::IN)));
    let timeout = Timespec {
        tv_sec: i64::try_from(timeout.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: timeout.subsec_nanos().into(),
    };
    let ready = poll(&mut fds, Some(&timeout));
    if ready.is_ok() && !fds[0].revents().is_empty() {
        clear(wake.as_fd());
    }
}

impl WaitLimit {
    /// What a call of a (non-)blocking socket may wait.
    pub(crate) fn of_nonblocking(nonblocking: bool) -> Self {
        if nonblocking {
            Self::Never
        } else {
            Self::Forever
        }
    }

    /// At most `timeout`; `None`: for ever.
    pub(crate) fn within(timeout: Option<Duration>) -> Self {
        timeout.map_or(Self::Forever, Self::For)
    }

    /// When the waiting ends by itself.
    fn end(self, started: Instant) -> Option<Instant> {
        match self {
            Self::For(limit) => Some(started + limit),
            Self::Never | Self::Forever => None,
        }
    }

    fn over(self, started: Instant, now: Instant) -> Option<NotReady> {
        match self {
            Self::Never => Some(NotReady::WouldBlock),
            Self::Forever => None,
            Self::For(limit) if now.saturating_since(started) >= limit => Some(NotReady::TimedOut),
            Self::For(_) => None,
        }
    }
}

/// Makes an eventfd readable. It can only fail by being full, and then it is readable.
pub(crate) fn set(fd: BorrowedFd<'_>) {
    let _ = rustix::io::write(fd, &1u64.to_ne_bytes());
}

/// Makes an eventfd unreadable. It can only fail by being empty.
fn clear(fd: BorrowedFd<'_>) {
    let mut count = [0; 8];
    let _ = rustix::io::read(fd, &mut count);
}
