//! What every error has: a kind, an errno, a remedy, `Debug` with the same text as `Display`, and `io::Error` from it.
//!
//! The errno is the same for both backends: the one that the kernel's call returns.

use std::error::Error;
use std::fmt;
use std::io;

use devmem_uapi::Errno;
use netmem::{DeviceError, DeviceState, DmabufError};

use super::{
    AcceptError, BindError, BindTxError, CompletionError, ConnectError, DeviceMemoryError,
    ErrorKind, Forked, GatherError, KernelNic, ListenError, NoSoftwareNic, OpenError, PlaceError,
    RecvError, Refusal, ReleaseError, SendError, SetupError, ShutdownError,
};
use crate::link_spec::LinkSpecError;

/// Kind and errno of an error.
pub(super) type Verdict = (ErrorKind, Errno);

/// The verdict on a call that found nothing; an errno of EAGAIN for a timeout, too, as for a socket with SO_RCVTIMEO.
const WOULD_BLOCK: Verdict = (ErrorKind::WouldBlock, Errno::EAGAIN);
const TIMED_OUT: Verdict = (ErrorKind::TimedOut, Errno::EAGAIN);
/// The verdict on a call in a child of fork(2). No socket call of the kernel returns EOWNERDEAD, so it cannot be confused
/// with an error of a connection or of a closed handle.
pub(super) const FORKED: Verdict = (ErrorKind::Forked, Errno::EOWNERDEAD);
pub(super) const INVALID: Verdict = (ErrorKind::InvalidInput, Errno::EINVAL);

fn of_io(error: &io::Error) -> Verdict {
    let errno = error.raw_os_error().map_or(Errno::EINVAL, Errno);
    (ErrorKind::of_io(error), errno)
}

/// Returns the remedy of a text: the lines below the first, without their indentation.
fn remedy_in(text: &str) -> Option<String> {
    let (_, remedy) = text.split_once('\n')?;
    let lines: Vec<_> = remedy.lines().map(str::trim).collect();
    Some(lines.join("\n"))
}

macro_rules! errors {
    ($($error:ty),*) => {$(
        impl $error {
            /// Returns the kind, for programs.
            pub fn kind(&self) -> ErrorKind {
                self.verdict().0
            }

            /// Returns the errno that the kernel's call returns for it.
            pub fn errno(&self) -> Errno {
                self.verdict().1
            }

            /// Returns the remedy, one or more lines: what to change or type next.
            pub fn remedy(&self) -> Option<String> {
                remedy_in(&self.to_string())
            }
        }

        debug_as_display!($error);

        /// Keeps the error as the inner error, except for "would block", which is only a kind.
        impl From<$error> for io::Error {
            fn from(error: $error) -> Self {
                let kind = error.kind();
                match kind {
                    ErrorKind::WouldBlock => io::ErrorKind::WouldBlock.into(),
                    kind => io::Error::new(kind.into(), error),
                }
            }
        }
    )*

        impl ErrorKind {
            /// Returns the kind of an error of this library behind `dyn Error`, for programs that keep errors in a box;
            /// `None` for other errors. It does not look at sources.
            ///
            /// ```
            /// use devmem_tcp::{ErrorKind, Netdev};
            ///
            /// fn open() -> Result<Netdev, Box<dyn std::error::Error>> {
            ///     Ok(Netdev::kernel("nosuch0")?)
            /// }
            ///
            /// let error = open().unwrap_err();
            /// assert_eq!(ErrorKind::of(&*error), Some(ErrorKind::NotFound));
            /// ```
            pub fn of(error: &(dyn Error + 'static)) -> Option<Self> {
                if let Some(refusal) = error.downcast_ref::<Refusal>() {
                    return Some(refusal.kind());
                }
                #[cfg(any(feature = "cuda", feature = "hip"))]
                if let Some(error) = error.downcast_ref::<super::device::GpuError>() {
                    return Some(super::device::of_gpu(error).0);
                }
                #[cfg(feature = "vulkan")]
                if let Some(error) = error.downcast_ref::<devmem_vulkan::VulkanError>() {
                    return Some(super::device::of_vulkan(error).0);
                }
                $(
                    if let Some(error) = error.downcast_ref::<$error>() {
                        return Some(error.kind());
                    }
                )*
                None
            }
        }
    };
}

/// `Debug` prints the text of `Display`, so that a `main` that returns the error shows the reason and the remedy.
macro_rules! debug_as_display {
    ($error:ty) => {
        impl fmt::Debug for $error {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Display::fmt(self, f)
            }
        }
    };
}

errors!(
    AcceptError,
    BindError,
    BindTxError,
    CompletionError,
    ConnectError,
    DeviceMemoryError,
    Forked,
    GatherError,
    LinkSpecError,
    ListenError,
    OpenError,
    PlaceError,
    RecvError,
    ReleaseError,
    SendError,
    SetupError,
    ShutdownError
);
debug_as_display!(Refusal);
debug_as_display!(KernelNic);
debug_as_display!(NoSoftwareNic);

impl From<Refusal> for io::Error {
    fn from(refusal: Refusal) -> Self {
        Self::new(refusal.kind().into(), refusal)
    }
}

impl Refusal {
    fn verdict(&self) -> Verdict {
        (self.kind(), self.errno())
    }
}

impl Forked {
    fn verdict(&self) -> Verdict {
        FORKED
    }
}

impl LinkSpecError {
    fn verdict(&self) -> Verdict {
        INVALID
    }
}

impl OpenError {
    fn verdict(&self) -> Verdict {
        match self {
            Self::Link(_) | Self::Address { .. } | Self::NoAddress => INVALID,
            Self::NoInterface { .. } => (ErrorKind::NotFound, Errno::ENODEV),
            Self::NoRoute { .. } => (ErrorKind::NetworkUnreachable, Errno::ENETUNREACH),
            Self::Unix { source, .. }
            | Self::UnixListen { source, .. }
            | Self::System { source, .. } => of_io(source),
            Self::UnixRefused { .. } => (ErrorKind::Unsupported, Errno::EOPNOTSUPP),
            Self::WireTaken { .. } => (ErrorKind::InUse, Errno::EBUSY),
            Self::Refused(refused) => refused.verdict(),
        }
    }
}

impl SetupError {
    fn verdict(&self) -> Verdict {
        match self {
            Self::Forked(_) => FORKED,
            Self::Queues { .. } => INVALID,
            Self::Refused(refused) => refused.verdict(),
        }
    }
}

impl ShutdownError {
    fn verdict(&self) -> Verdict {
        match self {
            Self::Forked(_) => FORKED,
            Self::Refused(refused) => refused.verdict(),
        }
    }
}

impl ListenError {
    fn verdict(&self) -> Verdict {
        match self {
            Self::Forked(_) => FORKED,
            Self::Address(error) => of_io(error),
            Self::Refused(refused) => refused.verdict(),
        }
    }
}

impl ConnectError {
    fn verdict(&self) -> Verdict {
        match self {
            Self::Forked(_) => FORKED,
            Self::Address(error) | Self::System(error) => of_io(error),
            Self::TimedOut => (ErrorKind::TimedOut, Errno::ETIMEDOUT),
            Self::Ended(refused) | Self::Refused(refused) => refused.verdict(),
        }
    }
}

impl AcceptError {
    fn verdict(&self) -> Verdict {
        match self {
            Self::Forked(_) => FORKED,
            Self::WouldBlock => WOULD_BLOCK,
            Self::TimedOut => TIMED_OUT,
            Self::System(error) => of_io(error),
            Self::Refused(refused) => refused.verdict(),
        }
    }
}

impl RecvError {
    fn verdict(&self) -> Verdict {
        match self {
            Self::Forked(_) => FORKED,
            Self::WouldBlock => WOULD_BLOCK,
            Self::TimedOut { .. } => TIMED_OUT,
            Self::Misplaced { .. } => (ErrorKind::Misplaced, Errno::EFAULT),
            Self::Lost { .. } => (ErrorKind::DataLost, Errno::EPROTO),
            Self::Release(error) => error.verdict(),
            Self::Refused(refused) => refused.verdict(),
        }
    }
}

impl SendError {
    fn verdict(&self) -> Verdict {
        match self {
            Self::Forked(_) => FORKED,
            Self::WouldBlock => WOULD_BLOCK,
            Self::TimedOut => TIMED_OUT,
            Self::OtherNetdev { .. } => (ErrorKind::InvalidInput, Errno::ENODEV),
            Self::Refused(refused) => refused.verdict(),
        }
    }
}

impl CompletionError {
    fn verdict(&self) -> Verdict {
        match self {
            Self::Forked(_) => FORKED,
            Self::WouldBlock => WOULD_BLOCK,
            Self::TimedOut => TIMED_OUT,
            Self::Refused(refused) => refused.verdict(),
        }
    }
}

impl ReleaseError {
    fn verdict(&self) -> Verdict {
        match self {
            Self::Forked(_) => FORKED,
            Self::Missing { .. } => INVALID,
            Self::Refused(refused) => refused.verdict(),
        }
    }
}

impl DeviceMemoryError {
    fn verdict(&self) -> Verdict {
        match self {
            Self::Refused(refused) => refused.verdict(),
            Self::NotADmabuf(_) => INVALID,
            Self::Map(error) => of_memory(error),
            #[cfg(any(feature = "cuda", feature = "hip"))]
            Self::Gpu(error) => super::device::of_gpu(error),
            #[cfg(feature = "vulkan")]
            Self::Vulkan(error) => super::device::of_vulkan(error),
        }
    }
}

fn of_memory(error: &DmabufError) -> Verdict {
    match error {
        DmabufError::NoRoom(_)
        | DmabufError::Map { .. }
        | DmabufError::Populate { .. }
        | DmabufError::Memfd { .. } => (ErrorKind::OutOfResources, Errno::ENOMEM),
        _ => INVALID,
    }
}

fn of_export(error: &DeviceError) -> Verdict {
    match error.state {
        DeviceState::Forked => FORKED,
        DeviceState::Usable | DeviceState::Lost => (ErrorKind::Unsupported, Errno::EOPNOTSUPP),
    }
}

impl BindError {
    fn verdict(&self) -> Verdict {
        match self {
            Self::Forked(_) => FORKED,
            // The kernel's errno for a descriptor that is not a dma-buf.
            Self::Anonymous => INVALID,
            Self::Export(error) => of_export(error),
            Self::InUse(_) => (ErrorKind::InUse, Errno::EBUSY),
            Self::Refused(refused) => refused.verdict(),
        }
    }
}

impl BindTxError {
    fn verdict(&self) -> Verdict {
        match self {
            Self::Forked(_) => FORKED,
            Self::Anonymous => INVALID,
            Self::Export(error) => of_export(error),
            Self::Refused(refused) => refused.verdict(),
        }
    }
}

impl PlaceError {
    fn verdict(&self) -> Verdict {
        match self {
            Self::Forked(_) => FORKED,
            Self::Refused(refused) => refused.verdict(),
        }
    }
}

impl GatherError {
    fn verdict(&self) -> Verdict {
        match self {
            Self::Forked(_) => FORKED,
            Self::DoesNotFit { .. } | Self::Gone { .. } => INVALID,
            Self::InUse { .. } => (ErrorKind::of_errno(Errno::EBUSY), Errno::EBUSY),
            Self::Copy(netmem::CopyError::OutOfBounds(_)) => INVALID,
            Self::Copy(netmem::CopyError::Sync { errno }) => (ErrorKind::of_errno(*errno), *errno),
            Self::Copy(netmem::CopyError::Device(error)) => match error.state {
                DeviceState::Forked => FORKED,
                DeviceState::Usable | DeviceState::Lost => (ErrorKind::Other, Errno::EIO),
            },
        }
    }
}
