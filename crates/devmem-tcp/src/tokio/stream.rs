//! An asynchronous connection.

use std::future::poll_fn;
use std::io::{self, Write};
use std::net::SocketAddr;
use std::ops::Range;
use std::os::fd::AsFd;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use ::tokio::io::AsyncWrite;

use super::Completions;
use super::signal::{Signal, Try};
use crate::batch::RxBatch;
use crate::bound_tx::BoundTx;
use crate::driver::NotReady;
use crate::error::{ConnectError, RecvError, SendError, ShutdownError};
use crate::netdev::Netdev;
use crate::send::SendId;

/// A TCP connection of a [`Netdev`].
///
/// [`recv`](Self::recv) receives into device memory, [`send`](Self::send) sends from device memory, and [`AsyncWrite`] sends
/// bytes of host memory. A task that sends and receives at the same time can use [`poll_recv`](Self::poll_recv) and
/// [`poll_send`](Self::poll_send): each direction has its own waker.
#[derive(Debug)]
pub struct Stream {
    stream: crate::Stream,
    to_receive: Signal,
    to_send: Signal,
}

impl Stream {
    /// Creates an asynchronous stream from `stream`.
    ///
    /// # Errors
    /// The process has no free file descriptor; the NIC runs in virtual time ([`io::ErrorKind::Unsupported`]).
    ///
    /// # Panics
    /// If called outside a tokio runtime, or in one without I/O enabled.
    pub fn new(mut stream: crate::Stream) -> io::Result<Self> {
        stream.socket.assert_real_time()?;
        stream.set_nonblocking(true);
        let to_receive = Signal::new(stream.readiness_fd()?)?;
        let to_send = Signal::new(stream.socket.send_signal()?.as_fd())?;
        Ok(Self {
            stream,
            to_receive,
            to_send,
        })
    }

    /// Connects to `to` and waits until the connection is established or TCP gives up. Cancel-safe: dropping the future
    /// aborts the attempt.
    ///
    /// # Errors
    /// As [`Netdev::connect`].
    ///
    /// # Panics
    /// If called outside a tokio runtime, or in one without I/O enabled.
    pub async fn connect(nic: &Netdev, to: SocketAddr) -> Result<Self, ConnectError> {
        let mut stream = Self::new(nic.begin_connect(to)?).map_err(ConnectError::System)?;
        let connected = poll_fn(|cx| stream.poll_to_send(cx, |stream| stream.socket.connected()));
        // An error here means that the runtime is shutting down.
        connected.await.map_err(|_| ConnectError::TimedOut)??;
        Ok(stream)
    }

    /// Receives queued data into `batch`; waits if there is none. First releases the frags that `batch` held before.
    /// Returns the number of bytes, device and host together; 0 is the end of the stream. Cancel-safe.
    ///
    /// # Errors
    /// As [`Stream::recv`](crate::Stream::recv). [`RecvError::WouldBlock`] if the runtime is shutting down.
    pub async fn recv(&mut self, batch: &mut RxBatch) -> Result<usize, RecvError> {
        poll_fn(|cx| self.poll_recv(cx, batch)).await
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
        let Self {
            stream, to_receive, ..
        } = self;
        let attempt = |_: Try| match stream.recv(batch) {
            Err(RecvError::WouldBlock) => None,
            result => Some(result),
        };
        Poll::Ready(ready!(to_receive.poll(cx, attempt))?)
    }

    /// Sends ranges of bound device memory in the given order: as many bytes as can be queued, at least one, waiting for
    /// room if there is none. [`SendId::bytes`] returns their number. They must not change until
    /// [`completions`](Self::completions) reports that the send is complete. Cancel-safe.
    ///
    /// # Errors
    /// As [`Stream::send`](crate::Stream::send). [`SendError::WouldBlock`] if the runtime is shutting down.
    pub async fn send(
        &mut self,
        tx: &BoundTx,
        ranges: &[Range<usize>],
    ) -> Result<SendId, SendError> {
        poll_fn(|cx| self.poll_send(cx, tx, ranges)).await
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
    ) -> Poll<Result<SendId, SendError>> {
        let attempt = |stream: &mut crate::Stream| match stream.send(tx, ranges) {
            Err(SendError::WouldBlock) => None,
            result => Some(result),
        };
        Poll::Ready(ready!(self.poll_to_send(cx, attempt))?)
    }

    /// Sends bytes of host memory as [`Stream::send_host`](crate::Stream::send_host) does: as many as can be queued, at least
    /// one. Cancel-safe.
    ///
    /// # Errors
    /// As [`send`](Self::send).
    pub async fn send_host(&mut self, bytes: &Arc<[u8]>) -> Result<SendId, SendError> {
        let attempt = |stream: &mut crate::Stream| match stream.send_host(bytes) {
            Err(SendError::WouldBlock) => None,
            result => Some(result),
        };
        poll_fn(|cx| self.poll_to_send(cx, attempt)).await?
    }

    /// Sends as [`send`](Self::send) does, until all bytes are queued. Not cancel-safe: when the future is dropped, a part of
    /// the bytes may already be queued and will be sent; [`Completions::wait_all`] waits for it.
    ///
    /// # Errors
    /// As [`send`](Self::send).
    pub async fn send_all(
        &mut self,
        tx: &BoundTx,
        ranges: &[Range<usize>],
    ) -> Result<SendId, SendError> {
        let mut id = self.send(tx, ranges).await?;
        let total = crate::send::length(ranges);
        if id.bytes() < total {
            let mut rest = ranges.to_vec();
            crate::send::advance(&mut rest, id.bytes());
            while id.bytes() < total {
                let next = self.send(tx, &rest).await?;
                crate::send::advance(&mut rest, next.bytes());
                id = id.through(next);
            }
        }
        Ok(id)
    }

    /// Returns a handle that reports when sends are complete.
    ///
    /// # Errors
    /// The process has no free file descriptor.
    ///
    /// # Panics
    /// If called outside a tokio runtime, or in one without I/O enabled.
    pub fn completions(&self) -> io::Result<Completions> {
        Completions::new(self.stream.completions())
    }

    /// Ends the sending direction: a FIN follows the queued data. Never waits. Receiving is still possible.
    ///
    /// # Errors
    /// The connection is not established, or not any more.
    pub fn shutdown_write(&mut self) -> Result<(), ShutdownError> {
        self.stream.shutdown_write()
    }

    /// Returns the inner stream, for the calls that never wait, such as addresses and statistics.
    pub fn get_ref(&self) -> &crate::Stream {
        &self.stream
    }

    /// Sets how to treat bytes that did not land in device memory.
    pub fn set_placement(&mut self, placement: crate::Placement) {
        self.stream.set_placement(placement);
    }

    /// Returns the blocking stream.
    pub fn into_inner(self) -> crate::Stream {
        let mut stream = self.stream;
        stream.set_nonblocking(false);
        stream
    }

    fn poll_to_send<T>(
        &mut self,
        cx: &mut Context<'_>,
        mut attempt: impl FnMut(&mut crate::Stream) -> Option<T>,
    ) -> Poll<Result<T, NotReady>> {
        let Self {
            stream, to_send, ..
        } = self;
        to_send.poll(cx, |which| {
            if which == Try::Again {
                stream.socket.arm_send_signal();
            }
            attempt(stream)
        })
    }
}

impl AsyncWrite for Stream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let attempt = |stream: &mut crate::Stream| match stream.write(bytes) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => None,
            result => Some(result),
        };
        match ready!(self.poll_to_send(cx, attempt)) {
            Ok(written) => Poll::Ready(written),
            Err(_shutting_down) => Poll::Ready(Err(io::ErrorKind::WouldBlock.into())),
        }
    }

    /// Does nothing: TCP sends written bytes by itself.
    fn poll_flush(self: Pin<&mut Self>, _cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, _cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(self.shutdown_write().map_err(io::Error::other))
    }
}
