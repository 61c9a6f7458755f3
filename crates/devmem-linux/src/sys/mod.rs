// UNSAFETY: this folder holds every system call of this crate that has no safe wrapper elsewhere:
// the TUN ioctls, one netlink socket option, and forked children that enter namespaces.

//! The only unsafe code of this crate: system calls that no safe wrapper covers.

pub(crate) mod child;
pub(crate) mod namespace;
pub(crate) mod netlink;
pub(crate) mod tun;
