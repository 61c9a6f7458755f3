// UNSAFETY: unshare(2) is unsafe in rustix because of CLONE_FILES, which this file never passes.

//! unshare(2) for user and network namespaces.

use rustix::io::Errno;
use rustix::thread::{UnshareFlags, unshare_unsafe};

/// Moves the calling thread into a fresh network namespace.
pub(crate) fn unshare_network() -> Result<(), Errno> {
    // SAFETY: CLONE_NEWNET leaves the file table, memory and credentials shared as they were.
    unsafe { unshare_unsafe(UnshareFlags::NEWNET) }
}

/// Moves the process into a fresh user namespace with a fresh network namespace that it owns. The
/// kernel refuses (`EINVAL`) unless the process has one thread.
pub(crate) fn unshare_user_and_network() -> Result<(), Errno> {
    // SAFETY: neither flag touches the file table; CLONE_NEWUSER of a process with several threads
    // is refused by the kernel, so no thread is left with other credentials than its siblings.
    unsafe { unshare_unsafe(UnshareFlags::NEWUSER | UnshareFlags::NEWNET) }
}
