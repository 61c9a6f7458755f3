//! Scatter reads and gather writes between a file and mapped memory.
//!
// UNSAFETY: readv(2), recvmsg(2) and writev(2) have pointers as arguments. rustix and std offer these calls for slices only, and
// there can be no slice of mapped memory.
#![allow(unsafe_code)]

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use smallvec::SmallVec;

use crate::Span;

/// Maximum number of buffers of one readv or writev, after adjacent ones were merged. For a write: a header, and a
/// super-packet of 512 KiB in pieces of 6 KiB or more. For a read: a 64 KiB packet in separate 4 KiB net_iovs needs 17, a
/// header and a spill buffer.
pub const MAX_IOVECS: usize = 91;

/// The buffers of one readv or writev. The function that uses them keeps the memory borrowed.
#[derive(Default)]
struct IoVecs(SmallVec<[libc::iovec; MAX_IOVECS]>);

impl IoVecs {
    /// Adds `len` bytes at `base`, which extend the last buffer when they begin where it ends.
    fn push(&mut self, base: *mut u8, len: usize) -> io::Result<()> {
        let full = self.0.len() == MAX_IOVECS;
        match self.0.last_mut() {
            _ if len == 0 => {}
            Some(last) if last.iov_base.cast::<u8>().wrapping_add(last.iov_len) == base => {
                // No overflow: two adjacent ranges of memory.
                last.iov_len += len;
            }
            _ if full => return Err(io::ErrorKind::ArgumentListTooLong.into()),
            _ => self.0.push(libc::iovec {
                iov_base: base.cast(),
                iov_len: len,
            }),
        }
        Ok(())
    }

    fn push_spans<'a>(&mut self, mut spans: impl Iterator<Item = Span<'a>>) -> io::Result<()> {
        spans.try_for_each(|span| self.push(span.base(), span.bytes()))
    }
}

/// Reads once into `head`, then `spans`, then `spill`. Retries after EINTR. Returns the number of bytes.
///
/// # Errors
/// As readv(2) (`EFAULT` for a span that is mapped for reading only); `ArgumentListTooLong` for more than
/// [`MAX_IOVECS`] buffers.
pub fn readv<'a>(
    fd: BorrowedFd<'_>,
    head: &mut [u8],
    spans: impl Iterator<Item = Span<'a>>,
    spill: &mut [u8],
) -> io::Result<usize> {
    let mut io = IoVecs::default();
    io.push(head.as_mut_ptr(), head.len())?;
    io.push_spans(spans)?;
    io.push(spill.as_mut_ptr(), spill.len())?;
    let vecs = io.0.as_slice();
    // SAFETY: all entries (at most MAX_IOVECS) point to memory that may be written until this function returns: `head`
    // and `spill` are borrowed mutably; the mappings of the spans are borrowed for 'a, their ranges are inside
    // (invariant of `Span`), and no reference points into them.
    retry(|| unsafe { libc::syscall(libc::SYS_readv, fd.as_raw_fd(), vecs.as_ptr(), vecs.len()) })
}

/// Bytes of a control message with as many descriptors as one packet can have (linux include/net/scm.h `SCM_MAX_FD`). The kernel
/// would close those without room in the call, which may wait.
const CONTROL_BYTES: usize = 16 + 4 * 253 + 4;

/// Where the kernel writes control messages, aligned as these are.
#[repr(C, align(8))]
struct Control([u8; CONTROL_BYTES]);

/// As [`readv`], for a packet of a socket; never waits. Descriptors that came with it are appended to `fds`.
///
/// # Errors
/// As recvmsg(2), and as [`readv`].
pub fn receive<'a>(
    socket: BorrowedFd<'_>,
    head: &mut [u8],
    spans: impl Iterator<Item = Span<'a>>,
    spill: &mut [u8],
    fds: &mut Vec<OwnedFd>,
) -> io::Result<usize> {
    let mut io = IoVecs::default();
    io.push(head.as_mut_ptr(), head.len())?;
    io.push_spans(spans)?;
    io.push(spill.as_mut_ptr(), spill.len())?;
    let mut control = Control([0; CONTROL_BYTES]);
    // SAFETY: all fields are integers and pointers, for which zeros are values.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = io.0.as_mut_ptr();
    message.msg_iovlen = io.0.len() as _;
    message.msg_control = control.0.as_mut_ptr().cast();
    message.msg_controllen = CONTROL_BYTES as _;
    let flags = libc::MSG_DONTWAIT | libc::MSG_CMSG_CLOEXEC;
    let fd = socket.as_raw_fd();
    // SAFETY: (1) the buffers are as in `readv`; (2) `control` has as many bytes as the message says, and outlives it.
    let received = retry(|| unsafe { libc::recvmsg(fd, &raw mut message, flags) as libc::c_long })?;
    // SAFETY: the kernel has filled in `message`, whose control messages are in `control`.
    let mut next = unsafe { libc::CMSG_FIRSTHDR(&raw const message) };
    while !next.is_null() {
        // SAFETY: CMSG_FIRSTHDR and CMSG_NXTHDR return headers that are whole and aligned in `control`.
        let header = unsafe { next.read() };
        if (header.cmsg_level, header.cmsg_type) == (libc::SOL_SOCKET, libc::SCM_RIGHTS) {
            // SAFETY: the header is in `control`, see above.
            let data = unsafe { libc::CMSG_DATA(next) }.cast::<libc::c_int>();
            let bytes = (next.addr() + header.cmsg_len as usize).saturating_sub(data.addr());
            for at in 0..bytes / size_of::<libc::c_int>() {
                // SAFETY: the kernel has written as many descriptors as the length says, all inside of `control`.
                let raw = unsafe { data.add(at) };
                // SAFETY: as above; they need not be aligned.
                let raw = unsafe { raw.read_unaligned() };
                // SAFETY: the kernel has made the descriptor for this call, and nothing else knows it.
                fds.push(unsafe { OwnedFd::from_raw_fd(raw) });
            }
        }
        // SAFETY: both are as the kernel has left them.
        next = unsafe { libc::CMSG_NXTHDR(&raw const message, next) };
    }
    Ok(received)
}

/// Writes once from `head`, then `spans`. Retries after EINTR. Returns the number of bytes.
///
/// # Errors
/// As writev(2); `ArgumentListTooLong` for more than [`MAX_IOVECS`] buffers.
pub fn writev<'a>(
    fd: BorrowedFd<'_>,
    head: &[u8],
    spans: impl Iterator<Item = Span<'a>>,
) -> io::Result<usize> {
    let mut io = IoVecs::default();
    io.push(head.as_ptr().cast_mut(), head.len())?;
    io.push_spans(spans)?;
    let vecs = io.0.as_slice();
    // SAFETY: all entries (at most MAX_IOVECS) point to memory that may be read until this function returns, as in
    // `readv`; writev writes to none of it.
    retry(|| unsafe { libc::syscall(libc::SYS_writev, fd.as_raw_fd(), vecs.as_ptr(), vecs.len()) })
}

/// Repeats a system call while it is interrupted. The calls do not use libc's functions, which do extra work for thread
/// cancellation before and after each call.
fn retry(mut call: impl FnMut() -> libc::c_long) -> io::Result<usize> {
    loop {
        if let Ok(done) = usize::try_from(call()) {
            return Ok(done);
        }
        let error = io::Error::last_os_error();
        if error.kind() != io::ErrorKind::Interrupted {
            return Err(error);
        }
    }
}

#[cfg(test)]
mod tests;
