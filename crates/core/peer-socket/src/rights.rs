//! SO_PASSRIGHTS: whether a UNIX socket takes descriptors.
//!
// UNSAFETY: setsockopt(2) has a pointer as an argument, and rustix has no function for this option.
#![allow(unsafe_code)]

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

/// linux include/uapi/asm-generic/socket.h, since 6.16; sparc has numbers of its own.
const SO_PASSRIGHTS: libc::c_int = match cfg!(any(target_arch = "sparc", target_arch = "sparc64")) {
    true => 0x5c,
    false => 83,
};

/// Lets a socket take descriptors, or refuse them: then a peer's sendmsg(2) with descriptors fails with `EPERM`. A listener's
/// setting is that of the connections that are made to it from then on.
///
/// # Errors
/// `ENOPROTOOPT` before Linux 6.16.
pub(crate) fn set_pass_rights(socket: BorrowedFd<'_>, passes: bool) -> io::Result<()> {
    let value = libc::c_int::from(passes);
    // SAFETY: the kernel reads 4 bytes at `value`, which outlives the call.
    let rc = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            SO_PASSRIGHTS,
            (&raw const value).cast(),
            size_of::<libc::c_int>() as libc::socklen_t,
        )
    };
    match rc {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}
