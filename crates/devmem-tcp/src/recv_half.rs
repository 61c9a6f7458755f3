//! The receiving half of a stream.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::ops::Range;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use devmem_uapi::MsgFlags;
use netmem::Dmabuf;
use steer::RxQueueId;

use crate::backend::Socket;
use crate::batch::RxBatch;
use crate::bound_target::BoundTarget;
use crate::driver::WaitLimit;
use crate::error::{Error, HeldMemory, RecvError};
use crate::limit::CallLimit;
use crate::recv_request::{Placement, RecvRequest};
use crate::tcp_info::TcpInfo;

/// Counters of what a stream has received and returned.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StreamStats {
    /// Bytes that landed in device memory.
    pub device_bytes: u64,
    /// Bytes that landed in host memory.
    pub linear_bytes: u64,
    /// Frags of device memory lent.
    pub device_frags: u64,
    /// Frags of device memory returned.
    pub tokens_returned: u64,
    /// Receive calls that returned data.
    pub receives: u64,
}

impl StreamStats {
    /// Returns what was counted after the counters were `earlier`.
    pub fn since(self, earlier: Self) -> Self {
        Self {
            device_bytes: self.device_bytes.saturating_sub(earlier.device_bytes),
            linear_bytes: self.linear_bytes.saturating_sub(earlier.linear_bytes),
            device_frags: self.device_frags.saturating_sub(earlier.device_frags),
            tokens_returned: self.tokens_returned.saturating_sub(earlier.tokens_returned),
            receives: self.receives.saturating_sub(earlier.receives),
        }
    }
}

impl fmt::Display for StreamStats {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} bytes in device memory ({} frags, {} returned), {} bytes in host memory, {} receives",
            self.device_bytes,
            self.device_frags,
            self.tokens_returned,
            self.linear_bytes,
            self.receives
        )
    }
}

/// Frags of one [`RecvHalf::peek`].
const PEEK_FRAGS: usize = 16;

/// The [`StreamStats`] of a stream that are counted here. A read through a shared reference counts, too.
#[derive(Debug, Default)]
struct Counters {
    device_bytes: AtomicU64,
    linear_bytes: AtomicU64,
    device_frags: AtomicU64,
    receives: AtomicU64,
}

impl Counters {
    fn count(&mut self, batch: &RxBatch) {
        *self.device_bytes.get_mut() += batch.device_bytes() as u64;
        *self.linear_bytes.get_mut() += batch.linear_bytes() as u64;
        *self.device_frags.get_mut() += batch.device_frags() as u64;
        *self.receives.get_mut() += 1;
    }

    /// Counts a read of bytes in host memory.
    fn count_read(&self, bytes: usize) {
        self.linear_bytes.fetch_add(bytes as u64, Ordering::Relaxed);
        let receives = u64::from(bytes > 0);
        self.receives.fetch_add(receives, Ordering::Relaxed);
    }
}

/// The receiving half of a [`Stream`](crate::Stream), from [`Stream::into_split`](crate::Stream::into_split) or
/// [`Stream::split`](crate::Stream::split).
///
/// The connection closes when both halves, and everything received from it, are dropped.
#[derive(Debug)]
pub struct RecvHalf {
    pub(crate) socket: Socket,
    pub(crate) limit: CallLimit,
    placement: Placement,
    counters: Counters,
    /// Reused by every peek, and by reads of bytes in device memory; empty in between. Locked as long as bytes are copied, so that
    /// two threads that read do not get the same ones.
    copying: Mutex<Option<RxBatch>>,
}

impl RecvHalf {
    pub(crate) fn new(socket: Socket) -> Self {
        Self {
            socket,
            limit: CallLimit::new(WaitLimit::Forever),
            placement: Placement::Mixed,
            counters: Counters::default(),
            copying: Mutex::new(None),
        }
    }

    /// Receives queued data into `batch`; waits if there is none. First releases the frags that `batch` held before.
    /// Returns the number of bytes, device and host together; 0 is the end of the stream.
    ///
    /// # Errors
    /// [`RecvError::WouldBlock`] if nothing is queued and the half is non-blocking; [`RecvError::TimedOut`] if nothing
    /// arrived within the timeout; [`RecvError::Misplaced`] under [`Placement::Strict`]; otherwise the reason why the
    /// connection ended, or why the earlier frags cannot be returned.
    pub fn recv(&mut self, batch: &mut RxBatch) -> Result<usize, RecvError> {
        self.recv_at_most(batch, usize::MAX)
    }

    /// Receives as [`recv`](Self::recv) does, but at most `max_bytes`; later bytes stay queued, even those of the same packet.
    /// So a program can receive a header and then a body of known length. With `max_bytes` 0, it only releases the frags of
    /// the batch and returns 0.
    ///
    /// # Errors
    /// As [`recv`](Self::recv).
    pub fn recv_at_most(
        &mut self,
        batch: &mut RxBatch,
        max_bytes: usize,
    ) -> Result<usize, RecvError> {
        self.socket.check()?;
        batch.release()?;
        if max_bytes == 0 {
            return Ok(0);
        }
        let request = self.request(max_bytes, MsgFlags::empty());
        let received = batch.fill(&self.socket, request);
        if !batch.is_empty() {
            self.counters.count(batch);
        }
        received
    }

    /// Receives exactly as many bytes as `out` has, and copies them to it, from device memory or host memory; waits until all are there.
    /// Later bytes stay queued, so a program can read the header of a message this way, and leave its body in device memory. With an empty
    /// `out` it returns at once.
    ///
    /// # Errors
    /// As [`recv`](Self::recv), except that no placement is an error; [`ErrorKind::UnexpectedEof`](crate::ErrorKind::UnexpectedEof) if
    /// the stream ends before. After an error, `out` has what was received until then, which is not queued any more: a half that does not
    /// block, or has a timeout, is better read by [`io::Read`].
    pub fn recv_exact(&mut self, out: &mut [u8]) -> Result<(), RecvError> {
        let mut filled = 0;
        while filled < out.len() {
            match self.read_shared(&mut out[filled..])? {
                0 => return Err(Error::ended_early(filled, out.len()).into()),
                read => filled += read,
            }
        }
        Ok(())
    }

    /// Receives bytes that are queued in host memory straight into `range` of `memory`, as many as fit; waits if there are none. Returns their
    /// number, 0 at the end of the stream. With a NIC of the kernel this saves the copy from a batch to their place.
    ///
    /// `None`: [`recv_at_most`](Self::recv_at_most) has to receive the next bytes, because they are in device memory, `memory` is that of a
    /// device or has an exporter, or the NIC is in user space, where [`place_next`](Self::place_next) names places.
    ///
    /// # Errors
    /// As [`recv`](Self::recv), except that no placement is an error; the range is not inside `memory`.
    pub fn recv_into(
        &mut self,
        memory: &Dmabuf,
        range: Range<usize>,
    ) -> Result<Option<usize>, RecvError> {
        if range.is_empty() {
            return Ok(Some(0));
        }
        let read = self.socket.read_into(memory, &range, self.limit.get())?;
        self.counters.count_read(read.unwrap_or(0));
        Ok(read)
    }

    /// Copies the first queued bytes to `out`, whether they are in device memory or in host memory; waits if there are none.
    /// They stay queued. Returns their number: fewer than `out` has if fewer are queued, or if the queued bytes are in both
    /// kinds of memory; 0 is the end of the stream.
    ///
    /// # Errors
    /// As [`recv`](Self::recv), except that no placement is an error; the memory cannot be synchronised for the CPU.
    pub fn peek(&mut self, out: &mut [u8]) -> Result<usize, RecvError> {
        self.socket.check()?;
        if out.is_empty() {
            return Ok(0);
        }
        let mut request = self.request(out.len(), MsgFlags::PEEK);
        request.placement = Placement::Mixed;
        self.copy_queued(&mut self.lock_copying(), request, out)
    }

    /// Reads as [`io::Read`] does.
    pub(crate) fn read_shared(&self, out: &mut [u8]) -> Result<usize, RecvError> {
        if out.is_empty() {
            return Ok(0);
        }
        loop {
            match self.socket.read(out, self.limit.get())? {
                Some(read) => {
                    self.counters.count_read(read);
                    return Ok(read);
                }
                None => match self.read_device(out) {
                    // Another thread has read the bytes meanwhile.
                    Err(RecvError::WouldBlock) => {}
                    read => return read,
                },
            }
        }
    }

    /// Notes bytes of host memory that a [`Poller`](crate::Poller) has read.
    pub(crate) fn count_read(&self, bytes: usize) {
        self.counters.count_read(bytes);
    }

    /// Reads bytes that are in device memory, by a copy. They are received only when they are copied: if the copy fails, they stay
    /// queued.
    fn read_device(&self, out: &mut [u8]) -> Result<usize, RecvError> {
        let mut copying = self.lock_copying();
        let mut request = RecvRequest {
            placement: Placement::Mixed,
            limit: WaitLimit::Never,
            max_bytes: out.len(),
            flags: MsgFlags::PEEK,
        };
        let copied = self.copy_queued(&mut copying, request, out)?;
        let batch = copying.get_or_insert_with(|| RxBatch::with_capacity(PEEK_FRAGS));
        request.flags = MsgFlags::empty();
        let mut left = copied;
        while left > 0 {
            request.max_bytes = left;
            let received = batch.fill(&self.socket, request)?;
            let Counters {
                device_bytes,
                linear_bytes,
                device_frags,
                ..
            } = &self.counters;
            device_bytes.fetch_add(batch.device_bytes() as u64, Ordering::Relaxed);
            linear_bytes.fetch_add(batch.linear_bytes() as u64, Ordering::Relaxed);
            device_frags.fetch_add(batch.device_frags() as u64, Ordering::Relaxed);
            batch.release()?;
            left = left.saturating_sub(received);
        }
        let receives = u64::from(copied > 0);
        self.counters
            .receives
            .fetch_add(receives, Ordering::Relaxed);
        Ok(copied)
    }

    /// Copies queued bytes to `out` and leaves them queued.
    fn copy_queued(
        &self,
        batch: &mut Option<RxBatch>,
        request: RecvRequest,
        out: &mut [u8],
    ) -> Result<usize, RecvError> {
        let batch = batch.get_or_insert_with(|| RxBatch::with_capacity(PEEK_FRAGS));
        let peeked = batch.fill(&self.socket, request);
        // Peeking lends frags, too, which are returned at once.
        let lent = batch.device_frags() as u64;
        let copied = peeked.and_then(|_| Ok(batch.copy_to(out)?));
        self.counters
            .device_frags
            .fetch_add(lent, Ordering::Relaxed);
        batch.release()?;
        copied
    }

    /// Says where the next bytes of the stream belong: in `ranges` of `target`, one after another, from the first byte that was
    /// not received yet. A user-space NIC then receives them there, without a copy of its own, as far as it can. Bytes that
    /// were queued before this call stay where they are: in the bound memory, or in the ranges of an earlier call. Those that arrive out of
    /// order lie in the bound memory; those of a packet that the NIC did not expect were copied to their place, or lie in
    /// the bound memory, too.
    ///
    /// Receive as usual, range by range ([`recv_at_most`](Self::recv_at_most)), and pass each batch to
    /// [`RxBatch::gather_into`](crate::RxBatch::gather_into) with its place: it copies only what is not there. Bytes behind the last
    /// range go to the bound memory. The call replaces an earlier one; without ranges it only ends that.
    ///
    /// Until a byte of a range was received, the NIC may write anything to it. To use a range for something else before
    /// all of it was received, end this first: by a call without ranges, or by dropping the stream.
    ///
    /// So the ranges must not contain bytes of the target that are still in use by any stream of the NIC: bytes that arrived in the ranges of
    /// an earlier call and were not received yet, unless the new ranges leave them at the same place; bytes in batches that were
    /// neither gathered nor released; ranges that another stream is filling.
    ///
    /// # Errors
    /// The stream is not established, or has ended; the target is bound to another NIC; a range is not inside
    /// it; a byte is in two of the ranges, or is still needed. The earlier call stays in effect then.
    pub fn place_next(
        &mut self,
        target: &BoundTarget,
        ranges: &[Range<usize>],
    ) -> Result<(), Error> {
        self.socket.place_next(target.binding(), ranges)
    }

    fn lock_copying(&self) -> MutexGuard<'_, Option<RxBatch>> {
        // A batch can be received into in any state, so a panic of another thread does not matter.
        self.copying.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn request(&self, max_bytes: usize, flags: MsgFlags) -> RecvRequest {
        RecvRequest {
            placement: self.placement,
            limit: self.limit.get(),
            max_bytes,
            flags,
        }
    }

    /// Sets how to treat bytes that did not land in device memory; [`Placement::Mixed`] by default.
    pub fn set_placement(&mut self, placement: Placement) {
        self.placement = placement;
    }

    /// Makes calls return [`WouldBlock`](RecvError::WouldBlock) instead of waiting. Overrides an earlier
    /// [`set_timeout`](Self::set_timeout).
    pub fn set_nonblocking(&self, nonblocking: bool) {
        self.limit.set_nonblocking(nonblocking);
    }

    /// Sets how long a call waits; `None` waits forever. Overrides an earlier [`set_nonblocking`](Self::set_nonblocking).
    pub fn set_timeout(&self, timeout: Option<Duration>) {
        self.limit.set_timeout(timeout);
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

    /// Returns the RX queue on which the last packet of the connection arrived; `None` if none has arrived, or if the driver
    /// of a kernel NIC does not report it.
    pub fn queue(&self) -> Option<RxQueueId> {
        self.socket.queue()
    }

    /// Returns the counters.
    pub fn stats(&self) -> StreamStats {
        let Counters {
            device_bytes,
            linear_bytes,
            device_frags,
            receives,
        } = &self.counters;
        StreamStats {
            device_bytes: device_bytes.load(Ordering::Relaxed),
            linear_bytes: linear_bytes.load(Ordering::Relaxed),
            device_frags: device_frags.load(Ordering::Relaxed),
            tokens_returned: self.socket.returned(),
            receives: receives.load(Ordering::Relaxed),
        }
    }

    /// Returns the state and measurements of the connection; `None` if it no longer exists.
    pub fn tcp_info(&self) -> Option<TcpInfo> {
        self.socket.tcp_info()
    }

    /// Returns who holds the memory that packets of this connection are received into, if less than a quarter of it is free: the peer
    /// may not send more then. `None` while enough is free. For programs that poll or await; a receive that times out has it in its
    /// error. Visits everything that is held, so it is not for every turn of a loop.
    pub fn held_memory(&self) -> Option<HeldMemory> {
        self.socket.held_memory()
    }

    /// Returns an fd for poll and epoll: see [`Stream::readiness_fd`](crate::Stream::readiness_fd).
    ///
    /// # Errors
    /// The process has no free file descriptor, or is a fork of the one that opened the NIC.
    pub fn readiness_fd(&self) -> io::Result<BorrowedFd<'_>> {
        self.socket.readiness_fd()
    }
}

/// Reads bytes wherever they are. Those in device memory are copied, by the CPU or by the memory's engine; [`recv`](RecvHalf::recv)
/// receives them without a copy. If the memory can be read by neither, the read fails with EFAULT and the bytes stay queued.
impl io::Read for RecvHalf {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        Ok(self.read_shared(out)?)
    }
}

/// The fd of `readiness_fd`.
///
/// # Panics
/// If `readiness_fd` fails; call that first to handle its error. After one success it fails only in a child of fork(2).
impl AsFd for RecvHalf {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.readiness_fd()
            .expect("a file descriptor for the readiness of a stream")
    }
}

impl AsRawFd for RecvHalf {
    fn as_raw_fd(&self) -> RawFd {
        self.as_fd().as_raw_fd()
    }
}
