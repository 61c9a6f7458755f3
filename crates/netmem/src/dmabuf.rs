//! Device memory as its owner sees it: allocate it, fill it, look at it, lend it to a NIC.

use std::io;
use std::ops::Range;
use std::os::fd::BorrowedFd;
use std::sync::{Arc, Weak};

use crate::memory::{Access, Memory, OutOfBounds};
use crate::page_kind::PageKind;

/// Why device memory could not be made.
#[derive(Debug, thiserror::Error)]
pub enum DmabufError {
    /// The size is 0 or not a multiple of the page.
    #[error(
        "{size} bytes of device memory: the size must be a positive multiple of 4096; round it up"
    )]
    Size {
        /// The size asked for, in bytes.
        size: usize,
    },
    /// The address space or the memory was refused.
    #[error(
        "mapping {size} bytes of memory failed: {source}; ask for less, or raise the limits: \
         address space (ulimit -v), vm.overcommit_memory, memory.max of the cgroup"
    )]
    Map {
        /// The size asked for, in bytes.
        size: usize,
        /// What mmap said.
        source: io::Error,
    },
    /// There were not enough free pages.
    #[error(
        "touching {size} bytes of mapped memory failed: {source}; the machine or its cgroup \
         (memory.max) has less free memory than that: ask for less"
    )]
    Populate {
        /// The size asked for, in bytes.
        size: usize,
        /// What madvise said.
        source: io::Error,
    },
    /// A file in memory could not be made.
    #[error("{step} of a memory file failed: {source}; anonymous device memory needs no file")]
    Memfd {
        /// The call that failed.
        step: &'static str,
        /// What it said.
        source: io::Error,
    },
    /// The memory does not divide into net_iovs.
    #[error(transparent)]
    Geometry(#[from] crate::GeometryError),
}

/// The operations that any exporter of device memory offers (linux include/linux/dma-buf.h, struct
/// dma_buf_ops): the memory here, and buffers that another driver exports.
#[doc(alias = "dma_buf_ops")]
pub trait Exporter: Send + Sync {
    /// Returns the number of bytes.
    fn size(&self) -> usize;

    /// Returns the file descriptor by which another process or the kernel knows the memory, if any.
    fn as_fd(&self) -> Option<BorrowedFd<'_>>;

    /// Makes what the device wrote visible to the CPU.
    ///
    /// # Errors
    ///
    /// When the exporter's synchronisation fails.
    fn begin_cpu_access(&self, access: CpuAccess) -> io::Result<()>;

    /// Makes what the CPU wrote visible to the device.
    ///
    /// # Errors
    ///
    /// When the exporter's synchronisation fails.
    fn end_cpu_access(&self, access: CpuAccess) -> io::Result<()>;
}

/// What the CPU does between begin and end of its access (DMA_BUF_SYNC_READ, _WRITE).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CpuAccess {
    /// It reads only.
    Read,
    /// It writes only.
    Write,
    /// It reads and writes.
    ReadWrite,
}

/// Device memory of this process: a handle that is cheap to clone; the memory is unmapped when the
/// last handle is dropped *and* the last net_iov that a NIC cut from it is home.
///
/// The copies here are its owner's: the stack never calls them. Copying to bytes that were lent to a
/// NIC, or sent and not completed, tears them, as it does on a real device.
#[derive(Clone, Debug)]
pub struct Dmabuf {
    memory: Arc<Memory>,
}

impl Dmabuf {
    /// Allocates anonymous memory, in huge pages if the machine has them, every page touched.
    ///
    /// # Errors
    ///
    /// [`DmabufError`] when the size is not a positive multiple of 4096 or memory is short.
    pub fn anonymous(size: usize) -> Result<Self, DmabufError> {
        Memory::anonymous(size, Access::Device).map(Self::new)
    }

    /// Allocates memory that has a file descriptor: hugetlb pages, else pages collapsed to huge ones,
    /// else base pages; [`Dmabuf::page_kind`] says which. Every page touched, the size sealed.
    ///
    /// # Errors
    ///
    /// [`DmabufError`] when the size is not a positive multiple of 4096 or memory is short.
    pub fn memfd(size: usize) -> Result<Self, DmabufError> {
        Memory::memfd(size).map(Self::new)
    }

    pub(crate) fn new(memory: Memory) -> Self {
        Dmabuf {
            memory: Arc::new(memory),
        }
    }

    pub(crate) fn memory(&self) -> &Arc<Memory> {
        &self.memory
    }

    /// Returns the number of bytes.
    pub fn size(&self) -> usize {
        self.memory.size()
    }

    /// Returns which pages the memory got, as seen right after it was touched.
    pub fn page_kind(&self) -> PageKind {
        self.memory.page_kind()
    }

    /// Returns the file descriptor of the memory; anonymous memory has none.
    pub fn as_fd(&self) -> Option<BorrowedFd<'_>> {
        self.memory.file()
    }

    /// Returns whether `other` is a handle to the same memory.
    pub fn is_same(&self, other: &Dmabuf) -> bool {
        Arc::ptr_eq(&self.memory, &other.memory)
    }

    /// Copies `bytes` to `offset`.
    ///
    /// # Errors
    ///
    /// [`OutOfBounds`], and nothing is copied.
    pub fn copy_in(&self, offset: usize, bytes: &[u8]) -> Result<(), OutOfBounds> {
        self.memory.check(offset, bytes.len())?;
        self.memory.cpu().copy_in(offset, bytes);
        Ok(())
    }

    /// Copies from `offset` to all of `out`.
    ///
    /// # Errors
    ///
    /// [`OutOfBounds`], and nothing is copied.
    pub fn copy_out(&self, offset: usize, out: &mut [u8]) -> Result<(), OutOfBounds> {
        self.memory.check(offset, out.len())?;
        self.memory.cpu().copy_out(offset, out);
        Ok(())
    }

    /// Sets every byte of a range to `byte`.
    ///
    /// # Errors
    ///
    /// [`OutOfBounds`], and nothing is written.
    pub fn fill(&self, range: Range<usize>, byte: u8) -> Result<(), OutOfBounds> {
        let (offset, len) = self.check_range(&range)?;
        self.memory.cpu().fill(offset, len, byte);
        Ok(())
    }

    /// Copies `len` bytes at `source_offset` of `source` to `offset` of this memory, device to
    /// device. Both may be the same memory, and the ranges may overlap (memmove).
    ///
    /// # Errors
    ///
    /// [`OutOfBounds`] for either range, and nothing is copied.
    pub fn copy_from(
        &self,
        source: &Dmabuf,
        source_offset: usize,
        offset: usize,
        len: usize,
    ) -> Result<(), OutOfBounds> {
        source.memory.check(source_offset, len)?;
        self.memory.check(offset, len)?;
        self.memory
            .dma()
            .copy_from(offset, source.memory.span(source_offset, len));
        Ok(())
    }

    /// Returns a view of a range.
    ///
    /// # Panics
    ///
    /// When the range does not lie inside the memory, as slicing does.
    pub fn slice(&self, range: Range<usize>) -> DeviceSlice<'_> {
        match self.get(range) {
            Ok(slice) => slice,
            Err(error) => panic!("{error}"),
        }
    }

    /// Returns a view of a range.
    ///
    /// # Errors
    ///
    /// [`OutOfBounds`] when the range does not lie inside the memory.
    pub fn get(&self, range: Range<usize>) -> Result<DeviceSlice<'_>, OutOfBounds> {
        let (offset, len) = self.check_range(&range)?;
        Ok(DeviceSlice {
            memory: &self.memory,
            offset,
            len,
        })
    }

    /// Returns an observer that tells when the memory was unmapped, without keeping it.
    pub fn observer(&self) -> MemoryObserver {
        MemoryObserver(Arc::downgrade(&self.memory))
    }

    fn check_range(&self, range: &Range<usize>) -> Result<(usize, usize), OutOfBounds> {
        let len = range.end.checked_sub(range.start).ok_or(OutOfBounds {
            offset: range.start,
            len: 0,
            size: self.size(),
        })?;
        self.memory.check(range.start, len)?;
        Ok((range.start, len))
    }
}

impl Exporter for Dmabuf {
    fn size(&self) -> usize {
        Dmabuf::size(self)
    }

    fn as_fd(&self) -> Option<BorrowedFd<'_>> {
        Dmabuf::as_fd(self)
    }

    /// Does nothing: the memory is coherent.
    fn begin_cpu_access(&self, _: CpuAccess) -> io::Result<()> {
        Ok(())
    }

    /// Does nothing: the memory is coherent.
    fn end_cpu_access(&self, _: CpuAccess) -> io::Result<()> {
        Ok(())
    }
}

/// A checked range of device memory. Not a slice of bytes: they are copied out to be looked at.
#[derive(Clone, Copy, Debug)]
pub struct DeviceSlice<'a> {
    memory: &'a Memory,
    offset: usize,
    len: usize,
}

impl DeviceSlice<'_> {
    /// Returns where the range begins in the device memory.
    pub fn offset(&self) -> usize {
        self.offset
    }

    /// Returns the number of bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns whether there are no bytes.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Copies from the beginning of the range to all of `out`.
    ///
    /// # Panics
    ///
    /// When `out` is longer than the range.
    pub fn copy_to(&self, out: &mut [u8]) {
        assert!(
            out.len() <= self.len,
            "{} bytes of a range of {}",
            out.len(),
            self.len
        );
        self.memory.cpu().copy_out(self.offset, out);
    }

    /// Returns a copy of the bytes.
    pub fn to_vec(&self) -> Vec<u8> {
        let mut bytes = vec![0; self.len];
        self.copy_to(&mut bytes);
        bytes
    }
}

/// Tells whether a run of memory still exists.
#[derive(Clone, Debug)]
pub struct MemoryObserver(Weak<Memory>);

impl MemoryObserver {
    /// Returns the memory, if it still exists.
    pub fn upgrade(&self) -> Option<Dmabuf> {
        self.0.upgrade().map(|memory| Dmabuf { memory })
    }

    /// Returns whether the memory was unmapped.
    pub fn is_freed(&self) -> bool {
        self.0.strong_count() == 0
    }
}

#[cfg(test)]
mod tests;
