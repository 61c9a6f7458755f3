//! Completions of zero-copy sends.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::time::Duration;

use crate::backend::Socket;
use crate::driver::WaitLimit;
use crate::error::Error;
use crate::limit::CallLimit;
use crate::send_id::{Completion, SendCounts, SendId};

/// Reports when sends of a stream are complete: the peer has acknowledged every byte, and the NIC has finished with every
/// packet that contains one. When a connection is reset or times out, its unsent bytes count as complete, too.
///
/// Sends complete in order. If the kernel reports one early, it becomes complete here together with those before it.
#[derive(Debug)]
pub struct Completions {
    socket: Socket,
    limit: CallLimit,
}

impl Completions {
    pub(crate) fn new(socket: Socket, limit: WaitLimit) -> Self {
        Self {
            socket,
            limit: CallLimit::new(limit),
        }
    }

    /// Waits until `id` and every earlier send are complete.
    ///
    /// # Errors
    /// [`ErrorKind::WouldBlock`](crate::ErrorKind::WouldBlock) if they are not complete and the handle is non-blocking; [`ErrorKind::TimedOut`](crate::ErrorKind::TimedOut)
    /// if they did not complete within the timeout.
    pub fn wait(&self, id: SendId) -> Result<(), Error> {
        self.socket.wait_until(id.end(), self.limit.get())
    }

    /// Waits until every send so far is complete.
    ///
    /// # Errors
    /// As [`wait`](Self::wait).
    pub fn wait_all(&self) -> Result<(), Error> {
        self.socket.check()?;
        self.socket.wait_until(self.socket.sent(), self.limit.get())
    }

    /// Returns whether `id` is complete. Never waits.
    ///
    /// # Errors
    /// The error queue of the socket cannot be read.
    pub fn is_complete(&self, id: SendId) -> Result<bool, Error> {
        Ok(self.socket.collect()? >= id.end())
    }

    /// Returns the sends that became complete since the last call, if any. Never waits.
    ///
    /// # Errors
    /// The error queue of the socket cannot be read.
    pub fn try_next(&self) -> Result<Option<Completion>, Error> {
        self.socket.report()
    }

    /// Returns the number of zero-copy sends that are not complete. One [`SendHalf::send`](crate::SendHalf::send) may make several.
    ///
    /// # Errors
    /// The error queue of the socket cannot be read.
    pub fn pending(&self) -> Result<u64, Error> {
        let counts = self.counts()?;
        Ok(counts.sent - counts.complete)
    }

    /// Returns the counts of the socket's zero-copy sends. Never waits.
    ///
    /// # Errors
    /// The error queue of the socket cannot be read.
    pub fn counts(&self) -> Result<SendCounts, Error> {
        self.socket.counts()
    }

    /// Sets how long [`wait`](Self::wait) waits; `None` waits forever.
    pub fn set_timeout(&self, timeout: Option<Duration>) {
        self.limit.set_timeout(timeout);
    }

    /// Returns the stream's fd for poll and epoll: see [`Stream::readiness_fd`](crate::Stream::readiness_fd). Methods of this handle, and methods of the
    /// stream that wait, read completions from the socket: before polling, call [`try_next`](Self::try_next) until it
    /// returns `None`.
    ///
    /// # Errors
    /// The process has no free file descriptor, or is a fork of the one that opened the NIC.
    pub fn readiness_fd(&self) -> io::Result<BorrowedFd<'_>> {
        self.socket.readiness_fd()
    }

    #[cfg(feature = "tokio")]
    pub(crate) fn socket(&self) -> &Socket {
        &self.socket
    }
}

impl AsFd for Completions {
    /// Returns [`Completions::readiness_fd`].
    ///
    /// # Panics
    /// If `readiness_fd` fails; call that first to handle its error. After one success it fails only in a child of fork(2).
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.readiness_fd()
            .expect("a file descriptor for the readiness of a stream")
    }
}

impl AsRawFd for Completions {
    fn as_raw_fd(&self) -> RawFd {
        self.as_fd().as_raw_fd()
    }
}
