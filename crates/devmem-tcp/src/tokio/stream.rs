//! A connection, awaited.

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

/// A TCP connection of a [`Netdev`](crate::Netdev).
///
/// [`recv`](Self::recv) is the way to device memory, [`send`](Self::send) the way from there; [`AsyncWrite`] sends bytes
/// of host memory. A task that does both at once uses [`poll_recv`](Self::poll_recv) and
/// [`poll_send`](Self::poll_send): each direction has its own waker.
#[derive(Debug)]
pub struct Stream {
    stream: crate::Stream,
    to_receive: Signal,
    to_send: Signal,
}

impl Stream {
    /// Lets a task wait for `stream`.
    ///
    /// # Errors
    /// The process is out of file descriptors; the NIC is one in virtual time ([`io::ErrorKind::Unsupported`]).
    ///
    /// # Panics
    /// Outside of a tokio runtime, or in one without I/O.
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

    /// Connects to `to` and waits until the connection stands, or TCP gives up. Cancel-safe: a future that is dropped
    /// gives the attempt up.
    ///
    /// # Errors
    /// As [`Netdev::connect`].
    ///
    /// # Panics
    /// Outside of a tokio runtime, or in one without I/O.
    pub async fn connect(nic: &Netdev, to: SocketAddr) -> Result<Self, ConnectError> {
        let mut stream = Self::new(nic.begin_connect(to)?).map_err(ConnectError::System)?;
        let connected = poll_fn(|cx| stream.poll_to_send(cx, |stream| stream.socket.connected()));
        // The runtime is shutting down, and the attempt ends with it.
        connected.await.map_err(|_| ConnectError::TimedOut)??;
        Ok(stream)
    }

    /// Receives what is there into `batch`, whose earlier frags go home first; waits for something if nothing is.
    /// Returns the number of bytes, device and host together; 0 is the end of the stream. Cancel-safe.
    ///
    /// # Errors
    /// As [`Stream::recv`](crate::Stream::recv). [`RecvError::WouldBlock`]: the runtime is shutting down.
    pub async fn recv(&mut self, batch: &mut RxBatch) -> Result<usize, RecvError> {
        poll_fn(|cx| self.poll_recv(cx, batch)).await
    }

    /// As [`recv`](Self::recv), polled.
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

    /// Sends ranges of bound device memory, in the order given, as far as there is room: at least a byte, waiting for
    /// that if need be. [`SendId::bytes`] says how many; they must not change until [`completions`](Self::completions)
    /// say that the send is complete. Cancel-safe.
    ///
    /// # Errors
    /// As [`Stream::send`](crate::Stream::send). [`SendError::WouldBlock`]: the runtime is shutting down.
    pub async fn send(
        &mut self,
        tx: &BoundTx,
        ranges: &[Range<usize>],
    ) -> Result<SendId, SendError> {
        poll_fn(|cx| self.poll_send(cx, tx, ranges)).await
    }

    /// As [`send`](Self::send), polled.
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

    /// Sends bytes of host memory as [`Stream::send_host`](crate::Stream::send_host) does, as far as there is room: at
    /// least a byte. Cancel-safe.
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

    /// As [`send`](Self::send), until all of it is queued. Not cancel-safe: a future that is dropped may have queued a
    /// part, which [`Completions::wait_all`] waits for and which cannot be taken back.
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

    /// What tells when sends are complete.
    ///
    /// # Errors
    /// The process is out of file descriptors.
    ///
    /// # Panics
    /// Outside of a tokio runtime, or in one without I/O.
    pub fn completions(&self) -> io::Result<Completions> {
        Completions::new(self.stream.completions())
    }

    /// Says that nothing more will be sent (FIN), without waiting. Receiving goes on.
    ///
    /// # Errors
    /// The connection is not, or no longer, established.
    pub fn shutdown_write(&mut self) -> Result<(), ShutdownError> {
        self.stream.shutdown_write()
    }

    /// The calls that never wait: addresses, statistics.
    pub fn get_ref(&self) -> &crate::Stream {
        &self.stream
    }

    /// What to do with bytes that missed device memory.
    pub fn set_placement(&mut self, placement: crate::Placement) {
        self.stream.set_placement(placement);
    }

    /// The stream without tokio, blocking again.
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

    /// There is nothing to flush: what was written leaves as TCP allows.
    fn poll_flush(self: Pin<&mut Self>, _cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, _cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(self.shutdown_write().map_err(io::Error::other))
    }
}
