// UNSAFETY: the calls on files of any kind, with C's pointers as arguments.

//! read and write, which files of all kinds have.
//!
//! # Safety
//! As in `call`.
#![allow(
    clippy::missing_safety_doc,
    reason = "one sentence, at the top of `call`, holds for all"
)]

use std::ffi::{c_int, c_void};

use devmem_posix::{Posix, Waiter};
use devmem_uapi::{Errno, UIO_MAXIOV};
use libc::iovec;

use super::message::{self, Head, IoCall};

/// read(2).
pub unsafe fn read_file<W: Waiter>(
    posix: &Posix<W>,
    fd: c_int,
    buf: *mut c_void,
    len: usize,
) -> Result<usize, Errno> {
    let entry = iovec {
        iov_base: buf,
        iov_len: len,
    };
    if buf.is_null() && len > 0 {
        return Err(Errno::EFAULT);
    }
    // SAFETY: the contract at the top of `call`.
    let received = unsafe { message::recv(posix, fd, &[entry], &mut [], IoCall::File) };
    received.map(|received| received.bytes)
}

/// readv(2).
pub unsafe fn readv<W: Waiter>(
    posix: &Posix<W>,
    fd: c_int,
    iov: *const iovec,
    count: c_int,
) -> Result<usize, Errno> {
    // SAFETY: the contract at the top of `call`.
    let entries = unsafe { message::entries(iov, iov_count(count)?) }?;
    // SAFETY: as above.
    let received = unsafe { message::recv(posix, fd, &entries, &mut [], IoCall::File) };
    received.map(|received| received.bytes)
}

fn iov_count(count: c_int) -> Result<usize, Errno> {
    match usize::try_from(count) {
        Ok(count) if count <= UIO_MAXIOV => Ok(count),
        _ => Err(Errno::EINVAL),
    }
}

/// write(2).
pub unsafe fn write_file<W: Waiter>(
    posix: &Posix<W>,
    fd: c_int,
    buf: *const c_void,
    len: usize,
) -> Result<usize, Errno> {
    let entry = iovec {
        iov_base: buf.cast_mut(),
        iov_len: len,
    };
    // SAFETY: the contract at the top of `call`; the memory is only read.
    unsafe { message::send(posix, fd, &[entry], Head::default(), IoCall::File) }
}

/// writev(2).
pub unsafe fn writev<W: Waiter>(
    posix: &Posix<W>,
    fd: c_int,
    iov: *const iovec,
    count: c_int,
) -> Result<usize, Errno> {
    // SAFETY: the contract at the top of `call`.
    let entries = unsafe { message::entries(iov, iov_count(count)?) }?;
    // SAFETY: as above.
    unsafe { message::send(posix, fd, &entries, Head::default(), IoCall::File) }
}
