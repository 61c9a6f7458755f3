//! The sending half of a stream.

use std::io;
use std::net::{Shutdown, SocketAddr};
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use devmem_uapi::Errno;

use crate::backend::Socket;
use crate::bound_tx::BoundTx;
use crate::completions::Completions;
use crate::congestion::Congestion;
use crate::driver::WaitLimit;
use crate::error::{Error, ErrorKind};
use crate::limit::CallLimit;
use crate::ranges::{HowMuch, HowToSend};
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
    pub(crate) limit: CallLimit,
}

impl SendHalf {
    pub(crate) fn new(socket: Socket) -> Self {
        Self {
            socket,
            limit: CallLimit::new(WaitLimit::Forever),
        }
    }

    /// Sends ranges of bound device memory in the given order, without a copy: as many bytes as can be queued, at least one, waiting
    /// for room if there is none. [`SendId::bytes`] returns their number. They must not change until
    /// [`completions`](Self::completions) reports that the send is complete. [`send_all`](Self::send_all) queues all.
    ///
    /// # Errors
    /// [`ErrorKind::WouldBlock`] if nothing could be queued and the stream is non-blocking; [`ErrorKind::TimedOut`] if nothing
    /// could be queued within the timeout; [`ErrorKind::InvalidInput`] if the memory is bound to another NIC; a range is
    /// outside the memory; the connection has ended. After an error some bytes may be queued: [`Completions::wait_all`]
    /// waits for them.
    pub fn send(&mut self, tx: &BoundTx, ranges: &[Range<usize>]) -> Result<SendId, Error> {
        self.send_device(tx, ranges, HowMuch::WhatFits)
    }

    /// Sends ranges of bound device memory as [`send`](Self::send) does, and waits until all bytes are queued.
    ///
    /// # Errors
    /// As [`send`](Self::send), also after some bytes were queued. A program that goes on after `WouldBlock` or `TimedOut` needs to
    /// know how many those were: it calls `send`.
    pub fn send_all(&mut self, tx: &BoundTx, ranges: &[Range<usize>]) -> Result<SendId, Error> {
        self.send_device(tx, ranges, HowMuch::All)
    }

    fn send_device(
        &self,
        tx: &BoundTx,
        ranges: &[Range<usize>],
        how_much: HowMuch,
    ) -> Result<SendId, Error> {
        let how = self.how_to_send(how_much);
        self.socket.send(tx.binding(), ranges, how)
    }

    /// Sends a range of bytes of host memory with `MSG_ZEROCOPY`: as many of them as can be queued, at least one. The library keeps
    /// them until they are sent, and [`completions`](Self::completions) reports when that is. The kernel sends them from where
    /// they are; the user-space stack copies them and reports the send as copied.
    ///
    /// # Errors
    /// As [`send`](Self::send).
    pub fn send_host(&mut self, bytes: &Arc<[u8]>, range: Range<usize>) -> Result<SendId, Error> {
        self.send_host_range(bytes, range, HowMuch::WhatFits)
    }

    /// Sends bytes of host memory as [`send_host`](Self::send_host) does, and waits until all are queued.
    ///
    /// # Errors
    /// As [`send_all`](Self::send_all).
    pub fn send_host_all(&mut self, bytes: &Arc<[u8]>) -> Result<SendId, Error> {
        self.send_host_range(bytes, 0..bytes.len(), HowMuch::All)
    }

    fn send_host_range(
        &self,
        bytes: &Arc<[u8]>,
        range: Range<usize>,
        how_much: HowMuch,
    ) -> Result<SendId, Error> {
        self.socket.check()?;
        if bytes.get(range.clone()).is_none() {
            return Err(outside(range, bytes.len()));
        }
        let how = self.how_to_send(how_much);
        self.socket.send_host(bytes, &range, how)
    }

    fn how_to_send(&self, how_much: HowMuch) -> HowToSend {
        HowToSend {
            how_much,
            limit: self.limit.get(),
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
    pub fn shutdown_write(&self) -> Result<(), Error> {
        self.socket.shutdown(Shutdown::Write)
    }

    /// Makes calls return [`WouldBlock`](crate::ErrorKind::WouldBlock) instead of waiting. Overrides an earlier
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

    /// Changes the congestion control, as [`Stream::set_congestion`](crate::Stream::set_congestion).
    ///
    /// # Errors
    /// As [`Stream::set_congestion`](crate::Stream::set_congestion).
    #[doc(alias = "TCP_CONGESTION")]
    pub fn set_congestion(&self, congestion: Congestion) -> io::Result<()> {
        self.socket.set_congestion(congestion)
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

/// The error for a range that the host bytes do not have.
fn outside(range: Range<usize>, len: usize) -> Error {
    let Range { start, end } = range;
    let reason = format!("bytes {start} to {end} are not inside the {len} bytes to send");
    Error::new(ErrorKind::InvalidInput, Errno::EFAULT, reason)
        .with_remedy("send a range inside the bytes")
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
