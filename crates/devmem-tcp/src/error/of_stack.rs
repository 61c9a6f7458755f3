//! Refusals of the user-space stack, and the end of connections.

use std::fmt;

use devmem_uapi::Errno;
use tcp::TcpError;

use super::{Error, ErrorKind, Remedy};

/// What to do about a peer that does not answer.
pub(super) const NO_ANSWER: &str =
    "check that the peer runs and that packets reach it: ping, and a capture on the link";

impl Error {
    /// A refusal of the stack.
    fn of_stack(errno: Errno, reason: &dyn fmt::Display, remedy: Option<&'static str>) -> Self {
        Self::of_errno(errno, reason.to_string()).with_remedy_if(remedy)
    }

    /// The connection has ended.
    pub(crate) fn ended(error: TcpError) -> Self {
        let remedy: Remedy = match error {
            TcpError::NextHopSilent {
                is_router: true, ..
            } => Remedy::CorrectRouter,
            error => remedy_of(error).into(),
        };
        let errno = stack::connection_errno(error);
        Self::of_errno(errno, error.to_string()).with_remedy(remedy)
    }
}

/// Returns what to do about the end of a connection; of a silent next hop, about one that is no router.
fn remedy_of(error: TcpError) -> &'static str {
    match error {
        TcpError::Refused => "start the listener at the peer, or correct the address or port",
        TcpError::Reset | TcpError::BrokenPipe => {
            "the peer's program ended or closed the connection early: its own messages may say why"
        }
        TcpError::TimedOut => NO_ANSWER,
        TcpError::HostUnreachable | TcpError::NetUnreachable => {
            "check the addresses, the prefix lengths and the gateway of both sides"
        }
        TcpError::NextHopSilent { .. } => {
            "check that the host is up, on this link and has this address, and the prefix length of the NIC's own"
        }
        TcpError::ProtocolUnreachable => "give the address of a host that speaks TCP",
        TcpError::LinkGone => {
            "the other end of the wire has left, or the interface was removed: open the NIC again when it is back"
        }
        TcpError::AddressTaken => {
            "give this NIC an address that no other station has, or stop the other one"
        }
        TcpError::Aborted => "connect again",
        TcpError::DeviceFailed { .. } => {
            "read what the device's driver reports (`dmesg`, for NVIDIA lines with Xid), and restart the program"
        }
    }
}

#[doc(hidden)]
impl From<stack::BindRxError> for Error {
    fn from(error: stack::BindRxError) -> Self {
        use stack::BindRxError as E;
        let refusal = Self::of_stack(error.errno(), &error, error.remedy());
        match error {
            E::SplitOff { queue, .. } => refusal.of_kind(ErrorKind::NotSetUp).on_queue(queue),
            E::NoSuchQueue { queue, .. } => {
                refusal.of_kind(ErrorKind::InvalidInput).on_queue(queue)
            }
            E::QueueTaken { queue, .. } => refusal.of_kind(ErrorKind::InUse).on_queue(queue),
            E::Restart { queue, .. } => refusal.of_kind(ErrorKind::OutOfResources).on_queue(queue),
            _ => refusal,
        }
    }
}

macro_rules! from_stack {
    ($($error:ident: $remedy:expr),* $(,)?) => {$(
        #[doc(hidden)]
        impl From<stack::$error> for Error {
            fn from(error: stack::$error) -> Self {
                Self::of_stack(error.errno(), &error, $remedy(&error))
            }
        }
    )*};
}

from_stack!(
    BadSocket: |_| None,
    BindTargetError: stack::BindTargetError::remedy,
    BindTxError: stack::BindTxError::remedy,
    DontneedError: stack::DontneedError::remedy,
    OptionError: |_| None,
    PlaceError: stack::PlaceError::remedy,
    ShutdownError: |_| None,
);

#[doc(hidden)]
impl From<stack::AddressError> for Error {
    fn from(error: stack::AddressError) -> Self {
        Self::invalid(error.to_string()).with_remedy(error.remedy())
    }
}

#[doc(hidden)]
impl From<stack::StackError> for Error {
    fn from(error: stack::StackError) -> Self {
        Self::invalid(error.to_string()).with_remedy_if(error.remedy())
    }
}

#[doc(hidden)]
impl From<stack::ListenError> for Error {
    fn from(error: stack::ListenError) -> Self {
        match error {
            stack::ListenError::LinkGone => Self::ended(TcpError::LinkGone),
            _ => Self::of_stack(error.errno(), &error, error.remedy()),
        }
    }
}

#[doc(hidden)]
impl From<stack::AcceptError> for Error {
    fn from(error: stack::AcceptError) -> Self {
        match error {
            stack::AcceptError::LinkGone => Self::ended(TcpError::LinkGone),
            stack::AcceptError::AddressTaken => Self::ended(TcpError::AddressTaken),
            _ => Self::of_stack(error.errno(), &error, error.remedy()),
        }
    }
}

#[doc(hidden)]
impl From<stack::ConnectError> for Error {
    fn from(error: stack::ConnectError) -> Self {
        let refusal = Self::of_stack(error.errno(), &error, error.remedy());
        match error {
            stack::ConnectError::LinkGone => Self::ended(TcpError::LinkGone),
            stack::ConnectError::Route(_) => refusal.with_remedy(Remedy::NameRouter),
            _ => refusal,
        }
    }
}

#[doc(hidden)]
impl From<stack::RecvError> for Error {
    fn from(error: stack::RecvError) -> Self {
        match error {
            stack::RecvError::Connection(error) => Self::ended(error),
            stack::RecvError::TooManyTokens => {
                let reason = format!("the stream has lent {} frags", stack::MAX_TOKENS);
                Self::new(ErrorKind::OutOfResources, Errno::ENOMEM, reason)
                    .with_remedy(Remedy::ReleaseFrags)
            }
            error => Self::of_stack(error.errno(), &error, error.remedy()),
        }
    }
}

#[doc(hidden)]
impl From<stack::SendError> for Error {
    fn from(error: stack::SendError) -> Self {
        match error {
            stack::SendError::Connection(error) => Self::ended(error),
            stack::SendError::OutOfBounds {
                dmabuf,
                offset,
                end,
                size,
            } => {
                let reason = format!(
                    "bytes {offset} to {end} are not inside dma-buf {dmabuf}, which has {size} bytes"
                );
                Self::new(ErrorKind::InvalidInput, Errno::EFAULT, reason)
                    .with_remedy("send ranges inside the bound memory")
            }
            error => Self::of_stack(error.errno(), &error, error.remedy()),
        }
    }
}
