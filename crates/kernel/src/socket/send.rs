//! sendmsg from device memory.

use std::fmt;
use std::ops::Range;
use std::os::fd::BorrowedFd;

use devmem_uapi::{CmsgWriter, DmabufId, Errno, MsgFlags, UIO_MAXIOV, ZerocopyId, cmsg_space};
use rustix::net::getpeername;

use crate::errors::{Cause, Facts, Operation, cause};
use crate::{netif, sys};

/// Flags that a caller may give in addition to those that device memory needs.
const CALLERS_FLAGS: MsgFlags = MsgFlags::DONTWAIT
    .union(MsgFlags::MORE)
    .union(MsgFlags::EOR);

/// The source of a send: a binding made by bind-tx.
#[derive(Clone, Copy, Debug)]
pub struct TxSource<'a> {
    /// Its id.
    pub dmabuf: DmabufId,
    /// The interface that it is bound to, for errors.
    pub interface: &'a str,
}

/// Why a send failed. Nothing was sent, and there will be no completion.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SendError {
    /// The send buffer is full, and the socket or the call is non-blocking.
    WouldBlock,
    /// A signal interrupted the call.
    Interrupted,
    /// The kernel refused.
    Refused {
        /// The errno of sendmsg.
        errno: Errno,
        /// The cause.
        cause: Box<Cause>,
    },
}

impl fmt::Display for SendError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::WouldBlock => f.write_str("send: no room in the send buffer yet"),
            Self::Interrupted => f.write_str("send: interrupted by a signal"),
            Self::Refused { errno, cause } => write!(f, "send: {errno}: {cause}"),
        }
    }
}

impl std::error::Error for SendError {}

impl SendError {
    /// Returns the errno that the kernel's call would return.
    pub fn errno(&self) -> Errno {
        match self {
            Self::WouldBlock => Errno::EAGAIN,
            Self::Interrupted => Errno::EINTR,
            Self::Refused { errno, .. } => *errno,
        }
    }
}

/// Sends `ranges` of a bound dma-buf without a copy. Returns the number of bytes that the kernel queued, possibly fewer than
/// all. Uses at most the first 1,024 ranges. The socket needs
/// [`enable_zerocopy`](super::enable_zerocopy), and each call that returns bytes takes one
/// [id](SendIds). `flags` may be `DONTWAIT`, `MORE` and `EOR`.
///
/// # Errors
///
/// See [`SendError`]. `EINVAL` for other flags; `EFAULT` for a range beyond the dma-buf.
#[inline]
pub fn send_dmabuf(
    socket: BorrowedFd<'_>,
    source: TxSource<'_>,
    ranges: &[Range<u64>],
    flags: MsgFlags,
) -> Result<usize, SendError> {
    if !CALLERS_FLAGS.contains(flags) {
        return Err(refused(socket, source, Errno::EINVAL));
    }
    let mut control = [0; cmsg_space(size_of::<DmabufId>())];
    let mut writer = CmsgWriter::new(&mut control);
    let fits = writer.push_tx_dmabuf(source.dmabuf);
    fits.expect("the buffer was made for it");
    // Offsets are passed as pointers (iov_base). An offset that does not fit is beyond any dma-buf.
    let addresses = ranges.iter().all(|r| usize::try_from(r.end).is_ok());
    if !addresses {
        return Err(refused(socket, source, Errno::EFAULT));
    }
    let pieces = ranges.iter().take(UIO_MAXIOV).map(|range| {
        let len = range.end.saturating_sub(range.start);
        (range.start as usize, len as usize)
    });
    let needed = MsgFlags::ZEROCOPY | MsgFlags::NOSIGNAL;
    sys::message::sendmsg_dmabuf(socket, pieces, &mut control, (flags | needed).bits())
        .map_err(|errno| refused(socket, source, errno))
}

fn refused(socket: BorrowedFd<'_>, source: TxSource<'_>, errno: Errno) -> SendError {
    let other_interface = match errno {
        Errno::EAGAIN => return SendError::WouldBlock,
        Errno::EINTR => return SendError::Interrupted,
        Errno::ENODEV => route_of(socket),
        _ => None,
    };
    let facts = Facts {
        interface: Some(source.interface.to_owned()),
        other_interface,
        ..Facts::default()
    };
    SendError::Refused {
        errno,
        cause: Box::new(cause(Operation::Send, errno, &facts)),
    }
}

/// Returns the interface of the route to the socket's peer, if it can be determined.
fn route_of(socket: BorrowedFd<'_>) -> Option<String> {
    let peer = getpeername(socket).ok()??;
    let peer = std::net::SocketAddr::try_from(peer).ok()?;
    netif::route_interface(peer.ip().to_canonical()).ok()
}

/// Counts the zero-copy sends of one socket as the kernel does, to get the ids that their completions contain. All zero-copy
/// sends of the socket must be counted here, also those from host memory.
#[derive(Clone, Copy, Debug)]
pub struct SendIds {
    next: ZerocopyId,
}

impl SendIds {
    /// Creates the counter of a socket without zero-copy sends.
    pub fn new() -> Self {
        Self {
            next: ZerocopyId(0),
        }
    }

    /// Counts a send that returned `bytes` and returns its id; `None` for 0 bytes.
    pub fn count(&mut self, bytes: usize) -> Option<ZerocopyId> {
        if bytes == 0 {
            return None;
        }
        let id = self.next;
        self.next = id.next();
        Some(id)
    }
}

impl Default for SendIds {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_count_sends_that_took_bytes_and_wrap() {
        let mut ids = SendIds::new();
        assert_eq!(ids.count(10), Some(ZerocopyId(0)));
        assert_eq!(ids.count(0), None);
        assert_eq!(ids.count(1), Some(ZerocopyId(1)));
        let mut last = SendIds {
            next: ZerocopyId(u32::MAX),
        };
        assert_eq!(last.count(1), Some(ZerocopyId(u32::MAX)));
        assert_eq!(last.count(1), Some(ZerocopyId(0)));
    }
}
