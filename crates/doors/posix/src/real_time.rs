//! The machine's time: one thread drives the stack and sleeps on its link, others block in calls.

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

/// Longest sleep: bounds what a missed wake-up could cost.
const LONGEST_SLEEP: Duration = Duration::from_millis(500);

/// How long connections may say goodbye when the last handle goes.
const GOODBYE: Duration = Duration::from_secs(2);

/// A time that does not come.
const NEVER: u64 = u64::MAX;

/// Waiting in the machine's time.
#[derive(Debug)]
pub struct RealTime {
    base: std::time::Instant,
    changed: Condvar,
    /// The table's changes as they were told last.
    told: AtomicU64,
    /// Ends the driving thread's sleep.
    wake: OwnedFd,
    /// When that sleep ends by itself; [`NEVER`] while it is awake.
    sleeps_until: AtomicU64,
    closing: AtomicBool,
    ready_fds: ReadyFds,
}

impl RealTime {
    fn new() -> rustix::io::Result<Self> {
        Ok(Self {
            base: std::time::Instant::now(),
            changed: Condvar::new(),
            told: AtomicU64::new(0),
            wake: eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC)?,
            sleeps_until: AtomicU64::new(NEVER),
            closing: AtomicBool::new(false),
            ready_fds: ReadyFds::default(),
        })
    }

    fn wake_driver(&self) {
        // It can only fail by being full, and then the driver wakes.
        let _ = rustix::io::write(self.wake.as_fd(), &1u64.to_ne_bytes());
    }

    pub(crate) fn ready_fds(&self) -> &ReadyFds {
        &self.ready_fds
    }

    fn notify(&self, table: &Table) {
        // A call that takes the last events counts as no change, and the descriptors must show it.
        self.ready_fds.update(table);
        let changes = table.changes();
        if self.told.swap(changes, Ordering::Relaxed) != changes {
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
        // Both are written under the table's lock.
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

/// A table in the machine's time, with the thread that drives it. Dropping it closes what is open and lets
/// connections say goodbye, two seconds at most.
///
/// It belongs to the process that started it. A child by fork(2) has a copy without that thread, whose locks may be held by
/// threads that the child does not have either: nothing of it may be called there ([`is_of_this_process`]
/// tells), and dropping it does nothing.
///
/// [`is_of_this_process`]: Self::is_of_this_process
#[derive(Debug)]
pub struct Engine {
    process: Process,
    posix: Arc<Posix<RealTime>>,
    thread: Option<JoinHandle<()>>,
}

impl Engine {
    /// Starts to drive `stack`; `links` are what its link can be waited on by.
    ///
    /// # Errors
    /// The system has no eventfd or thread left to give.
    pub fn start(stack: Stack, settings: Settings, links: Vec<OwnedFd>) -> std::io::Result<Self> {
        // A clock before 1970 is as good as none.
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

    /// Returns whether this process started it: its parent by fork(2) may have.
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
            // Its thread is not here to be joined, and its files are the parent's, to be neither closed nor told goodbye.
            std::mem::forget(Arc::clone(&self.posix));
            std::mem::forget(self.thread.take());
            return;
        }
        self.posix.call(Table::close_all);
        self.posix.waiter().closing.store(true, Ordering::Release);
        self.posix.waiter().wake_driver();
        if let Some(thread) = self.thread.take() {
            // A panic of that thread has been printed; there is nothing to be done about it here.
            let _ = thread.join();
        }
    }
}

fn drive(posix: &Posix<RealTime>, links: &[OwnedFd]) {
    let time = posix.waiter();
    let mut goodbye = None;
    loop {
        let mut table = posix.lock();
        while table.poll_stack(time.now()) {
            time.notify(&table);
        }
        time.notify(&table);
        if time.closing.load(Ordering::Acquire) {
            let until = *goodbye.get_or_insert_with(|| time.now() + GOODBYE);
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
        // A stale time only costs a needless wake-up.
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
        // It can only fail by being empty.
        let _ = rustix::io::read(wake.as_fd(), &mut count);
    }
}
