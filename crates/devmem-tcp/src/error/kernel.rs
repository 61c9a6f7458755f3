//! Refusals of the kernel, with cause and remedy.

use std::fmt;

use devmem_linux::errors::Cause;
use devmem_uapi::Errno;
use tcp::TcpError;

/// A refusal of the kernel with its cause. `Display` prints the reason, then the remedy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KernelError {
    /// The operation and the interface: "recv on eth1".
    pub operation: String,
    /// The errno that the kernel returned.
    pub errno: Errno,
    /// The cause and the remedy.
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

/// Writes the remedy, one or more lines, below the reason.
fn write_hint(f: &mut fmt::Formatter<'_>, cause: &Cause) -> fmt::Result {
    let lines = cause.hint.as_deref().unwrap_or_default().lines();
    lines
        .into_iter()
        .try_for_each(|line| write!(f, "\n  {line}"))
}

/// An error whose `Display` adds the hint of its cause.
pub(super) struct Hinted<'a, E>(pub(super) &'a E, pub(super) &'a Cause);

impl<E: fmt::Display> fmt::Display for Hinted<'_, E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)?;
        write_hint(f, self.1)
    }
}

/// Returns how a connection ended, if `errno` means that, so that both backends use the same messages.
pub(crate) fn connection_error(errno: Errno) -> Option<TcpError> {
    Some(match errno {
        Errno::ECONNREFUSED => TcpError::Refused,
        Errno::ECONNRESET => TcpError::Reset,
        Errno::EPIPE => TcpError::BrokenPipe,
        Errno::ETIMEDOUT => TcpError::TimedOut,
        Errno::EHOSTUNREACH => TcpError::HostUnreachable,
        Errno::ENETUNREACH => TcpError::NetUnreachable,
        Errno::ECONNABORTED => TcpError::Aborted,
        _ => return None,
    })
}
