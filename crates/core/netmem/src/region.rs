//! A mapped run of network memory. Ranges have been checked against pools and frags before; a range past the
//! end is a bug of this crate, and panics.

use std::io;
use std::ops::Range;
use std::os::fd::BorrowedFd;

pub(crate) use mapped::{Advice, BASE_PAGE_BYTES, Commit, HUGE_PAGE_BYTES, MappableFile};
use mapped::{MapAccess, Mapping, RangeError, UnmappableFile};

use crate::lent::LentMemory;

/// A mapping of network memory.
#[derive(Debug)]
pub(crate) struct MemoryRegion {
    mapping: Mapping,
}

impl MemoryRegion {
    /// Maps `len` zero bytes, a positive multiple of the base page, at a huge page boundary.
    pub(crate) fn anonymous(len: usize, commit: Commit) -> io::Result<Self> {
        let mapping = Mapping::anonymous(len, commit)?;
        Ok(Self { mapping })
    }

    /// Maps the first `len` bytes of `file`, a positive multiple of its pages, at a huge page boundary.
    pub(crate) fn file(file: &MappableFile<'_>, len: usize) -> Result<Self, UnmappableFile> {
        let mapping = Mapping::file(file, 0, len, MapAccess::ReadWrite)?;
        Ok(Self { mapping })
    }

    /// Maps the first `len` bytes of `file`, a positive multiple of its pages, for reading only.
    pub(crate) fn file_to_read(
        file: &MappableFile<'_>,
        len: usize,
    ) -> Result<Self, UnmappableFile> {
        let mapping = Mapping::file(file, 0, len, MapAccess::Read)?;
        Ok(Self { mapping })
    }

    /// Takes over memory that a device's library has mapped.
    pub(crate) fn lent(memory: LentMemory) -> Self {
        let LentMemory(mapping) = memory;
        Self { mapping }
    }

    /// Returns the number of bytes.
    pub(crate) fn len(&self) -> usize {
        self.mapping.len()
    }

    /// Returns the address of the first byte, to look the region up in /proc/self/smaps.
    pub(crate) fn address(&self) -> usize {
        self.mapping.address()
    }

    /// Asks the kernel about the pages.
    pub(crate) fn advise(&self, advice: Advice) -> io::Result<()> {
        self.mapping.advise(0..self.len(), advice)
    }

    /// Asks the kernel about the pages of a part.
    pub(crate) fn advise_part(&self, part: Range<usize>, advice: Advice) -> io::Result<()> {
        self.mapping.advise(part, advice)
    }

    /// Writes zero to one byte of every page: only for memory that is still all zero.
    pub(crate) fn touch(&self) {
        for offset in (0..self.len()).step_by(BASE_PAGE_BYTES) {
            self.copy_in(offset, &[0]);
        }
    }

    /// Reads once from `file` into `len` bytes at `offset`. Returns the number of bytes.
    pub(crate) fn read(
        &self,
        file: BorrowedFd<'_>,
        offset: usize,
        len: usize,
    ) -> io::Result<usize> {
        let span = inside(self.mapping.span(offset, len));
        mapped::readv(file, &mut [], std::iter::once(span), &mut [])
    }

    /// Copies `bytes` to `offset`.
    #[inline]
    pub(crate) fn copy_in(&self, offset: usize, bytes: &[u8]) {
        inside(self.mapping.copy_in(offset, bytes));
    }

    /// Copies from `offset` to all of `out`.
    #[inline]
    pub(crate) fn copy_out(&self, offset: usize, out: &mut [u8]) {
        inside(self.mapping.copy_out(offset, out));
    }

    /// Sets `len` bytes at `offset` to `byte`.
    pub(crate) fn fill(&self, offset: usize, len: usize, byte: u8) {
        inside(self.mapping.fill(offset, len, byte));
    }

    /// Copies a range of another region, or of this one, to `offset`; the two may overlap.
    pub(crate) fn copy_from(&self, offset: usize, source: RegionSpan<'_>) {
        inside(self.mapping.copy_from(offset, source.mapped()));
    }
}

/// # Panics
///
/// When the range is not inside the region: callers have checked it against their geometry.
#[inline]
#[track_caller]
fn inside<T>(done: Result<T, RangeError>) -> T {
    match done {
        Ok(done) => done,
        Err(error) => panic!("{error}"),
    }
}

/// A range of a region, checked when it is used.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RegionSpan<'a> {
    pub(crate) region: &'a MemoryRegion,
    pub(crate) offset: usize,
    pub(crate) len: usize,
}

impl<'a> RegionSpan<'a> {
    /// # Panics
    ///
    /// When the range is not inside the region.
    pub(crate) fn mapped(self) -> mapped::Span<'a> {
        inside(self.region.mapping.span(self.offset, self.len))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn touching_maps_every_page_and_leaves_zeros() {
        let region = MemoryRegion::anonymous(2 * BASE_PAGE_BYTES, Commit::Lazily).unwrap();
        region.touch();
        let mut out = vec![1; region.len()];
        region.copy_out(0, &mut out);
        assert_eq!(out, vec![0; region.len()]);
    }

    #[test]
    fn ranges_past_the_end_panic_before_a_byte_moves() {
        let region = MemoryRegion::anonymous(BASE_PAGE_BYTES, Commit::Lazily).unwrap();
        let mut out = [7; 8];
        let tried = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            region.copy_out(4090, &mut out);
        }));
        assert!(tried.is_err() && out == [7; 8]);
    }
}
