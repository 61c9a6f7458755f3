//! Probes of what works on this machine, with the reasons for what does not: for `devmem-tcp doctor`, for the choice of a
//! fallback, and for tests that print why they are skipped.

use std::fmt;

use rustix::fs::{FallocateFlags, MemfdFlags, fallocate, memfd_create};
use rustix::io::Errno;

use crate::netns::{self, user_namespace_limit};
use crate::sys::child::{Task, in_child};
use crate::sys::namespace::IdMaps;
use crate::tap::open_tun;

/// Result of a probe.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It works; it was tried.
    Works,
    /// It does not work.
    Missing {
        /// The reason, in one line.
        reason: String,
        /// The remedy, if there is one.
        remedy: Option<&'static str>,
    },
}

impl Verdict {
    /// Returns whether it works.
    pub fn works(&self) -> bool {
        *self == Self::Works
    }

    /// Returns the reason why it does not work.
    pub fn reason(&self) -> Option<&str> {
        match self {
            Self::Works => None,
            Self::Missing { reason, .. } => Some(reason),
        }
    }

    fn missing(reason: impl Into<String>, remedy: Option<&'static str>) -> Self {
        Self::Missing {
            reason: reason.into(),
            remedy,
        }
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Works => f.write_str("works"),
            Self::Missing {
                reason,
                remedy: None,
            } => f.write_str(reason),
            Self::Missing {
                reason,
                remedy: Some(remedy),
            } => write!(f, "{reason}; {remedy}"),
        }
    }
}

/// What works for this user on this machine. Everything is tried, nothing is guessed from versions, and every attempt is
/// undone.
#[derive(Clone, Debug)]
pub struct Probe {
    /// /dev/net/tun can be opened.
    pub tun: Verdict,
    /// A new network namespace can be entered, if needed inside a new user namespace.
    pub network_namespace: Verdict,
    /// A TAP can be created in such a namespace, as `demo` and the TAP tests need.
    pub tap_in_namespace: Verdict,
    /// A user namespace can be created (needed only by users who may not create a network namespace).
    pub user_namespace: Verdict,
    /// A memfd of huge pages can be allocated.
    pub huge_memfd: Verdict,
}

impl Probe {
    /// Tries everything.
    pub fn run() -> Self {
        Self {
            tun: tun(),
            network_namespace: network_namespace(),
            tap_in_namespace: tap_in_namespace(),
            user_namespace: user_namespace(),
            huge_memfd: huge_memfd(),
        }
    }
}

/// Tries to open the TUN device.
pub fn tun() -> Verdict {
    match open_tun() {
        Ok(_) => Verdict::Works,
        Err(error) => Verdict::missing(error.to_string(), error.remedy()),
    }
}

/// Tries to enter a network namespace, in a child process.
pub fn network_namespace() -> Verdict {
    namespace_verdict(in_child(&Task::EnterNamespace(IdMaps::of_caller())))
}

/// Tries to enter a user namespace with a network namespace, in a child process.
pub fn user_namespace() -> Verdict {
    namespace_verdict(in_child(&Task::EnterUserNamespace(IdMaps::of_caller())))
}

/// Tries to create a TAP in a new network namespace, in a child process.
pub fn tap_in_namespace() -> Verdict {
    let tun = tun();
    if !tun.works() {
        return tun;
    }
    let namespace = network_namespace();
    if !namespace.works() {
        return namespace;
    }
    let tried = in_child(&Task::MakeTap(IdMaps::of_caller()));
    match tried {
        Ok(()) => Verdict::Works,
        Err(errno) => Verdict::missing(
            format!("no TAP can be created in a new network namespace: {errno}"),
            Some("run as root"),
        ),
    }
}

/// Tries to allocate one huge page through a memfd.
pub fn huge_memfd() -> Verdict {
    /// Size in bytes of the common huge page on x86-64, and on arm64 with 4 KiB pages.
    const HUGE_PAGE: u64 = 2 << 20;
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::HUGETLB | MemfdFlags::HUGE_2MB;
    let tried = memfd_create(c"devmem-tcp-probe", flags)
        .and_then(|fd| fallocate(&fd, FallocateFlags::empty(), 0, HUGE_PAGE));
    match tried {
        Ok(()) => Verdict::Works,
        Err(Errno::NOSPC | Errno::NOMEM) => Verdict::missing(
            "no huge pages are reserved for hugetlb",
            Some("reserve huge pages: sysctl vm.nr_hugepages=512"),
        ),
        Err(errno) => Verdict::missing(format!("no hugetlb memfd on this kernel: {errno}"), None),
    }
}

fn namespace_verdict(tried: Result<(), Errno>) -> Verdict {
    let Err(errno) = tried else {
        return Verdict::Works;
    };
    let uid = rustix::process::geteuid().as_raw();
    let error = netns::NetnsError::Forbidden { uid, errno };
    let reason = match user_namespace_limit() {
        Some(0) => format!("{error} (user.max_user_namespaces is 0)"),
        _ => error.to_string(),
    };
    Verdict::missing(reason, error.remedy())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_probe_does_not_move_the_caller_to_another_namespace() {
        let namespace = |kind| std::fs::read_link(format!("/proc/self/ns/{kind}")).unwrap();
        let before = (namespace("net"), namespace("user"));
        let probe = Probe::run();
        assert_eq!((namespace("net"), namespace("user")), before);
        for verdict in [
            &probe.tun,
            &probe.network_namespace,
            &probe.tap_in_namespace,
            &probe.user_namespace,
            &probe.huge_memfd,
        ] {
            assert!(!verdict.to_string().is_empty());
            assert_eq!(verdict.works(), verdict.reason().is_none());
        }
        // A TAP requires both of the others.
        if probe.tap_in_namespace.works() {
            assert!(
                probe.tun.works() && probe.network_namespace.works(),
                "{probe:?}"
            );
        }
    }

    #[test]
    fn a_probe_returns_the_errno_of_its_child() {
        for result in [Err(Errno::NOSPC), Ok(())] {
            assert_eq!(in_child(&Task::Return(result)), result);
        }
    }
}
