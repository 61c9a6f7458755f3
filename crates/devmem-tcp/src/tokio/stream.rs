//! An asynchronous connection.

use std::io;
use std::net::SocketAddr;
use std::ops::Range;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use ::tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use ::tokio::net::{ToSocketAddrs, lookup_host};

use super::{Completions, RecvHalf, SendHalf, eyeballs};
use crate::backend::Socket;
use crate::batch::RxBatch;
use crate::bound_target::BoundTarget;
use crate::bound_tx::BoundTx;
use crate::congestion::Congestion;
use crate::connect::ConnectOptions;
use crate::early::EarlyData;
use crate::error::{Error, RecvError};
use crate::netdev::Netdev;
use crate::recv_half::StreamStats;
use crate::resolve::{in_turns, not_an_address};
use crate::send_id::SendId;
use crate::syn_data::not_sent;
use crate::tcp_info::TcpInfo;
use crate::tcp_options::Keepalive;

/// A TCP connection of a [`Netdev`].
///
/// [`recv`](Self::recv) receives into device memory, [`send`](Self::send) and [`send_all`](Self::send_all) send from device memory;
/// [`AsyncRead`] and [`AsyncWrite`] copy from and to host memory. Two tasks use the halves of [`into_split`](Self::into_split); one task that
/// sends and receives at the same time can use [`poll_recv`](Self::poll_recv) and [`poll_send`](Self::poll_send): each direction
/// has its own waker.
#[derive(Debug)]
pub struct Stream {
    recv: RecvHalf,
    send: SendHalf,
}

impl Stream {
    /// Creates an asynchronous stream from `stream`.
    ///
    /// # Errors
    /// The process has no free file descriptor; the NIC runs in virtual time ([`io::ErrorKind::Unsupported`]).
    ///
    /// # Panics
    /// If called outside a tokio runtime, or in one without I/O enabled.
    pub fn new(stream: crate::Stream) -> io::Result<Self> {
        stream.socket().assert_real_time()?;
        stream.set_nonblocking(true);
        let (recv, send) = stream.into_split();
        Ok(Self {
            recv: RecvHalf::new(recv)?,
            send: SendHalf::new(send)?,
        })
    }

    /// Connects to `to` and waits until the connection is established or TCP gives up. Cancel-safe: dropping the future
    /// aborts the attempt.
    ///
    /// Of several addresses of a name, the first one that answers: IPv6 and IPv4 in turn, each next one 250 ms after the one before, or
    /// at once when that has failed (RFC 8305).
    ///
    /// # Errors
    /// As [`Netdev::connect`].
    ///
    /// # Panics
    /// If called outside a tokio runtime, or in one without I/O enabled; for several addresses, in one without time enabled.
    pub async fn connect(nic: &Netdev, to: impl ToSocketAddrs) -> Result<Self, Error> {
        Self::connect_with(nic, to, &ConnectOptions::new()).await
    }

    /// Connects as [`connect`](Self::connect) does, with options. Their timeout does not count: use `tokio::time::timeout`.
    ///
    /// # Errors
    /// As [`Netdev::connect`].
    ///
    /// # Panics
    /// As [`connect`](Self::connect).
    pub async fn connect_with(
        nic: &Netdev,
        to: impl ToSocketAddrs,
        options: &ConnectOptions,
    ) -> Result<Self, Error> {
        let found = lookup_host(to).await.map_err(not_an_address)?;
        eyeballs::first_of(in_turns(found), |to| Self::connect_one(nic, to, options)).await
    }

    async fn connect_one(
        nic: &Netdev,
        to: SocketAddr,
        options: &ConnectOptions,
    ) -> Result<Self, Error> {
        let begun = nic.begin_stream(to, options)?;
        let mut stream = Self::new(begun).map_err(super::no_fd)?;
        stream.send.connected().await?;
        Ok(stream)
    }

    /// Connects to `to` with the first bytes of `data` in the SYN, and waits until the connection is established and all of
    /// `data` is queued: see [`Netdev::connect_with_data`], which also says what must not be sent this way. The timeout of
    /// the options does not count: use `tokio::time::timeout`. Not cancel-safe: when the future is dropped, the peer may have
    /// received a part of `data`.
    ///
    /// # Errors
    /// As [`Netdev::connect_with_data`].
    ///
    /// # Panics
    /// If called outside a tokio runtime, or in one without I/O enabled.
    pub async fn connect_with_data(
        nic: &Netdev,
        to: SocketAddr,
        options: &ConnectOptions,
        data: EarlyData<'_>,
    ) -> Result<(Self, SendId), Error> {
        let (begun, taken) = nic.begin_with_data(to, options, data)?;
        let mut stream = Self::new(begun).map_err(super::no_fd)?;
        stream.send.connected().await?;
        let sent = stream.send.send_rest(data, taken).await;
        Ok((stream, sent.map_err(not_sent)?))
    }

    /// Splits the stream into halves for two tasks. Dropping the sending half sends a FIN.
    pub fn into_split(self) -> (RecvHalf, SendHalf) {
        let Self { recv, send } = self;
        (recv, send)
    }

    /// Borrows both halves.
    pub fn split(&mut self) -> (&mut RecvHalf, &mut SendHalf) {
        (&mut self.recv, &mut self.send)
    }

    /// Receives queued data: see [`RecvHalf::recv`]. Cancel-safe.
    ///
    /// # Errors
    /// As [`RecvHalf::recv`].
    pub async fn recv(&mut self, batch: &mut RxBatch) -> Result<usize, RecvError> {
        self.recv.recv(batch).await
    }

    /// Receives at most `max_bytes`: see [`RecvHalf::recv_at_most`]. Cancel-safe.
    ///
    /// # Errors
    /// As [`RecvHalf::recv`].
    pub async fn recv_at_most(
        &mut self,
        batch: &mut RxBatch,
        max_bytes: usize,
    ) -> Result<usize, RecvError> {
        self.recv.recv_at_most(batch, max_bytes).await
    }

    /// Receives exactly as many bytes as `out` has, by a copy: see [`RecvHalf::recv_exact`]. Not cancel-safe.
    ///
    /// # Errors
    /// As [`RecvHalf::recv_exact`].
    pub async fn recv_exact(&mut self, out: &mut [u8]) -> Result<(), RecvError> {
        self.recv.recv_exact(out).await
    }

    /// Says where the next bytes belong: see [`RecvHalf::place_next`].
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

    /// Copies the first queued bytes and leaves them queued: see [`RecvHalf::peek`]. Cancel-safe.
    ///
    /// # Errors
    /// As [`RecvHalf::recv`].
    pub async fn peek(&mut self, out: &mut [u8]) -> Result<usize, RecvError> {
        self.recv.peek(out).await
    }

    /// Polls [`recv`](Self::recv).
    ///
    /// # Errors
    /// As [`recv`](Self::recv).
    pub fn poll_recv(
        &mut self,
        cx: &mut Context<'_>,
        batch: &mut RxBatch,
    ) -> Poll<Result<usize, RecvError>> {
        self.recv.poll_recv(cx, batch)
    }

    /// Sends ranges of bound device memory: see [`SendHalf::send`]. Cancel-safe.
    ///
    /// # Errors
    /// As [`SendHalf::send`].
    pub async fn send(&mut self, tx: &BoundTx, ranges: &[Range<usize>]) -> Result<SendId, Error> {
        self.send.send(tx, ranges).await
    }

    /// Polls [`send`](Self::send).
    ///
    /// # Errors
    /// As [`send`](Self::send).
    pub fn poll_send(
        &mut self,
        cx: &mut Context<'_>,
        tx: &BoundTx,
        ranges: &[Range<usize>],
    ) -> Poll<Result<SendId, Error>> {
        self.send.poll_send(cx, tx, ranges)
    }

    /// Sends bytes of host memory with `MSG_ZEROCOPY`: see [`SendHalf::send_host`]. Cancel-safe.
    ///
    /// # Errors
    /// As [`SendHalf::send`].
    pub async fn send_host(
        &mut self,
        bytes: &Arc<[u8]>,
        range: Range<usize>,
    ) -> Result<SendId, Error> {
        self.send.send_host(bytes, range).await
    }

    /// Sends bytes of host memory until all are queued: see [`SendHalf::send_host_all`]. Not cancel-safe.
    ///
    /// # Errors
    /// As [`SendHalf::send`].
    pub async fn send_host_all(&mut self, bytes: &Arc<[u8]>) -> Result<SendId, Error> {
        self.send.send_host_all(bytes).await
    }

    /// Sends until all bytes are queued: see [`SendHalf::send_all`]. Not cancel-safe.
    ///
    /// # Errors
    /// As [`SendHalf::send`].
    pub async fn send_all(
        &mut self,
        tx: &BoundTx,
        ranges: &[Range<usize>],
    ) -> Result<SendId, Error> {
        self.send.send_all(tx, ranges).await
    }

    /// Returns a handle that reports when sends are complete.
    ///
    /// # Errors
    /// The process has no free file descriptor.
    ///
    /// # Panics
    /// If called outside a tokio runtime, or in one without I/O enabled.
    pub fn completions(&self) -> io::Result<Completions> {
        self.send.completions()
    }

    /// Ends the sending direction: a FIN follows the queued data. Never waits. Receiving is still possible.
    ///
    /// # Errors
    /// The connection is not established, or not any more.
    pub fn shutdown_write(&self) -> Result<(), Error> {
        self.send.shutdown_write()
    }

    /// Sets how to treat bytes that did not land in device memory.
    pub fn set_placement(&mut self, placement: crate::Placement) {
        self.recv.set_placement(placement);
    }

    /// Sends small segments at once (TCP_NODELAY).
    ///
    /// # Errors
    /// The NIC belongs to another process.
    pub fn set_nodelay(&self, nodelay: bool) -> io::Result<()> {
        self.send.half.set_nodelay(nodelay)
    }

    /// Returns whether small segments are sent at once.
    ///
    /// # Errors
    /// The NIC belongs to another process.
    pub fn nodelay(&self) -> io::Result<bool> {
        self.socket().nodelay()
    }

    /// Changes the congestion control: see [`Stream::set_congestion`](crate::Stream::set_congestion).
    ///
    /// # Errors
    /// As [`Stream::set_congestion`](crate::Stream::set_congestion).
    pub fn set_congestion(&self, congestion: Congestion) -> io::Result<()> {
        self.socket().set_congestion(congestion)
    }

    /// Probes the peer when it is silent: see [`Stream::set_keepalive`](crate::Stream::set_keepalive).
    ///
    /// # Errors
    /// As [`Stream::set_keepalive`](crate::Stream::set_keepalive).
    pub fn set_keepalive(&self, keepalive: Option<Keepalive>) -> io::Result<()> {
        self.socket().set_keepalive(keepalive)
    }

    /// Sets what dropping the stream does: see [`Stream::set_linger`](crate::Stream::set_linger). With a time above zero the drop
    /// blocks the thread of the runtime.
    ///
    /// # Errors
    /// As [`Stream::set_linger`](crate::Stream::set_linger).
    pub fn set_linger(&self, linger: Option<Duration>) -> io::Result<()> {
        self.socket().set_linger(linger)
    }

    /// Returns the pending error of the connection and clears it: see [`Stream::take_error`](crate::Stream::take_error).
    ///
    /// # Errors
    /// The NIC belongs to another process.
    pub fn take_error(&self) -> io::Result<Option<io::Error>> {
        self.socket().take_error()
    }

    fn socket(&self) -> &Socket {
        &self.recv.half.socket
    }

    /// Returns the address of the peer.
    ///
    /// # Errors
    /// The connection is closed, or the NIC belongs to another process.
    pub fn peer_addr(&self) -> io::Result<SocketAddr> {
        self.recv.peer_addr()
    }

    /// Returns the local address.
    ///
    /// # Errors
    /// The NIC belongs to another process.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.recv.half.local_addr()
    }

    /// Returns the number of the shard that has the connection: see [`Netdev::shards`].
    pub fn shard(&self) -> usize {
        self.socket().shard()
    }

    /// Returns the counters of the stream.
    pub fn stats(&self) -> StreamStats {
        self.recv.stats()
    }

    /// Returns the state and measurements of the connection; `None` if it no longer exists.
    pub fn tcp_info(&self) -> Option<TcpInfo> {
        self.recv.half.tcp_info()
    }

    /// Returns the blocking stream.
    pub fn into_inner(self) -> crate::Stream {
        let stream = crate::Stream {
            recv: self.recv.half,
            send: self.send.half,
        };
        stream.set_nonblocking(false);
        stream
    }
}

/// Reads bytes wherever they are, as the blocking [`RecvHalf`](crate::RecvHalf) does.
impl AsyncRead for Stream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        out: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.recv).poll_read(cx, out)
    }
}

impl AsyncWrite for Stream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.send).poll_write(cx, bytes)
    }

    /// Sends what waits for further writes to fill a packet, as the blocking [`Stream`](crate::Stream) does. Never waits.
    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.send).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.send).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use ::tokio::time::timeout;

    use super::Stream;
    use crate::netdev::Netdev;

    #[::tokio::test]
    async fn a_connection_that_times_out_wakes_its_waiting_tasks() {
        // Nobody is at the other end. The timeout comes between two questions for the peer's hardware address: nothing is sent with
        // it, nor anything else in the rest of the second.
        let tcp = tcp::Config {
            timers: tcp::TimerConfig {
                rto_initial: Duration::from_millis(2500),
                syn_linear_timeouts: 0,
                ..tcp::TimerConfig::default()
            },
            settings: tcp::Settings {
                syn_retries: 0,
                ..tcp::Settings::default()
            },
            ..tcp::Config::default()
        };
        let builder = Netdev::builder("mem:tokio-silence").expect("a link");
        let builder = builder.address("10.77.0.1/24").expect("an address");
        let nic = builder.tcp_config(tcp).open().expect("a NIC");
        let connect = Stream::connect(&nic, "10.77.0.2:5201");
        let ended = timeout(Duration::from_secs(20), connect).await;
        let ended = ended
            .expect("the connect ends")
            .expect_err("no host answers");
        assert!(ended.remedy().is_some(), "{ended}");
    }
}
