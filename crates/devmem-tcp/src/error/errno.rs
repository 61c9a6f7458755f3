//! The errno of each error, the same for both backends: the one that the kernel's call returns.

use std::io;

use devmem_uapi::Errno;

use super::{
    AcceptError, BindError, BindTxError, CompletionError, ConnectError, Forked, ListenError,
    NoDmabuf, RecvError, ReleaseError, SendError, ShutdownError,
};

/// Returns the errno of an I/O error; EINVAL if it has none.
fn io_errno(error: &io::Error) -> Errno {
    Errno(error.raw_os_error().unwrap_or(Errno::EINVAL.0))
}

impl Forked {
    /// Returns EOWNERDEAD. No socket call of the kernel returns it, so it cannot be confused with an error of a connection
    /// or of a closed handle.
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
    /// Returns the errno of the refusal; `EAGAIN` for a timeout, as for a socket with `SO_RCVTIMEO`.
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
    /// Returns the errno of the refusal; `EAGAIN` for a timeout, as for a socket with `SO_RCVTIMEO`.
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
    /// Returns the errno of the refusal; `EAGAIN` for a timeout, as for a socket with `SO_RCVTIMEO`.
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
    /// Returns the errno of the refusal; `EAGAIN` for a timeout, as for a socket with `SO_RCVTIMEO`.
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
            // The kernel's errno for a descriptor that is not a dma-buf.
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
