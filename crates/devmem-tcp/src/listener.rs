//! A listening socket.

use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::Duration;

use crate::driver::WaitLimit;
use crate::error::AcceptError;
use crate::kernel::Listening;
use crate::stream::{Inner, Socket, Stream};

/// A listening socket of either backend.
#[derive(Debug)]
pub(crate) enum ListenSocket {
    User(Arc<Inner>),
    Kernel(Listening),
}

/// Waits for connections. Dropping it refuses further ones; those accepted live on.
#[derive(Debug)]
pub struct Listener {
    socket: ListenSocket,
    limit: WaitLimit,
}

impl Listener {
    pub(crate) fn new(socket: ListenSocket) -> Self {
        Self {
            socket,
            limit: WaitLimit::Forever,
        }
    }

    /// Fails in virtual time.
    #[cfg(feature = "tokio")]
    pub(crate) fn assert_real_time(&self) -> io::Result<()> {
        match &self.socket {
            ListenSocket::User(inner) => inner.assert_real_time(),
            ListenSocket::Kernel(_) => Ok(()),
        }
    }

    /// Waits for the next connection. Returns it and its peer's address.
    ///
    /// # Errors
    /// [`AcceptError::WouldBlock`] and [`AcceptError::TimedOut`] as set.
    pub fn accept(&self) -> Result<(Stream, SocketAddr), AcceptError> {
        let inner = match &self.socket {
            ListenSocket::User(inner) => inner,
            ListenSocket::Kernel(listening) => {
                listening.nic().check()?;
                let (socket, peer) = listening.accept(self.limit)?;
                return Ok((Stream::new(Socket::Kernel(socket)), peer));
            }
        };
        let (accepted, peer) =
            inner.wait(self.limit, |stack, _| match stack.accept(inner.socket) {
                Err(stack::AcceptError::WouldBlock) => None,
                result => Some(result),
            })??;
        let accepted = Inner::new(Arc::clone(&inner.shared), inner.at, accepted);
        Ok((Stream::new(Socket::User(accepted)), peer))
    }

    /// The address it listens on.
    pub fn local_addr(&self) -> Option<SocketAddr> {
        match &self.socket {
            ListenSocket::User(inner) => {
                let local = |stack: &mut stack::Stack, _| stack.local_addr(inner.socket);
                inner.shared.driver.with(inner.at, local).ok()?.ok()
            }
            ListenSocket::Kernel(listening) => listening.local_addr(),
        }
    }

    /// Makes [`accept`](Self::accept) return `WouldBlock` instead of waiting.
    /// The last of this and [`set_timeout`](Self::set_timeout) counts.
    pub fn set_nonblocking(&mut self, nonblocking: bool) {
        self.limit = WaitLimit::of_nonblocking(nonblocking);
    }

    /// Bounds how long [`accept`](Self::accept) waits; `None`: for ever.
    pub fn set_timeout(&mut self, timeout: Option<Duration>) {
        self.limit = WaitLimit::within(timeout);
    }

    /// An fd that is readable while a connection waits to be accepted, for poll and epoll. With a NIC of the kernel it
    /// is the socket; in user space it is made at the first call. [`AsFd`] lends the same.
    ///
    /// # Errors
    /// The process is out of file descriptors.
    pub fn readiness_fd(&self) -> io::Result<BorrowedFd<'_>> {
        match &self.socket {
            ListenSocket::User(inner) => inner.readiness_fd(),
            ListenSocket::Kernel(listening) => {
                listening.nic().check()?;
                Ok(listening.fd())
            }
        }
    }
}

impl AsFd for Listener {
    /// [`Listener::readiness_fd`].
    ///
    /// # Panics
    /// When the process is out of file descriptors at the first call; call `readiness_fd` first to be told.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.readiness_fd()
            .expect("a file descriptor for the readiness of a listener")
    }
}
