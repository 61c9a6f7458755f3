//! recvmsg with device memory.

use std::fmt;
use std::os::fd::BorrowedFd;

use devmem_uapi::{Errno, FragToken, MsgFlags, space_for};

use super::received::{ControlProblem, ReceivedMessage};
use crate::errors::{Cause, Facts, Operation, cause};
use crate::sys;

/// Room in the control buffer for other messages that an application may have requested, such as timestamps.
const OTHER_MESSAGES_BYTES: usize = 256;

/// Flags that a caller may give; other flags would change the meaning of the result.
const CALLERS_FLAGS: MsgFlags = MsgFlags::DONTWAIT
    .union(MsgFlags::PEEK)
    .union(MsgFlags::WAITALL);

/// The buffers of recvmsg. Can be reused for any number of calls.
///
/// The size of the data buffer limits the bytes of a call, device bytes included, but only bytes that landed in host memory
/// are written to it. Pages that are never written take no memory.
#[derive(Debug)]
pub struct RecvBuffer {
    data: Vec<u8>,
    control: Vec<u8>,
}

/// Why a receive failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RecvError {
    /// No data is queued, and the socket or the call is non-blocking.
    WouldBlock,
    /// A signal interrupted the call.
    Interrupted,
    /// The kernel refused.
    Refused {
        /// The errno of recvmsg.
        errno: Errno,
        /// The cause.
        cause: Box<Cause>,
    },
    /// The control messages are invalid: bytes or frags are lost.
    Control {
        /// The problem.
        problem: ControlProblem,
        /// Frags that were lent nevertheless; return them.
        tokens: Vec<FragToken>,
    },
}

impl fmt::Display for RecvError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::WouldBlock => f.write_str("recv: nothing to receive yet"),
            Self::Interrupted => f.write_str("recv: interrupted by a signal"),
            Self::Refused { errno, cause } => write!(f, "recv: {errno}: {cause}"),
            Self::Control { problem, .. } => write!(f, "recv: {problem}"),
        }
    }
}

impl std::error::Error for RecvError {}

impl RecvError {
    fn refused(errno: Errno) -> Self {
        match errno {
            Errno::EAGAIN => Self::WouldBlock,
            Errno::EINTR => Self::Interrupted,
            errno => Self::Refused {
                errno,
                cause: Box::new(cause(Operation::Recv, errno, &Facts::default())),
            },
        }
    }

    /// Returns the errno that the kernel's call would return.
    pub fn errno(&self) -> Errno {
        match self {
            Self::WouldBlock => Errno::EAGAIN,
            Self::Interrupted => Errno::EINTR,
            Self::Refused { errno, .. } => *errno,
            Self::Control { .. } => Errno::EPROTO,
        }
    }
}

/// The caller's room for bytes that landed in host memory. Its length also limits the bytes of a call, device bytes included.
#[derive(Debug)]
pub enum HostRoom<'a> {
    /// A buffer to copy them to.
    Buffer(&'a mut [u8]),
    /// No room: a call fails with `EFAULT` if the first bytes are host bytes, and stops before host bytes that come later. They
    /// stay queued.
    None {
        /// Most bytes of a call.
        max_bytes: usize,
    },
}

/// Receives as [`RecvBuffer::recv`] does, into buffers of the caller. `control` must have room for the wanted number of frags
/// ([`devmem_uapi::space_for`]).
///
/// # Errors
///
/// As [`RecvBuffer::recv`]; `EFAULT` if the next bytes are in host memory and there is no room for them.
#[inline]
pub fn recv_into<'a>(
    socket: BorrowedFd<'_>,
    room: HostRoom<'a>,
    control: &'a mut [u8],
    flags: MsgFlags,
) -> Result<ReceivedMessage<'a>, RecvError> {
    if !CALLERS_FLAGS.contains(flags) {
        return Err(RecvError::refused(Errno::EINVAL));
    }
    let call_flags = (flags | MsgFlags::SOCK_DEVMEM).bits();
    let (raw, data) = match room {
        HostRoom::Buffer(data) => {
            let raw = sys::message::recvmsg(socket, data, control, call_flags);
            (raw, &*data)
        }
        HostRoom::None { max_bytes } => {
            let raw = sys::message::recvmsg_no_room(socket, max_bytes, control, call_flags);
            (raw, &[][..])
        }
    };
    judge(raw.map_err(RecvError::refused)?, control, data)
}

/// Converts the result of recvmsg.
#[inline]
fn judge<'a>(
    raw: sys::message::RawReceived,
    control: &'a [u8],
    data: &'a [u8],
) -> Result<ReceivedMessage<'a>, RecvError> {
    // `recvmsg` never returns a length beyond the buffer's.
    let told = control.get(..raw.control_len).unwrap_or_default();
    let flags = MsgFlags::from_bits_retain(raw.flags);
    ReceivedMessage::parse(raw.bytes, flags, told, data)
        .map_err(|(problem, tokens)| RecvError::Control { problem, tokens })
}

impl RecvBuffer {
    /// Creates buffers for at most `max_bytes` and `max_frags` per call (at least 1 of each). Linux 6.14 and later stop before a
    /// frag without room for its control message, so a call may return fewer of both.
    pub fn new(max_bytes: usize, max_frags: usize) -> Self {
        let control = space_for(max_frags.max(1)).saturating_add(OTHER_MESSAGES_BYTES);
        Self {
            // Zeroed pages, which take no memory before the kernel writes to them.
            data: vec![0; max_bytes.max(1)],
            control: vec![0; control],
        }
    }

    /// Receives from a TCP socket, from device memory or not. `flags` may be `DONTWAIT`, `PEEK` (which lends
    /// the frags too) and `WAITALL`.
    ///
    /// # Errors
    ///
    /// See [`RecvError`]. `EINVAL` for other flags.
    pub fn recv(
        &mut self,
        socket: BorrowedFd<'_>,
        flags: MsgFlags,
    ) -> Result<ReceivedMessage<'_>, RecvError> {
        self.receive(socket, flags, MsgFlags::SOCK_DEVMEM)
    }

    /// Receives without `MSG_SOCK_DEVMEM`: fails with `EFAULT` if the next bytes are in device memory.
    ///
    /// # Errors
    ///
    /// As [`recv`](Self::recv).
    pub fn recv_host_only(
        &mut self,
        socket: BorrowedFd<'_>,
        flags: MsgFlags,
    ) -> Result<ReceivedMessage<'_>, RecvError> {
        self.receive(socket, flags, MsgFlags::empty())
    }

    fn receive(
        &mut self,
        socket: BorrowedFd<'_>,
        flags: MsgFlags,
        kind: MsgFlags,
    ) -> Result<ReceivedMessage<'_>, RecvError> {
        if !CALLERS_FLAGS.contains(flags) {
            return Err(RecvError::refused(Errno::EINVAL));
        }
        let Self { data, control } = self;
        let raw = sys::message::recvmsg(socket, data, control, (flags | kind).bits())
            .map_err(RecvError::refused)?;
        judge(raw, control, data)
    }
}
