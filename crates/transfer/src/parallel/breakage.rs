//! Why a connection broke.

use std::fmt;
use std::io;

use devmem_tcp::{Error, RecvError, Remedy};

/// Why a connection broke, or could not be made: another one may do better.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Breakage {
    reason: String,
    remedy: Option<Remedy>,
}

impl Breakage {
    pub(crate) fn new(reason: String, remedy: Option<Remedy>) -> Self {
        Self { reason, remedy }
    }

    /// The NIC has ended the connection.
    pub(crate) fn of(error: &Error) -> Self {
        Self::new(error.reason().to_owned(), error.remedy())
    }

    /// A call of [`std::io`] on the stream failed.
    pub(crate) fn of_io(error: io::Error) -> Self {
        Self::of(&error.into())
    }

    /// Puts what was tried before the reason.
    pub(crate) fn during(self, what: impl fmt::Display) -> Self {
        Self::new(format!("{what}: {}", self.reason), self.remedy)
    }

    /// Returns the reason, in one line.
    pub fn reason(&self) -> &str {
        &self.reason
    }

    /// Returns what to do about it, if more is known than what a load or store says itself.
    pub fn remedy(&self) -> Option<&Remedy> {
        self.remedy.as_ref()
    }
}

impl From<String> for Breakage {
    fn from(reason: String) -> Self {
        Self::new(reason, None)
    }
}

impl From<&str> for Breakage {
    fn from(reason: &str) -> Self {
        reason.to_owned().into()
    }
}

impl From<RecvError> for Breakage {
    fn from(error: RecvError) -> Self {
        Self::of(&error.into())
    }
}

impl fmt::Display for Breakage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.reason)
    }
}

/// Writes the reason of an error, then the remedy on lines below.
pub(crate) fn write_error(
    f: &mut fmt::Formatter<'_>,
    reason: &str,
    remedy: Option<Remedy>,
) -> fmt::Result {
    f.write_str(reason)?;
    let remedy = remedy.map(|remedy| remedy.to_string());
    let lines = remedy.iter().flat_map(|remedy| remedy.lines());
    lines
        .into_iter()
        .try_for_each(|line| write!(f, "\n  {line}"))
}
