//! Scatter reads and gather writes between a file and mapped memory.
//!
// UNSAFETY: readv(2) and writev(2) have pointers as arguments. rustix and std offer both calls for slices only, and there
// can be no slice of mapped memory.
#![allow(unsafe_code)]

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

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
