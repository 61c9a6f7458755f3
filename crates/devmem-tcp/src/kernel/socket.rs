//! A connected socket of the kernel.

use std::io;
use std::net::{Shutdown, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use devmem_linux::errors::{Facts, Operation, cause};
use devmem_linux::socket::{DontneedError, FragReturns, Freed};
use devmem_uapi::{Errno, FragToken};
use rustix::event::PollFlags;
#[cfg(feature = "tokio")]
use rustix::event::epoll;
use rustix::net::{SendFlags, getpeername, getsockname, send, shutdown};

use super::nic::Nic;
use super::send::Sends;
use super::wait::Deadline;
use crate::driver::{NotReady, WaitLimit};
use crate::error::{KernelError, ReleaseError, SendError, ShutdownError, connection_error};

/// The socket of a stream. Open until the stream and everything received from it are gone, because closing it sends
/// all its device memory home.
#[derive(Debug)]
pub(crate) struct Socket {
    /// Shared with [`Leaving`](super::send::Leaving) alone.
    pub(super) fd: Arc<OwnedFd>,
    pub(super) nic: Arc<Nic>,
    returned: AtomicU64,
    /// Tokens on their way home; the list is kept for its allocation. Locked last.
    returns: Mutex<FragReturns>,
    /// Locked before [`Nic::known`], never the other way round.
    pub(super) sends: Mutex<Sends>,
    /// Tells tasks that somebody has read the error queue.
    #[cfg(feature = "tokio")]
    pub(super) collected: ::tokio::sync::Notify,
}

impl Socket {
    /// Takes a connected, non-blocking socket.
    pub(super) fn new(fd: OwnedFd, nic: &Arc<Nic>) -> Arc<Self> {
        Arc::new(Self {
            fd: Arc::new(fd),
            nic: Arc::clone(nic),
            returned: AtomicU64::new(0),
            returns: Mutex::default(),
            sends: Mutex::default(),
            #[cfg(feature = "tokio")]
            collected: ::tokio::sync::Notify::new(),
        })
    }

    pub(crate) fn nic(&self) -> &Arc<Nic> {
        &self.nic
    }

    /// Gives frags of a batch back, merged to ranges, in as few calls as the kernel's limits allow. Returns how many it
    /// freed.
    pub(crate) fn release(
        &self,
        tokens: impl Iterator<Item = FragToken>,
    ) -> Result<usize, ReleaseError> {
        let freed = self.give_back(tokens);
        let count = match &freed {
            Ok(freed) => freed.freed,
            Err(error) => error.freed.freed,
        };
        self.returned.fetch_add(count, Ordering::Relaxed);
        match freed {
            // Never more than were asked for, which is a count of memory here.
            Ok(freed) => Ok(usize::try_from(freed.freed).unwrap_or(usize::MAX)),
            Err(error) => Err(ReleaseError::Kernel(Box::new(KernelError {
                operation: format!("give frags back on {}", self.nic.name()),
                errno: error.errno,
                cause: error.cause,
            }))),
        }
    }

    /// Gives frags back that no batch ever held.
    pub(super) fn give_back(
        &self,
        tokens: impl Iterator<Item = FragToken>,
    ) -> Result<Freed, DontneedError> {
        let mut returns = self.returns.lock().unwrap_or_else(PoisonError::into_inner);
        tokens.for_each(|token| returns.push(token));
        returns.flush(self.fd.as_fd())
    }

    /// Frags given back so far.
    pub(crate) fn returned(&self) -> u64 {
        self.returned.load(Ordering::Relaxed)
    }

    /// Sends bytes of host memory, copied.
    pub(crate) fn write(&self, bytes: &[u8], limit: WaitLimit) -> Result<usize, SendError> {
        let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
        let deadline = Deadline::of(limit);
        loop {
            match send(&*self.fd, bytes, flags) {
                Ok(taken) => return Ok(taken),
                Err(rustix::io::Errno::INTR) => {}
                Err(rustix::io::Errno::AGAIN) => self.wait(deadline, PollFlags::OUT)?,
                Err(errno) => return Err(self.send_error(Errno(errno.raw_os_error()))),
            }
        }
    }

    /// Waits for `events`; completions that come meanwhile are taken, or it would never rest.
    pub(super) fn wait(&self, deadline: Deadline, events: PollFlags) -> Result<(), NotReady> {
        let got = deadline.wait(self.fd.as_fd(), events)?;
        if got.contains(PollFlags::ERR) {
            // What is wrong with the connection itself, the call that follows says.
            let _ = self.collect();
        }
        Ok(())
    }

    pub(super) fn send_error(&self, errno: Errno) -> SendError {
        match connection_error(errno) {
            Some(ended) => SendError::Refused(stack::SendError::Connection(ended)),
            None => SendError::Kernel(self.refused("send", Operation::Send, errno)),
        }
    }

    /// Says what was refused, and why.
    pub(super) fn refused(
        &self,
        what: &str,
        operation: Operation,
        errno: Errno,
    ) -> Box<KernelError> {
        refused(&self.nic, what, operation, errno)
    }

    pub(crate) fn shutdown(&self, how: Shutdown) -> Result<(), ShutdownError> {
        let how = match how {
            Shutdown::Read => rustix::net::Shutdown::Read,
            Shutdown::Write => rustix::net::Shutdown::Write,
            Shutdown::Both => rustix::net::Shutdown::Both,
        };
        shutdown(&*self.fd, how).map_err(|errno| {
            let errno = Errno(errno.raw_os_error());
            ShutdownError::Kernel(self.refused("shut down", Operation::Socket, errno))
        })
    }

    pub(crate) fn peer_addr(&self) -> Option<SocketAddr> {
        let address = getpeername(&*self.fd).ok()??;
        SocketAddr::try_from(address).ok()
    }

    pub(crate) fn local_addr(&self) -> Option<SocketAddr> {
        let address = getsockname(&*self.fd).ok()?;
        SocketAddr::try_from(address).ok()
    }

    /// An epoll fd that becomes readable, again and again, at each of `events` and each entry of the error queue.
    ///
    /// tokio takes an entry of the error queue for the end of writing, which it never forgets; it does not look through
    /// an epoll in between.
    #[cfg(feature = "tokio")]
    pub(crate) fn edges(&self, events: epoll::EventFlags) -> rustix::io::Result<OwnedFd> {
        let edges = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let data = epoll::EventData::new_u64(0);
        epoll::add(&edges, &*self.fd, data, events | epoll::EventFlags::ET)?;
        Ok(edges)
    }

    #[cfg(feature = "tokio")]
    pub(crate) fn collected(&self) -> &::tokio::sync::Notify {
        &self.collected
    }

    /// The socket itself: the kernel makes it ready.
    pub(crate) fn readiness_fd(&self) -> io::Result<BorrowedFd<'_>> {
        Ok(self.fd.as_fd())
    }
}

pub(super) fn refused(
    nic: &Nic,
    what: &str,
    operation: Operation,
    errno: Errno,
) -> Box<KernelError> {
    let facts = Facts {
        interface: Some(nic.name().to_owned()),
        ..Facts::default()
    };
    Box::new(KernelError {
        operation: format!("{what} on {}", nic.name()),
        errno,
        cause: Box::new(cause(operation, errno, &facts)),
    })
}

impl Drop for Socket {
    fn drop(&mut self) {
        // In a child by fork(2) the sends are the parent's, and only the copy of the descriptor goes.
        if self.nic.check().is_ok() {
            self.leave();
        }
    }
}
