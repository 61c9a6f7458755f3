// UNSAFETY: the calls on files of any kind, with C's pointers as arguments.

//! read and write, which sockets and pipes share, pipe and splice.
//!
//! # Safety
//! As in `call`.
#![allow(
    clippy::missing_safety_doc,
    reason = "one sentence, at the top of `call`, holds for all"
)]

use std::ffi::{c_int, c_uint, c_void};

use devmem_posix::{Posix, SpliceArgs, Waiter};
use devmem_uapi::{Errno, UIO_MAXIOV};
use libc::{iovec, loff_t};

use super::memory::write;
use super::message::{self, By, MAX_RW_COUNT};

/// read(2).
pub unsafe fn read_file<W: Waiter>(
    posix: &Posix<W>,
    fd: c_int,
    (buf, len): (*mut c_void, usize),
) -> Result<usize, Errno> {
    let entry = iovec {
        iov_base: buf,
        iov_len: len,
    };
    if buf.is_null() && len > 0 {
        return Err(Errno::EFAULT);
    }
    // SAFETY: the word at the top of `call`.
    let received = unsafe { message::recv(posix, fd, &[entry], &mut [], By::File) };
    received.map(|received| received.bytes)
}

/// readv(2).
pub unsafe fn readv<W: Waiter>(
    posix: &Posix<W>,
    fd: c_int,
    iov: *const iovec,
    count: c_int,
) -> Result<usize, Errno> {
    // SAFETY: the word at the top of `call`.
    let entries = unsafe { message::entries(iov, iov_count(count)?) }?;
    // SAFETY: as above.
    let received = unsafe { message::recv(posix, fd, &entries, &mut [], By::File) };
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
    (buf, len): (*const c_void, usize),
) -> Result<usize, Errno> {
    let entry = iovec {
        iov_base: buf.cast_mut(),
        iov_len: len,
    };
    // SAFETY: the word at the top of `call`; the memory is only read.
    unsafe { message::send(posix, fd, &[entry], &[], By::File) }
}

/// writev(2).
pub unsafe fn writev<W: Waiter>(
    posix: &Posix<W>,
    fd: c_int,
    iov: *const iovec,
    count: c_int,
) -> Result<usize, Errno> {
    // SAFETY: the word at the top of `call`.
    let entries = unsafe { message::entries(iov, iov_count(count)?) }?;
    // SAFETY: as above.
    unsafe { message::send(posix, fd, &entries, &[], By::File) }
}

/// pipe2(2).
pub unsafe fn pipe<W: Waiter>(
    posix: &Posix<W>,
    fds: *mut c_int,
    flags: c_int,
) -> Result<(), Errno> {
    let (reader, writer) = posix.call(|table| table.pipe(flags))?;
    // SAFETY: the word at the top of `call`; two numbers can be written there.
    let written = unsafe { write(fds.cast::<[c_int; 2]>(), [reader, writer]) };
    if written.is_err() {
        let _ = (posix.close(reader), posix.close(writer));
    }
    written
}

/// splice(2). Of offsets only the presence counts: what they point to is not looked at.
pub fn splice<W: Waiter>(
    posix: &Posix<W>,
    (from, from_at): (c_int, *mut loff_t),
    (to, to_at): (c_int, *mut loff_t),
    len: usize,
    flags: c_uint,
) -> Result<c_int, Errno> {
    let moved = posix.splice(SpliceArgs {
        from,
        to,
        has_offset: (!from_at.is_null(), !to_at.is_null()),
        len: len.min(MAX_RW_COUNT),
        flags,
    })?;
    Ok(c_int::try_from(moved).unwrap_or(c_int::MAX))
}
