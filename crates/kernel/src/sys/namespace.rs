// UNSAFETY: unshare(2) is unsafe in rustix because of CLONE_FILES, which this file never passes. `IdMaps` is here because
// a forked child runs its methods: they make system calls and nothing else.

//! unshare(2) for user and network namespaces.

use rustix::fs::{Mode, OFlags, open};
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

/// The identity of the caller, to become root of a user namespace with. Made before a fork: its methods make system
/// calls only (see `child`).
#[derive(Debug)]
pub(crate) struct IdMaps {
    uid: u32,
    uid_map: String,
    gid_map: String,
}

impl IdMaps {
    pub(crate) fn of_caller() -> Self {
        let uid = rustix::process::geteuid().as_raw();
        let gid = rustix::process::getegid().as_raw();
        Self {
            uid,
            uid_map: format!("0 {uid} 1"),
            gid_map: format!("0 {gid} 1"),
        }
    }

    /// Returns the caller's user.
    pub(crate) fn uid(&self) -> u32 {
        self.uid
    }

    /// Moves the calling thread into a fresh network namespace, with a user namespace around it where the caller has no
    /// right to one without.
    pub(crate) fn enter(&self) -> Result<(), Errno> {
        match unshare_network() {
            Ok(()) => Ok(()),
            Err(_) => self.enter_as_user(),
        }
    }

    /// Enters a user namespace with a network namespace.
    pub(crate) fn enter_as_user(&self) -> Result<(), Errno> {
        unshare_user_and_network()?;
        self.write().map_err(|(_, errno)| errno)
    }

    /// Writes the maps of the calling process's user namespace. setgroups must be denied before an
    /// unprivileged gid_map is taken (user_namespaces(7)).
    pub(crate) fn write(&self) -> Result<(), (&'static str, Errno)> {
        let files = [
            (c"/proc/self/setgroups", "/proc/self/setgroups", "deny"),
            (
                c"/proc/self/uid_map",
                "/proc/self/uid_map",
                self.uid_map.as_str(),
            ),
            (
                c"/proc/self/gid_map",
                "/proc/self/gid_map",
                self.gid_map.as_str(),
            ),
        ];
        for (path, name, text) in files {
            let fd = open(path, OFlags::WRONLY | OFlags::CLOEXEC, Mode::empty());
            let fd = fd.map_err(|errno| (name, errno))?;
            rustix::io::write(&fd, text.as_bytes()).map_err(|errno| (name, errno))?;
        }
        Ok(())
    }
}
