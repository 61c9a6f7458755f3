//! Sends over a stack in user space, and the completions of zero-copy ones.

use std::ops::Range;
use std::sync::{Arc, MutexGuard, PoisonError};

use devmem_uapi::{CmsgWriter, DmabufId, MsgFlags, cmsg_space};
use stack::{SendMsg, SocketOption, Stack};

use super::bind::Tx;
use super::sends::Sends;
use super::socket::Socket;
use crate::driver::WaitLimit;
use crate::error::Error;
use crate::send_id::{Completion, SendCounts};

/// Bytes of the control message that names a dma-buf.
const CONTROL_BYTES: usize = cmsg_space(size_of::<DmabufId>());

/// Returns the control message that names a dma-buf.
pub(super) fn device_control(dmabuf: DmabufId) -> [u8; CONTROL_BYTES] {
    let mut control = [0; CONTROL_BYTES];
    CmsgWriter::new(&mut control)
        .push_tx_dmabuf(dmabuf)
        .expect("the buffer was made for it");
    control
}

impl Socket {
    /// Sends bytes of host memory, by a copy.
    pub(crate) fn write(&self, bytes: &[u8], limit: WaitLimit) -> Result<usize, Error> {
        let sent = self.wait(limit, |stack, id| {
            match stack.sendmsg(id, &SendMsg::new(bytes), MsgFlags::empty()) {
                // All connections share the memory for sending; an ACK on any of them can free some.
                Err(stack::SendError::WouldBlock | stack::SendError::NoMemory) => None,
                result => Some(result),
            }
        });
        sent.map_err(Error::no_room)?.map_err(Error::from)
    }

    /// Queues as many bytes of ranges of bound memory as there is room for, at least one, without a copy.
    pub(crate) fn send_device(
        &self,
        tx: &Tx,
        ranges: &[Range<usize>],
        limit: WaitLimit,
    ) -> Result<usize, Error> {
        let control = device_control(tx.id());
        self.send_zerocopy(&SendMsg::device(ranges, &control), limit)
    }

    /// Queues as many bytes of host memory as there is room for, at least one, with `MSG_ZEROCOPY`; the stack copies them.
    pub(crate) fn send_host(
        &self,
        bytes: &Arc<[u8]>,
        range: &Range<usize>,
        limit: WaitLimit,
    ) -> Result<usize, Error> {
        self.send_zerocopy(&SendMsg::new(&bytes[range.clone()]), limit)
    }

    /// Queues as many bytes as there is room for, at least one.
    fn send_zerocopy(&self, message: &SendMsg<'_>, limit: WaitLimit) -> Result<usize, Error> {
        let sent = self.wait(limit, |stack, id| {
            match stack.sendmsg(id, message, MsgFlags::ZEROCOPY) {
                // All connections share the memory for copies; an ACK on any of them can free some.
                Err(stack::SendError::WouldBlock | stack::SendError::NoMemory) => None,
                Err(stack::SendError::TooManySends) => {
                    // Reading reported completions makes room; if there are none, later ones will.
                    let _ = self.drain(stack);
                    None
                }
                result => {
                    // Counted while the stack is locked, so that its completion cannot be read first.
                    self.sends().sent += u64::from(matches!(result, Ok(1..)));
                    Some(result)
                }
            }
        });
        sent.map_err(Error::no_room)?.map_err(Error::from)
    }

    /// Sets SO_ZEROCOPY, once.
    pub(crate) fn enable_zerocopy(&self) -> Result<(), Error> {
        if self.sends().enabled {
            return Ok(());
        }
        let set = self.with(|stack, id| stack.set_option(id, SocketOption::Zerocopy(true)));
        // Cannot fail: the socket is open while the stream exists, and both values are valid.
        debug_assert!(set.is_ok(), "{set:?}");
        self.sends().enabled = set.is_ok();
        Ok(())
    }

    /// Notes that SO_ZEROCOPY is set, and that a SYN had `bytes` of device memory.
    pub(super) fn note_early_send(&self, bytes: usize) {
        let mut sends = self.sends();
        sends.enabled = true;
        sends.sent += u64::from(bytes > 0);
    }

    /// Lock order: the driver's first, then this.
    fn sends(&self) -> MutexGuard<'_, Sends> {
        // Each operation leaves it consistent, so a panic of another thread does not matter.
        self.sends.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the number of zero-copy sends so far.
    pub(crate) fn sent(&self) -> u64 {
        self.sends().sent
    }

    /// Reads the error queue until it is empty and returns the number of complete sends.
    fn drain(&self, stack: &mut Stack) -> Result<u64, stack::RecvError> {
        let mut sends = self.sends();
        #[cfg(feature = "tokio")]
        let before = sends.complete;
        loop {
            match stack.completion(self.id()) {
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

    /// Reads the error queue until it is empty and returns the number of complete sends.
    pub(crate) fn collect(&self) -> Result<u64, Error> {
        Ok(self.with(|stack, _| self.drain(stack))?)
    }

    /// Reads the error queue and returns the counts of the sends.
    pub(crate) fn counts(&self) -> Result<SendCounts, Error> {
        let complete = self.collect()?;
        let sends = self.sends();
        Ok(SendCounts {
            sent: sends.sent,
            complete,
            copied: sends.copied,
        })
    }

    /// Returns the sends that became complete since the last call.
    pub(crate) fn report(&self) -> Result<Option<Completion>, Error> {
        let end = self.collect()?;
        Ok(self.sends().reported.up_to(end))
    }

    /// Waits until all sends before `end` are complete.
    pub(crate) fn wait_until(&self, end: u64, limit: WaitLimit) -> Result<(), Error> {
        let done = self.wait(limit, |stack, _| match self.drain(stack) {
            Ok(complete) => (complete >= end).then_some(Ok(())),
            Err(error) => Some(Err(error)),
        });
        done.map_err(Error::not_complete)?.map_err(Error::from)
    }
}
