//! Why nothing was received.

use std::error::Error as StdError;
use std::fmt;
use std::io;

use devmem_uapi::Errno;

use super::{
    Error, ErrorKind, Forked, HeldMemory, Misplacement, NotReady, Remedy, into_io, misplacement,
    write_both,
};

/// Why nothing was received.
#[non_exhaustive]
pub enum RecvError {
    /// No data is queued, and the stream is non-blocking.
    WouldBlock,
    /// No data arrived within the timeout.
    TimedOut {
        /// Who holds the memory that the connection receives into, if little of it is free: then the peer may not send more.
        held: Option<Box<HeldMemory>>,
    },
    /// Under [`Placement::Strict`](crate::Placement::Strict): the next bytes are in host memory. They are still
    /// queued.
    Misplaced {
        /// Length in bytes of the first contiguous piece of them.
        bytes: usize,
        /// The cause, found from the kernel's settings; always `None` with the user-space stack.
        cause: Option<Box<Misplacement>>,
    },
    /// The connection has ended, or the call was refused. With the kind [`DataLost`](ErrorKind::DataLost) some bytes are lost, and
    /// the connection is unusable.
    Failed(Error),
}

impl RecvError {
    /// Returns the kind, for programs.
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::WouldBlock => ErrorKind::WouldBlock,
            Self::TimedOut { .. } => ErrorKind::TimedOut,
            Self::Misplaced { .. } => ErrorKind::Misplaced,
            Self::Failed(error) => error.kind(),
        }
    }

    /// Returns the errno that the kernel's call returns for it; EAGAIN for a timeout, too, as for a socket with SO_RCVTIMEO.
    pub fn errno(&self) -> Errno {
        match self {
            Self::WouldBlock | Self::TimedOut { .. } => Errno::EAGAIN,
            Self::Misplaced { .. } => Errno::EFAULT,
            Self::Failed(error) => error.errno(),
        }
    }

    /// Returns the reason.
    pub fn reason(&self) -> String {
        match self {
            Self::WouldBlock => "no data to receive yet".to_owned(),
            Self::TimedOut { held: None } => "no data arrived within the timeout".to_owned(),
            Self::TimedOut { held: Some(held) } => {
                format!("no data arrived within the timeout: {held}")
            }
            Self::Misplaced { bytes, cause } => misplacement::reason(*bytes, cause.as_deref()),
            Self::Failed(error) => error.reason().to_owned(),
        }
    }

    /// Returns the remedy: what to change or type next.
    pub fn remedy(&self) -> Option<Remedy> {
        match self {
            Self::WouldBlock | Self::TimedOut { held: None } => None,
            Self::TimedOut { held: Some(_) } => Some(Remedy::ReleaseOrBindMore),
            Self::Misplaced { cause, .. } => Some(misplacement::remedy(cause.as_deref())),
            Self::Failed(error) => error.remedy(),
        }
    }
}

impl fmt::Display for RecvError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.reason())
    }
}

/// As of [`Error`]: reason and remedy, and with `{:#?}` the fields.
impl fmt::Debug for RecvError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            error if !f.alternate() => write_both(f, &error.reason(), error.remedy().as_ref()),
            Self::WouldBlock => f.write_str("WouldBlock"),
            Self::TimedOut { held } => f.debug_struct("TimedOut").field("held", held).finish(),
            Self::Misplaced { bytes, cause } => f
                .debug_struct("Misplaced")
                .field("bytes", bytes)
                .field("cause", cause)
                .finish(),
            Self::Failed(error) => f.debug_tuple("Failed").field(error).finish(),
        }
    }
}

impl StdError for RecvError {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        match self {
            Self::Failed(error) => error.source(),
            Self::WouldBlock | Self::TimedOut { .. } | Self::Misplaced { .. } => None,
        }
    }
}

/// Keeps the error as the inner error, except for "would block", which is only a kind.
impl From<RecvError> for io::Error {
    fn from(error: RecvError) -> Self {
        into_io(error.kind(), error)
    }
}

impl From<RecvError> for Error {
    fn from(error: RecvError) -> Self {
        match error {
            RecvError::Failed(error) => error,
            error => {
                let told = Self::new(error.kind(), error.errno(), error.reason());
                told.with_remedy_if(error.remedy())
            }
        }
    }
}

impl From<Error> for RecvError {
    fn from(error: Error) -> Self {
        Self::Failed(error)
    }
}

impl From<Forked> for RecvError {
    fn from(forked: Forked) -> Self {
        Self::Failed(forked.into())
    }
}

/// A timeout without its cause, which the socket finds.
#[doc(hidden)]
impl From<NotReady> for RecvError {
    fn from(reason: NotReady) -> Self {
        match reason {
            NotReady::WouldBlock => Self::WouldBlock,
            NotReady::TimedOut => Self::TimedOut { held: None },
        }
    }
}

#[doc(hidden)]
impl From<stack::RecvError> for RecvError {
    fn from(error: stack::RecvError) -> Self {
        Self::Failed(error.into())
    }
}
