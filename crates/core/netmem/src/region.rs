//! A mapped run of memory that everybody shares and nobody may hold a reference to.
//!
// UNSAFETY: mapping memory and moving bytes in and out of it needs raw pointers: a net_iov is written
// by the kernel (readv), by this process and, one day, by a device, while others look at it, so a
// `&[u8]` or `&mut [u8]` of it would be a lie at any moment. All bytes move by copy over ranges that
// `Region::at` has checked. Two copies that race (a user who writes to memory that he lent to a NIC)
// can tear bytes, as on real device memory; no decision in this file depends on a byte's value.
#![allow(unsafe_code)]

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr::{self, NonNull};

use smallvec::SmallVec;

/// Alignment of every region, so that it can take huge pages (x86-64 and arm64 PMD size).
pub(crate) const HUGE_PAGE_BYTES: usize = 2 << 20;

/// The smallest page that a region is made of.
pub(crate) const BASE_PAGE_BYTES: usize = 4096;

/// Most buffers of one readv or writev, after adjacent ones were merged. Written: a header, and a super-packet of 512 KiB
/// in pieces of 6 KiB or more. Read: a 64 KiB packet in scattered 4 KiB net_iovs needs 17, a header and a spill buffer.
pub(crate) const MAX_IOVECS: usize = 91;

const READ_WRITE: i32 = libc::PROT_READ | libc::PROT_WRITE;
const ANONYMOUS: i32 = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;

/// What lies behind a region.
#[derive(Clone, Copy)]
pub(crate) enum Backing<'fd> {
    /// Zero pages, accounted for when mapped.
    Anonymous,
    /// Zero pages, accounted for when first touched.
    AnonymousLazy,
    /// The first bytes of a file that is at least as long and sealed against shrinking.
    File(BorrowedFd<'fd>),
}

/// What to ask of the kernel about the pages of a region.
#[derive(Clone, Copy)]
pub(crate) enum Advice {
    /// Take huge pages when touched (anonymous memory).
    Huge,
    /// Touch every page now.
    Populate,
    /// Turn touched base pages into huge pages now.
    Collapse,
}

/// A mapping of `len` bytes at `base`.
///
/// Invariants, set by `map` and never changed: `base` is [`HUGE_PAGE_BYTES`]-aligned; the `len` bytes
/// from it are mapped readable and writable until `drop` and are reachable by no Rust reference;
/// they lie inside the `outer_len` bytes at `outer`, which this value alone may unmap.
#[derive(Debug)]
pub(crate) struct Region {
    base: NonNull<u8>,
    len: usize,
    outer: NonNull<u8>,
    outer_len: usize,
}

// SAFETY: (1) a mapping belongs to the process, not to a thread; (2) the fields are plain values that
// never change after `map`.
unsafe impl Send for Region {}
// SAFETY: (1) `&Region` moves bytes by copy only, never gives a reference; (2) the fields do not change.
unsafe impl Sync for Region {}

impl Region {
    /// Maps `len` bytes, a multiple of the base page and not 0, at a huge page boundary: reserves
    /// addresses, then puts memory behind an aligned part of them. Miri knows no such thing as
    /// a reservation; there all of it is memory.
    pub(crate) fn map(len: usize, backing: Backing<'_>) -> io::Result<Self> {
        let outer_len = len
            .checked_add(HUGE_PAGE_BYTES)
            .ok_or(io::ErrorKind::InvalidInput)?;
        if len == 0 || !len.is_multiple_of(BASE_PAGE_BYTES) {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let prot = if cfg!(miri) {
            READ_WRITE
        } else {
            libc::PROT_NONE
        };
        // SAFETY: without MAP_FIXED, mmap takes free addresses and disturbs nothing.
        let outer = unsafe { libc::mmap(ptr::null_mut(), outer_len, prot, ANONYMOUS, -1, 0) };
        let outer = mapped(outer)?;
        let pad = outer.as_ptr().align_offset(HUGE_PAGE_BYTES);
        assert!(pad < HUGE_PAGE_BYTES, "byte pointers can always be aligned");
        // SAFETY: `pad` is below HUGE_PAGE_BYTES, by which the reservation at `outer` exceeds `len`.
        let base = unsafe { outer.add(pad) };
        let region = Region {
            base,
            len,
            outer,
            outer_len,
        };
        region.commit(backing)?;
        Ok(region)
    }

    /// Puts memory behind the `len` bytes at `base`: called by `map`, before anyone knows of them.
    fn commit(&self, backing: Backing<'_>) -> io::Result<()> {
        let (flags, fd) = match backing {
            Backing::File(fd) => (libc::MAP_SHARED, fd.as_raw_fd()),
            _ if cfg!(miri) => return Ok(()),
            Backing::Anonymous => (ANONYMOUS, -1),
            Backing::AnonymousLazy => (ANONYMOUS | libc::MAP_NORESERVE, -1),
        };
        let (at, flags) = (self.base.as_ptr().cast(), flags | libc::MAP_FIXED);
        // SAFETY: MAP_FIXED replaces `len` bytes at `base`, which lie inside the reservation that
        // this region owns and that nothing points into yet.
        mapped(unsafe { libc::mmap(at, self.len, READ_WRITE, flags, fd, 0) }).map(drop)
    }

    /// Returns the number of bytes.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Returns the address of the first byte, to look the region up in /proc/self/smaps.
    pub(crate) fn address(&self) -> usize {
        self.base.as_ptr().addr()
    }

    /// Asks the kernel about the pages.
    pub(crate) fn advise(&self, advice: Advice) -> io::Result<()> {
        let advice = match advice {
            _ if cfg!(miri) => return Err(io::ErrorKind::Unsupported.into()),
            Advice::Huge => libc::MADV_HUGEPAGE,
            Advice::Populate => libc::MADV_POPULATE_WRITE,
            Advice::Collapse => libc::MADV_COLLAPSE,
        };
        // SAFETY: the range is the region's own, and none of the three changes a byte of it.
        match unsafe { libc::madvise(self.base.as_ptr().cast(), self.len, advice) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }

    /// Writes zero to one byte of every page: only for memory that nobody has written yet.
    pub(crate) fn touch(&self) {
        for offset in (0..self.len).step_by(BASE_PAGE_BYTES) {
            // SAFETY: `at` returned a pointer to one mapped, writable byte.
            unsafe { self.at(offset, 1).write_volatile(0) };
        }
    }

    /// Returns a pointer to `len` mapped bytes from `offset` on.
    ///
    /// # Panics
    ///
    /// When the range is not inside the region: callers have checked it against their geometry.
    #[inline]
    fn at(&self, offset: usize, len: usize) -> *mut u8 {
        let inside = offset.checked_add(len).is_some_and(|end| end <= self.len);
        assert!(inside, "{len} bytes at offset {offset} of {}", self.len);
        // SAFETY: `offset` is at most `self.len`, so the result is inside or one past the mapping.
        unsafe { self.base.add(offset) }.as_ptr()
    }

    /// Copies `bytes` to `offset`.
    #[inline]
    pub(crate) fn copy_in(&self, offset: usize, bytes: &[u8]) {
        let to = self.at(offset, bytes.len());
        // SAFETY: (1) `at` checked as many writable bytes at `to`; (2) no reference reaches into the
        // mapping, so `bytes` does not overlap it.
        unsafe { ptr::copy_nonoverlapping(bytes.as_ptr(), to, bytes.len()) };
    }

    /// Copies from `offset` to all of `out`.
    #[inline]
    pub(crate) fn copy_out(&self, offset: usize, out: &mut [u8]) {
        let from = self.at(offset, out.len());
        // SAFETY: (1) `at` checked as many readable bytes at `from`; (2) no reference reaches into
        // the mapping, so `out` does not overlap it.
        unsafe { ptr::copy_nonoverlapping(from, out.as_mut_ptr(), out.len()) };
    }

    /// Sets `len` bytes at `offset` to `byte`.
    pub(crate) fn fill(&self, offset: usize, len: usize, byte: u8) {
        let to = self.at(offset, len);
        // SAFETY: `at` checked `len` writable bytes at `to`.
        unsafe { ptr::write_bytes(to, byte, len) };
    }

    /// Copies a range of another region, or of this one, to `offset`; the two may overlap.
    pub(crate) fn copy_from(&self, offset: usize, source: Span<'_>) {
        let to = self.at(offset, source.len);
        // SAFETY: `at` checked `len` bytes at both ends; `ptr::copy` allows them to overlap.
        unsafe { ptr::copy(source.base(), to, source.len) };
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        // SAFETY: by the invariant, only this region may unmap `outer`, and it does so once.
        unsafe { libc::munmap(self.outer.as_ptr().cast(), self.outer_len) };
    }
}

/// Judges what mmap returned.
fn mapped(got: *mut libc::c_void) -> io::Result<NonNull<u8>> {
    match NonNull::new(got.cast()) {
        Some(base) if got != libc::MAP_FAILED => Ok(base),
        _ => Err(io::Error::last_os_error()),
    }
}

/// A range of a region, checked when it is used.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Span<'a> {
    pub(crate) region: &'a Region,
    pub(crate) offset: usize,
    pub(crate) len: usize,
}

impl Span<'_> {
    fn base(&self) -> *mut u8 {
        self.region.at(self.offset, self.len)
    }
}

/// The buffers of one readv or writev. Their owner keeps what they point to borrowed meanwhile.
#[derive(Default)]
struct IoVecs(SmallVec<[libc::iovec; MAX_IOVECS]>);

impl IoVecs {
    /// Adds `len` bytes at `base`, which extend the last buffer when they begin where it ends.
    fn push(&mut self, base: *mut u8, len: usize) -> io::Result<()> {
        let full = self.0.len() == MAX_IOVECS;
        match self.0.last_mut() {
            _ if len == 0 => {}
            Some(last) if last.iov_base.cast::<u8>().wrapping_add(last.iov_len) == base => {
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
        spans.try_for_each(|span| self.push(span.base(), span.len))
    }
}

/// Reads once into `head`, then `spans`, then `spill`. Repeats after EINTR.
pub(crate) fn readv<'a>(
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
    // SAFETY: all entries (at most MAX_IOVECS) point to memory that may be written until
    // this function returns: `head` and `spill` are borrowed mutably; the regions of the spans are
    // borrowed for 'a, their ranges were checked by `at`, and no reference reaches into them.
    retry(|| unsafe { libc::syscall(libc::SYS_readv, fd.as_raw_fd(), vecs.as_ptr(), vecs.len()) })
}

/// Writes once from `head`, then `spans`. Repeats after EINTR.
pub(crate) fn writev<'a>(
    fd: BorrowedFd<'_>,
    head: &[u8],
    spans: impl Iterator<Item = Span<'a>>,
) -> io::Result<usize> {
    let mut io = IoVecs::default();
    io.push(head.as_ptr().cast_mut(), head.len())?;
    io.push_spans(spans)?;
    let vecs = io.0.as_slice();
    // SAFETY: all entries (at most MAX_IOVECS) point to memory that may be read until
    // this function returns, as in `readv`; writev writes to none of it.
    retry(|| unsafe { libc::syscall(libc::SYS_writev, fd.as_raw_fd(), vecs.as_ptr(), vecs.len()) })
}

/// Makes a system call until it is not interrupted. Not by libc's function: that prepares for the thread being cancelled,
/// before and behind each call.
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
