//! Guest memory mapped into this process.
//!
// UNSAFETY: guest memory is written by the guest's processors at any moment, so no `&[u8]` or `&mut [u8]` of it
// may exist: bytes move in and out by copy over ranges that `Mapping::at` has checked. An access of 1, 2, 4 or 8
// naturally aligned bytes is one atomic load (acquire) or store (release): what descriptors and their generation
// bits need. Longer copies that race with the guest can tear, as on a real device; whoever decides by bytes
// copies them once and judges the copy.
//
// A mapped file that shrinks turns accesses into SIGBUS. `Mapping::map` therefore takes only files that are
// sealed against shrinking and are long enough, and no huge page files, whose faults may fail for want of pages.
#![allow(unsafe_code)]

use std::os::fd::BorrowedFd;
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicU8, AtomicU16, AtomicU32, AtomicU64, Ordering};

use rustix::fs::{SealFlags, fcntl_get_seals, fstat, fstatfs};
use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

/// `HUGETLBFS_MAGIC` (linux include/uapi/linux/magic.h). A negative number where `f_type` has 32 bits.
const HUGETLBFS_MAGIC: u32 = 0x9584_58f6;

/// A run of a file, mapped shared.
///
/// Invariants, set by `map` and never changed: the `len` bytes at `base` are mapped until `drop`, readable, and
/// writable if `writable`; a file lies behind all of them for as long; no Rust reference reaches into them; only
/// this value may unmap them.
#[derive(Debug)]
pub(crate) struct Mapping {
    base: NonNull<u8>,
    len: usize,
    writable: bool,
}

// SAFETY: (1) a mapping belongs to the process, not to a thread; (2) the fields never change.
unsafe impl Send for Mapping {}

/// Why memory was not mapped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// The file may shrink, which no mapping survives.
    MayShrink,
    /// The file consists of huge pages.
    HugePages,
    /// The file ends before the range does.
    TooShort,
    /// What the system said.
    System(Errno),
}

/// What a guest's memory may be used for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Access {
    /// The device reads.
    Read,
    /// The device reads and writes.
    ReadWrite,
}

impl Mapping {
    /// Maps `len` bytes (not 0) from `offset` of `file`, a multiple of the page size.
    pub(crate) fn map(
        file: BorrowedFd<'_>,
        offset: u64,
        len: usize,
        access: Access,
    ) -> Result<Self, Refusal> {
        let kind = fstatfs(file).map_err(Refusal::System)?.f_type;
        #[allow(clippy::useless_conversion, reason = "32 bits elsewhere")]
        if i64::from(kind) & 0xffff_ffff == i64::from(HUGETLBFS_MAGIC) {
            return Err(Refusal::HugePages);
        }
        // Not every file can have seals; those that cannot may shrink.
        let seals = fcntl_get_seals(file).unwrap_or(SealFlags::empty());
        if !seals.contains(SealFlags::SHRINK) {
            return Err(Refusal::MayShrink);
        }
        let end = offset.checked_add(len as u64);
        let size = fstat(file).map_err(Refusal::System)?.st_size;
        if end.is_none_or(|end| u64::try_from(size).is_ok_and(|size| end > size)) {
            return Err(Refusal::TooShort);
        }
        let writable = access == Access::ReadWrite;
        let protection = match access {
            Access::Read => ProtFlags::READ,
            Access::ReadWrite => ProtFlags::READ | ProtFlags::WRITE,
        };
        let null = ptr::null_mut();
        // SAFETY: without MAP_FIXED, mmap takes free addresses and disturbs nothing.
        let base = unsafe { mmap(null, len, protection, MapFlags::SHARED, file, offset) };
        let base = base.map_err(Refusal::System)?;
        let base = NonNull::new(base.cast()).ok_or(Refusal::System(Errno::NOMEM))?;
        Ok(Self {
            base,
            len,
            writable,
        })
    }

    /// Copies from `at` to all of `out`; false if there are not as many bytes.
    pub(crate) fn read(&self, at: usize, out: &mut [u8]) -> bool {
        let Some(from) = self.at(at, out.len()) else {
            return false;
        };
        if let Some(word) = Word::at(from, out.len()) {
            word.load(out);
            return true;
        }
        // SAFETY: (1) `at` checked as many readable bytes at `from`; (2) no reference reaches into the mapping, so
        // `out` does not overlap it.
        unsafe { ptr::copy_nonoverlapping(from, out.as_mut_ptr(), out.len()) };
        true
    }

    /// Copies `bytes` to `at`; false if they do not fit or the mapping is not writable, and nothing was copied.
    pub(crate) fn write(&self, at: usize, bytes: &[u8]) -> bool {
        let Some(to) = self.at(at, bytes.len()).filter(|_| self.writable) else {
            return false;
        };
        if let Some(word) = Word::at(to, bytes.len()) {
            word.store(bytes);
            return true;
        }
        // SAFETY: (1) `at` checked as many bytes at `to`, and they are writable; (2) no reference reaches into the
        // mapping, so `bytes` does not overlap it.
        unsafe { ptr::copy_nonoverlapping(bytes.as_ptr(), to, bytes.len()) };
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

/// A naturally aligned word of guest memory, to be moved in one piece. Lives as long as one call on the mapping
/// that it lies in.
enum Word<'a> {
    Byte(&'a AtomicU8),
    Two(&'a AtomicU16),
    Four(&'a AtomicU32),
    Eight(&'a AtomicU64),
}

impl Word<'_> {
    /// Returns the word of `len` bytes at `from`, which [`Mapping::at`] gave for as many; `None` if that is not one
    /// aligned word.
    ///
    /// References to atomics are no references to plain bytes: memory behind them may change at any moment. That
    /// the one who changes it is a guest and no thread of this program is the same to the processor.
    fn at(from: *mut u8, len: usize) -> Option<Self> {
        if !from.addr().is_multiple_of(len.max(1)) {
            return None;
        }
        Some(match len {
            // SAFETY: `Mapping::at` checked 1 byte at `from`, which stays mapped for the call; all accesses to it
            // are copies or atomic.
            1 => Self::Byte(unsafe { AtomicU8::from_ptr(from) }),
            // SAFETY: as above for 2 bytes, aligned as was checked first.
            2 => Self::Two(unsafe { AtomicU16::from_ptr(from.cast()) }),
            // SAFETY: as above for 4 bytes, aligned as was checked first.
            4 => Self::Four(unsafe { AtomicU32::from_ptr(from.cast()) }),
            // SAFETY: as above for 8 bytes, aligned as was checked first.
            8 => Self::Eight(unsafe { AtomicU64::from_ptr(from.cast()) }),
            _ => return None,
        })
    }

    /// Loads the word into `out`, which is as long as the word.
    fn load(&self, out: &mut [u8]) {
        match self {
            Self::Byte(word) => out.copy_from_slice(&word.load(Ordering::Acquire).to_ne_bytes()),
            Self::Two(word) => out.copy_from_slice(&word.load(Ordering::Acquire).to_ne_bytes()),
            Self::Four(word) => out.copy_from_slice(&word.load(Ordering::Acquire).to_ne_bytes()),
            Self::Eight(word) => out.copy_from_slice(&word.load(Ordering::Acquire).to_ne_bytes()),
        }
    }

    /// Stores `bytes`, which are as many as the word has.
    fn store(&self, bytes: &[u8]) {
        match self {
            Self::Byte(word) => store(bytes, |it| {
                word.store(u8::from_ne_bytes(it), Ordering::Release)
            }),
            Self::Two(word) => store(bytes, |it| {
                word.store(u16::from_ne_bytes(it), Ordering::Release)
            }),
            Self::Four(word) => store(bytes, |it| {
                word.store(u32::from_ne_bytes(it), Ordering::Release)
            }),
            Self::Eight(word) => store(bytes, |it| {
                word.store(u64::from_ne_bytes(it), Ordering::Release)
            }),
        }
    }
}

/// Gives the `N` bytes to `store`.
fn store<const N: usize>(bytes: &[u8], store: impl FnOnce([u8; N])) {
    if let Ok(word) = bytes.try_into() {
        store(word);
    }
}
