//! The halves of an asynchronous stream.

use std::future::poll_fn;
use std::io;
use std::net::SocketAddr;
use std::ops::Range;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use ::tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::Completions;
use super::signal::{Signal, Try};
use crate::batch::RxBatch;
use crate::bound_target::BoundTarget;
use crate::bound_tx::BoundTx;
use crate::driver::WaitLimit;
use crate::early::EarlyData;
use crate::error::{Error, ErrorKind, HeldMemory, NotReady, RecvError};
use crate::ranges::{advance, length};
use crate::recv_half::StreamStats;
use crate::recv_request::Placement;
use crate::send_id::SendId;
use crate::signals::TaskSignal;

/// The receiving half of an asynchronous [`Stream`](super::Stream).
#[derive(Debug)]
pub struct RecvHalf {
    pub(super) half: crate::RecvHalf,
    signal: Signal,
}

/// The sending half of an asynchronous [`Stream`](super::Stream). Dropping it sends a FIN after all queued data.
#[derive(Debug)]
pub struct SendHalf {
    pub(super) half: crate::SendHalf,
    signal: Signal,
}

impl RecvHalf {
    pub(super) fn new(half: crate::RecvHalf) -> io::Result<Self> {
        let signal = Signal::new(half.socket.task_signal(TaskSignal::Receive)?)?;
        Ok(Self { half, signal })
    }

    /// Receives queued data into `batch`; waits if there is none. First releases the frags that `batch` held before.
    /// Returns the number of bytes, device and host together; 0 is the end of the stream. Cancel-safe.
    ///
    /// # Errors
    /// As [`RecvHalf::recv`](crate::RecvHalf::recv). [`RecvError::WouldBlock`] if the runtime is shutting down.
    pub async fn recv(&mut self, batch: &mut RxBatch) -> Result<usize, RecvError> {
        poll_fn(|cx| self.poll_recv(cx, batch)).await
    }

    /// Receives at most `max_bytes`, as [`RecvHalf::recv_at_most`](crate::RecvHalf::recv_at_most) does. Cancel-safe.
    ///
    /// # Errors
    /// As [`recv`](Self::recv).
    pub async fn recv_at_most(
        &mut self,
        batch: &mut RxBatch,
        max_bytes: usize,
    ) -> Result<usize, RecvError> {
        poll_fn(|cx| self.poll_with(cx, |half| half.recv_at_most(batch, max_bytes))).await
    }

    /// Receives exactly as many bytes as `out` has, by a copy, as [`RecvHalf::recv_exact`](crate::RecvHalf::recv_exact) does. Not
    /// cancel-safe: what a dropped future has received is in `out` only.
    ///
    /// # Errors
    /// As [`RecvHalf::recv_exact`](crate::RecvHalf::recv_exact).
    pub async fn recv_exact(&mut self, out: &mut [u8]) -> Result<(), RecvError> {
        let mut filled = 0;
        while filled < out.len() {
            let room = &mut out[filled..];
            match poll_fn(|cx| self.poll_with(cx, |half| half.read_shared(room))).await? {
                0 => return Err(Error::ended_early(filled, out.len()).into()),
                read => filled += read,
            }
        }
        Ok(())
    }

    /// Says where the next bytes of the stream belong: see [`RecvHalf::place_next`](crate::RecvHalf::place_next).
    ///
    /// # Errors
    /// As [`RecvHalf::place_next`](crate::RecvHalf::place_next).
    pub fn place_next(
        &mut self,
        target: &BoundTarget,
        ranges: &[Range<usize>],
    ) -> Result<(), Error> {
        self.half.place_next(target, ranges)
    }

    /// Copies the first queued bytes to `out` and leaves them queued, as [`RecvHalf::peek`](crate::RecvHalf::peek) does.
    /// Cancel-safe.
    ///
    /// # Errors
    /// As [`recv`](Self::recv).
    pub async fn peek(&mut self, out: &mut [u8]) -> Result<usize, RecvError> {
        poll_fn(|cx| self.poll_with(cx, |half| half.peek(out))).await
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
        self.poll_with(cx, |half| half.recv(batch))
    }

    fn poll_with(
        &mut self,
        cx: &mut Context<'_>,
        mut call: impl FnMut(&mut crate::RecvHalf) -> Result<usize, RecvError>,
    ) -> Poll<Result<usize, RecvError>> {
        let Self { half, signal } = self;
        let received = ready!(signal.poll(cx, |which| {
            if which == Try::Again {
                half.socket.arm(TaskSignal::Receive);
            }
            match call(half) {
                Err(RecvError::WouldBlock) => None,
                result => Some(result),
            }
        }));
        Poll::Ready(received?)
    }

    /// Sets how to treat bytes that did not land in device memory.
    pub fn set_placement(&mut self, placement: Placement) {
        self.half.set_placement(placement);
    }

    /// Returns the counters.
    pub fn stats(&self) -> StreamStats {
        self.half.stats()
    }

    /// Returns who holds the memory that the connection receives into: see
    /// [`RecvHalf::held_memory`](crate::RecvHalf::held_memory).
    pub fn held_memory(&self) -> Option<HeldMemory> {
        self.half.held_memory()
    }

    /// Returns the address of the peer.
    ///
    /// # Errors
    /// The connection is closed, or the NIC belongs to another process.
    pub fn peer_addr(&self) -> io::Result<SocketAddr> {
        self.half.peer_addr()
    }

    /// Returns the inner half, for the calls that never wait.
    pub fn get_ref(&self) -> &crate::RecvHalf {
        &self.half
    }
}

impl SendHalf {
    pub(super) fn new(half: crate::SendHalf) -> io::Result<Self> {
        let signal = Signal::new(half.socket.task_signal(TaskSignal::Send)?)?;
        Ok(Self { half, signal })
    }

    /// Sends ranges of bound device memory in the given order: as many bytes as can be queued, at least one, waiting for
    /// room if there is none. [`SendId::bytes`] returns their number. They must not change until
    /// [`completions`](Self::completions) reports that the send is complete. Cancel-safe.
    ///
    /// # Errors
    /// As [`SendHalf::send`]. [`ErrorKind::WouldBlock`] if the runtime is shutting down.
    pub async fn send(&mut self, tx: &BoundTx, ranges: &[Range<usize>]) -> Result<SendId, Error> {
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
    ) -> Poll<Result<SendId, Error>> {
        let attempt = |half: &mut crate::SendHalf| match half.send(tx, ranges) {
            Err(error) if error.kind() == ErrorKind::WouldBlock => None,
            result => Some(result),
        };
        let sent = ready!(self.poll_with(cx, attempt));
        Poll::Ready(sent.map_err(Error::no_room)?)
    }

    /// Sends a range of bytes of host memory as [`SendHalf::send_host`](crate::SendHalf::send_host) does: as many as can be queued,
    /// at least one. Cancel-safe.
    ///
    /// # Errors
    /// As [`send`](Self::send).
    pub async fn send_host(
        &mut self,
        bytes: &Arc<[u8]>,
        range: Range<usize>,
    ) -> Result<SendId, Error> {
        let attempt = |half: &mut crate::SendHalf| match half.send_host(bytes, range.clone()) {
            Err(error) if error.kind() == ErrorKind::WouldBlock => None,
            result => Some(result),
        };
        let sent = poll_fn(|cx| self.poll_with(cx, attempt)).await;
        sent.map_err(Error::no_room)?
    }

    /// Sends as [`send_host`](Self::send_host) does, until all bytes are queued. Not cancel-safe, as [`send_all`](Self::send_all).
    ///
    /// # Errors
    /// As [`send`](Self::send).
    pub async fn send_host_all(&mut self, bytes: &Arc<[u8]>) -> Result<SendId, Error> {
        let mut id = self.send_host(bytes, 0..bytes.len()).await?;
        while id.bytes() < bytes.len() {
            let rest = id.bytes()..bytes.len();
            id = id.through(self.send_host(bytes, rest).await?);
        }
        Ok(id)
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
    ) -> Result<SendId, Error> {
        let mut id = self.send(tx, ranges).await?;
        let total = length(ranges);
        if id.bytes() < total {
            let mut rest = ranges.to_vec();
            advance(&mut rest, id.bytes());
            while id.bytes() < total {
                let next = self.send(tx, &rest).await?;
                advance(&mut rest, next.bytes());
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
        Completions::new(self.half.completions())
    }

    /// Ends the sending direction: a FIN follows the queued data. Never waits. Receiving is still possible.
    ///
    /// # Errors
    /// The connection is not established, or not any more.
    pub fn shutdown_write(&self) -> Result<(), Error> {
        self.half.shutdown_write()
    }

    /// Returns the inner half, for the calls that never wait.
    pub fn get_ref(&self) -> &crate::SendHalf {
        &self.half
    }

    /// Waits until the connection is established or TCP gives up.
    pub(super) async fn connected(&mut self) -> Result<(), Error> {
        let connected = |half: &mut crate::SendHalf| half.socket.connected();
        let connected = poll_fn(|cx| self.poll_with(cx, connected));
        // An error here means that the runtime is shutting down.
        connected.await.map_err(|_| Error::no_answer())?
    }

    /// Queues the bytes of `data` behind the first `taken`, which the SYN had. Returns the id of all.
    pub(super) async fn send_rest(
        &mut self,
        data: EarlyData<'_>,
        taken: usize,
    ) -> Result<SendId, Error> {
        let begun = data.begun(taken);
        match data {
            EarlyData::Host(bytes) => {
                let mut queued = taken;
                while let Some(rest) = bytes.get(queued..).filter(|rest| !rest.is_empty()) {
                    let attempt = |half: &mut crate::SendHalf| match half
                        .socket
                        .write(rest, WaitLimit::Never)
                    {
                        Err(error) if error.kind() == ErrorKind::WouldBlock => None,
                        result => Some(result),
                    };
                    let written = poll_fn(|cx| self.poll_with(cx, attempt)).await;
                    queued += written.map_err(Error::no_room)??;
                }
                Ok(begun.with_bytes(queued))
            }
            EarlyData::Device(_, ranges) if taken == length(ranges) => Ok(begun),
            EarlyData::Device(tx, ranges) => {
                let mut rest = ranges.to_vec();
                advance(&mut rest, taken);
                Ok(begun.through(self.send_all(tx, &rest).await?))
            }
        }
    }

    pub(super) fn poll_with<T>(
        &mut self,
        cx: &mut Context<'_>,
        mut attempt: impl FnMut(&mut crate::SendHalf) -> Option<T>,
    ) -> Poll<Result<T, NotReady>> {
        let Self { half, signal } = self;
        signal.poll(cx, |which| {
            if which == Try::Again {
                half.socket.arm(TaskSignal::Send);
            }
            attempt(half)
        })
    }
}

/// Reads bytes wherever they are, as the blocking [`RecvHalf`](crate::RecvHalf) does.
impl AsyncRead for RecvHalf {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        out: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let room = out.initialize_unfilled();
        let read = ready!(self.get_mut().poll_with(cx, |half| half.read_shared(room)))?;
        out.advance(read);
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for SendHalf {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let attempt = |half: &mut crate::SendHalf| match half.write_shared(bytes) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => None,
            result => Some(result),
        };
        match ready!(self.poll_with(cx, attempt)) {
            Ok(written) => Poll::Ready(written),
            Err(_shutting_down) => Poll::Ready(Err(io::ErrorKind::WouldBlock.into())),
        }
    }

    /// Sends what waits for further writes to fill a packet, as the blocking [`SendHalf`](crate::SendHalf) does. Never waits.
    fn poll_flush(self: Pin<&mut Self>, _cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(self.half.flush_shared())
    }

    fn poll_shutdown(self: Pin<&mut Self>, _cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(self.shutdown_write().map_err(io::Error::from))
    }
}
