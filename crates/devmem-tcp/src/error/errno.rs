//! The errno of each error, the same for both backends: what the kernel's call returns.

use std::io;

use devmem_uapi::Errno;

use super::{
    AcceptError, BindError, BindTxError, CompletionError, ConnectError, Forked, ListenError,
    NoDmabuf, RecvError, ReleaseError, SendError, ShutdownError,
};

/// The errno of an error of Rust's own, or of what it means.
fn io_errno(error: &io::Error) -> Errno {
    Errno(error.raw_os_error().unwrap_or(Errno::EINVAL.0))
}

impl Forked {
    /// Returns EOWNERDEAD. No call of the kernel's sockets returns it, so that it cannot be taken for anything that
    /// happened to a connection, or for a handle that was closed.
    pub const fn errno(&self) -> Errno {
        Errno::EOWNERDEAD
    }
}

impl ListenError {
    /// Returns the errno of the refusal.
    pub fn errno(&self) -> Errno {
        match self {
            Self::Forked(forked) => forked.errno(),
            Self::Address(error) => io_errno(error),
            Self::Refused(refused) => refused.errno(),
            Self::Kernel(error) => error.errno,
        }
    }
}

impl ConnectError {
    /// Returns the errno of the refusal.
    pub fn errno(&self) -> Errno {
        match self {
            Self::Forked(forked) => forked.errno(),
            Self::Address(error) | Self::System(error) => io_errno(error),
            Self::Refused(refused) => refused.errno(),
            Self::Ended(ended) => ended.errno(),
            Self::TimedOut => Errno::ETIMEDOUT,
            Self::Kernel(error) => error.errno,
        }
    }
}

impl AcceptError {
    /// Returns the errno of the refusal; `EAGAIN` when time is up, as a socket with a timeout says.
    pub fn errno(&self) -> Errno {
        match self {
            Self::Forked(forked) => forked.errno(),
            Self::WouldBlock | Self::TimedOut => Errno::EAGAIN,
            Self::System(error) => io_errno(error),
            Self::Refused(refused) => refused.errno(),
            Self::Kernel(error) => error.errno,
        }
    }
}

impl RecvError {
    /// Returns the errno of the refusal; `EAGAIN` when time is up, as a socket with a timeout says.
    pub fn errno(&self) -> Errno {
        match self {
            Self::Forked(forked) => forked.errno(),
            Self::WouldBlock | Self::TimedOut => Errno::EAGAIN,
            Self::Misplaced { .. } => Errno::EFAULT,
            Self::Refused(refused) => refused.errno(),
            Self::Release(error) => error.errno(),
            Self::Kernel(error) => error.errno,
            Self::Control { .. } => Errno::EPROTO,
        }
    }
}

impl SendError {
    /// Returns the errno of the refusal; `EAGAIN` when time is up, as a socket with a timeout says.
    pub fn errno(&self) -> Errno {
        match self {
            Self::Forked(forked) => forked.errno(),
            Self::WouldBlock | Self::TimedOut => Errno::EAGAIN,
            Self::OtherNetdev { .. } => Errno::ENODEV,
            Self::Refused(refused) => refused.errno(),
            Self::Kernel(error) => error.errno,
        }
    }
}

impl CompletionError {
    /// Returns the errno of the refusal; `EAGAIN` when time is up, as a socket with a timeout says.
    pub fn errno(&self) -> Errno {
        match self {
            Self::Forked(forked) => forked.errno(),
            Self::WouldBlock | Self::TimedOut => Errno::EAGAIN,
            Self::Refused(refused) => refused.errno(),
            Self::Kernel(error) => error.errno,
        }
    }
}

impl ReleaseError {
    /// Returns the errno of the refusal.
    pub fn errno(&self) -> Errno {
        match self {
            Self::Forked(forked) => forked.errno(),
            Self::Missing { .. } => Errno::EINVAL,
            Self::Refused(refused) => refused.errno(),
            Self::Kernel(error) => error.errno,
        }
    }
}

impl ShutdownError {
    /// Returns the errno of the refusal.
    pub fn errno(&self) -> Errno {
        match self {
            Self::Forked(forked) => forked.errno(),
            Self::Refused(refused) => refused.errno(),
            Self::Kernel(error) => error.errno,
        }
    }
}

impl NoDmabuf {
    /// Returns the errno of the refusal.
    pub fn errno(&self) -> Errno {
        match self {
            // What the kernel says of a descriptor that is no dma-buf.
            Self::Anonymous => Errno::EINVAL,
            Self::Export(error) => error.errno,
        }
    }
}

impl BindError {
    /// Returns the errno of the refusal.
    pub fn errno(&self) -> Errno {
        match self {
            Self::Forked(forked) => forked.errno(),
            Self::Refused(error) => error.errno(),
            Self::InUse(_) => Errno::EBUSY,
            Self::Kernel(error) => error.errno,
            Self::Memory(error) => error.errno(),
            Self::NoFamily(error) => error.errno,
        }
    }
}

impl BindTxError {
    /// Returns the errno of the refusal.
    pub fn errno(&self) -> Errno {
        match self {
            Self::Forked(forked) => forked.errno(),
            Self::Refused(error) => error.errno(),
            Self::Kernel(error) => error.errno,
            Self::Memory(error) => error.errno(),
            Self::NoFamily(error) => error.errno,
        }
    }
}
