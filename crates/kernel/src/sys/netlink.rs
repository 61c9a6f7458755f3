// UNSAFETY: rustix has no setter for the options of level SOL_NETLINK.

//! Netlink socket options.

use std::ffi::c_int;
use std::os::fd::{AsRawFd, BorrowedFd};

use rustix::io::Errno;

/// Requests error messages in acknowledgements (`NETLINK_EXT_ACK`), acknowledgements without the request's body
/// (`NETLINK_CAP_ACK`), and a refusal of attributes that the kernel would otherwise ignore
/// (`NETLINK_GET_STRICT_CHK`); linux include/uapi/linux/netlink.h.
pub(crate) fn set_options(fd: BorrowedFd<'_>) -> Result<(), Errno> {
    set_option(fd, libc::NETLINK_EXT_ACK)?;
    set_option(fd, libc::NETLINK_CAP_ACK)?;
    match set_option(fd, libc::NETLINK_GET_STRICT_CHK) {
        // Linux before 4.20; nothing here depends on the option.
        Err(Errno::NOPROTOOPT) => Ok(()),
        other => other,
    }
}

fn set_option(fd: BorrowedFd<'_>, option: c_int) -> Result<(), Errno> {
    const LEN: libc::socklen_t = size_of::<c_int>() as libc::socklen_t;
    let one: c_int = 1;
    // SAFETY: 1. `fd` is open for the call (borrowed); 2. the kernel reads LEN bytes at the pointer,
    // which is exactly the int `one`, alive until after the call.
    let rc = unsafe {
        libc::setsockopt(
            fd.as_raw_fd(),
            libc::SOL_NETLINK,
            option,
            (&raw const one).cast(),
            LEN,
        )
    };
    if rc == 0 {
        Ok(())
    } else {
        Err(super::last_errno())
    }
}
