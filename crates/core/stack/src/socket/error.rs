//! Errors of socket calls, with cause, remedy and errno.

use std::net::{IpAddr, SocketAddr};

use devmem_uapi::{DmabufId, Errno, MAX_DONTNEED_TOKENS, UIO_MAXIOV};
use tcp::{StateKind, TcpError};
use thiserror::Error;

use super::id::SocketId;
use super::limits::{MAX_TOKENS, MAX_ZEROCOPY_SENDS};
use crate::route::RouteError;

/// Errno for a control buffer that is too small. Linux returns it to programs although the uAPI headers do not define
/// it (linux include/linux/errno.h `ETOOSMALL`, net/core/scm.c `put_cmsg_notrunc`).
pub const ETOOSMALL: Errno = Errno(525);

/// The id of a socket that is not open.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error("{0} is not open: it was closed, or it belongs to another stack")]
pub struct BadSocket(pub SocketId);

impl BadSocket {
    /// Returns the errno of the same refusal by the kernel.
    pub const fn errno(&self) -> Errno {
        Errno::EBADF
    }
}

/// Why [`recvmsg`](crate::Stack::recvmsg) returned nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum RecvError {
    /// The socket is not open.
    #[error(transparent)]
    BadSocket(#[from] BadSocket),
    /// Nothing has arrived yet.
    #[error("nothing to read yet")]
    WouldBlock,
    /// The socket was never connected, or is a listener.
    #[error("{id} is not connected")]
    NotConnected {
        /// The socket.
        id: SocketId,
    },
    /// The connection has failed; reported once.
    #[error("the connection is dead: {0}")]
    Connection(TcpError),
    /// The next bytes lie in device memory, and the call has no MSG_SOCK_DEVMEM.
    #[error("the next {bytes} bytes lie in device memory")]
    Unreadable {
        /// How many bytes at least.
        bytes: usize,
    },
    /// The next bytes lie in host memory, and the call has no buffer to copy them to.
    #[error(
        "the next {bytes} bytes lie in host memory and must be copied, but the iovec has no memory"
    )]
    NoBuffer {
        /// How many bytes at least.
        bytes: usize,
    },
    /// The control buffer has no room for a single message.
    #[error("the control buffer has no room for one message of {need} bytes")]
    NoControlSpace {
        /// Bytes for one message.
        need: usize,
    },
    /// The socket holds too many tokens.
    #[error("{MAX_TOKENS} frags are outstanding at this socket")]
    TooManyTokens,
    /// The error queue is empty.
    #[error(
        "the error queue is empty: nothing sent with MSG_ZEROCOPY has completed since it was last read"
    )]
    ErrorQueueEmpty,
}

impl RecvError {
    /// Returns the errno of the same refusal by the kernel.
    pub const fn errno(&self) -> Errno {
        match self {
            Self::BadSocket(bad) => bad.errno(),
            Self::WouldBlock | Self::ErrorQueueEmpty => Errno::EAGAIN,
            Self::NotConnected { .. } => Errno::ENOTCONN,
            Self::Connection(error) => connection_errno(*error),
            Self::Unreadable { .. } | Self::NoBuffer { .. } => Errno::EFAULT,
            Self::NoControlSpace { .. } => ETOOSMALL,
            Self::TooManyTokens => Errno::ENOMEM,
        }
    }

    /// Returns what to do about it.
    pub const fn remedy(&self) -> Option<&'static str> {
        match self {
            Self::WouldBlock => Some("poll the stack and try again when the socket is readable"),
            Self::NotConnected { .. } => {
                Some("connect it, or accept a connection and read from that")
            }
            Self::Unreadable { .. } => Some("receive them with MSG_SOCK_DEVMEM"),
            Self::NoBuffer { .. } => Some("give a buffer"),
            Self::NoControlSpace { .. } => Some("give a larger one"),
            Self::TooManyTokens => Some("return some with SO_DEVMEM_DONTNEED"),
            Self::BadSocket(_) | Self::Connection(_) | Self::ErrorQueueEmpty => None,
        }
    }
}

/// Why [`sendmsg`](crate::Stack::sendmsg) queued nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum SendError {
    /// The socket is not open.
    #[error(transparent)]
    BadSocket(#[from] BadSocket),
    /// The send queue is full, or the connection is not established yet.
    #[error("the send queue is full")]
    WouldBlock,
    /// The socket was never connected, or is a listener.
    #[error("{id} is not connected")]
    NotConnected {
        /// The socket.
        id: SocketId,
    },
    /// The connection has failed; reported once.
    #[error("the connection is dead: {0}")]
    Connection(TcpError),
    /// The connection was shut down for sending, or has ended.
    #[error("{id} is shut down for sending")]
    Shutdown {
        /// The socket.
        id: SocketId,
    },
    /// The control buffer is malformed, has a message that no send knows, or its dma-buf message is not 4 bytes long.
    #[error("malformed control messages")]
    BadControl,
    /// Device memory can only be sent with MSG_ZEROCOPY.
    #[error("sending from device memory needs MSG_ZEROCOPY and SO_ZEROCOPY")]
    ZerocopyNeeded,
    /// No dma-buf of this id is bound for sending.
    #[error("no dma-buf is bound for sending under id {dmabuf}")]
    UnknownBinding {
        /// The id.
        dmabuf: DmabufId,
    },
    /// SO_ZEROCOPY is not set.
    #[error("sending from device memory needs SO_ZEROCOPY on the socket")]
    ZerocopyOff,
    /// The dma-buf is bound for receiving.
    #[error("dma-buf {dmabuf} is bound for receiving")]
    ReceiveBinding {
        /// The id.
        dmabuf: DmabufId,
    },
    /// There is no longer a route to the peer.
    #[error(transparent)]
    NoRoute(RouteError),
    /// A range is not within the dma-buf, or ends before it begins. Nothing was queued.
    #[error("bytes {offset} to {end} do not lie inside dma-buf {dmabuf} of {size} bytes")]
    OutOfBounds {
        /// The id.
        dmabuf: DmabufId,
        /// Start of the range.
        offset: usize,
        /// End of the range.
        end: usize,
        /// Size of the dma-buf.
        size: usize,
    },
    /// The control messages name a dma-buf, but the iovec is host memory.
    #[error(
        "the control messages name a dma-buf, so the iovec must hold offsets into it, and holds host memory"
    )]
    NotOffsets,
    /// The iovec has offsets, but the control messages name no dma-buf.
    #[error("the iovec holds offsets into device memory, but no control message names the dma-buf")]
    NoDmabufNamed,
    /// The message has too many ranges.
    #[error("{given} ranges in one message: it has at most {UIO_MAXIOV}")]
    TooManyRanges {
        /// How many there were.
        given: usize,
    },
    /// Too many zero-copy sends are incomplete or not reported.
    #[error("{MAX_ZEROCOPY_SENDS} zero-copy sends of this socket are under way or unreported")]
    TooManySends,
    /// There is no host memory for the copy of the bytes.
    #[error("the stack's send memory is in use")]
    NoMemory,
}

impl SendError {
    /// Returns the errno of the same refusal by the kernel.
    pub const fn errno(&self) -> Errno {
        match self {
            Self::BadSocket(bad) => bad.errno(),
            Self::WouldBlock | Self::NoMemory => Errno::EAGAIN,
            Self::NotConnected { .. } => Errno::EPIPE,
            Self::Connection(error) => connection_errno(*error),
            Self::Shutdown { .. } => Errno::EPIPE,
            Self::BadControl
            | Self::ZerocopyNeeded
            | Self::ZerocopyOff
            | Self::UnknownBinding { .. }
            | Self::ReceiveBinding { .. } => Errno::EINVAL,
            Self::NoRoute(_) => Errno::EHOSTUNREACH,
            Self::OutOfBounds { .. } | Self::NotOffsets | Self::NoDmabufNamed => Errno::EFAULT,
            Self::TooManyRanges { .. } => Errno::EMSGSIZE,
            Self::TooManySends => Errno::ENOBUFS,
        }
    }

    /// Returns what to do about it.
    pub const fn remedy(&self) -> Option<&'static str> {
        match self {
            Self::WouldBlock => Some("poll the stack and try again when the socket is writable"),
            Self::NotConnected { .. } => Some("connect it first"),
            Self::BadControl => Some("name a dma-buf by SCM_DEVMEM_DMABUF with a plain u32"),
            Self::ZerocopyNeeded => Some("set both: nothing can be copied out of it"),
            Self::UnknownBinding { .. } => {
                Some("bind it: one that is bound for receiving will not do")
            }
            Self::ZerocopyOff => Some("set it before the first send"),
            Self::ReceiveBinding { .. } => {
                Some("bind the memory for sending (bind-tx) and name that id")
            }
            Self::OutOfBounds { .. } => Some("write offsets into it to the iovec"),
            Self::TooManySends => Some("read the error queue, and send more at once"),
            Self::NoMemory => {
                Some("poll the stack and try again when acknowledgements have freed some")
            }
            Self::BadSocket(_)
            | Self::Connection(_)
            | Self::Shutdown { .. }
            | Self::NoRoute(_)
            | Self::NotOffsets
            | Self::NoDmabufNamed
            | Self::TooManyRanges { .. } => None,
        }
    }
}

/// Why [`listen`](crate::Stack::listen) refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum ListenError {
    /// Another listener has the address.
    #[error("{0} is in use by another listener")]
    AddrInUse(SocketAddr),
    /// The address is not a local address.
    #[error("{0} is not an address of this interface")]
    AddrNotAvailable(IpAddr),
    /// The port is not in the range that this stack has.
    #[error("port {0} belongs to another stack at this address")]
    PortNotOurs(u16),
    /// No port is free.
    #[error("no free port to listen on")]
    NoFreePort,
    /// The stack holds as many sockets as it may.
    #[error("{limit} sockets are open already")]
    TooManySockets {
        /// How many there may be.
        limit: usize,
    },
    /// The link has ended for good: no peer can connect any more.
    #[error("{}", TcpError::LinkGone)]
    LinkGone,
}

impl ListenError {
    /// Returns the errno of the same refusal by the kernel.
    pub const fn errno(&self) -> Errno {
        match self {
            Self::AddrInUse(_) | Self::NoFreePort => Errno::EADDRINUSE,
            Self::AddrNotAvailable(_) | Self::PortNotOurs(_) => Errno::EADDRNOTAVAIL,
            Self::TooManySockets { .. } => Errno::ENFILE,
            Self::LinkGone => connection_errno(TcpError::LinkGone),
        }
    }

    /// Returns what to do about it.
    pub const fn remedy(&self) -> Option<&'static str> {
        match self {
            Self::AddrInUse(_) => Some("close it or choose another port"),
            Self::AddrNotAvailable(_) => {
                Some("listen on one of its own or on the unspecified address")
            }
            Self::PortNotOurs(_) => Some("choose one of the ports of this one"),
            Self::TooManySockets { .. } => Some("close some or raise StackConfig::max_sockets"),
            Self::NoFreePort | Self::LinkGone => None,
        }
    }
}

/// Why [`connect`](crate::Stack::connect) refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum ConnectError {
    /// The peer cannot be reached.
    #[error(transparent)]
    Route(#[from] RouteError),
    /// The port is 0.
    #[error("{0} has port 0, on which nobody can listen")]
    PortZero(SocketAddr),
    /// The address to connect from is not a local address, or has another family than the peer.
    #[error("{0} is not one of this interface's addresses of the peer's family")]
    AddrNotAvailable(IpAddr),
    /// The local port is not in the range that this stack has.
    #[error("port {0} belongs to another stack at this address")]
    PortNotOurs(u16),
    /// Connections from the local port to this peer belong to another shard of the NIC.
    #[error("connections from port {0} to this peer belong to another shard")]
    OtherShard(u16),
    /// Every local port is taken by a connection to the same peer.
    #[error("every local port is taken by a connection to {0}")]
    PortsExhausted(SocketAddr),
    /// The stack holds as many sockets as it may.
    #[error("{limit} sockets are open already")]
    TooManySockets {
        /// How many there may be.
        limit: usize,
    },
    /// The link to the peer has ended for good.
    #[error("{}", TcpError::LinkGone)]
    LinkGone,
}

impl ConnectError {
    /// Returns the errno of the same refusal by the kernel.
    pub const fn errno(&self) -> Errno {
        match self {
            // Also for broadcast and multicast (linux `tcp_v4_connect`).
            Self::Route(RouteError::NoRoute(_) | RouteError::NotUnicast(_)) => Errno::ENETUNREACH,
            Self::PortZero(_) => Errno::ECONNREFUSED,
            Self::AddrNotAvailable(_)
            | Self::PortNotOurs(_)
            | Self::OtherShard(_)
            | Self::PortsExhausted(_) => Errno::EADDRNOTAVAIL,
            Self::TooManySockets { .. } => Errno::ENFILE,
            Self::LinkGone => connection_errno(TcpError::LinkGone),
        }
    }

    /// Returns what to do about it.
    pub const fn remedy(&self) -> Option<&'static str> {
        match self {
            Self::PortZero(_) => Some("give the peer's port"),
            Self::AddrNotAvailable(_) => Some("connect from one that is"),
            Self::PortNotOurs(_) => Some("connect from one of the ports of this one"),
            Self::OtherShard(_) => {
                Some("connect on the whole NIC, or let this shard choose the port")
            }
            Self::PortsExhausted(_) => Some("close some, or wait for their TIME-WAIT to end"),
            Self::TooManySockets { .. } => Some("close some or raise StackConfig::max_sockets"),
            Self::Route(_) | Self::LinkGone => None,
        }
    }
}

/// Why [`accept`](crate::Stack::accept) returned no connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum AcceptError {
    /// The socket is not open.
    #[error(transparent)]
    BadSocket(#[from] BadSocket),
    /// No connection is waiting.
    #[error("no connection is waiting")]
    WouldBlock,
    /// The socket is a connection.
    #[error("{id} is a connection, not a listener")]
    NotListening {
        /// The socket.
        id: SocketId,
    },
    /// No connection is waiting, and the link has ended for good: no peer can connect any more.
    #[error("{}", TcpError::LinkGone)]
    LinkGone,
    /// No connection is waiting, and another station has the address.
    #[error("{}", TcpError::AddressTaken)]
    AddressTaken,
}

impl AcceptError {
    /// Returns the errno of the same refusal by the kernel.
    pub const fn errno(&self) -> Errno {
        match self {
            Self::BadSocket(bad) => bad.errno(),
            Self::WouldBlock => Errno::EAGAIN,
            Self::NotListening { .. } => Errno::EINVAL,
            Self::LinkGone => connection_errno(TcpError::LinkGone),
            Self::AddressTaken => connection_errno(TcpError::AddressTaken),
        }
    }

    /// Returns what to do about it.
    pub const fn remedy(&self) -> Option<&'static str> {
        match self {
            Self::WouldBlock => Some("poll the stack and try again when the listener is readable"),
            Self::NotListening { .. } => Some("accept from what listen returned"),
            Self::BadSocket(_) | Self::LinkGone | Self::AddressTaken => None,
        }
    }
}

/// Why [`dontneed`](crate::Stack::dontneed) freed nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum DontneedError {
    /// The socket is not open.
    #[error(transparent)]
    BadSocket(#[from] BadSocket),
    /// More ranges than one call takes.
    #[error("{given} token ranges in one call: it takes at most {MAX_DONTNEED_TOKENS}")]
    TooManyRanges {
        /// How many there were.
        given: usize,
    },
    /// The length is not a multiple of a range.
    #[error("{len} bytes of token ranges")]
    OddLength {
        /// How many bytes there were.
        len: usize,
    },
}

impl DontneedError {
    /// Returns the errno of the same refusal by the kernel.
    pub const fn errno(&self) -> Errno {
        match self {
            Self::BadSocket(bad) => bad.errno(),
            Self::TooManyRanges { .. } | Self::OddLength { .. } => Errno::EINVAL,
        }
    }

    /// Returns what to do about it.
    pub const fn remedy(&self) -> Option<&'static str> {
        match self {
            Self::TooManyRanges { .. } => Some("call again for the rest"),
            Self::OddLength { .. } => Some("give a multiple of 8"),
            Self::BadSocket(_) => None,
        }
    }
}

/// Why [`shutdown`](crate::Stack::shutdown) refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum ShutdownError {
    /// The socket is not open.
    #[error(transparent)]
    BadSocket(#[from] BadSocket),
    /// There is no connection to shut down.
    #[error(
        "{id} is not connected ({}): there is nothing to shut down",
        .state.map_or_else(|| "LISTEN".to_owned(), |state| state.to_string())
    )]
    NotConnected {
        /// The socket.
        id: SocketId,
        /// State of the connection; `None` for a listener.
        state: Option<StateKind>,
    },
}

impl ShutdownError {
    /// Returns the errno of the same refusal by the kernel.
    pub const fn errno(&self) -> Errno {
        match self {
            Self::BadSocket(bad) => bad.errno(),
            Self::NotConnected { .. } => Errno::ENOTCONN,
        }
    }
}

/// Why [`set_option`](crate::Stack::set_option) refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum OptionError {
    /// The socket is not open.
    #[error(transparent)]
    BadSocket(#[from] BadSocket),
    /// The value is invalid.
    #[error("{option}: {reason}")]
    BadValue {
        /// The option.
        option: &'static str,
        /// What is wrong with it.
        reason: &'static str,
    },
}

impl OptionError {
    /// Returns the errno of the same refusal by the kernel.
    pub const fn errno(&self) -> Errno {
        match self {
            Self::BadSocket(bad) => bad.errno(),
            Self::BadValue { .. } => Errno::EINVAL,
        }
    }
}

/// Why [`unbind_rx`](crate::Stack::unbind_rx) refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error("no dma-buf is bound under id {0}: it was unbound already")]
pub struct UnknownBinding(pub DmabufId);

impl UnknownBinding {
    /// Returns the errno of the same refusal by the kernel.
    pub const fn errno(&self) -> Errno {
        Errno::EINVAL
    }
}

/// Returns the errno that a failed connection reports.
pub const fn connection_errno(error: TcpError) -> Errno {
    match error {
        TcpError::Refused => Errno::ECONNREFUSED,
        TcpError::Reset => Errno::ECONNRESET,
        TcpError::BrokenPipe => Errno::EPIPE,
        TcpError::TimedOut => Errno::ETIMEDOUT,
        TcpError::HostUnreachable | TcpError::NextHopSilent { .. } => Errno::EHOSTUNREACH,
        TcpError::NetUnreachable => Errno::ENETUNREACH,
        TcpError::ProtocolUnreachable => Errno::ENOPROTOOPT,
        TcpError::LinkGone => Errno::ENETDOWN,
        TcpError::AddressTaken => Errno::EADDRNOTAVAIL,
        TcpError::Aborted => Errno::ECONNABORTED,
        TcpError::DeviceFailed { .. } => Errno::EIO,
    }
}

#[cfg(test)]
mod tests;
