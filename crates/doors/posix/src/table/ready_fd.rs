//! File descriptors of the process that are readable while an epoll of the table has events, for a program's own event loop.

use std::os::fd::{AsFd, OwnedFd};

use devmem_uapi::Errno;
use rustix::event::{EventfdFlags, eventfd};

use super::Table;
use crate::abi::ev;

/// All such descriptors of a table.
#[derive(Debug, Default)]
pub(crate) struct ReadyFds(Vec<ReadyFd>);

/// An eventfd whose counter is above 0 while the epoll has events.
#[derive(Debug)]
struct ReadyFd {
    epfd: i32,
    /// Serial number of the epoll: its descriptor may be used again after it is closed.
    serial: u64,
    eventfd: OwnedFd,
    is_readable: bool,
}

impl ReadyFd {
    /// Returns whether the epoll has events; `None` if it is closed.
    fn has_events(&self, table: &Table) -> Option<bool> {
        let open = table.wait_settings(self.epfd).ok()?;
        let events = table.poll_events(self.epfd).ok()?;
        (open.serial == self.serial).then_some(events & ev::IN != 0)
    }

    fn set(&mut self, readable: bool) {
        if self.is_readable == readable {
            return;
        }
        self.is_readable = readable;
        // Neither blocks. A write fails only if the counter is at its maximum, a read only if it is 0: the descriptor is then
        // in the requested state already.
        if readable {
            let _ = rustix::io::write(self.eventfd.as_fd(), &1u64.to_ne_bytes());
        } else {
            let _ = rustix::io::read(self.eventfd.as_fd(), &mut [0; 8]);
        }
    }
}

impl ReadyFds {
    fn of(&mut self, epfd: i32, serial: u64) -> rustix::io::Result<OwnedFd> {
        let known = self
            .0
            .iter()
            .find(|fd| fd.epfd == epfd && fd.serial == serial);
        if let Some(known) = known {
            return rustix::io::fcntl_dupfd_cloexec(&known.eventfd, 0);
        }
        let eventfd = eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC)?;
        let given = rustix::io::fcntl_dupfd_cloexec(&eventfd, 0)?;
        self.0.push(ReadyFd {
            epfd,
            serial,
            eventfd,
            is_readable: false,
        });
        Ok(given)
    }
}

impl Table {
    /// Returns a descriptor that is readable while epoll_wait on `epfd` would return events.
    ///
    /// # Errors
    /// EBADF; EINVAL: not an epoll; EMFILE.
    pub(crate) fn ready_fd(&mut self, epfd: i32) -> Result<OwnedFd, Errno> {
        let serial = self.wait_settings(epfd)?.serial;
        if !self.is_epoll_fd(epfd)? {
            return Err(Errno::EINVAL);
        }
        let fd = self.ready_fds.of(epfd, serial);
        fd.map_err(|errno| Errno(errno.raw_os_error()))
    }

    /// Makes each descriptor readable if its epoll has events, otherwise not readable. That of a closed epoll becomes
    /// readable and stays so: the program wakes, and its next call returns EBADF. Returns whether one is not readable any more.
    pub(crate) fn update_ready_fds(&mut self) -> bool {
        let mut fds = std::mem::take(&mut self.ready_fds.0);
        let mut is_drained = false;
        fds.retain_mut(|fd| match fd.has_events(self) {
            Some(readable) => {
                is_drained |= fd.is_readable && !readable;
                fd.set(readable);
                true
            }
            None => {
                fd.set(true);
                false
            }
        });
        self.ready_fds.0 = fds;
        is_drained
    }

    /// Returns whether the program has such a descriptor.
    pub(crate) fn has_ready_fds(&self) -> bool {
        !self.ready_fds.0.is_empty()
    }
}
