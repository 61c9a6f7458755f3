//! A listening socket.

use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::Duration;

use crate::driver::{Wait, WaitLimit};
use crate::error::AcceptError;
use crate::stream::{Inner, Stream};

/// Waits for connections. Dropping it refuses further ones; those accepted live on.
#[derive(Debug)]
pub struct Listener {
    inner: Arc<Inner>,
    limit: WaitLimit,
}

impl Listener {
    pub(crate) fn new(inner: Arc<Inner>) -> Self {
        Self {
            inner,
            limit: WaitLimit::Forever,
        }
    }

    /// The socket.
    #[cfg(feature = "tokio")]
    pub(crate) fn inner(&self) -> &Inner {
        &self.inner
    }

    /// Waits for the next connection. Returns it and its peer's address.
    ///
    /// # Errors
    /// [`AcceptError::WouldBlock`] and [`AcceptError::TimedOut`] as set.
    pub fn accept(&self) -> Result<(Stream, SocketAddr), AcceptError> {
        let Inner {
            shared, at, socket, ..
        } = &*self.inner;
        let wait = Wait {
            stack: *at,
            socket: *socket,
            limit: self.limit,
        };
        let (accepted, peer) =
            shared
                .driver
                .wait_for(wait, |stack, _| match stack.accept(*socket) {
                    Err(stack::AcceptError::WouldBlock) => None,
                    result => Some(result),
                })??;
        Ok((
            Stream::new(Inner::new(Arc::clone(shared), *at, accepted)),
            peer,
        ))
    }

    /// The address it listens on.
    pub fn local_addr(&self) -> Option<SocketAddr> {
        self.inner
            .shared
            .driver
            .with(self.inner.at, |stack, _| {
                stack.local_addr(self.inner.socket)
            })
            .ok()
    }

    /// Makes [`accept`](Self::accept) return `WouldBlock` instead of waiting.
    pub fn set_nonblocking(&mut self, nonblocking: bool) {
        self.limit = if nonblocking {
            WaitLimit::Never
        } else {
            WaitLimit::Forever
        };
    }

    /// Bounds how long [`accept`](Self::accept) waits; `None`: for ever.
    pub fn set_timeout(&mut self, timeout: Option<Duration>) {
        self.limit = timeout.map_or(WaitLimit::Forever, WaitLimit::For);
    }

    /// An fd that is readable while a connection waits to be accepted, for poll and epoll. Made at the first
    /// call; [`AsFd`] lends the same.
    ///
    /// # Errors
    /// The process is out of file descriptors.
    pub fn readiness_fd(&self) -> io::Result<BorrowedFd<'_>> {
        self.inner.readiness_fd()
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
