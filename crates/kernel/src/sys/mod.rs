// UNSAFETY: this folder holds every system call of this crate that has no safe wrapper elsewhere:
// ioctls, socket messages and options, and forked children that enter namespaces.

//! The only unsafe code of this crate: system calls that no safe wrapper covers.

#![allow(
    unsafe_code,
    reason = "the crate's island: see the header of each file"
)]

use rustix::io::Errno;

pub(crate) mod child;
pub(crate) mod dmabuf;
pub(crate) mod ethtool;
pub(crate) mod message;
pub(crate) mod namespace;
pub(crate) mod netlink;
pub(crate) mod tun;

fn last_errno() -> Errno {
    Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO)
}
