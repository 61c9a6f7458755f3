//! The process that a NIC belongs to. A child of fork(2) has copies of all handles, but must not use them.
//!
//! The child has none of its parent's threads: the thread that polls a stack does not exist there, and a lock that another
//! thread held at the fork stays locked forever. So every call checks the process before it takes a lock, and a handle that
//! is dropped in a child undoes nothing.

use netmem::Process;

use crate::error::Forked;

/// The process in which something was made.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Home {
    process: Process,
    /// For messages.
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

    /// Fails in any other process, that is, in a child of fork(2).
    #[inline]
    pub(crate) fn check(self) -> Result<(), Forked> {
        if self.process.is_current() {
            Ok(())
        } else {
            Err(Forked { owner: self.pid })
        }
    }

    /// Returns whether the caller runs in that process.
    pub(crate) fn is_here(self) -> bool {
        self.process.is_current()
    }
}
