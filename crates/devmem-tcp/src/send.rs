//! Sending from device memory, and completions of sends.

use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::sync::{Arc, MutexGuard, PoisonError};
use std::time::Duration;

use devmem_uapi::{CmsgWriter, DmabufId, Errno, MsgFlags, UIO_MAXIOV, cmsg_space};
use stack::{SendMsg, SocketOption, Stack};

use crate::bound_tx::{Binding, BoundTx};
use crate::driver::{NotReady, WaitLimit};
use crate::error::{CompletionError, ErrorKind, Refusal, SendError};
use crate::limit::CallLimit;
use crate::send_half::SendHalf;
use crate::socket::{Inner, Socket};

/// Bytes of the control message that names a dma-buf.
const CONTROL_BYTES: usize = cmsg_space(size_of::<DmabufId>());

/// Identifier of one [`SendHalf::send`], by which [`Completions`] report that it is complete.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[must_use = "until it completes, the bytes must not change"]
pub struct SendId {
    /// Number of zero-copy sends of the socket before this one.
    first: u64,
    /// The same number after this one.
    end: u64,
    bytes: usize,
}

impl SendId {
    /// Returns the number of bytes queued. After [`SendHalf::send`] these may be fewer than the ranges have: send the rest then.
    pub fn bytes(self) -> usize {
        self.bytes
    }

    /// Returns the id of the `bytes` that a SYN had, which are one zero-copy send or none.
    pub(crate) fn of_syn(bytes: usize, is_zerocopy: bool) -> Self {
        Self {
            first: 0,
            end: is_zerocopy.into(),
            bytes,
        }
    }

    /// Returns the id for `bytes`.
    pub(crate) fn with_bytes(self, bytes: usize) -> Self {
        Self { bytes, ..self }
    }

    /// Returns one id for this send and all later ones up to `last`.
    pub(crate) fn through(self, last: Self) -> Self {
        Self {
            first: self.first,
            end: last.end,
            bytes: self.bytes + last.bytes,
        }
    }
}

/// Sends that have completed: their bytes may be changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Completion {
    first: u64,
    end: u64,
}

impl Completion {
    /// Returns whether `id` became complete with these sends.
    pub fn contains(&self, id: SendId) -> bool {
        self.first < id.end && id.end <= self.end
    }
}

/// Progress of a socket's zero-copy sends. Each field counts sends since the socket was created; the kernel's 32-bit ids are
/// the lower halves of these counts.
#[derive(Debug, Default)]
pub(crate) struct Sends {
    sent: u64,
    /// Complete; sends complete in their order.
    complete: u64,
    /// Complete, and returned by [`Completions::try_next`].
    told: u64,
    /// Complete, but the bytes were copied (`SO_EE_CODE_ZEROCOPY_COPIED`).
    copied: u64,
    /// SO_ZEROCOPY is set.
    enabled: bool,
}

/// Counts of a socket's zero-copy sends. One [`SendHalf::send`] may make several.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SendCounts {
    /// Sends so far.
    pub sent: u64,
    /// Complete sends.
    pub complete: u64,
    /// Complete sends that were reported as copied (`SO_EE_CODE_ZEROCOPY_COPIED`).
    pub copied: u64,
}

impl Inner {
    /// Lock order: the driver's first, then this.
    fn sends(&self) -> MutexGuard<'_, Sends> {
        // Each operation leaves it consistent, so a panic of another thread does not matter.
        self.sends.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reads the error queue until it is empty and returns the number of complete sends.
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

/// Removes the first `taken` bytes from the ranges.
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

/// How much of its ranges a send queues.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum HowMuch {
    /// What there is room for; it waits only for the first byte.
    WhatFits,
    /// All of them.
    All,
}

/// Calls `once` with the remaining ranges until it has queued as many bytes as `how_much` says. `sent` returns the number of
/// zero-copy sends so far.
fn send_ranges(
    ranges: &[Range<usize>],
    how_much: HowMuch,
    limit: WaitLimit,
    sent: impl Fn() -> u64,
    mut once: impl FnMut(&[Range<usize>], WaitLimit) -> Result<usize, SendError>,
) -> Result<SendId, SendError> {
    let first = sent();
    let total = length(ranges);
    let mut bytes = 0;
    // The ranges are copied only if one call does not queue all of them.
    let mut rest: Option<Vec<_>> = None;
    while bytes < total {
        let now = rest.as_deref().unwrap_or(ranges);
        let now = &now[..now.len().min(UIO_MAXIOV)];
        let fits_only = how_much == HowMuch::WhatFits && bytes > 0;
        let limit = if fits_only { WaitLimit::Never } else { limit };
        let taken = match once(now, limit) {
            Ok(taken) => taken,
            Err(SendError::WouldBlock) if fits_only => break,
            Err(error) => return Err(error),
        };
        bytes += taken;
        if bytes < total {
            // Without the empty ranges, every call queues at least one byte.
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

/// Returns the control message that names a dma-buf.
pub(crate) fn device_control(dmabuf: DmabufId) -> [u8; CONTROL_BYTES] {
    let mut control = [0; CONTROL_BYTES];
    CmsgWriter::new(&mut control)
        .push_tx_dmabuf(dmabuf)
        .expect("the buffer was made for it");
    control
}

/// Refuses ranges outside the memory before any of them is sent, as the user-space stack does.
pub(crate) fn check_ranges(tx: &BoundTx, ranges: &[Range<usize>]) -> Result<(), SendError> {
    let size = tx.memory().size();
    let bad = |range: &&Range<usize>| range.start > range.end || range.end > size;
    match ranges.iter().find(bad) {
        None => Ok(()),
        Some(range) => Err(stack::SendError::OutOfBounds {
            dmabuf: tx.id(),
            offset: range.start,
            end: range.end,
            size,
        }
        .into()),
    }
}

impl Inner {
    /// Queues as many bytes as there is room for, at least one.
    fn send_zerocopy(&self, message: &SendMsg<'_>, limit: WaitLimit) -> Result<usize, SendError> {
        let sent = self.wait(limit, |stack, _| {
            match stack.sendmsg(self.socket, message, MsgFlags::ZEROCOPY) {
                // All connections share the memory for copies; an ACK on any of them can free some.
                Err(stack::SendError::WouldBlock | stack::SendError::NoMemory) => None,
                Err(stack::SendError::TooManySends) => {
                    // Reading reported completions makes room; if there are none, later ones will.
                    let _ = self.collect(stack);
                    None
                }
                result => {
                    // Counted while the stack is locked, so that its completion cannot be read first.
                    self.sends().sent += u64::from(matches!(result, Ok(1..)));
                    Some(result)
                }
            }
        });
        Ok(sent??)
    }

    /// Notes that SO_ZEROCOPY is set, and that a SYN had `bytes` of device memory.
    pub(crate) fn note_early_send(&self, bytes: usize) {
        let mut sends = self.sends();
        sends.enabled = true;
        sends.sent += u64::from(bytes > 0);
    }

    fn enable_zerocopy(&self) -> Result<(), SendError> {
        if self.sends().enabled {
            return Ok(());
        }
        let option = SocketOption::Zerocopy(true);
        let set = |stack: &mut Stack, _| stack.set_option(self.socket, option);
        let set = self.shared.driver.with(self.at, set)?;
        // Cannot fail: the socket is open while the stream exists, and both values are valid.
        debug_assert!(set.is_ok(), "{set:?}");
        self.sends().enabled = set.is_ok();
        Ok(())
    }

    /// Calls [`collect`](Self::collect) with the stack locked.
    fn collect_now(&self) -> Result<u64, CompletionError> {
        let collect = |stack: &mut Stack, _| self.collect(stack);
        Ok(self.shared.driver.with(self.at, collect)??)
    }
}

impl SendHalf {
    /// Sends ranges of bound device memory in the given order, without a copy: as many bytes as can be queued, at least one, waiting
    /// for room if there is none. [`SendId::bytes`] returns their number. They must not change until
    /// [`completions`](Self::completions) reports that the send is complete. [`send_all`](Self::send_all) queues all.
    ///
    /// # Errors
    /// [`SendError::WouldBlock`] if nothing could be queued and the stream is non-blocking; [`SendError::TimedOut`] if nothing
    /// could be queued within the timeout; [`SendError::OtherNetdev`] if the memory is bound to another NIC; a range is
    /// outside the memory; the connection has ended. After an error some bytes may be queued: [`Completions::wait_all`]
    /// waits for them.
    pub fn send(&mut self, tx: &BoundTx, ranges: &[Range<usize>]) -> Result<SendId, SendError> {
        self.send_device(tx, ranges, HowMuch::WhatFits)
    }

    /// Sends ranges of bound device memory as [`send`](Self::send) does, and waits until all bytes are queued.
    ///
    /// # Errors
    /// As [`send`](Self::send), also after some bytes were queued. A program that goes on after `WouldBlock` or `TimedOut` needs to
    /// know how many those were: it calls `send`.
    pub fn send_all(&mut self, tx: &BoundTx, ranges: &[Range<usize>]) -> Result<SendId, SendError> {
        self.send_device(tx, ranges, HowMuch::All)
    }

    fn send_device(
        &self,
        tx: &BoundTx,
        ranges: &[Range<usize>],
        how_much: HowMuch,
    ) -> Result<SendId, SendError> {
        self.socket.check()?;
        let limit = self.limit.get();
        match (&self.socket, &tx.binding) {
            (Socket::User(inner), Binding::User(bound)) if bound.is_at(&inner.shared, inner.at) => {
                inner.enable_zerocopy()?;
                let control = device_control(tx.id());
                let sent = || inner.sends().sent;
                send_ranges(ranges, how_much, limit, sent, |now, limit| {
                    inner.send_zerocopy(&SendMsg::device(now, &control), limit)
                })
            }
            (Socket::Kernel(socket), Binding::Kernel(bound))
                if bound.nic().is_same(socket.nic()) =>
            {
                check_ranges(tx, ranges)?;
                socket.enable_zerocopy()?;
                let sent = || socket.sent();
                send_ranges(ranges, how_much, limit, sent, |now, limit| {
                    socket.send_device(bound, now, limit)
                })
            }
            _ => Err(SendError::OtherNetdev { dmabuf: tx.id() }),
        }
    }

    /// Sends a range of bytes of host memory with `MSG_ZEROCOPY`: as many of them as can be queued, at least one. The library keeps
    /// them until they are sent, and [`completions`](Self::completions) reports when that is. The kernel sends them from where
    /// they are; the user-space stack copies them and reports the send as copied.
    ///
    /// # Errors
    /// As [`send`](Self::send).
    pub fn send_host(
        &mut self,
        bytes: &Arc<[u8]>,
        range: Range<usize>,
    ) -> Result<SendId, SendError> {
        self.send_host_range(bytes, range, HowMuch::WhatFits)
    }

    /// Sends bytes of host memory as [`send_host`](Self::send_host) does, and waits until all are queued.
    ///
    /// # Errors
    /// As [`send_all`](Self::send_all).
    pub fn send_host_all(&mut self, bytes: &Arc<[u8]>) -> Result<SendId, SendError> {
        self.send_host_range(bytes, 0..bytes.len(), HowMuch::All)
    }

    fn send_host_range(
        &self,
        bytes: &Arc<[u8]>,
        range: Range<usize>,
        how_much: HowMuch,
    ) -> Result<SendId, SendError> {
        self.socket.check()?;
        let Some(wanted) = bytes.get(range.clone()) else {
            return Err(outside(range, bytes.len()));
        };
        let limit = self.limit.get();
        let end = range.start + wanted.len();
        let ranges = std::slice::from_ref(&range);
        match &self.socket {
            Socket::User(inner) => {
                inner.enable_zerocopy()?;
                let sent = || inner.sends().sent;
                send_ranges(ranges, how_much, limit, sent, |now, limit| {
                    let rest = &bytes[now[0].clone()];
                    inner.send_zerocopy(&SendMsg::new(rest), limit)
                })
            }
            Socket::Kernel(socket) => {
                socket.enable_zerocopy()?;
                let sent = || socket.sent();
                send_ranges(ranges, how_much, limit, sent, |now, limit| {
                    socket.send_host(bytes, now[0].start..end, limit)
                })
            }
        }
    }
}

/// The error for a range that the host bytes do not have.
fn outside(range: Range<usize>, len: usize) -> SendError {
    let Range { start, end } = range;
    let reason = format!("bytes {start} to {end} are not inside the {len} bytes to send");
    Refusal::new(ErrorKind::InvalidInput, Errno::EFAULT, reason)
        .with_remedy("send a range inside the bytes")
        .into()
}

/// Reports when sends of a stream are complete: the peer has acknowledged every byte, and the NIC has finished with every
/// packet that contains one. When a connection is reset or times out, its unsent bytes count as complete, too.
///
/// Sends complete in order. If the kernel reports one early, it becomes complete here together with those before it.
#[derive(Debug)]
pub struct Completions {
    socket: Socket,
    limit: CallLimit,
}

impl Completions {
    pub(crate) fn new(socket: Socket, limit: WaitLimit) -> Self {
        Self {
            socket,
            limit: CallLimit::new(limit),
        }
    }

    /// Waits until `id` and every earlier send are complete.
    ///
    /// # Errors
    /// [`CompletionError::WouldBlock`] if they are not complete and the handle is non-blocking; [`CompletionError::TimedOut`]
    /// if they did not complete within the timeout.
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

    /// Returns whether `id` is complete. Never waits.
    ///
    /// # Errors
    /// The error queue of the socket cannot be read.
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
    /// The error queue of the socket cannot be read.
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

    /// Returns the number of zero-copy sends that are not complete. One [`SendHalf::send`] may make several.
    ///
    /// # Errors
    /// The error queue of the socket cannot be read.
    pub fn pending(&self) -> Result<u64, CompletionError> {
        let counts = self.counts()?;
        Ok(counts.sent - counts.complete)
    }

    /// Returns the counts of the socket's zero-copy sends. Never waits.
    ///
    /// # Errors
    /// The error queue of the socket cannot be read.
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

    /// Sets how long [`wait`](Self::wait) waits; `None` waits forever.
    pub fn set_timeout(&self, timeout: Option<Duration>) {
        self.limit.set_timeout(timeout);
    }

    /// Returns the stream's fd for poll and epoll: see [`Stream::readiness_fd`](crate::Stream::readiness_fd). Methods of this handle, and methods of the
    /// stream that wait, read completions from the socket: before polling, call [`try_next`](Self::try_next) until it
    /// returns `None`.
    ///
    /// # Errors
    /// The process has no free file descriptor, or is a fork of the one that opened the NIC.
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
            Socket::Kernel(socket) => return socket.wait_until(end, self.limit.get()),
        };
        let done = inner.wait(self.limit.get(), |stack, _| match inner.collect(stack) {
            Ok(complete) => (complete >= end).then_some(Ok(())),
            Err(error) => Some(Err(error)),
        });
        done.map_err(|reason: NotReady| CompletionError::from(reason))??;
        Ok(())
    }
}

impl AsFd for Completions {
    /// Returns [`Completions::readiness_fd`].
    ///
    /// # Panics
    /// If `readiness_fd` fails; call that first to handle its error. After one success it fails only in a child of fork(2).
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.readiness_fd()
            .expect("a file descriptor for the readiness of a stream")
    }
}

impl AsRawFd for Completions {
    fn as_raw_fd(&self) -> RawFd {
        self.as_fd().as_raw_fd()
    }
}

#[cfg(test)]
#[allow(clippy::single_range_in_vec_init, reason = "ranges are what is listed")]
mod tests {
    use super::advance;

    #[test]
    fn bytes_are_removed_from_the_front_of_ranges() {
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
