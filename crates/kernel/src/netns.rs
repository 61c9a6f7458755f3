//! Network namespaces: enter a new one, as root or, inside a user namespace, as any user; join an existing one.

use std::fs;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::fs::{Mode, OFlags, open};
use rustix::io::Errno;
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use crate::netif::Interface;
use crate::netlink::NetlinkError;
use crate::sys;
use crate::sys::child::Task;
use crate::sys::namespace::IdMaps;

/// The namespaces that [`enter_new`] created.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Isolation {
    /// A network namespace; the caller had the privilege.
    Network,
    /// A user namespace, in which the caller is root, and a network namespace that it owns.
    UserAndNetwork,
}

/// Why a namespace could not be created or joined.
#[derive(Debug, thiserror::Error)]
pub enum NetnsError {
    /// A user namespace is needed, and the process has more than one thread.
    #[error("a user namespace can only be entered by a process with one thread")]
    Threads,
    /// This user may not create user namespaces on this machine.
    #[error("user {uid} may not create a user namespace on this machine: {errno}")]
    Forbidden {
        /// The user.
        uid: u32,
        /// The error of unshare(2).
        errno: Errno,
    },
    /// The user namespace was created but its user and group maps could not be written.
    #[error("write {path} of the new user namespace: {errno}")]
    Map {
        /// The file.
        path: &'static str,
        /// The error of write(2).
        errno: Errno,
    },
    /// The namespace does not exist or may not be opened.
    #[error("open network namespace {path}: {errno}")]
    Open {
        /// Its path.
        path: PathBuf,
        /// The error of open(2).
        errno: Errno,
    },
    /// setns(2) failed.
    #[error("join network namespace {path}: {errno}")]
    Join {
        /// The namespace's file.
        path: PathBuf,
        /// The error of setns(2).
        errno: Errno,
    },
    /// The loopback interface of the new namespace could not be set up.
    #[error(transparent)]
    Loopback(#[from] NetlinkError),
}

impl NetnsError {
    /// Returns whether the cause is the machine or the user's privileges.
    pub fn is_unsupported(&self) -> bool {
        match self {
            Self::Forbidden { .. } | Self::Map { .. } => true,
            Self::Join { errno, .. } => *errno == Errno::PERM,
            Self::Threads | Self::Open { .. } | Self::Loopback(_) => false,
        }
    }

    /// Returns the remedy.
    pub fn remedy(&self) -> Option<&'static str> {
        match self {
            Self::Forbidden { .. } | Self::Map { .. } => Some(
                "run as root, or allow it: sysctl user.max_user_namespaces=10000 \
                 kernel.unprivileged_userns_clone=1 kernel.apparmor_restrict_unprivileged_userns=0 \
                 (those that exist)",
            ),
            Self::Join { errno, .. } if *errno == Errno::PERM => {
                Some("run as root: joining a namespace requires CAP_SYS_ADMIN over it")
            }
            Self::Open { .. } => {
                Some("`ip netns list` lists named namespaces; a path is accepted, too")
            }
            Self::Threads | Self::Join { .. } | Self::Loopback(_) => None,
        }
    }
}

/// Moves the calling thread into a new network namespace with `lo` up. For a caller without the privilege, also creates a user
/// namespace, in which the caller is root; that changes the whole process, which must have only one thread.
///
/// # Errors
///
/// See [`NetnsError`]. After an error past `Forbidden` the caller may be left in the new namespaces.
pub fn enter_new() -> Result<Isolation, NetnsError> {
    let maps = IdMaps::of_caller();
    let isolation = match sys::namespace::unshare_network() {
        Ok(()) => Isolation::Network,
        Err(_) => {
            sys::namespace::unshare_user_and_network().map_err(|errno| match errno {
                Errno::INVAL => NetnsError::Threads,
                errno => NetnsError::Forbidden {
                    uid: maps.uid(),
                    errno,
                },
            })?;
            maps.write()
                .map_err(|(path, errno)| NetnsError::Map { path, errno })?;
            Isolation::UserAndNetwork
        }
    };
    Interface::by_name("lo")?.set_up()?;
    Ok(isolation)
}

/// Makes `command` start in a new network namespace, inside a new user namespace if the caller lacks the privilege. The
/// caller stays in its namespace and may have any number of threads. `lo` is down; the program must set it up. Errors are
/// returned by `spawn`.
pub fn start_in_new(command: &mut Command) {
    sys::child::before_exec(command, Task::EnterNamespace(IdMaps::of_caller()));
}

/// Makes `command` start in a new network namespace inside a new user namespace, in which it is root, whatever the caller's privilege:
/// as a container without rights on the machine. Otherwise as [`start_in_new`].
pub fn start_in_new_user(command: &mut Command) {
    sys::child::before_exec(command, Task::EnterUserNamespace(IdMaps::of_caller()));
}

/// An open network namespace. It exists at least as long as this value.
#[derive(Debug)]
pub struct NetNs {
    fd: OwnedFd,
    path: PathBuf,
}

impl NetNs {
    /// Opens the namespace of the calling thread.
    ///
    /// # Errors
    ///
    /// The error of open(2).
    pub fn current() -> Result<Self, NetnsError> {
        Self::at(Path::new("/proc/thread-self/ns/net"))
    }

    /// Opens a namespace: by its name under /run/netns, by a path (any text with a slash), or as `pid:N` that of a process.
    ///
    /// # Errors
    ///
    /// The error of open(2).
    pub fn open(name: &str) -> Result<Self, NetnsError> {
        match name.strip_prefix("pid:") {
            Some(pid) => Self::at(&Path::new("/proc").join(pid).join("ns/net")),
            None if name.contains('/') => Self::at(Path::new(name)),
            None => Self::at(&Path::new("/run/netns").join(name)),
        }
    }

    fn at(path: &Path) -> Result<Self, NetnsError> {
        let fd = open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).map_err(|errno| {
            NetnsError::Open {
                path: path.to_owned(),
                errno,
            }
        })?;
        Ok(Self {
            fd,
            path: path.to_owned(),
        })
    }

    /// Moves the calling thread into this namespace.
    ///
    /// # Errors
    ///
    /// `EPERM` without CAP_SYS_ADMIN over it, `EINVAL` if the file is not a network namespace.
    pub fn join(&self) -> Result<(), NetnsError> {
        move_into_link_name_space(self.fd.as_fd(), Some(LinkNameSpaceType::Network)).map_err(
            |errno| NetnsError::Join {
                path: self.path.clone(),
                errno,
            },
        )
    }

    /// Runs `work` on a new thread inside this namespace and waits for it. Sockets, TAPs and child processes created there
    /// belong to the namespace, and stay in it.
    ///
    /// # Errors
    ///
    /// As [`NetNs::join`].
    pub fn run<T: Send>(&self, work: impl FnOnce() -> T + Send) -> Result<T, NetnsError> {
        let joined = std::thread::scope(|scope| {
            scope
                .spawn(|| {
                    self.join()?;
                    Ok(work())
                })
                .join()
        });
        joined.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    }
}

impl AsFd for NetNs {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// Returns the limit on user namespaces, if the kernel has one.
pub(crate) fn user_namespace_limit() -> Option<u64> {
    fs::read_to_string("/proc/sys/user/max_user_namespaces")
        .ok()?
        .trim()
        .parse()
        .ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_namespace_names_the_file_that_was_tried() {
        let error = NetNs::open("nosuch").unwrap_err();
        assert!(
            error
                .to_string()
                .starts_with("open network namespace /run/netns/nosuch: ")
        );
        let error = NetNs::open("pid:0").unwrap_err();
        assert!(
            error
                .to_string()
                .starts_with("open network namespace /proc/0/ns/net: ")
        );
    }

    #[test]
    fn a_file_that_is_not_a_namespace_cannot_be_joined() {
        let file = NetNs::open("/proc/self/status").unwrap();
        assert!(matches!(file.join(), Err(NetnsError::Join { .. })));
    }
}
