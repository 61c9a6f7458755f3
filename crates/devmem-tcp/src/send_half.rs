//! The sending half of a stream.

use std::io;
use std::net::{Shutdown, SocketAddr};
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use crate::backend::Socket;
use crate::bound_tx::BoundTx;
use crate::completions::Completions;
use crate::driver::WaitLimit;
use crate::error::{SendError, ShutdownError};
use crate::send_id::SendId;
use crate::send_signal::SendSignal;
use crate::tcp_info::TcpInfo;

/// The sending half of a [`Stream`](crate::Stream), from [`Stream::into_split`](crate::Stream::into_split) or
/// [`Stream::split`](crate::Stream::split). Dropping it sends a FIN after all queued data.
///
/// [`send`](Self::send) sends from device memory, [`Write`](io::Write) bytes of host memory.
#[derive(Debug)]
pub struct SendHalf {
    pub(crate) socket: Socket,
    pub(crate) limit: WaitLimit,
}

impl SendHalf {
    pub(crate) fn new(socket: Socket) -> Self {
        Self {
            socket,
            limit: WaitLimit::Forever,
        }
    }

    /// Sends ranges of bound device memory in the given order, without a copy. Waits until all bytes are queued. The bytes
    /// must not change until [`completions`](Self::completions) reports that the send is complete.
    ///
    /// # Errors
    /// [`SendError::WouldBlock`] if nothing could be queued and the stream is non-blocking; [`SendError::TimedOut`] if nothing
    /// could be queued within the timeout; [`SendError::OtherNetdev`] if the memory is bound to another NIC; a range is
    /// outside the memory; the connection has ended. After an error some bytes may be queued: [`Completions::wait_all`]
    /// waits for them.
    pub fn send(&mut self, tx: &BoundTx, ranges: &[Range<usize>]) -> Result<SendId, SendError> {
        self.socket.send(tx.binding(), ranges, self.limit)
    }

    /// Sends bytes of host memory with `MSG_ZEROCOPY`. The library keeps them until they are sent, and
    /// [`completions`](Self::completions) reports when that is. The kernel sends them from where they are; the user-space
    /// stack copies them and reports the send as copied.
    ///
    /// # Errors
    /// As [`send`](Self::send).
    pub fn send_host(&mut self, bytes: &Arc<[u8]>) -> Result<SendId, SendError> {
        self.socket.send_host(bytes, self.limit)
    }

    /// Returns a handle that reports when sends are complete. It may outlive the stream, so that a program can drop the
    /// stream and then wait until its memory is free. It takes over the current timeout or non-blocking mode.
    pub fn completions(&self) -> Completions {
        Completions::new(self.socket.clone(), self.limit)
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
    pub fn shutdown(&mut self) -> Result<(), ShutdownError> {
        self.socket.shutdown(Shutdown::Write)
    }

    /// Makes calls return [`WouldBlock`](crate::SendError::WouldBlock) instead of waiting. Overrides an earlier
    /// [`set_timeout`](Self::set_timeout).
    pub fn set_nonblocking(&mut self, nonblocking: bool) {
        self.limit = WaitLimit::of_nonblocking(nonblocking);
    }

    /// Sets how long a call waits; `None` waits forever. Overrides an earlier [`set_nonblocking`](Self::set_nonblocking).
    pub fn set_timeout(&mut self, timeout: Option<Duration>) {
        self.limit = WaitLimit::within(timeout);
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

impl io::Write for SendHalf {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        Ok(self.socket.write(bytes, self.limit)?)
    }

    /// Sends what waits for further writes to fill a packet. Without a further call it leaves after about a millisecond, or up to 4 ms
    /// right after a long stream. What Nagle's algorithm holds back still waits.
    fn flush(&mut self) -> io::Result<()> {
        self.socket.flush()
    }
}

impl Drop for SendHalf {
    fn drop(&mut self) {
        // The socket itself closes when the last frag received from it is dropped.
        self.socket.end_sending();
    }
}
