// UNSAFETY: this folder contains all system calls of this crate without a safe wrapper in another crate: ioctls, socket
// messages and options, CPU times of other processes, and forked children that enter namespaces.

//! The only unsafe code of this crate: system calls without a safe wrapper in another crate.

#![allow(
    unsafe_code,
    reason = "the crate's island: see the header of each file"
)]

use rustix::io::Errno;

pub(crate) mod child;
pub(crate) mod cpu_time;
pub(crate) mod dmabuf;
pub(crate) mod ethtool;
pub(crate) mod message;
pub(crate) mod namespace;
pub(crate) mod netlink;
pub(crate) mod packet;
pub(crate) mod tun;

fn last_errno() -> Errno {
    Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO)
}
