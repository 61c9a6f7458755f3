//! recvmsg with device memory.

use std::fmt;
use std::os::fd::BorrowedFd;

use devmem_uapi::{Errno, FragToken, MsgFlags, space_for};

use super::received::{ControlProblem, Received};
use crate::errors::{Cause, Facts, Operation, cause};
use crate::sys;

/// Room in the control buffer for messages that an application may have asked for beside ours:
/// timestamps, queue lengths.
const OTHER_MESSAGES_BYTES: usize = 256;

/// Flags that a caller may give; the others would change what the result means.
const CALLERS_FLAGS: MsgFlags = MsgFlags::DONTWAIT
    .union(MsgFlags::PEEK)
    .union(MsgFlags::WAITALL);

/// The buffers of recvmsg. Reused from call to call.
///
/// The data buffer bounds a call's bytes, device bytes included, but only bytes that landed in host memory
/// are written to it: its pages cost nothing until then.
#[derive(Debug)]
pub struct RecvBuffer {
    data: Vec<u8>,
    control: Vec<u8>,
}

/// Why a receive failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RecvError {
    /// Nothing is there yet, and the socket or the call is non-blocking.
    WouldBlock,
    /// A signal came first.
    Interrupted,
    /// The kernel refused.
    Refused {
        /// What recvmsg returned.
        errno: Errno,
        /// What that means here.
        cause: Box<Cause>,
    },
    /// The control messages cannot be believed: bytes or frags are lost.
    Control {
        /// Why not.
        problem: ControlProblem,
        /// Frags that were lent all the same: give them back.
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

    /// Returns what kernel calls would have: for a caller that speaks errno.
    pub fn errno(&self) -> Errno {
        match self {
            Self::WouldBlock => Errno::EAGAIN,
            Self::Interrupted => Errno::EINTR,
            Self::Refused { errno, .. } => *errno,
            Self::Control { .. } => Errno::EPROTO,
        }
    }
}

/// Room of the caller for bytes that landed in host memory; either way its length bounds a call's bytes, device
/// bytes included.
#[derive(Debug)]
pub enum HostRoom<'a> {
    /// They are copied there.
    Buffer(&'a mut [u8]),
    /// There is none: a call that meets such bytes first is refused with `EFAULT`, one that meets them later stops
    /// before them. They stay queued.
    None {
        /// Most bytes of a call.
        max_bytes: usize,
    },
}

/// As [`RecvBuffer::recv`], into buffers of the caller: `control` must have room for the frags wanted
/// ([`devmem_uapi::space_for`]).
///
/// # Errors
///
/// As [`RecvBuffer::recv`]; `EFAULT` for bytes in host memory without room for them.
pub fn recv_into<'a>(
    socket: BorrowedFd<'_>,
    room: HostRoom<'a>,
    control: &'a mut [u8],
    flags: MsgFlags,
) -> Result<Received<'a>, RecvError> {
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

/// Takes what recvmsg returned apart.
fn judge<'a>(
    raw: sys::message::RawReceived,
    control: &'a [u8],
    data: &'a [u8],
) -> Result<Received<'a>, RecvError> {
    // `recvmsg` cuts the length to the buffer's.
    let told = control.get(..raw.control_len).unwrap_or_default();
    let flags = MsgFlags::from_bits_retain(raw.flags);
    Received::parse(raw.bytes, flags, told, data)
        .map_err(|(problem, tokens)| RecvError::Control { problem, tokens })
}

impl RecvBuffer {
    /// Makes buffers for up to `max_bytes` and `max_frags` a call (at least 1 of each). A kernel of 6.14 or later
    /// stops before a frag that it cannot tell of, so that a call may return fewer than either.
    pub fn new(max_bytes: usize, max_frags: usize) -> Self {
        let control = space_for(max_frags.max(1)).saturating_add(OTHER_MESSAGES_BYTES);
        Self {
            // From zeroed pages of the system, not touched before the kernel writes to them.
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
    ) -> Result<Received<'_>, RecvError> {
        self.receive(socket, flags, MsgFlags::SOCK_DEVMEM)
    }

    /// Receives like a program that knows nothing of device memory: `EFAULT` where it meets some.
    ///
    /// # Errors
    ///
    /// As [`recv`](Self::recv).
    pub fn recv_host_only(
        &mut self,
        socket: BorrowedFd<'_>,
        flags: MsgFlags,
    ) -> Result<Received<'_>, RecvError> {
        self.receive(socket, flags, MsgFlags::empty())
    }

    fn receive(
        &mut self,
        socket: BorrowedFd<'_>,
        flags: MsgFlags,
        kind: MsgFlags,
    ) -> Result<Received<'_>, RecvError> {
        if !CALLERS_FLAGS.contains(flags) {
            return Err(RecvError::refused(Errno::EINVAL));
        }
        let Self { data, control } = self;
        let raw = sys::message::recvmsg(socket, data, control, (flags | kind).bits())
            .map_err(RecvError::refused)?;
        judge(raw, control, data)
    }
}
