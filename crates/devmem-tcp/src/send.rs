//! Sending from device memory, and learning when the memory may be reused.

use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, MutexGuard, PoisonError};
use std::time::Duration;

use devmem_uapi::{CmsgWriter, DmabufId, MsgFlags, UIO_MAXIOV, cmsg_space};
use stack::{SendMsg, SocketOption, Stack};

use crate::bound_tx::BoundTx;
use crate::driver::{NotReady, Wait, WaitLimit};
use crate::error::{CompletionError, SendError};
use crate::stream::{Inner, Stream};

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

impl Stream {
    /// Sends ranges of bound device memory, in the order given, without a copy: the bytes must not change until
    /// [`completions`](Self::completions) says that the send is complete. Waits for room until all is queued.
    ///
    /// # Errors
    /// [`SendError::WouldBlock`] and [`SendError::TimedOut`] as set, if nothing was queued; a range outside the
    /// memory, a binding of another NIC; the connection's own end. What was queued before an error is waited for by
    /// [`Completions::wait_all`].
    pub fn send(&mut self, tx: &BoundTx, ranges: &[Range<usize>]) -> Result<SendId, SendError> {
        if !Arc::ptr_eq(&tx.shared, &self.inner.shared) || tx.at != self.inner.at {
            return Err(SendError::OtherNetdev { dmabuf: tx.id() });
        }
        self.enable_zerocopy()?;
        let mut control = [0; CONTROL_BYTES];
        CmsgWriter::new(&mut control)
            .push_tx_dmabuf(tx.id())
            .expect("the buffer was made for it");
        let first = self.inner.sends().sent;
        let total = length(ranges);
        let mut bytes = 0;
        // Copied only if one call does not take all.
        let mut rest: Option<Vec<_>> = None;
        while bytes < total {
            let now = rest.as_deref().unwrap_or(ranges);
            let now = &now[..now.len().min(UIO_MAXIOV)];
            let taken = match self.send_once(now, &control) {
                Ok(taken) => taken,
                Err(SendError::WouldBlock | SendError::TimedOut) if bytes > 0 => break,
                Err(error) => return Err(error),
            };
            bytes += taken;
            if bytes < total {
                // Without the empty ones every call sends something.
                let all = || {
                    ranges
                        .iter()
                        .filter(|range| !range.is_empty())
                        .cloned()
                        .collect()
                };
                advance(rest.get_or_insert_with(all), taken);
            }
        }
        let end = self.inner.sends().sent;
        Ok(SendId { first, end, bytes })
    }

    /// Queues what there is room for, at least a byte.
    fn send_once(&self, ranges: &[Range<usize>], control: &[u8]) -> Result<usize, SendError> {
        let inner = &self.inner;
        let message = SendMsg::device(ranges, control);
        let sent = self.wait(|stack, _| {
            match stack.sendmsg(inner.socket, &message, MsgFlags::ZEROCOPY) {
                Err(stack::SendError::WouldBlock) => None,
                Err(stack::SendError::TooManySends) => {
                    // Those reported make room; those under way will.
                    let _ = inner.collect(stack);
                    None
                }
                result => Some(result),
            }
        });
        let taken = sent??;
        inner.sends().sent += u64::from(taken > 0);
        Ok(taken)
    }

    fn enable_zerocopy(&self) -> Result<(), SendError> {
        let inner = &self.inner;
        if inner.sends().enabled {
            return Ok(());
        }
        let option = SocketOption::Zerocopy(true);
        let set = inner
            .shared
            .driver
            .with(inner.at, |stack, _| stack.set_option(inner.socket, option));
        // The socket is open as long as this stream, and the option has no bad value.
        debug_assert!(set.is_ok(), "{set:?}");
        inner.sends().enabled = set.is_ok();
        Ok(())
    }

    /// What tells when sends are complete. It may outlive the stream, which is how to end a stream and still learn
    /// when its memory is free; waits as the stream does at this moment.
    pub fn completions(&self) -> Completions {
        Completions {
            inner: Arc::clone(&self.inner),
            limit: self.limit,
        }
    }
}

/// Tells when sends of a stream are complete: the peer has acknowledged every byte, and the NIC has let go of every
/// packet with any of them. A connection that dies completes what it will never send.
///
/// Sends complete in their order.
#[derive(Debug)]
pub struct Completions {
    inner: Arc<Inner>,
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
        let sent = self.inner.sends().sent;
        self.wait_until(sent)
    }

    /// Whether `id` is complete. Never waits.
    ///
    /// # Errors
    /// The socket's own.
    pub fn is_complete(&self, id: SendId) -> Result<bool, CompletionError> {
        Ok(self.collect()? >= id.end)
    }

    /// Returns the sends that became complete since the last call, if any. Never waits.
    ///
    /// # Errors
    /// The socket's own.
    pub fn try_next(&self) -> Result<Option<Completion>, CompletionError> {
        let end = self.collect()?;
        let mut sends = self.inner.sends();
        let first = sends.told;
        sends.told = first.max(end);
        Ok((first < end).then_some(Completion { first, end }))
    }

    /// How many sends of the socket are not complete. One [`Stream::send`] may be several.
    ///
    /// # Errors
    /// The socket's own.
    pub fn pending(&self) -> Result<u64, CompletionError> {
        let complete = self.collect()?;
        Ok(self.inner.sends().sent - complete)
    }

    /// How many zero-copy sends there were, and how they fared. Never waits.
    ///
    /// # Errors
    /// The socket's own.
    pub fn counts(&self) -> Result<SendCounts, CompletionError> {
        let complete = self.collect()?;
        let sends = self.inner.sends();
        Ok(SendCounts {
            sent: sends.sent,
            complete,
            copied: sends.copied,
        })
    }

    /// Bounds how long [`wait`](Self::wait) waits; `None`: for ever.
    pub fn set_timeout(&mut self, timeout: Option<Duration>) {
        self.limit = timeout.map_or(WaitLimit::Forever, WaitLimit::For);
    }

    /// An fd that is readable while there are completions to be taken, or data, the end or an error of the stream:
    /// the stream's own, for poll and epoll. Made at the first call.
    ///
    /// # Errors
    /// The process is out of file descriptors.
    pub fn readiness_fd(&self) -> io::Result<BorrowedFd<'_>> {
        self.inner.readiness_fd()
    }

    /// Told whenever somebody has taken completions off the error queue.
    #[cfg(feature = "tokio")]
    pub(crate) fn collected(&self) -> &::tokio::sync::Notify {
        &self.inner.collected
    }

    fn collect(&self) -> Result<u64, CompletionError> {
        let Inner { shared, at, .. } = &*self.inner;
        Ok(shared
            .driver
            .with(*at, |stack, _| self.inner.collect(stack))?)
    }

    fn wait_until(&self, end: u64) -> Result<(), CompletionError> {
        let Inner {
            shared, at, socket, ..
        } = &*self.inner;
        let wait = Wait {
            stack: *at,
            socket: *socket,
            limit: self.limit,
        };
        let done = shared
            .driver
            .wait_for(wait, |stack, _| match self.inner.collect(stack) {
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
