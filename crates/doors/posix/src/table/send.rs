//! send, sendto, sendmsg and write.

use std::ops::Range;

use devmem_uapi::{CmsgIter, Errno, MsgFlags};
use stack::{SendMsg, Sending, SocketId};

use super::{SockState, Table};
use crate::abi::{MSG_FASTOPEN, MSG_OOB};

/// Bytes and control messages of a send.
#[derive(Debug, Clone, Copy)]
pub struct SendArgs<'a> {
    /// Bytes in host memory.
    pub host: &'a [u8],
    /// If `control` names a dma-buf: its ranges to send, in place of `host`. Otherwise the entries of the caller's iovec as
    /// ranges of `host`, or nothing.
    pub ranges: &'a [Range<usize>],
    /// Control messages.
    pub control: &'a [u8],
    /// The peer's address, for MSG_FASTOPEN; not read otherwise.
    pub address: &'a [u8],
}

impl<'a> SendArgs<'a> {
    /// Returns the arguments of a send of bytes.
    pub const fn new(host: &'a [u8]) -> Self {
        Self {
            host,
            ranges: &[],
            control: &[],
            address: &[],
        }
    }

    /// Returns how many bytes the send has.
    pub(crate) fn len(&self) -> usize {
        match names_dmabuf(self.control) {
            true => self
                .ranges
                .iter()
                .fold(0, |sum: usize, range| sum.saturating_add(range.len())),
            false => self.host.len(),
        }
    }
}

/// A send that takes several attempts because the send buffer was full. It has one completion and one set of timestamps.
#[derive(Debug, Default)]
#[must_use = "a send that is not finished is never reported"]
pub(crate) struct UnderWay {
    sending: Sending,
    socket: Option<SocketId>,
    /// Bytes queued so far.
    pub(crate) sent: usize,
}

/// Returns `ranges` without their first `skip` bytes.
fn behind(ranges: &[Range<usize>], mut skip: usize) -> Vec<Range<usize>> {
    let mut rest = Vec::with_capacity(ranges.len());
    for range in ranges {
        if skip > 0 && skip >= range.len() {
            skip -= range.len();
            continue;
        }
        // At most to the end of the range.
        rest.push(range.start + std::mem::take(&mut skip)..range.end);
    }
    rest
}

/// Returns whether a control buffer names a dma-buf: the iovec then holds offsets into it instead of addresses.
pub fn names_dmabuf(control: &[u8]) -> bool {
    CmsgIter::new(control).any(|message| message.tx_dmabuf().is_some())
}

impl Table {
    /// Queues bytes for sending, as many as there is room for.
    ///
    /// # Errors
    /// As sendmsg(2), but EPIPE comes without a signal.
    pub fn send(&mut self, fd: i32, args: SendArgs<'_>, flags: u32) -> Result<usize, Errno> {
        let mut under_way = UnderWay::default();
        let sent = self.send_on(fd, args, flags, &mut under_way);
        let all = under_way.sent;
        self.finish_send(under_way);
        match sent {
            Err(_) if all > 0 => Ok(all),
            sent => sent,
        }
    }

    /// Queues what a send has not queued yet, as much of it as there is room for; returns how much it has queued.
    ///
    /// # Errors
    /// As [`Table::send`]; EAGAIN if that is not all.
    pub(crate) fn send_on(
        &mut self,
        fd: i32,
        args: SendArgs<'_>,
        flags: u32,
        under_way: &mut UnderWay,
    ) -> Result<usize, Errno> {
        let sock = self.sock(fd)?;
        if flags & (MSG_OOB | MSG_FASTOPEN) != 0 {
            return Err(Errno::EOPNOTSUPP);
        }
        let id = match sock.state {
            SockState::Connected(id) | SockState::Connecting(id) => id,
            SockState::Fresh | SockState::Listening(_) => return Err(Errno::EPIPE),
        };
        let total = args.len();
        let SendArgs {
            host,
            ranges,
            control,
            address: _,
        } = args;
        let is_device = names_dmabuf(control);
        let rest = behind(ranges, under_way.sent);
        let msg = match is_device {
            true => SendMsg::device(&rest, control),
            false => {
                let host = host.get(under_way.sent..).unwrap_or_default();
                SendMsg::with_control(host, control).in_pieces(&rest)
            }
        };
        let flags = MsgFlags::from_bits_truncate(flags);
        let UnderWay {
            sending,
            socket,
            sent,
        } = under_way;
        *socket = Some(id);
        let more = self.stack.sendmsg_on(id, &msg, flags, sending);
        let more = more.map_err(|error| error.errno());
        *sent += more.as_ref().copied().unwrap_or(0);
        let all = *sent;
        if more == Err(Errno::EAGAIN) || all < total {
            self.note_full(self.index_of(fd)?);
        }
        match more {
            Ok(_) if all < total => Err(Errno::EAGAIN),
            other => other.map(|_| all),
        }
    }

    /// Ends a send: no more bytes are added to it.
    pub(crate) fn finish_send(&mut self, under_way: UnderWay) {
        let UnderWay {
            sending, socket, ..
        } = under_way;
        if let Some(socket) = socket {
            self.stack.finish_send(socket, sending);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queued_bytes_are_skipped_range_by_range() {
        let ranges = [10..20, 30..30, 40..45, 50..51];
        assert_eq!(behind(&ranges, 0), ranges);
        assert_eq!(behind(&ranges, 3), [13..20, 30..30, 40..45, 50..51]);
        assert_eq!(behind(&ranges, 10), [30..30, 40..45, 50..51]);
        assert_eq!(behind(&ranges, 12), [42..45, 50..51]);
        assert!(behind(&ranges, 99).is_empty());
    }
}
