//! Returning frags: `SO_DEVMEM_DONTNEED`.

use std::fmt;
use std::os::fd::BorrowedFd;

use devmem_uapi::{Errno, FragToken, Freed, TokenRanges};

use crate::errors::{Cause, Facts, Operation, cause};
use crate::sys;

/// Tokens to return to a socket of the kernel, merged into ranges. Can be reused for any number of calls.
#[derive(Debug, Default)]
pub struct FragReturns(TokenRanges);

/// Why frags could not be returned. The remaining ones are kept, so that the call can be repeated.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DontneedError {
    /// The errno of setsockopt.
    pub errno: Errno,
    /// The cause.
    pub cause: Box<Cause>,
    /// Counts of the frags returned before the error.
    pub freed: Freed,
}

impl fmt::Display for DontneedError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "return frags: {}: {}", self.errno, self.cause)
    }
}

impl std::error::Error for DontneedError {}

impl FragReturns {
    /// Returns an empty list.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a frag. Frags added in the order of receiving are merged at once.
    #[inline]
    pub fn push(&mut self, token: FragToken) {
        self.0.push(token);
    }

    /// Returns whether there is nothing to return.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns all frags to `socket`, which lent them, as [`TokenRanges::flush`] does. Returns the counts.
    ///
    /// # Errors
    ///
    /// The errno of setsockopt; the remaining frags stay in the list.
    #[inline]
    pub fn flush(&mut self, socket: BorrowedFd<'_>) -> Result<Freed, DontneedError> {
        let flushed = self.0.flush(|call| sys::message::dontneed(socket, call));
        flushed.map_err(|(freed, errno)| DontneedError {
            errno,
            cause: Box::new(cause(Operation::Dontneed, errno, &Facts::default())),
            freed,
        })
    }
}
