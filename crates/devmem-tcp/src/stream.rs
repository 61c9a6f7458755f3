//! A TCP connection.

use std::io;
use std::net::SocketAddr;
use std::ops::Range;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::sync::Arc;
use std::time::Duration;

use netmem::Dmabuf;
use steer::RxQueueId;

use crate::backend::Socket;
use crate::batch::RxBatch;
use crate::bound_target::BoundTarget;
use crate::bound_tx::BoundTx;
use crate::completions::Completions;
use crate::congestion::Congestion;
use crate::error::{Error, HeldMemory, RecvError};
use crate::recv_half::{RecvHalf, StreamStats};
use crate::recv_request::Placement;
use crate::send_half::SendHalf;
use crate::send_id::SendId;
use crate::send_signal::SendSignal;
use crate::tcp_info::TcpInfo;
use crate::tcp_options::Keepalive;

/// A TCP connection of a [`Netdev`](crate::Netdev).
///
/// [`recv`](Self::recv) receives into device memory, [`send`](Self::send) and [`send_all`](Self::send_all) send from device memory;
/// [`Read`](io::Read) and [`Write`](io::Write) copy from and to host memory. Dropping a stream sends a FIN after all queued data.
///
/// [`into_split`](Self::into_split) gives the two directions to two threads.
#[derive(Debug)]
pub struct Stream {
    pub(crate) recv: RecvHalf,
    pub(crate) send: SendHalf,
}

impl Stream {
    pub(crate) fn new(socket: Socket) -> Self {
        Self {
            recv: RecvHalf::new(socket.clone()),
            send: SendHalf::new(socket),
        }
    }

    pub(crate) fn socket(&self) -> &Socket {
        &self.recv.socket
    }

    /// Splits the stream into halves that two threads can use at the same time. Dropping the sending half sends a FIN.
    ///
    /// ```
    /// use devmem_tcp::{Netdev, RxBatch};
    /// use std::io::Write;
    ///
    /// let (a, b) = Netdev::pair("seed=1".parse()?)?;
    /// let listener = b.listen("10.77.0.2:5201")?;
    /// let stream = a.connect("10.77.0.2:5201")?;
    /// let (echo, _peer) = listener.accept()?;
    /// let (mut from, mut to) = stream.into_split();
    /// let writing = std::thread::spawn(move || to.write_all(b"there and back"));
    /// let (mut echo_from, mut echo_to) = echo.into_split();
    /// std::io::copy(&mut echo_from, &mut echo_to)?;                // up to the FIN of the dropped half
    /// drop(echo_to);
    /// let (mut batch, mut bytes) = (RxBatch::with_capacity(8), 0);
    /// while bytes < 14 {
    ///     bytes += from.recv(&mut batch)?;
    /// }
    /// writing.join().expect("the thread ends")?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn into_split(self) -> (RecvHalf, SendHalf) {
        let Self { recv, send } = self;
        (recv, send)
    }

    /// Borrows both halves, for scoped threads and for [`SendRing`](crate::SendRing).
    pub fn split(&mut self) -> (&mut RecvHalf, &mut SendHalf) {
        (&mut self.recv, &mut self.send)
    }

    /// Receives queued data into `batch`: see [`RecvHalf::recv`].
    ///
    /// # Errors
    /// As [`RecvHalf::recv`].
    pub fn recv(&mut self, batch: &mut RxBatch) -> Result<usize, RecvError> {
        self.recv.recv(batch)
    }

    /// Receives at most `max_bytes`: see [`RecvHalf::recv_at_most`].
    ///
    /// # Errors
    /// As [`RecvHalf::recv`].
    pub fn recv_at_most(
        &mut self,
        batch: &mut RxBatch,
        max_bytes: usize,
    ) -> Result<usize, RecvError> {
        self.recv.recv_at_most(batch, max_bytes)
    }

    /// Receives straight into a range of memory, if the NIC is one of the kernel: see [`RecvHalf::recv_into`].
    ///
    /// # Errors
    /// As [`RecvHalf::recv_into`].
    pub fn recv_into(
        &mut self,
        memory: &Dmabuf,
        range: Range<usize>,
    ) -> Result<Option<usize>, RecvError> {
        self.recv.recv_into(memory, range)
    }

    /// Receives exactly as many bytes as `out` has, by a copy: see [`RecvHalf::recv_exact`].
    ///
    /// # Errors
    /// As [`RecvHalf::recv_exact`].
    pub fn recv_exact(&mut self, out: &mut [u8]) -> Result<(), RecvError> {
        self.recv.recv_exact(out)
    }

    /// Copies the first queued bytes to `out` and leaves them queued: see [`RecvHalf::peek`].
    ///
    /// # Errors
    /// As [`RecvHalf::peek`].
    pub fn peek(&mut self, out: &mut [u8]) -> Result<usize, RecvError> {
        self.recv.peek(out)
    }

    /// Says where the next bytes of the stream belong: see [`RecvHalf::place_next`].
    ///
    /// # Errors
    /// As [`RecvHalf::place_next`].
    pub fn place_next(
        &mut self,
        target: &BoundTarget,
        ranges: &[Range<usize>],
    ) -> Result<(), Error> {
        self.recv.place_next(target, ranges)
    }

    /// Sends ranges of bound device memory, what fits into the send queue: see [`SendHalf::send`].
    ///
    /// # Errors
    /// As [`SendHalf::send`].
    pub fn send(&mut self, tx: &BoundTx, ranges: &[Range<usize>]) -> Result<SendId, Error> {
        self.send.send(tx, ranges)
    }

    /// Sends all bytes of ranges of bound device memory: see [`SendHalf::send_all`].
    ///
    /// # Errors
    /// As [`SendHalf::send_all`].
    pub fn send_all(&mut self, tx: &BoundTx, ranges: &[Range<usize>]) -> Result<SendId, Error> {
        self.send.send_all(tx, ranges)
    }

    /// Sends bytes of host memory with `MSG_ZEROCOPY`, what fits into the send queue: see [`SendHalf::send_host`].
    ///
    /// # Errors
    /// As [`SendHalf::send`].
    pub fn send_host(&mut self, bytes: &Arc<[u8]>, range: Range<usize>) -> Result<SendId, Error> {
        self.send.send_host(bytes, range)
    }

    /// Sends all bytes of host memory with `MSG_ZEROCOPY`: see [`SendHalf::send_host_all`].
    ///
    /// # Errors
    /// As [`SendHalf::send_all`].
    pub fn send_host_all(&mut self, bytes: &Arc<[u8]>) -> Result<SendId, Error> {
        self.send.send_host_all(bytes)
    }

    /// Returns a handle that reports when sends are complete: see [`SendHalf::completions`].
    pub fn completions(&self) -> Completions {
        self.send.completions()
    }

    /// Returns an fd that tells when a send that found the queue full can be repeated: see [`SendHalf::send_signal`].
    ///
    /// # Errors
    /// As [`SendHalf::send_signal`].
    pub fn send_signal(&self) -> io::Result<SendSignal> {
        self.send.send_signal()
    }

    /// Ends the sending direction: a FIN follows the queued data. Receiving is still possible.
    ///
    /// # Errors
    /// The connection is not established, or not any more.
    pub fn shutdown_write(&self) -> Result<(), Error> {
        self.send.shutdown_write()
    }

    /// Sets how to treat bytes that did not land in device memory; [`Placement::Mixed`] by default.
    pub fn set_placement(&mut self, placement: Placement) {
        self.recv.set_placement(placement);
    }

    /// Makes calls of both directions return `WouldBlock` instead of waiting. Overrides earlier timeouts.
    pub fn set_nonblocking(&self, nonblocking: bool) {
        self.recv.set_nonblocking(nonblocking);
        self.send.set_nonblocking(nonblocking);
    }

    /// Sets how long a call of either direction waits; `None` waits forever.
    pub fn set_timeout(&self, timeout: Option<Duration>) {
        self.set_read_timeout(timeout);
        self.set_write_timeout(timeout);
    }

    /// Sets how long a receive waits; `None` waits forever.
    #[doc(alias = "SO_RCVTIMEO")]
    pub fn set_read_timeout(&self, timeout: Option<Duration>) {
        self.recv.set_timeout(timeout);
    }

    /// Sets how long a send waits; `None` waits forever.
    #[doc(alias = "SO_SNDTIMEO")]
    pub fn set_write_timeout(&self, timeout: Option<Duration>) {
        self.send.set_timeout(timeout);
    }

    /// Sends small segments at once (TCP_NODELAY). Off by default.
    ///
    /// # Errors
    /// The NIC belongs to another process.
    #[doc(alias = "TCP_NODELAY")]
    pub fn set_nodelay(&self, nodelay: bool) -> io::Result<()> {
        self.socket().set_nodelay(nodelay)
    }

    /// Returns whether small segments are sent at once.
    ///
    /// # Errors
    /// The NIC belongs to another process.
    pub fn nodelay(&self) -> io::Result<bool> {
        self.socket().nodelay()
    }

    /// Changes the congestion control; the congestion window stays. What a handshake has to negotiate is not: see
    /// [`ConnectOptions::congestion`](crate::ConnectOptions::congestion).
    ///
    /// # Errors
    /// The kernel of a kernel NIC does not have it, or permits it to root only; the NIC belongs to another process.
    #[doc(alias = "TCP_CONGESTION")]
    pub fn set_congestion(&self, congestion: Congestion) -> io::Result<()> {
        self.socket().set_congestion(congestion)
    }

    /// Probes the peer when it is silent (SO_KEEPALIVE); `None`, the default, never.
    ///
    /// # Errors
    /// A time is below one second, or there are no probes; the NIC belongs to another process.
    #[doc(alias = "SO_KEEPALIVE")]
    pub fn set_keepalive(&self, keepalive: Option<Keepalive>) -> io::Result<()> {
        self.socket().set_keepalive(keepalive)
    }

    /// Sets what dropping the stream does (SO_LINGER). `None`, the default: it returns at once, and the queued data is sent in
    /// the background. Zero: it resets the connection. Another time: it blocks until the peer has acknowledged all
    /// data, for that time at most; only with a kernel NIC.
    ///
    /// # Errors
    /// A time above zero with a user-space NIC; the NIC belongs to another process.
    #[doc(alias = "SO_LINGER")]
    pub fn set_linger(&self, linger: Option<Duration>) -> io::Result<()> {
        self.socket().set_linger(linger)
    }

    /// Returns the pending error of the connection and clears it (SO_ERROR): why it has ended, if a call has not returned that yet.
    ///
    /// # Errors
    /// The NIC belongs to another process.
    #[doc(alias = "SO_ERROR")]
    pub fn take_error(&self) -> io::Result<Option<io::Error>> {
        self.socket().take_error()
    }

    /// Returns the address of the peer.
    ///
    /// # Errors
    /// The connection is closed, or the NIC belongs to another process.
    pub fn peer_addr(&self) -> io::Result<SocketAddr> {
        self.socket().peer_addr()
    }

    /// Returns the local address.
    ///
    /// # Errors
    /// The NIC belongs to another process.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.socket().local_addr()
    }

    /// Returns the RX queue of the connection: see [`RecvHalf::queue`].
    pub fn queue(&self) -> Option<RxQueueId> {
        self.recv.queue()
    }

    /// Returns the number of the shard that has the connection, from 0: see [`Netdev::shards`](crate::Netdev::shards).
    pub fn shard(&self) -> usize {
        self.socket().shard()
    }

    /// Returns the counters of the stream.
    pub fn stats(&self) -> StreamStats {
        self.recv.stats()
    }

    /// Returns who holds the memory that the connection receives into: see [`RecvHalf::held_memory`].
    pub fn held_memory(&self) -> Option<HeldMemory> {
        self.recv.held_memory()
    }

    /// Returns the state and measurements of the connection: Linux' `TCP_INFO`, or the same fields of the user-space stack.
    /// `None` if the connection no longer exists.
    #[doc(alias = "TCP_INFO")]
    pub fn tcp_info(&self) -> Option<TcpInfo> {
        self.socket().tcp_info()
    }

    /// Returns an fd for poll and epoll. It is readable while the stream has data, or has ended. A pending error and
    /// completed sends make it readable, too, or set POLLERR, which poll reports without being asked for it. With a kernel
    /// NIC it is the socket; in user space the first call creates it. [`AsFd`] returns the same fd.
    ///
    /// # Errors
    /// The process has no free file descriptor, or is a fork of the one that opened the NIC.
    pub fn readiness_fd(&self) -> io::Result<BorrowedFd<'_>> {
        self.recv.readiness_fd()
    }
}

/// The fd of `readiness_fd`.
///
/// # Panics
/// If `readiness_fd` fails; call that first to handle its error. After one success it fails only in a child of fork(2).
impl AsFd for Stream {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.recv.as_fd()
    }
}

impl AsRawFd for Stream {
    fn as_raw_fd(&self) -> RawFd {
        self.recv.as_raw_fd()
    }
}

/// Reads bytes wherever they are, as [`RecvHalf`] does.
impl io::Read for Stream {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        (&*self).read(out)
    }
}

/// As with std's `TcpStream`, threads that share a stream can read it; each byte is read by one of them.
impl io::Read for &Stream {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        Ok(self.recv.read_shared(out)?)
    }
}

/// Writes bytes of host memory, by a copy.
impl io::Write for Stream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        (&*self).write(bytes)
    }

    /// Sends what waits for further writes to fill a packet. Without a further call it leaves after about a millisecond, or up to 4 ms
    /// right after a long stream. What Nagle's algorithm holds back still waits.
    fn flush(&mut self) -> io::Result<()> {
        (&*self).flush()
    }
}

/// As with std's `TcpStream`, for threads that share a stream.
impl io::Write for &Stream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.send.write_shared(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.send.flush_shared()
    }
}
