//! send and its relatives.

use std::ops::Range;

use devmem_uapi::{CmsgIter, Errno, MsgFlags};
use stack::SendMsg;

use super::{SockState, Table};
use crate::abi::{MSG_FASTOPEN, MSG_OOB};

/// What a send sends.
#[derive(Debug, Clone, Copy)]
pub struct SendArgs<'a> {
    /// Bytes in host memory.
    pub host: &'a [u8],
    /// Ranges of the dma-buf that `control` names: they count instead of `host` then.
    pub ranges: &'a [Range<usize>],
    /// Control messages.
    pub control: &'a [u8],
}

impl<'a> SendArgs<'a> {
    /// Returns the arguments of a send of bytes.
    pub const fn new(host: &'a [u8]) -> Self {
        Self {
            host,
            ranges: &[],
            control: &[],
        }
    }
}

/// Returns whether a control buffer says that the iovec holds offsets into a dma-buf, and no addresses.
pub fn names_dmabuf(control: &[u8]) -> bool {
    CmsgIter::new(control).any(|message| message.tx_dmabuf().is_some())
}

impl Table {
    /// Queues bytes for sending, as many as there is room for.
    ///
    /// # Errors
    /// As sendmsg(2), but EPIPE comes without a signal.
    pub fn send(&mut self, fd: i32, args: SendArgs<'_>, flags: u32) -> Result<usize, Errno> {
        let sock = self.sock(fd)?;
        if flags & (MSG_OOB | MSG_FASTOPEN) != 0 {
            return Err(Errno::EOPNOTSUPP);
        }
        let id = match sock.state {
            SockState::Connected(id) | SockState::Connecting(id) => id,
            SockState::Fresh | SockState::Listening(_) => return Err(Errno::EPIPE),
        };
        let SendArgs {
            host,
            ranges,
            control,
        } = args;
        let msg = match names_dmabuf(control) {
            true => SendMsg::device(ranges, control),
            false => SendMsg::with_control(host, control),
        };
        let flags = MsgFlags::from_bits_truncate(flags);
        self.stack
            .sendmsg(id, &msg, flags)
            .map_err(|error| error.errno())
    }
}
