// UNSAFETY: a dma-buf is written by devices while it is mapped here, so no `&[u8]` of it may exist:
// bytes move in and out by copy over ranges that `Mapping::at` has checked.

//! Mapping a dma-buf for the CPU.

use std::os::fd::BorrowedFd;
use std::ptr::{self, NonNull};

use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

/// The first `len` bytes of a file, mapped shared, readable and writable.
///
/// Invariants, set by `map` and never changed: the `len` bytes at `base` are mapped until `drop` and
/// are reachable by no Rust reference.
#[derive(Debug)]
pub(crate) struct Mapping {
    base: NonNull<u8>,
    len: usize,
}

// SAFETY: (1) a mapping belongs to the process, not to a thread; (2) the fields never change.
unsafe impl Send for Mapping {}
// SAFETY: (1) `&Mapping` moves bytes by copy only, never gives a reference; (2) the fields never change.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps the first `len` bytes of `fd`, which must not shrink: a dma-buf never does.
    pub(crate) fn map(fd: BorrowedFd<'_>, len: usize) -> Result<Self, Errno> {
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: without MAP_FIXED, mmap takes free addresses and disturbs nothing.
        let base = unsafe { mmap(ptr::null_mut(), len, protection, MapFlags::SHARED, fd, 0) }?;
        let base = NonNull::new(base.cast()).ok_or(Errno::NOMEM)?;
        Ok(Self { base, len })
    }

    /// Copies `bytes` to `offset`; false if they do not fit, and nothing was copied.
    pub(crate) fn copy_in(&self, offset: usize, bytes: &[u8]) -> bool {
        let Some(to) = self.at(offset, bytes.len()) else {
            return false;
        };
        // SAFETY: (1) `at` checked as many writable bytes at `to`; (2) no reference reaches into the
        // mapping, so `bytes` does not overlap it.
        unsafe { ptr::copy_nonoverlapping(bytes.as_ptr(), to, bytes.len()) };
        true
    }

    /// Copies from `offset` to all of `out`; false if there are not as many bytes.
    pub(crate) fn copy_out(&self, offset: usize, out: &mut [u8]) -> bool {
        let Some(from) = self.at(offset, out.len()) else {
            return false;
        };
        // SAFETY: (1) `at` checked as many readable bytes at `from`; (2) no reference reaches into
        // the mapping, so `out` does not overlap it.
        unsafe { ptr::copy_nonoverlapping(from, out.as_mut_ptr(), out.len()) };
        true
    }

    /// Returns the address of `offset` if `len` bytes lie there.
    fn at(&self, offset: usize, len: usize) -> Option<*mut u8> {
        let end = offset.checked_add(len)?;
        if end > self.len {
            return None;
        }
        // SAFETY: `offset` is at most `self.len`, and that many bytes at `base` are one mapping.
        Some(unsafe { self.base.as_ptr().add(offset) })
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: (1) this value alone may unmap the range; (2) nobody holds a reference into it.
        let unmapped = unsafe { munmap(self.base.as_ptr().cast(), self.len) };
        debug_assert_eq!(unmapped, Ok(()), "the range was mapped by `map`");
    }
}
