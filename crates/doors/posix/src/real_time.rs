//! Real time: one thread polls the stack and sleeps until its link has packets, other threads block in calls.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, SystemTime};

use netmem::Process;
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use stack::Stack;
use wire::Instant;

use crate::posix::Posix;
use crate::ready_fd::ReadyFds;
use crate::table::{Settings, Table};
use crate::waiter::Waiter;

/// Longest sleep: bounds the delay of a missed wake-up.
const LONGEST_SLEEP: Duration = Duration::from_millis(500);

/// Maximum time for connections to close after the last handle was dropped.
const CLOSE_TIME: Duration = Duration::from_secs(2);

/// Stands for no deadline.
const NEVER: u64 = u64::MAX;

/// A clock for [`Posix`] that shows the machine's time.
#[derive(Debug)]
pub struct RealTime {
    base: std::time::Instant,
    changed: Condvar,
    /// The table's count of changes when waiting threads were last woken.
    changes_seen: AtomicU64,
    /// Ends the driving thread's sleep.
    wake: OwnedFd,
    /// Deadline of that sleep; [`NEVER`] while the thread is awake.
    sleeps_until: AtomicU64,
    closing: AtomicBool,
    ready_fds: ReadyFds,
}

impl RealTime {
    fn new() -> rustix::io::Result<Self> {
        Ok(Self {
            base: std::time::Instant::now(),
            changed: Condvar::new(),
            changes_seen: AtomicU64::new(0),
            wake: eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC)?,
            sleeps_until: AtomicU64::new(NEVER),
            closing: AtomicBool::new(false),
            ready_fds: ReadyFds::default(),
        })
    }

    fn wake_driver(&self) {
        // Fails only if the counter is at its maximum, and then the driver wakes.
        let _ = rustix::io::write(self.wake.as_fd(), &1u64.to_ne_bytes());
    }

    pub(crate) fn ready_fds(&self) -> &ReadyFds {
        &self.ready_fds
    }

    fn notify(&self, table: &Table) {
        // Always: a call that takes an epoll's last events is not counted as a change.
        self.ready_fds.update(table);
        let changes = table.changes();
        if self.changes_seen.swap(changes, Ordering::Relaxed) != changes {
            self.changed.notify_all();
        }
    }
}

impl Waiter for RealTime {
    fn now(&self) -> Instant {
        // 2^64 ns are 584 years.
        let nanos = u64::try_from(self.base.elapsed().as_nanos()).unwrap_or(u64::MAX);
        Instant::from_nanos(nanos)
    }

    fn changed(&self, table: &mut Table) {
        self.notify(table);
        let wanted = table.next_deadline().map_or(NEVER, |at| at.as_nanos());
        // Not a race with the driving thread: both store `sleeps_until` under the table's lock.
        let until = self.sleeps_until.load(Ordering::Relaxed);
        if until != NEVER && wanted < until {
            self.sleeps_until.store(NEVER, Ordering::Relaxed);
            self.wake_driver();
        }
    }

    fn wait<'a>(
        &'a self,
        table: MutexGuard<'a, Table>,
        until: Option<Instant>,
    ) -> MutexGuard<'a, Table> {
        let left = until.map_or(LONGEST_SLEEP, |until| until.saturating_since(self.now()));
        let waited = self.changed.wait_timeout(table, left.min(LONGEST_SLEEP));
        waited.unwrap_or_else(PoisonError::into_inner).0
    }
}

/// A table in real time, with the thread that polls its stack. Dropping it closes all files, and waits at most two seconds
/// for their connections to close.
///
/// It belongs to the process that started it. In a child of fork(2) the thread does not exist, and locks may be held by
/// threads that do not exist there either: the child must not call any method but [`is_of_this_process`], and dropping
/// its copy does nothing.
///
/// [`is_of_this_process`]: Self::is_of_this_process
#[derive(Debug)]
pub struct Engine {
    process: Process,
    posix: Arc<Posix<RealTime>>,
    thread: Option<JoinHandle<()>>,
}

impl Engine {
    /// Starts the thread that polls `stack`; `links` are descriptors that are readable when its link has packets.
    ///
    /// # Errors
    /// The eventfd or the thread cannot be created.
    pub fn start(stack: Stack, settings: Settings, links: Vec<OwnedFd>) -> std::io::Result<Self> {
        // A wall clock before 1970 is taken for 1970.
        let clock_base = SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default();
        let settings = Settings {
            clock_base,
            ..settings
        };
        let posix = Arc::new(Posix::new(stack, settings, RealTime::new()?));
        let driven = Arc::clone(&posix);
        let thread = std::thread::Builder::new()
            .name("devmem-posix".to_owned())
            .spawn(move || drive(&driven, &links))?;
        Ok(Self {
            process: Process::current(),
            posix,
            thread: Some(thread),
        })
    }

    /// Returns whether this process started it, and not a parent that then called fork(2).
    pub fn is_of_this_process(&self) -> bool {
        self.process.is_current()
    }

    /// Returns the table.
    pub fn posix(&self) -> &Posix<RealTime> {
        &self.posix
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        if !self.is_of_this_process() {
            // The thread does not exist in this process, and the connections are the parent's.
            std::mem::forget(Arc::clone(&self.posix));
            std::mem::forget(self.thread.take());
            return;
        }
        self.posix.call(Table::close_all);
        self.posix.waiter().closing.store(true, Ordering::Release);
        self.posix.waiter().wake_driver();
        if let Some(thread) = self.thread.take() {
            // Fails if the thread panicked, which was printed then.
            let _ = thread.join();
        }
    }
}

fn drive(posix: &Posix<RealTime>, links: &[OwnedFd]) {
    let time = posix.waiter();
    let mut close_until = None;
    loop {
        let mut table = posix.lock();
        while table.poll_stack(time.now()) {
            time.notify(&table);
        }
        time.notify(&table);
        if time.closing.load(Ordering::Acquire) {
            let until = *close_until.get_or_insert_with(|| time.now() + CLOSE_TIME);
            if table.stats().orphans == 0 || time.now() >= until {
                return;
            }
        }
        let now = time.now();
        let timeout = table
            .next_deadline()
            .map_or(LONGEST_SLEEP, |at| at.saturating_since(now));
        let timeout = timeout.min(LONGEST_SLEEP);
        time.sleeps_until
            .store((now + timeout).as_nanos(), Ordering::Relaxed);
        drop(table);
        sleep_on(&time.wake, links, timeout);
        // Without the lock: a thread that still sees the old deadline only writes to `wake` needlessly.
        time.sleeps_until.store(NEVER, Ordering::Relaxed);
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
    if ready.is_ok() && fds.first().is_some_and(|fd| !fd.revents().is_empty()) {
        let mut count = [0; 8];
        // Fails only if the counter is 0 already.
        let _ = rustix::io::read(wake.as_fd(), &mut count);
    }
}
