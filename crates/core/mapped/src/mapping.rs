//! A run of mapped memory.
//!
// UNSAFETY: mapping and unmapping memory, and pointers into it. There is never a reference to the bytes: they are copied
// by the functions of `copy.rs`, in ranges that `Mapping::span` has checked.
#![allow(unsafe_code)]

use std::any::Any;
use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, AsRawFd};
use std::ptr::{self, NonNull};

use crate::kinds::{Advice, Commit, MapAccess, RangeError};
use crate::{BASE_PAGE_BYTES, HUGE_PAGE_BYTES, MappableFile, UnmappableFile, copy};

mod lent;

const READ_WRITE: i32 = libc::PROT_READ | libc::PROT_WRITE;
const ANONYMOUS: i32 = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;

/// Size of the buffer for copies that cannot be direct.
const STEP_BYTES: usize = 4096;

/// A mapping of `len` bytes at `base`.
///
/// Invariants, set by `map` or `lent` and never changed: `base` is [`HUGE_PAGE_BYTES`]-aligned (if not lent) and `len` a
/// multiple of [`BASE_PAGE_BYTES`]; the `len` bytes are mapped while `_backing` exists, readable, and writable according to
/// `access`; a mapped file has all of them until then; no Rust reference points to any of them.
#[derive(Debug)]
pub struct Mapping {
    base: NonNull<u8>,
    len: usize,
    access: MapAccess,
    _backing: Backing,
}

/// What keeps the bytes mapped.
#[derive(Debug)]
enum Backing {
    Reserved(#[expect(dead_code, reason = "dropped with the mapping")] Reservation),
    /// By another library, while the value exists.
    Lent(#[expect(dead_code, reason = "dropped with the mapping")] Box<dyn Any + Send + Sync>),
}

/// The `len` bytes of address space at `start`, around those of a mapping. Invariant: only this value may unmap them.
#[derive(Debug)]
struct Reservation {
    start: NonNull<u8>,
    len: usize,
}

// SAFETY: (1) a mapping belongs to the process, not to a thread; (2) the fields never change after `map`.
unsafe impl Send for Mapping {}
// SAFETY: (1) the fields never change; (2) `&Mapping` accesses the bytes by `copy.rs` only, which may race with itself.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps `len` zero bytes, a positive multiple of [`BASE_PAGE_BYTES`], for reading and writing.
    ///
    /// # Errors
    /// `InvalidInput` for another `len`, or the error of mmap(2).
    pub fn anonymous(len: usize, commit: Commit) -> io::Result<Self> {
        let flags = match commit {
            Commit::Now => ANONYMOUS,
            Commit::Lazily => ANONYMOUS | libc::MAP_NORESERVE,
        };
        Self::map(len, MapAccess::ReadWrite, flags, -1, 0)
    }

    /// Maps `len` bytes, a positive multiple of [`BASE_PAGE_BYTES`], from `offset` of `file`, shared with all other
    /// mappings of the file. `offset` is a multiple of the file's pages.
    ///
    /// # Errors
    /// [`UnmappableFile::TooShort`], or the error of mmap(2).
    pub fn file(
        file: &MappableFile<'_>,
        offset: u64,
        len: usize,
        access: MapAccess,
    ) -> Result<Self, UnmappableFile> {
        use rustix::io::Errno;
        file.check(offset, len)?;
        let start = libc::off_t::try_from(offset).map_err(|_too_far| Errno::OVERFLOW)?;
        let fd = file.as_fd().as_raw_fd();
        let mapped = Self::map(len, access, libc::MAP_SHARED, fd, start);
        mapped.map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::INVAL).into())
    }

    /// Reserves addresses, then maps an aligned part of them. Miri does not support reservations; under Miri all of it is
    /// memory. The arguments after `access` are those of mmap(2); `fd` is -1 for anonymous memory.
    fn map(
        len: usize,
        access: MapAccess,
        flags: i32,
        fd: i32,
        offset: libc::off_t,
    ) -> io::Result<Self> {
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
        // SAFETY: without MAP_FIXED, mmap uses free addresses and changes no other mapping.
        let outer = unsafe { libc::mmap(ptr::null_mut(), outer_len, prot, ANONYMOUS, -1, 0) };
        let reservation = Reservation {
            start: mapped(outer)?,
            len: outer_len,
        };
        let pad = reservation.start.as_ptr().align_offset(HUGE_PAGE_BYTES);
        assert!(pad < HUGE_PAGE_BYTES, "byte pointers can always be aligned");
        // SAFETY: `pad` is below HUGE_PAGE_BYTES, by which the reservation exceeds `len`.
        let base = unsafe { reservation.start.add(pad) };
        let mapping = Self {
            base,
            len,
            access,
            _backing: Backing::Reserved(reservation),
        };
        if cfg!(miri) && fd == -1 {
            return Ok(mapping);
        }
        let prot = match access {
            MapAccess::Read => libc::PROT_READ,
            MapAccess::ReadWrite => READ_WRITE,
        };
        let (at, flags) = (base.as_ptr().cast(), flags | libc::MAP_FIXED);
        // SAFETY: MAP_FIXED replaces `len` bytes at `base`, which are inside the reservation that `mapping` owns; nothing
        // points into it yet. An error drops `mapping`, and with it the reservation.
        mapped(unsafe { libc::mmap(at, len, prot, flags, fd, offset) })?;
        Ok(mapping)
    }

    /// Returns the number of bytes.
    #[expect(clippy::len_without_is_empty, reason = "a mapping is never empty")]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns the address of the first byte, to look the mapping up in /proc/self/smaps.
    pub fn address(&self) -> usize {
        self.base.as_ptr().addr()
    }

    /// Makes a request to the kernel about the pages of a part, which starts at a multiple of the base page.
    ///
    /// # Errors
    /// The error of madvise(2), [`RangeError`].
    pub fn advise(&self, part: Range<usize>, advice: Advice) -> io::Result<()> {
        let advice = match advice {
            _ if cfg!(miri) => return Err(io::ErrorKind::Unsupported.into()),
            Advice::Huge => libc::MADV_HUGEPAGE,
            Advice::Base => libc::MADV_NOHUGEPAGE,
            Advice::Populate => libc::MADV_POPULATE_WRITE,
            Advice::Collapse => libc::MADV_COLLAPSE,
        };
        let span = self.span(part.start, part.len());
        let span = span.map_err(io::Error::other)?;
        // SAFETY: the span is a part of this mapping, and none of the four requests changes a byte of it.
        let result = unsafe { libc::madvise(span.base().cast(), span.len, advice) };
        let done = (result == 0).then_some(());
        done.ok_or_else(io::Error::last_os_error)
    }

    /// Returns a range.
    ///
    /// # Errors
    /// [`RangeError::OutOfBounds`].
    #[inline]
    pub fn span(&self, offset: usize, len: usize) -> Result<Span<'_>, RangeError> {
        let size = self.len;
        let inside = offset.checked_add(len).is_some_and(|end| end <= size);
        let mapping = self;
        match inside {
            true => Ok(Span {
                mapping,
                offset,
                len,
            }),
            false => Err(RangeError::OutOfBounds { offset, len, size }),
        }
    }

    /// Copies `bytes` to `offset`. 1, 2, 4 or 8 naturally aligned bytes are one store (8 where pointers have 64 bits).
    ///
    /// # Errors
    /// [`RangeError`].
    #[inline]
    pub fn copy_in(&self, offset: usize, bytes: &[u8]) -> Result<(), RangeError> {
        let to = self.span(offset, bytes.len())?.writable()?;
        // SAFETY: `span` has checked the range, which is mapped (invariant) and writable.
        unsafe { copy::store(bytes, to) };
        Ok(())
    }

    /// Copies from `offset` to all of `out`. 1, 2, 4 or 8 naturally aligned bytes are one load (8 where pointers have 64
    /// bits).
    ///
    /// # Errors
    /// [`RangeError::OutOfBounds`].
    #[inline]
    pub fn copy_out(&self, offset: usize, out: &mut [u8]) -> Result<(), RangeError> {
        let from = self.span(offset, out.len())?.base();
        // SAFETY: `span` has checked the range, which is mapped (invariant).
        unsafe { copy::load(from, out) };
        Ok(())
    }

    /// Sets `len` bytes at `offset` to `byte`.
    ///
    /// # Errors
    /// [`RangeError`].
    pub fn fill(&self, offset: usize, len: usize, byte: u8) -> Result<(), RangeError> {
        self.span(offset, len)?;
        let bytes = [byte; STEP_BYTES];
        for done in (0..len).step_by(STEP_BYTES) {
            // No overflow: `offset + len` has none.
            self.copy_in(offset + done, &bytes[..STEP_BYTES.min(len - done)])?;
        }
        Ok(())
    }

    /// Copies `source`, of any mapping, to `offset`. The two may overlap (memmove).
    ///
    /// # Errors
    /// [`RangeError`].
    pub fn copy_from(&self, offset: usize, source: Span<'_>) -> Result<(), RangeError> {
        let (from, len) = (source.base(), source.len);
        let to = self.span(offset, len)?.writable()?;
        // Less than `len` only if `to` is inside `source`.
        if to.addr().wrapping_sub(from.addr()) >= len {
            // SAFETY: `span` has checked `len` bytes of both; if they overlap, `to` is below `from`.
            unsafe { copy::forward(from, to, len) };
            return Ok(());
        }
        let (mut buffer, mut left) = ([0; STEP_BYTES], len);
        while left > 0 {
            let step = &mut buffer[..STEP_BYTES.min(left)];
            left -= step.len();
            // No overflow: both sums are inside their mappings.
            source.mapping.copy_out(source.offset + left, step)?;
            self.copy_in(offset + left, step)?;
        }
        Ok(())
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        // SAFETY: by the invariant, only this value may unmap the bytes, and it does so once.
        unsafe { libc::munmap(self.start.as_ptr().cast(), self.len) };
    }
}

/// Returns the address or the error of a call of mmap.
fn mapped(got: *mut libc::c_void) -> io::Result<NonNull<u8>> {
    match NonNull::new(got.cast()) {
        Some(base) if got != libc::MAP_FAILED => Ok(base),
        _ => Err(io::Error::last_os_error()),
    }
}

/// A range of a mapping. Invariant: it is inside the mapping.
#[derive(Clone, Copy, Debug)]
pub struct Span<'a> {
    mapping: &'a Mapping,
    offset: usize,
    len: usize,
}

impl Span<'_> {
    /// Returns the number of bytes.
    pub(crate) fn bytes(&self) -> usize {
        self.len
    }

    /// Returns a pointer to the `len` mapped bytes.
    #[inline]
    pub(crate) fn base(&self) -> *mut u8 {
        // SAFETY: `offset` is at most the mapping's length (invariant), so the result is inside or one past its end.
        unsafe { self.mapping.base.add(self.offset) }.as_ptr()
    }

    #[inline]
    fn writable(&self) -> Result<*mut u8, RangeError> {
        match self.mapping.access {
            MapAccess::ReadWrite => Ok(self.base()),
            MapAccess::Read => Err(RangeError::ReadOnly),
        }
    }
}

#[cfg(test)]
mod tests;
