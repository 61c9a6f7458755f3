//! Why memory could not be bound for receiving.

use std::error::Error as StdError;
use std::fmt;
use std::io;

use devmem_uapi::Errno;
use netmem::InUse;

use super::{Error, ErrorKind, Forked, Remedy, into_io, write_both};

/// Why memory could not be bound for receiving.
#[non_exhaustive]
pub enum BindError {
    /// The memory is bound for receiving already, or some of it is still lent from an earlier binding. The library refuses
    /// this with both backends, because the second binding would receive into memory that the first has lent. Linux itself
    /// allows it.
    InUse(InUse),
    /// The NIC refused.
    Failed(Error),
}

impl BindError {
    /// Returns the kind, for programs.
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::InUse(_) => ErrorKind::InUse,
            Self::Failed(error) => error.kind(),
        }
    }

    /// Returns the errno that the kernel's call returns for it.
    pub fn errno(&self) -> Errno {
        match self {
            Self::InUse(_) => Errno::EBUSY,
            Self::Failed(error) => error.errno(),
        }
    }

    /// Returns the reason.
    pub fn reason(&self) -> String {
        match self {
            Self::InUse(in_use) => in_use.to_string(),
            Self::Failed(error) => error.reason().to_owned(),
        }
    }

    /// Returns the remedy: what to change or type next.
    pub fn remedy(&self) -> Option<Remedy> {
        match self {
            Self::InUse(in_use) => Some(in_use.remedy().into()),
            Self::Failed(error) => error.remedy(),
        }
    }
}

impl fmt::Display for BindError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::InUse(in_use) => fmt::Display::fmt(in_use, f),
            Self::Failed(error) => fmt::Display::fmt(error, f),
        }
    }
}

/// As of [`Error`]: reason and remedy, and with `{:#?}` the fields.
impl fmt::Debug for BindError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            error if !f.alternate() => write_both(f, &error.reason(), error.remedy().as_ref()),
            Self::InUse(in_use) => f.debug_tuple("InUse").field(in_use).finish(),
            Self::Failed(error) => f.debug_tuple("Failed").field(error).finish(),
        }
    }
}

impl StdError for BindError {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        match self {
            Self::InUse(_) => None,
            Self::Failed(error) => error.source(),
        }
    }
}

/// Keeps the error as the inner error.
impl From<BindError> for io::Error {
    fn from(error: BindError) -> Self {
        into_io(error.kind(), error)
    }
}

impl From<BindError> for Error {
    fn from(error: BindError) -> Self {
        match error {
            BindError::InUse(in_use) => {
                Self::of_errno(Errno::EBUSY, in_use.to_string()).with_remedy(in_use.remedy())
            }
            BindError::Failed(error) => error,
        }
    }
}

impl From<Error> for BindError {
    fn from(error: Error) -> Self {
        Self::Failed(error)
    }
}

impl From<Forked> for BindError {
    fn from(forked: Forked) -> Self {
        Self::Failed(forked.into())
    }
}

#[doc(hidden)]
impl From<stack::BindRxError> for BindError {
    fn from(error: stack::BindRxError) -> Self {
        match error {
            stack::BindRxError::InUse(in_use) => Self::InUse(in_use),
            error => Self::Failed(error.into()),
        }
    }
}
