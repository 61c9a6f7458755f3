//! The sending half of a stream.

use std::io;
use std::net::{Shutdown, SocketAddr};
use std::time::Duration;

use crate::driver::WaitLimit;
use crate::error::ShutdownError;
use crate::limit::CallLimit;
use crate::send::Completions;
use crate::send_signal::SendSignal;
use crate::socket::Socket;
use crate::tcp_info::TcpInfo;

/// The sending half of a [`Stream`](crate::Stream), from [`Stream::into_split`](crate::Stream::into_split) or
/// [`Stream::split`](crate::Stream::split). Dropping it sends a FIN after all queued data.
///
/// [`send`](Self::send) sends from device memory, [`Write`](io::Write) bytes of host memory.
#[derive(Debug)]
pub struct SendHalf {
    pub(crate) socket: Socket,
    pub(crate) limit: CallLimit,
}

impl SendHalf {
    pub(crate) fn new(socket: Socket) -> Self {
        Self {
            socket,
            limit: CallLimit::new(WaitLimit::Forever),
        }
    }

    /// Returns a handle that reports when sends are complete. It may outlive the stream, so that a program can drop the
    /// stream and then wait until its memory is free. It takes over the current timeout or non-blocking mode.
    pub fn completions(&self) -> Completions {
        Completions::new(self.socket.clone(), self.limit.get())
    }

    /// Returns an fd that tells when a send that found the queue full can be repeated. A program that never waits in a call
    /// needs it, because the readiness fd does not report room: see [`SendSignal`].
    ///
    /// # Errors
    /// The process has no free file descriptor, or is a fork of the one that opened the NIC.
    pub fn send_signal(&self) -> io::Result<SendSignal> {
        SendSignal::of(&self.socket)
    }

    /// Ends the sending direction: a FIN follows the queued data. Receiving is still possible.
    ///
    /// # Errors
    /// The connection is not established, or not any more.
    pub fn shutdown_write(&self) -> Result<(), ShutdownError> {
        self.socket.shutdown(Shutdown::Write)
    }

    /// Makes calls return [`WouldBlock`](crate::SendError::WouldBlock) instead of waiting. Overrides an earlier
    /// [`set_timeout`](Self::set_timeout).
    pub fn set_nonblocking(&self, nonblocking: bool) {
        self.limit.set_nonblocking(nonblocking);
    }

    /// Sets how long a call waits; `None` waits forever. Overrides an earlier [`set_nonblocking`](Self::set_nonblocking).
    pub fn set_timeout(&self, timeout: Option<Duration>) {
        self.limit.set_timeout(timeout);
    }

    /// Sends small segments at once (TCP_NODELAY).
    ///
    /// # Errors
    /// The NIC belongs to another process.
    #[doc(alias = "TCP_NODELAY")]
    pub fn set_nodelay(&self, nodelay: bool) -> io::Result<()> {
        self.socket.set_nodelay(nodelay)
    }

    /// Returns the address of the peer.
    ///
    /// # Errors
    /// The connection is closed, or the NIC belongs to another process.
    pub fn peer_addr(&self) -> io::Result<SocketAddr> {
        self.socket.peer_addr()
    }

    /// Returns the local address.
    ///
    /// # Errors
    /// The NIC belongs to another process.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.socket.local_addr()
    }

    /// Returns the state and measurements of the connection; `None` if it no longer exists.
    pub fn tcp_info(&self) -> Option<TcpInfo> {
        self.socket.tcp_info()
    }
}

impl SendHalf {
    /// Writes as [`io::Write`] does.
    pub(crate) fn write_shared(&self, bytes: &[u8]) -> io::Result<usize> {
        Ok(self.socket.write(bytes, self.limit.get())?)
    }

    /// Flushes as [`io::Write`] does.
    pub(crate) fn flush_shared(&self) -> io::Result<()> {
        self.socket.flush()
    }
}

impl io::Write for SendHalf {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.write_shared(bytes)
    }

    /// Sends what waits for further writes to fill a packet. Without a further call it leaves after about a millisecond, or up to 4 ms
    /// right after a long stream. What Nagle's algorithm holds back still waits.
    fn flush(&mut self) -> io::Result<()> {
        self.flush_shared()
    }
}

impl Drop for SendHalf {
    fn drop(&mut self) {
        // The socket itself closes when the last frag received from it is dropped.
        self.socket.end_sending();
    }
}
