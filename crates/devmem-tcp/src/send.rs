//! Sending from device memory, and learning when the memory may be reused.

use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, MutexGuard, PoisonError};
use std::time::Duration;

use devmem_uapi::{CmsgWriter, DmabufId, MsgFlags, UIO_MAXIOV, cmsg_space};
use stack::{SendMsg, SocketOption, Stack};

use crate::bound_tx::{Binding, BoundTx};
use crate::driver::{NotReady, WaitLimit};
use crate::error::{CompletionError, SendError};
use crate::stream::{Inner, Socket, Stream};

/// Bytes of the control message that names a dma-buf.
const CONTROL_BYTES: usize = cmsg_space(size_of::<DmabufId>());

/// One [`Stream::send`]: what [`Completions`] tell the end of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[must_use = "until it completes, the bytes must not change"]
pub struct SendId {
    /// Zero-copy sends of the socket before this one, and up to its end.
    first: u64,
    end: u64,
    bytes: usize,
}

impl SendId {
    /// How many bytes were queued: all, unless the stream is non-blocking or has a timeout. Then it may be fewer,
    /// and the rest is to be sent again.
    pub fn bytes(self) -> usize {
        self.bytes
    }

    /// This send and all up to `last` as one.
    #[cfg(feature = "tokio")]
    pub(crate) fn through(self, last: Self) -> Self {
        Self {
            first: self.first,
            end: last.end,
            bytes: self.bytes + last.bytes,
        }
    }
}

/// Sends that completed: their bytes may be changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Completion {
    first: u64,
    end: u64,
}

impl Completion {
    /// Whether `id` is among those that became complete.
    pub fn contains(&self, id: SendId) -> bool {
        self.first < id.end && id.end <= self.end
    }
}

/// How far a socket's sends are. Each is a number of zero-copy sends since the socket was made; the kernel's ids are
/// their lower 32 bits.
#[derive(Debug, Default)]
pub(crate) struct Sends {
    sent: u64,
    /// Complete; sends complete in their order.
    complete: u64,
    /// Complete, and told by [`Completions::try_next`].
    told: u64,
    /// Complete, and copied on the way: zero-copy in name only.
    copied: u64,
    /// SO_ZEROCOPY is set.
    enabled: bool,
}

/// How far the zero-copy sends of a socket are. One [`Stream::send`] may be several.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SendCounts {
    /// All so far.
    pub sent: u64,
    /// Of those, complete.
    pub complete: u64,
    /// Of the complete ones, reported as copied on the way (`SO_EE_CODE_ZEROCOPY_COPIED`).
    pub copied: u64,
}

impl Inner {
    /// Lock order: the driver's first, then this.
    fn sends(&self) -> MutexGuard<'_, Sends> {
        // Whole between any two of its operations, so a panic elsewhere has not harmed it.
        self.sends.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reads the error queue until it is empty; returns how many sends are complete.
    fn collect(&self, stack: &mut Stack) -> Result<u64, stack::RecvError> {
        let mut sends = self.sends();
        #[cfg(feature = "tokio")]
        let before = sends.complete;
        loop {
            match stack.completion(self.socket) {
                Ok(range) => {
                    // The cast takes the lower half, as the kernel's counter does.
                    debug_assert_eq!(range.lo.0, sends.complete as u32, "in order, each once");
                    sends.complete += range.count();
                    sends.copied += if range.copied { range.count() } else { 0 };
                }
                Err(stack::RecvError::ErrorQueueEmpty) => {
                    #[cfg(feature = "tokio")]
                    if sends.complete > before {
                        self.collected.notify_waiters();
                    }
                    return Ok(sends.complete);
                }
                Err(error) => return Err(error),
            }
        }
    }
}

/// Takes the first `taken` bytes off the ranges.
pub(crate) fn advance(ranges: &mut Vec<Range<usize>>, mut taken: usize) {
    let whole = ranges
        .iter()
        .take_while(|range| {
            let fits = range.len() <= taken;
            taken -= if fits { range.len() } else { 0 };
            fits
        })
        .count();
    ranges.drain(..whole);
    if let Some(first) = ranges.first_mut() {
        first.start += taken;
    }
}

pub(crate) fn length(ranges: &[Range<usize>]) -> usize {
    ranges
        .iter()
        .fold(0, |sum: usize, range| sum.saturating_add(range.len()))
}

/// Gives `once` ranges until it has taken all of them, or would wait after it took some. `sent` counts its calls that
/// took something.
fn send_ranges(
    ranges: &[Range<usize>],
    sent: impl Fn() -> u64,
    mut once: impl FnMut(&[Range<usize>]) -> Result<usize, SendError>,
) -> Result<SendId, SendError> {
    let first = sent();
    let total = length(ranges);
    let mut bytes = 0;
    // Copied only if one call does not take all.
    let mut rest: Option<Vec<_>> = None;
    while bytes < total {
        let now = rest.as_deref().unwrap_or(ranges);
        let now = &now[..now.len().min(UIO_MAXIOV)];
        let taken = match once(now) {
            Ok(taken) => taken,
            Err(SendError::WouldBlock | SendError::TimedOut) if bytes > 0 => break,
            Err(error) => return Err(error),
        };
        bytes += taken;
        if bytes < total {
            // Without the empty ones every call sends something.
            let all = || {
                let whole = ranges.iter().filter(|range| !range.is_empty());
                whole.cloned().collect()
            };
            advance(rest.get_or_insert_with(all), taken);
        }
    }
    let end = sent();
    Ok(SendId { first, end, bytes })
}

/// Refuses ranges outside of the memory before any of them is sent, as the user-space stack does.
fn check_ranges(tx: &BoundTx, ranges: &[Range<usize>]) -> Result<(), SendError> {
    let size = tx.memory().size();
    let bad = |range: &&Range<usize>| range.start > range.end || range.end > size;
    match ranges.iter().find(bad) {
        None => Ok(()),
        Some(range) => Err(SendError::Refused(stack::SendError::OutOfBounds {
            dmabuf: tx.id(),
            offset: range.start,
            end: range.end,
            size,
        })),
    }
}

impl Inner {
    /// Queues what there is room for, at least a byte.
    fn send_zerocopy(&self, message: &SendMsg<'_>, limit: WaitLimit) -> Result<usize, SendError> {
        let sent = self.wait(limit, |stack, _| {
            match stack.sendmsg(self.socket, message, MsgFlags::ZEROCOPY) {
                // Memory for copies is shared: it comes free when any connection is acknowledged.
                Err(stack::SendError::WouldBlock | stack::SendError::NoMemory) => None,
                Err(stack::SendError::TooManySends) => {
                    // Those reported make room; those under way will.
                    let _ = self.collect(stack);
                    None
                }
                result => {
                    // Counted before anybody can poll the stack, and so learn of its completion.
                    self.sends().sent += u64::from(matches!(result, Ok(1..)));
                    Some(result)
                }
            }
        });
        Ok(sent??)
    }

    fn enable_zerocopy(&self) -> Result<(), SendError> {
        if self.sends().enabled {
            return Ok(());
        }
        let option = SocketOption::Zerocopy(true);
        let set = |stack: &mut Stack, _| stack.set_option(self.socket, option);
        let set = self.shared.driver.with(self.at, set)?;
        // The socket is open as long as this stream, and the option has no bad value.
        debug_assert!(set.is_ok(), "{set:?}");
        self.sends().enabled = set.is_ok();
        Ok(())
    }

    /// As [`collect`](Self::collect), for who has no stack in hand.
    fn collect_now(&self) -> Result<u64, CompletionError> {
        let collect = |stack: &mut Stack, _| self.collect(stack);
        Ok(self.shared.driver.with(self.at, collect)??)
    }
}

impl Stream {
    /// Sends ranges of bound device memory, in the order given, without a copy: the bytes must not change until
    /// [`completions`](Self::completions) says that the send is complete. Waits for room until all is queued.
    ///
    /// # Errors
    /// [`SendError::WouldBlock`] and [`SendError::TimedOut`] as set, if nothing was queued; a range outside the
    /// memory, a binding of another NIC; the connection's own end. What was queued before an error is waited for by
    /// [`Completions::wait_all`].
    pub fn send(&mut self, tx: &BoundTx, ranges: &[Range<usize>]) -> Result<SendId, SendError> {
        self.socket.check()?;
        match (&self.socket, &tx.binding) {
            (Socket::User(inner), Binding::User(bound))
                if Arc::ptr_eq(&bound.shared, &inner.shared) && bound.at == inner.at =>
            {
                inner.enable_zerocopy()?;
                let mut control = [0; CONTROL_BYTES];
                CmsgWriter::new(&mut control)
                    .push_tx_dmabuf(tx.id())
                    .expect("the buffer was made for it");
                let sent = || inner.sends().sent;
                send_ranges(ranges, sent, |now| {
                    inner.send_zerocopy(&SendMsg::device(now, &control), self.limit)
                })
            }
            (Socket::Kernel(socket), Binding::Kernel(bound))
                if bound.nic().is_same(socket.nic()) =>
            {
                check_ranges(tx, ranges)?;
                socket.enable_zerocopy()?;
                let sent = || socket.sent();
                send_ranges(ranges, sent, |now| {
                    socket.send_device(bound, now, self.limit)
                })
            }
            _ => Err(SendError::OtherNetdev { dmabuf: tx.id() }),
        }
    }

    /// Sends bytes of host memory as [`send`](Self::send) does those of device memory: the library keeps them until
    /// they are sent, and [`completions`](Self::completions) tells. The kernel takes them where they are; the user-space
    /// stack copies them, which the completion says.
    ///
    /// # Errors
    /// As [`send`](Self::send).
    pub fn send_host(&mut self, bytes: &Arc<[u8]>) -> Result<SendId, SendError> {
        self.socket.check()?;
        let all = 0..bytes.len();
        let ranges = std::slice::from_ref(&all);
        match &self.socket {
            Socket::User(inner) => {
                inner.enable_zerocopy()?;
                let sent = || inner.sends().sent;
                send_ranges(ranges, sent, |now| {
                    let rest = &bytes[now[0].clone()];
                    inner.send_zerocopy(&SendMsg::new(rest), self.limit)
                })
            }
            Socket::Kernel(socket) => {
                socket.enable_zerocopy()?;
                let sent = || socket.sent();
                send_ranges(ranges, sent, |now| {
                    socket.send_host(bytes, now[0].start, self.limit)
                })
            }
        }
    }

    /// What tells when sends are complete. It may outlive the stream, which is how to end a stream and still learn
    /// when its memory is free; waits as the stream does at this moment.
    pub fn completions(&self) -> Completions {
        Completions {
            socket: self.socket.clone(),
            limit: self.limit,
        }
    }
}

/// Tells when sends of a stream are complete: the peer has acknowledged every byte, and the NIC has let go of every
/// packet with any of them. A connection that dies completes what it will never send.
///
/// Sends complete in their order; where the kernel reports one early, it is told with those before it.
#[derive(Debug)]
pub struct Completions {
    socket: Socket,
    limit: WaitLimit,
}

impl Completions {
    /// Waits until `id`, and with it every earlier send, is complete.
    ///
    /// # Errors
    /// [`CompletionError::WouldBlock`] and [`CompletionError::TimedOut`] as set.
    pub fn wait(&self, id: SendId) -> Result<(), CompletionError> {
        self.wait_until(id.end)
    }

    /// Waits until every send so far is complete.
    ///
    /// # Errors
    /// As [`wait`](Self::wait).
    pub fn wait_all(&self) -> Result<(), CompletionError> {
        self.socket.check()?;
        let sent = match &self.socket {
            Socket::User(inner) => inner.sends().sent,
            Socket::Kernel(socket) => socket.sent(),
        };
        self.wait_until(sent)
    }

    /// Whether `id` is complete. Never waits.
    ///
    /// # Errors
    /// The socket's own.
    pub fn is_complete(&self, id: SendId) -> Result<bool, CompletionError> {
        self.socket.check()?;
        let through = match &self.socket {
            Socket::User(inner) => inner.collect_now()?,
            Socket::Kernel(socket) => socket.collect()?,
        };
        Ok(through >= id.end)
    }

    /// Returns the sends that became complete since the last call, if any. Never waits.
    ///
    /// # Errors
    /// The socket's own.
    pub fn try_next(&self) -> Result<Option<Completion>, CompletionError> {
        self.socket.check()?;
        let (first, end) = match &self.socket {
            Socket::User(inner) => {
                let end = inner.collect_now()?;
                let mut sends = inner.sends();
                let first = sends.told;
                sends.told = first.max(end);
                (first, end)
            }
            Socket::Kernel(socket) => socket.tell()?,
        };
        Ok((first < end).then_some(Completion { first, end }))
    }

    /// How many sends of the socket are not complete. One [`Stream::send`] may be several.
    ///
    /// # Errors
    /// The socket's own.
    pub fn pending(&self) -> Result<u64, CompletionError> {
        let counts = self.counts()?;
        Ok(counts.sent - counts.complete)
    }

    /// How many zero-copy sends there were, and how they fared. Never waits.
    ///
    /// # Errors
    /// The socket's own.
    pub fn counts(&self) -> Result<SendCounts, CompletionError> {
        self.socket.check()?;
        match &self.socket {
            Socket::User(inner) => {
                let complete = inner.collect_now()?;
                let sends = inner.sends();
                Ok(SendCounts {
                    sent: sends.sent,
                    complete,
                    copied: sends.copied,
                })
            }
            Socket::Kernel(socket) => socket.counts(),
        }
    }

    /// Bounds how long [`wait`](Self::wait) waits; `None`: for ever.
    pub fn set_timeout(&mut self, timeout: Option<Duration>) {
        self.limit = WaitLimit::within(timeout);
    }

    /// The stream's fd for poll and epoll: see [`Stream::readiness_fd`]. A call here, or one of the stream that has to
    /// wait, takes completions off the socket: ask [`try_next`](Self::try_next) until it has none before polling.
    ///
    /// # Errors
    /// The process is out of file descriptors.
    pub fn readiness_fd(&self) -> io::Result<BorrowedFd<'_>> {
        self.socket.readiness_fd()
    }

    #[cfg(feature = "tokio")]
    pub(crate) fn socket(&self) -> &Socket {
        &self.socket
    }

    fn wait_until(&self, end: u64) -> Result<(), CompletionError> {
        self.socket.check()?;
        let inner = match &self.socket {
            Socket::User(inner) => inner,
            Socket::Kernel(socket) => return socket.wait_until(end, self.limit),
        };
        let done = inner.wait(self.limit, |stack, _| match inner.collect(stack) {
            Ok(complete) => (complete >= end).then_some(Ok(())),
            Err(error) => Some(Err(error)),
        });
        done.map_err(|reason: NotReady| CompletionError::from(reason))??;
        Ok(())
    }
}

impl AsFd for Completions {
    /// [`Completions::readiness_fd`].
    ///
    /// # Panics
    /// When the process is out of file descriptors at the first call; call `readiness_fd` first to be told.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.readiness_fd()
            .expect("a file descriptor for the readiness of a stream")
    }
}

#[cfg(test)]
#[allow(clippy::single_range_in_vec_init, reason = "ranges are what is listed")]
mod tests {
    use super::advance;

    #[test]
    fn ranges_lose_what_was_taken_from_their_front() {
        for (taken, expected) in [
            (0, vec![0..10, 20..20, 30..35]),
            (4, vec![4..10, 20..20, 30..35]),
            (10, vec![30..35]),
            (12, vec![32..35]),
            (15, vec![]),
        ] {
            let mut ranges = vec![0..10, 20..20, 30..35];
            advance(&mut ranges, taken);
            assert_eq!(ranges, expected, "{taken}");
        }
    }
}
