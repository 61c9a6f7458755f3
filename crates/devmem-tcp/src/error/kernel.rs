//! What the kernel refused, in its words and ours.

use std::fmt;

use devmem_linux::errors::Cause;
use devmem_uapi::Errno;
use tcp::TcpError;

/// What the kernel refused, and what that means here. `Display` is the reason, then what mends it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KernelError {
    /// What was tried, and where: "recv on eth1".
    pub operation: String,
    /// What the kernel returned.
    pub errno: Errno,
    /// Why, and what to do.
    pub cause: Box<Cause>,
}

impl fmt::Display for KernelError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            operation,
            errno,
            cause,
        } = self;
        write!(f, "{operation}: {errno}: {cause}")?;
        write_hint(f, cause)
    }
}

impl std::error::Error for KernelError {}

/// What to do, a line or several, below the reason.
fn write_hint(f: &mut fmt::Formatter<'_>, cause: &Cause) -> fmt::Result {
    let lines = cause.hint.as_deref().unwrap_or_default().lines();
    lines
        .into_iter()
        .try_for_each(|line| write!(f, "\n  {line}"))
}

/// An error with its cause's hint below it.
pub(super) struct Hinted<'a, E>(pub(super) &'a E, pub(super) &'a Cause);

impl<E: fmt::Display> fmt::Display for Hinted<'_, E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)?;
        write_hint(f, self.1)
    }
}

/// How a connection ended, if that is what `errno` says: both backends tell it in the same words.
pub(crate) fn connection_error(errno: Errno) -> Option<TcpError> {
    Some(match errno {
        Errno::ECONNREFUSED => TcpError::Refused,
        Errno::ECONNRESET => TcpError::Reset,
        Errno::ETIMEDOUT => TcpError::TimedOut,
        Errno::EHOSTUNREACH => TcpError::HostUnreachable,
        Errno::ENETUNREACH => TcpError::NetUnreachable,
        Errno::ECONNABORTED => TcpError::Aborted,
        _ => return None,
    })
}
