//! Why something failed, and what helps.

use std::fmt;
use std::io;

use devmem_tcp::{Error, RecvError};

use crate::remedy::Remedy;

/// Why a connection broke, a server refused or a response makes no sense; and what helps, where more is known than the error around it says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cause {
    reason: String,
    remedy: Option<Remedy>,
}

impl Cause {
    /// Returns the cause with this remedy.
    pub fn with_remedy(self, remedy: impl Into<Remedy>) -> Self {
        Self {
            remedy: Some(remedy.into()),
            ..self
        }
    }

    /// An error of the library.
    pub fn of(error: &Error) -> Self {
        let remedy = error.remedy().map(Remedy::Library);
        Self::new(error.reason().to_owned(), remedy)
    }

    /// An error that says its reason and what helps.
    pub(crate) fn new(reason: String, remedy: Option<Remedy>) -> Self {
        Self { reason, remedy }
    }

    /// A call of [`std::io`] on a stream failed.
    pub fn of_io(error: io::Error) -> Self {
        Self::of(&error.into())
    }

    /// Puts what was tried, or who is meant, before the reason.
    pub fn during(self, what: impl fmt::Display) -> Self {
        Self {
            reason: format!("{what}: {}", self.reason),
            ..self
        }
    }

    /// Returns the reason, in one line.
    pub fn reason(&self) -> &str {
        &self.reason
    }

    /// Returns what helps, if more is known than what the error around it says.
    pub fn remedy(&self) -> Option<&Remedy> {
        self.remedy.as_ref()
    }

    /// Returns what helps: `other`, if nothing more is known.
    pub fn remedy_or(&self, other: impl Into<Remedy>) -> Remedy {
        self.remedy.clone().unwrap_or_else(|| other.into())
    }
}

impl From<String> for Cause {
    fn from(reason: String) -> Self {
        Self {
            reason,
            remedy: None,
        }
    }
}

impl From<&str> for Cause {
    fn from(reason: &str) -> Self {
        reason.to_owned().into()
    }
}

impl From<RecvError> for Cause {
    fn from(error: RecvError) -> Self {
        Self::of(&error.into())
    }
}

/// Writes the reason, without the remedy.
impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.reason)
    }
}
