//! Which process a NIC belongs to: a child by fork(2) has a copy of every handle, and no part in what it names.
//!
//! The child has none of its parent's threads: the one that drives a stack is not there, and a lock that another held at
//! the fork is held for ever. So a NIC is asked where it belongs before any of its locks is taken, and a handle that is
//! dropped in a child undoes nothing.

use netmem::Process;

use crate::error::Forked;

/// The process in which something was made.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Home {
    process: Process,
    /// For people.
    pid: u32,
}

impl Home {
    /// This process.
    pub(crate) fn here() -> Self {
        Self {
            process: Process::current(),
            pid: std::process::id(),
        }
    }

    /// Refuses in a child of the process that it is.
    #[inline]
    pub(crate) fn check(self) -> Result<(), Forked> {
        if self.process.is_current() {
            Ok(())
        } else {
            Err(Forked { owner: self.pid })
        }
    }

    /// Whether this is that process.
    pub(crate) fn is_here(self) -> bool {
        self.process.is_current()
    }
}
