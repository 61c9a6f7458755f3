// UNSAFETY: the socket options with C's pointers as arguments.

//! The calls that read and set socket options; part of `call.rs`.
//!
//! # Safety
//! As there.
#![allow(
    clippy::missing_safety_doc,
    reason = "one sentence, at the top of the file, holds for all"
)]

use std::ffi::{c_int, c_void};

use devmem_posix::abi::so;
use devmem_posix::{Posix, Waiter};
use devmem_uapi::Errno;
use devmem_uapi::sockopt::SOL_SOCKET;
use libc::socklen_t;

use super::memory::{read, slice, slice_mut, write};

/// getsockopt(2).
pub unsafe fn getsockopt<W: Waiter>(
    posix: &Posix<W>,
    fd: c_int,
    level: c_int,
    name: c_int,
    value: *mut c_void,
    len: *mut socklen_t,
) -> Result<(), Errno> {
    // SAFETY: the contract at the top of `call`.
    let room = unsafe { read(len) }?;
    let room = c_int::try_from(room).map_err(|_| Errno::EINVAL)?;
    let bytes = posix.call(|table| table.getsockopt(fd, (level, name)))?;
    // Linux `sk_getsockopt`: half of a cookie is none.
    if (level, name) == (SOL_SOCKET, so::COOKIE)
        && usize::try_from(room).is_ok_and(|room| room < bytes.len())
    {
        return Err(Errno::EINVAL);
    }
    let n = bytes.len().min(usize::try_from(room).unwrap_or(0));
    // SAFETY: as above; no more than the length that was given.
    let out = unsafe { slice_mut(value, n) }?;
    out.copy_from_slice(bytes.get(..n).unwrap_or_default());
    // SAFETY: as above.
    unsafe { write(len, socklen_t::try_from(n).unwrap_or(0)) }
}

/// setsockopt(2).
pub unsafe fn setsockopt<W: Waiter>(
    posix: &Posix<W>,
    fd: c_int,
    level: c_int,
    name: c_int,
    value: *const c_void,
    len: socklen_t,
) -> Result<c_int, Errno> {
    let len = c_int::try_from(len).map_err(|_| Errno::EINVAL)?;
    // SAFETY: the contract at the top of `call`.
    let value = unsafe { slice(value, usize::try_from(len).unwrap_or(0)) }?;
    posix.call(|table| table.setsockopt(fd, (level, name), value))
}
