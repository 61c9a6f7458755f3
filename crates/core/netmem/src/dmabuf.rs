//! Device memory for its owner, the application: allocating, filling and reading it, and binding it to a NIC.

use std::io;
use std::ops::Range;
use std::os::fd::BorrowedFd;
use std::sync::{Arc, Weak};

use crate::cpu_view::{CopyError, CpuView};
use crate::device::{CopyEngine, CpuAccess, Exporter};
use crate::errors::DmabufError;
use crate::memory::{Memory, MemoryAccess, OutOfBounds};
use crate::page_kind::PageKind;

mod streams;
#[cfg(test)]
mod tests;

pub use streams::Chunks;

/// Device memory of this process: a handle that is cheap to clone. The memory is unmapped when the
/// last handle is dropped *and* the last net_iov of a NIC that uses it is home.
///
/// | Made by | what it is |
/// |---|---|
/// | [`anonymous`](Self::anonymous) | memory of this process, for NICs in user space and for tests |
/// | [`written_once`](Self::written_once) | the same, for what is loaded once |
/// | [`memfd`](Self::memfd) | the same with a file; bound to a NIC of the kernel it becomes a udmabuf |
/// | [`shared_memfd`](Self::shared_memfd) | the same, which the process at the other end of a UNIX wire may read |
/// | `devmem_tcp::memory::{udmabuf, dma_heap, import}` | a dma-buf of the kernel, for NICs of the kernel, too |
/// | `devmem_tcp::{cuda, hip, vulkan}::alloc` | memory of a GPU |
/// | [`exported`](Self::exported) | memory of any other device, by an [`Exporter`] |
/// | [`pinned_for`](Self::pinned_for) | host memory to which a device copies its own memory |
///
/// The copying methods are for the application; the stack never calls them. Copying to bytes that a NIC has posted or is
/// sending corrupts the data, as on a real device. Copying to bytes of a frag that is lent to the program changes that frag
/// only, so data may be processed in place.
///
/// After fork(2) the child has a private copy of anonymous memory; memory with a file (`memfd`, a dma-buf) is the
/// same in both processes.
#[derive(Clone, Debug)]
pub struct Dmabuf {
    memory: Arc<Memory>,
}

impl Dmabuf {
    /// Allocates anonymous memory, in huge pages if the machine has them, and touches every page.
    ///
    /// # Errors
    ///
    /// [`DmabufError`] when the size is not a positive multiple of 4096 or memory is short.
    pub fn anonymous(size: usize) -> Result<Self, DmabufError> {
        Memory::anonymous(size, MemoryAccess::Device).map(Self::new)
    }

    /// Allocates anonymous memory for bytes that are written once, such as loaded tensors, and touches every page: as [`anonymous`](Self::anonymous), but in huge pages
    /// only as long as these cost less CPU time than base pages. They cost more where the kernel or a hypervisor has to make them. For memory that a NIC writes
    /// to again and again, huge pages are worth that.
    ///
    /// # Errors
    ///
    /// [`DmabufError`] when the size is not a positive multiple of 4096 or memory is short.
    pub fn written_once(size: usize) -> Result<Self, DmabufError> {
        Memory::written_once(size).map(Self::new)
    }

    /// Allocates memory with a file descriptor and a sealed size, and touches every page: hugetlb pages, otherwise pages
    /// collapsed to huge ones, otherwise base pages ([`Dmabuf::page_kind`] tells which).
    ///
    /// # Errors
    ///
    /// [`DmabufError`] when the size is not a positive multiple of 4096 or memory is short.
    pub fn memfd(size: usize) -> Result<Self, DmabufError> {
        Memory::memfd(size).map(Self::new)
    }

    /// Allocates memory with a file as [`memfd`](Self::memfd) does, but never in hugetlb pages, and marks it as shared: the other end
    /// of a UNIX wire that it is sent on maps the file, and reads the payload where it is.
    ///
    /// The process at the other end can then read **all** of the memory, not only what is sent, and keep it mapped for as long as
    /// it likes, as can each later one that the memory is sent to. Put nothing into it that they must not read. Payload in
    /// any other memory is copied to memory of the wire before it crosses.
    ///
    /// # Errors
    ///
    /// [`DmabufError`] when the size is not a positive multiple of 4096 or memory is short.
    pub fn shared_memfd(size: usize) -> Result<Self, DmabufError> {
        Memory::shared_memfd(size).map(Self::new)
    }

    /// Allocates host memory for copies of `device` by the device itself: [`gather_from`](Self::gather_from) fills it, or memory of the device from it, by copies
    /// that the device does together. It is pinned; beside memory that the CPU can access, it is as [`anonymous`](Self::anonymous).
    ///
    /// # Errors
    ///
    /// [`DmabufError`] when the size is not a positive multiple of 4096, memory is short, or the device refuses.
    pub fn pinned_for(device: &Dmabuf, size: usize) -> Result<Self, DmabufError> {
        match device.copy_engine() {
            Some(engine) => Memory::pinned(size, MemoryAccess::Device, engine).map(Self::new),
            None => Self::anonymous(size),
        }
    }

    /// Maps the memory of `exporter`, which is called before and after each access of the CPU. Memory with a copy engine is
    /// not mapped: each access copies it, and waits. Memory that the exporter has mapped itself is used where it is.
    ///
    /// # Errors
    ///
    /// [`DmabufError`] when its size is not a positive multiple of 4096 or it cannot be mapped.
    pub fn exported(exporter: Arc<dyn Exporter>) -> Result<Self, DmabufError> {
        Memory::exported(exporter).map(Self::new)
    }

    /// Begins an access of the CPU: the writes of devices become visible to it.
    ///
    /// # Errors
    ///
    /// [`CopyError::Sync`] when the exporter cannot synchronise.
    pub fn cpu_view(&self, access: CpuAccess) -> Result<CpuView<'_>, CopyError> {
        CpuView::of(self.memory(), access)
    }

    /// Returns the engine that copies the memory, if the CPU cannot access it.
    pub fn copy_engine(&self) -> Option<&Arc<dyn CopyEngine>> {
        self.memory().engine()
    }

    /// Returns the exporter of the memory, if there is one.
    pub fn exporter(&self) -> Option<&Arc<dyn Exporter>> {
        self.memory.exporter()
    }

    /// Returns the exporter of memory with a file; if there is none, `make` creates it from the file and its size.
    /// `None`: anonymous memory, which has no file.
    ///
    /// # Errors
    ///
    /// Those of `make`.
    pub fn export_with<E>(
        &self,
        make: impl FnOnce(BorrowedFd<'_>, usize) -> Result<Arc<dyn Exporter>, E>,
    ) -> Result<Option<&Arc<dyn Exporter>>, E> {
        if let Some(exporter) = self.memory.exporter() {
            return Ok(Some(exporter));
        }
        let Some(file) = self.memory.file() else {
            return Ok(None);
        };
        let made = make(file, self.size())?;
        Ok(Some(self.memory.export(made)))
    }

    pub(crate) fn new(memory: Memory) -> Self {
        Dmabuf {
            memory: Arc::new(memory),
        }
    }

    /// Allocates memory that only a [`DmaPort`](crate::DmaPort) and a test that acts as the device access; any other
    /// access panics.
    ///
    /// # Errors
    ///
    /// As [`anonymous`](Self::anonymous).
    #[cfg(any(test, feature = "test-util"))]
    pub fn opaque(size: usize) -> Result<Self, DmabufError> {
        Memory::anonymous(size, MemoryAccess::Opaque).map(Self::new)
    }

    /// Writes like the device of the memory.
    ///
    /// # Panics
    ///
    /// When the range is not inside the memory.
    #[cfg(any(test, feature = "test-util"))]
    pub fn device_write(&self, offset: usize, bytes: &[u8]) {
        self.memory.dma().copy_in(offset, bytes);
    }

    /// Reads like the device of the memory.
    ///
    /// # Panics
    ///
    /// When the range is not inside the memory.
    #[cfg(any(test, feature = "test-util"))]
    pub fn device_read(&self, offset: usize, out: &mut [u8]) {
        self.memory.dma().copy_out(offset, out);
    }

    pub(crate) fn of(memory: Arc<Memory>) -> Self {
        Dmabuf { memory }
    }

    pub(crate) fn memory(&self) -> &Arc<Memory> {
        &self.memory
    }

    /// Returns the number of bytes.
    pub fn size(&self) -> usize {
        self.memory.size()
    }

    /// Returns the kind of pages of the memory, from /proc/self/smaps at the first call. That call takes
    /// milliseconds in a process with much memory; later calls return the same result at once.
    pub fn page_kind(&self) -> PageKind {
        self.memory.page_kind()
    }

    /// Returns the bytes of one page of the memory, if they are known, and if its pages are adjacent by chance alone: the least piece in
    /// which a NIC of the kernel gets it. `None` for memory with pages of several sizes, and for that of a device or another process.
    /// Looks at the pages of a memory file as [`page_kind`](Self::page_kind) does.
    pub fn page_bytes(&self) -> Option<usize> {
        self.memory.page_bytes()
    }

    /// Returns the file descriptor of the memory: its exporter's dma-buf, or its memory file; anonymous memory has
    /// none.
    pub fn as_fd(&self) -> Option<BorrowedFd<'_>> {
        self.memory.file()
    }

    /// Returns the address of the first byte in this process, for a library that takes pointers; `None` for memory that the
    /// CPU cannot access. The bytes are mapped there while a handle of the memory, or of a net_iov of it, exists. A NIC writes to
    /// the bytes that it has posted at any time.
    pub fn cpu_address(&self) -> Option<usize> {
        self.memory.cpu_address()
    }

    /// Returns whether `other` is a handle to the same memory.
    pub fn is_same(&self, other: &Dmabuf) -> bool {
        Arc::ptr_eq(&self.memory, &other.memory)
    }

    /// Copies `bytes` to `offset`.
    ///
    /// # Errors
    ///
    /// [`CopyError`]; out of bounds, nothing is copied.
    pub fn copy_in(&self, offset: usize, bytes: &[u8]) -> Result<(), CopyError> {
        let view = self.cpu_view(CpuAccess::Write)?;
        view.copy_in(offset, bytes)?;
        view.end()
    }

    /// Copies from `offset` to all of `out`.
    ///
    /// # Errors
    ///
    /// [`CopyError`]; out of bounds, nothing is copied.
    pub fn copy_out(&self, offset: usize, out: &mut [u8]) -> Result<(), CopyError> {
        let view = self.cpu_view(CpuAccess::Read)?;
        view.copy_out(offset, out)?;
        view.end()
    }

    /// Sets every byte of a range to `byte`.
    ///
    /// # Errors
    ///
    /// [`CopyError`]; out of bounds, nothing is written.
    pub fn fill(&self, range: Range<usize>, byte: u8) -> Result<(), CopyError> {
        let (offset, len) = self.check_range(&range)?;
        let view = self.cpu_view(CpuAccess::Write)?;
        view.fill(offset, len, byte)?;
        view.end()
    }

    /// Copies `len` bytes at `source_offset` of `source` to `offset` of this memory, device to
    /// device. Both may be the same memory, and the ranges may overlap (memmove).
    ///
    /// # Errors
    ///
    /// [`CopyError`]; out of bounds for either range, nothing is copied.
    pub fn copy_from(
        &self,
        source: &Dmabuf,
        source_offset: usize,
        offset: usize,
        len: usize,
    ) -> Result<(), CopyError> {
        let from = source.cpu_view(CpuAccess::Read)?;
        let to = self.cpu_view(CpuAccess::Write)?;
        to.copy_from(&from, source_offset, offset, len)?;
        from.end()?;
        to.end()
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

    /// Returns an observer that tells when the memory has been unmapped; it does not keep the memory.
    pub fn observer(&self) -> MemoryObserver {
        MemoryObserver(Arc::downgrade(&self.memory))
    }

    pub(crate) fn check_range(&self, range: &Range<usize>) -> Result<(usize, usize), OutOfBounds> {
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

    fn page_bytes(&self) -> Option<usize> {
        Dmabuf::page_bytes(self)
    }

    /// Asks the memory's own exporter; without one does nothing: the memory is coherent.
    fn begin_cpu_access(&self, access: CpuAccess) -> io::Result<()> {
        match self.exporter() {
            Some(exporter) => exporter.begin_cpu_access(access),
            None => Ok(()),
        }
    }

    /// Asks the memory's own exporter; without one does nothing: the memory is coherent.
    fn end_cpu_access(&self, access: CpuAccess) -> io::Result<()> {
        match self.exporter() {
            Some(exporter) => exporter.end_cpu_access(access),
            None => Ok(()),
        }
    }
}

/// A checked range of device memory. It is not a slice of bytes: they have to be copied to be read.
#[derive(Clone, Copy, Debug)]
pub struct DeviceSlice<'a> {
    memory: &'a Memory,
    offset: usize,
    len: usize,
}

impl<'a> DeviceSlice<'a> {
    /// Returns the offset of the range in the device memory.
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
    /// When `out` is longer than the range, or the memory's exporter cannot synchronise: see
    /// [`try_copy_to`](Self::try_copy_to).
    pub fn copy_to(&self, out: &mut [u8]) {
        if let Err(error) = self.try_copy_to(out) {
            panic!("{error}");
        }
    }

    /// Copies from the beginning of the range to all of `out`.
    ///
    /// # Errors
    ///
    /// [`CopyError`], also when `out` is longer than the range.
    pub fn try_copy_to(&self, out: &mut [u8]) -> Result<(), CopyError> {
        if out.len() > self.len {
            return Err(CopyError::OutOfBounds(OutOfBounds {
                offset: 0,
                len: out.len(),
                size: self.len,
            }));
        }
        let view = CpuView::of(self.memory, CpuAccess::Read)?;
        view.copy_out(self.offset, out)?;
        view.end()
    }

    /// Returns a copy of the bytes.
    ///
    /// # Panics
    ///
    /// When the memory's exporter cannot synchronise.
    pub fn to_vec(&self) -> Vec<u8> {
        let mut bytes = vec![0; self.len];
        self.copy_to(&mut bytes);
        bytes
    }
}

/// Tells whether memory is still mapped.
#[derive(Clone, Debug)]
pub struct MemoryObserver(Weak<Memory>);

impl MemoryObserver {
    /// Returns the memory, if it is still mapped.
    pub fn upgrade(&self) -> Option<Dmabuf> {
        self.0.upgrade().map(|memory| Dmabuf { memory })
    }

    pub(crate) fn of(memory: &Arc<Memory>) -> Self {
        Self(Arc::downgrade(memory))
    }

    /// Returns whether this observes `memory`. The address is not given again while this exists.
    pub(crate) fn observes(&self, memory: &Arc<Memory>) -> bool {
        std::ptr::eq(self.0.as_ptr(), Arc::as_ptr(memory))
    }

    /// Returns whether the memory has been unmapped.
    pub fn is_freed(&self) -> bool {
        self.0.strong_count() == 0
    }
}
