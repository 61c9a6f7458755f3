//! Real time: threads that wait poll the stack themselves, as those of the Rust library do, and a thread in the background does while
//! none waits.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use devmem_uapi::Errno;
use lease::LeaseKeeper;
use netmem::Process;
use runtime::{
    Awaited, Background, Calls, Driven, Driver, Guard, Idling, Opened, Pauses, StackIndex, Wait,
    WaitLimit, keep_lease,
};
use stack::Stack;
use wire::Instant;

use crate::posix::Posix;
use crate::table::{Settings, Table};
use crate::waiter::{Waiter, Waits};

/// Maximum time for connections to close after the last handle was dropped.
const CLOSE_TIME: Duration = Duration::from_secs(2);

/// The only stack of a table.
const STACK: StackIndex = StackIndex(0);

/// A table in real time, for [`Posix`].
#[derive(Debug)]
pub struct RealTime {
    driver: Arc<Driver<Table>>,
}

impl RealTime {
    /// Returns what waiting threads have done so far when they found nothing.
    pub fn pauses(&self) -> Pauses {
        self.driver.pauses()
    }
}

impl Posix<RealTime> {
    /// Returns a file descriptor of the process that is readable while epoll_wait on `epfd` would return events. The caller
    /// polls it, and neither reads nor writes it.
    ///
    /// # Errors
    /// EBADF; EINVAL: not an epoll; EMFILE.
    pub fn epoll_fd(&self, epfd: i32) -> Result<OwnedFd, Errno> {
        let fd = self.call(|table| table.ready_fd(epfd))?;
        self.waiter().driver.expect_fd_waits();
        Ok(fd)
    }
}

impl Driven for Table {
    fn stacks(&self) -> &[Stack] {
        std::slice::from_ref(&self.stack)
    }

    fn stacks_mut(&mut self) -> &mut [Stack] {
        std::slice::from_mut(&mut self.stack)
    }

    fn tell_events(&mut self, calls: &mut Calls) {
        self.note_events();
        if self.take_changed() {
            calls.wake_any(STACK);
        }
        // Always: a call that takes an epoll's last events is not counted as a change.
        if self.update_ready_fds() {
            calls.note_drained_fd();
        }
    }

    fn has_events(&self) -> bool {
        self.stack.has_events() || self.has_changed()
    }

    fn awaits_fd(&self) -> bool {
        self.has_ready_fds()
    }
}

impl Waiter for RealTime {
    type Locked<'a> = Guard<'a, Table>;

    fn now(&self) -> Instant {
        self.driver.now()
    }

    fn lock(&self) -> Guard<'_, Table> {
        self.driver.lock()
    }

    fn call<T>(&self, _: Waits, call: impl FnOnce(&mut Table) -> T) -> T {
        self.driver.call(|table, now| {
            table.set_clock(now);
            call(table)
        })
    }

    fn wait_for<T>(
        &self,
        limit: WaitLimit,
        waits: &mut Waits,
        mut attempt: impl FnMut(&mut Table, Instant) -> Option<T>,
        give_up: impl FnOnce(&mut Table) -> T,
    ) -> T {
        let wait = Wait {
            awaits: Awaited {
                stack: STACK,
                socket: None,
            },
            limit,
            idling: Idling::Spin,
        };
        let waited = self.driver.wait_for(wait, |table, now| {
            table.set_clock(now);
            attempt(table, now)
        });
        waited.unwrap_or_else(|_| self.call(*waits, give_up))
    }
}

/// A table in real time, with the thread that polls its stack while no other thread does. Dropping it closes all files, and waits at
/// most two seconds for their connections to close.
///
/// It belongs to the process that started it. In a child of fork(2) the thread does not exist, and locks may be held by
/// threads that do not exist there either: the child must not call any method but [`is_of_this_process`], and dropping
/// its copy does nothing.
///
/// [`is_of_this_process`]: Self::is_of_this_process
#[derive(Debug)]
pub struct Engine {
    process: Process,
    posix: Posix<RealTime>,
    background: Option<Background<Table>>,
    /// Renews the addresses of the NIC. The last shard returns them.
    lease: Option<Arc<LeaseKeeper>>,
}

impl Engine {
    /// Starts the shards of a NIC, each with settings of its own.
    ///
    /// # Errors
    /// An eventfd or a thread cannot be created.
    pub fn start(
        nic: Opened,
        mut settings: impl FnMut() -> Settings,
    ) -> std::io::Result<Vec<Self>> {
        // A wall clock before 1970 is taken for 1970.
        let unix_time = SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default();
        let clock_base = unix_time.saturating_sub(nic.clock.elapsed());
        let mut drivers = Vec::new();
        for (stack, links) in nic.shards {
            let settings = Settings {
                clock_base,
                ..settings()
            };
            let table = Table::new(stack, settings);
            drivers.push(Driver::new(table, nic.clock, links)?);
        }
        let lease = nic.lease.map(|lease| keep_lease(lease, &drivers));
        let lease = lease.transpose()?.map(Arc::new);
        let start = |driver: Arc<Driver<Table>>| {
            Ok(Self {
                process: Process::current(),
                background: Some(Background::start(&driver, "devmem-posix")?),
                posix: Posix::new(RealTime { driver }),
                lease: lease.clone(),
            })
        };
        drivers.into_iter().map(start).collect()
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
        let driver = &self.posix.waiter().driver;
        if !self.is_of_this_process() {
            // The threads do not exist in this process, and the connections are the parent's.
            std::mem::forget(Arc::clone(driver));
            std::mem::forget(self.background.take());
            std::mem::forget(self.lease.take());
            return;
        }
        self.posix.call(Table::close_all);
        driver.linger(CLOSE_TIME, CLOSE_TIME);
        drop(self.background.take());
        // While the link is open: the message that returns an address needs the interface.
        drop(self.lease.take());
    }
}
