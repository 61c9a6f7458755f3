//! A socket whose other end is not trusted.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::io::Errno;
use rustix::net::{Shutdown, SocketFlags, accept_with, shutdown};

use crate::closing::close_aside;
use crate::rights::set_pass_rights;

/// What may be in the queue of a socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Queue {
    /// Bytes only: the kernel refuses descriptors.
    Bytes,
    /// Descriptors, too.
    Descriptors,
}

/// A listening or connected UNIX socket. It is closed in a separate thread if its queue may contain descriptors.
#[derive(Debug)]
pub struct PeerSocket {
    /// Taken out at the end alone.
    fd: Option<OwnedFd>,
    queue: Queue,
}

/// A socket of which nothing is known: there may be descriptors in its queue.
impl From<OwnedFd> for PeerSocket {
    fn from(fd: OwnedFd) -> Self {
        Self {
            fd: Some(fd),
            queue: Queue::Descriptors,
        }
    }
}

impl PeerSocket {
    /// Returns a socket that is neither connected nor listening yet, and refuses descriptors, if the kernel can do that. Connections
    /// that a listener accepts do as it does.
    pub fn refusing(fd: OwnedFd) -> Self {
        let queue = match set_pass_rights(fd.as_fd(), false) {
            Ok(()) => Queue::Bytes,
            Err(_before_linux_6_16) => Queue::Descriptors,
        };
        Self {
            fd: Some(fd),
            queue,
        }
    }

    /// Takes descriptors from now on.
    ///
    /// # Errors
    /// As setsockopt(2).
    pub fn take_descriptors(&mut self) -> io::Result<()> {
        if self.queue == Queue::Bytes {
            self.queue = Queue::Descriptors;
            set_pass_rights(self.as_fd(), true)?;
        }
        Ok(())
    }

    /// Returns the socket: its peer is one that may make this process wait.
    pub fn into_trusted(mut self) -> OwnedFd {
        self.queue = Queue::Bytes;
        self.fd.take().expect("it is taken out at the end alone")
    }

    /// Returns whether there may be descriptors in the queue, so that it is to be read by [`receive`](crate::receive).
    pub fn may_have_descriptors(&self) -> bool {
        self.queue == Queue::Descriptors
    }

    /// Closes the socket in this thread, which waits as long as the descriptors in its queue want: for a thread that serves this peer
    /// alone.
    pub fn close_here(mut self) {
        let _ = shutdown(&self, Shutdown::Both);
        self.queue = Queue::Bytes;
        drop(self.fd.take());
    }

    /// Accepts a connection. Never waits if this socket is non-blocking.
    ///
    /// # Errors
    /// As accept(2).
    pub fn accept(&self, flags: SocketFlags) -> Result<Self, Errno> {
        Ok(Self {
            fd: Some(accept_with(self, flags | SocketFlags::CLOEXEC)?),
            queue: self.queue,
        })
    }
}

impl AsFd for PeerSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        let fd = self.fd.as_ref().expect("it is taken out at the end alone");
        fd.as_fd()
    }
}

impl Drop for PeerSocket {
    fn drop(&mut self) {
        let Some(fd) = self.fd.take() else { return };
        // Notifies the other end at once, also while a process that was just started still has a copy of the descriptor. Fails on a socket
        // that is not connected.
        let _ = shutdown(&fd, Shutdown::Both);
        if self.queue == Queue::Descriptors {
            close_aside([fd].into_iter().collect());
        }
    }
}

#[cfg(test)]
mod tests;
