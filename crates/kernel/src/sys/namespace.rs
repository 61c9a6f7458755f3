// UNSAFETY: unshare(2) is unsafe in rustix because of CLONE_FILES, which this file never passes. `IdMaps` is here because
// a forked child calls its methods, which may make only system calls.

//! unshare(2) for user and network namespaces.

use rustix::fs::{Mode, OFlags, open};
use rustix::io::Errno;
use rustix::thread::{UnshareFlags, unshare_unsafe};

/// Moves the calling thread into a new network namespace.
pub(crate) fn unshare_network() -> Result<(), Errno> {
    // SAFETY: CLONE_NEWNET does not affect the sharing of the file table, memory and credentials.
    unsafe { unshare_unsafe(UnshareFlags::NEWNET) }
}

/// Moves the process into a new user namespace and a new network namespace that belongs to it. The
/// kernel refuses (`EINVAL`) unless the process has one thread.
pub(crate) fn unshare_user_and_network() -> Result<(), Errno> {
    // SAFETY: neither flag affects the file table; the kernel refuses CLONE_NEWUSER for a process with several threads,
    // so all threads of the process keep the same credentials.
    unsafe { unshare_unsafe(UnshareFlags::NEWUSER | UnshareFlags::NEWNET) }
}

/// The id maps that make the caller root of a new user namespace. Created before a fork: its methods make only system
/// calls (see `child`).
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

    /// Moves the calling thread into a new network namespace, inside a new user namespace if the caller lacks the privilege.
    pub(crate) fn enter(&self) -> Result<(), Errno> {
        match unshare_network() {
            Ok(()) => Ok(()),
            Err(_) => self.enter_as_user(),
        }
    }

    /// Enters a new user namespace and a new network namespace.
    pub(crate) fn enter_as_user(&self) -> Result<(), Errno> {
        unshare_user_and_network()?;
        self.write().map_err(|(_, errno)| errno)
    }

    /// Writes the maps of the calling process's user namespace. The kernel accepts an unprivileged
    /// gid_map only after setgroups was denied (user_namespaces(7)).
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
