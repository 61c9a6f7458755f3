//! Memory of a device.

use std::any::Any;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, OnceLock};

use netmem::{CopyEngine, CpuAccess, DeviceError, Dmabuf, Exporter};

use crate::device::Device;
use crate::error::GpuError;
use crate::sys::memory::DeviceMemory;

/// The unit of dma-bufs.
pub(crate) const PAGE_BYTES: usize = 4096;

/// Allocations are rounded up to this. Memory of whole large pages begins at such a page, which smaller allocations share
/// with others; and an exported page must not contain memory of others.
const LARGE_PAGE_BYTES: usize = 2 << 20;

/// Memory of a device, allocated here or adopted from another library.
#[derive(Debug)]
pub struct Allocation {
    // Closed before the memory is freed; the kernel keeps exported memory until its last user is gone.
    dmabuf: OnceLock<Result<OwnedFd, DeviceError>>,
    memory: DeviceMemory,
    size: usize,
    device: Device,
    /// What keeps adopted memory; dropped last, after `memory` has waited for its copies.
    _owner: Option<Box<dyn Any + Send + Sync>>,
}

impl Device {
    /// Allocates `size` bytes of device memory.
    ///
    /// # Errors
    ///
    /// [`GpuError`]: `size` is not a positive multiple of 4096, or the device refuses.
    pub fn alloc(&self, size: usize) -> Result<Allocation, GpuError> {
        Allocation::new(self, size)
    }

    /// Allocates parts of these sizes whose addresses follow each other. Each is memory of its own, with a dma-buf of its own; the device
    /// frees them together.
    ///
    /// # Errors
    ///
    /// [`GpuError`]: a size is not a positive multiple of 4096, or the device refuses.
    pub fn alloc_adjacent(&self, sizes: &[usize]) -> Result<Vec<Allocation>, GpuError> {
        Allocation::adjacent(self, sizes)
    }

    /// Allocates `size` bytes, rounded up to whole pages, for the library, which binds, gathers and copies them.
    ///
    /// # Errors
    ///
    /// [`GpuError`]: the device refuses.
    pub fn alloc_dmabuf(&self, size: usize) -> Result<Dmabuf, GpuError> {
        let rounded = size
            .checked_next_multiple_of(PAGE_BYTES)
            .ok_or(GpuError::Size { size })?;
        Ok(self.alloc(rounded)?.into_dmabuf())
    }
}

impl Allocation {
    fn new(device: &Device, size: usize) -> Result<Self, GpuError> {
        if size == 0 || !size.is_multiple_of(PAGE_BYTES) {
            return Err(GpuError::Size { size });
        }
        let rounded = size
            .checked_next_multiple_of(LARGE_PAGE_BYTES)
            .ok_or(GpuError::Size { size })?;
        let memory = DeviceMemory::alloc(&device.lanes, rounded)?;
        let address = memory.address();
        if !address.is_multiple_of(PAGE_BYTES as u64) {
            return Err(GpuError::Misaligned { address, len: size });
        }
        Self::of(device, memory, size)
    }

    /// Allocates parts of these sizes, one after another in one allocation.
    fn adjacent(device: &Device, sizes: &[usize]) -> Result<Vec<Self>, GpuError> {
        let whole = sizes
            .iter()
            .try_fold(0_usize, |sum, size| sum.checked_add(*size));
        let whole = Self::new(device, whole.ok_or(GpuError::Size { size: usize::MAX })?)?;
        let memory = Arc::new(whole.memory);
        let mut parts = Vec::with_capacity(sizes.len());
        let mut at = 0;
        for &size in sizes {
            let part = memory.part(at, size);
            let part = part.filter(|_| size > 0 && size.is_multiple_of(PAGE_BYTES));
            parts.push(Self::of(
                device,
                part.ok_or(GpuError::Size { size })?,
                size,
            )?);
            at += size;
        }
        Ok(parts)
    }

    pub(crate) fn of(device: &Device, memory: DeviceMemory, size: usize) -> Result<Self, GpuError> {
        memory.synchronise_copies()?;
        Ok(Self {
            dmabuf: OnceLock::new(),
            memory,
            size,
            device: device.clone(),
            _owner: None,
        })
    }

    /// Keeps `owner` until the last use of the memory.
    pub(crate) fn kept_by(self, owner: Box<dyn Any + Send + Sync>) -> Self {
        let _owner = Some(owner);
        Self { _owner, ..self }
    }

    /// Uses a dma-buf of the memory that was made elsewhere.
    pub(crate) fn exported_as(self, dmabuf: OwnedFd) -> Self {
        let dmabuf = OnceLock::from(Ok(dmabuf));
        Self { dmabuf, ..self }
    }

    pub(crate) fn memory(&self) -> &DeviceMemory {
        &self.memory
    }

    /// Returns the device.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// Returns the address of the first byte, as kernels and the vendor's libraries take it.
    pub fn device_ptr(&self) -> u64 {
        self.memory.address()
    }

    /// Ends all copies of the memory, so that whoever has allocated it may free it: waits for those that are running; later ones
    /// fail. A NIC that the dma-buf is bound to still reads and writes its pages, which the kernel keeps.
    pub fn revoke(&self) {
        self.memory.revoke();
    }

    /// Returns the memory for the library, which binds, gathers and copies it.
    pub fn into_dmabuf(self) -> Dmabuf {
        Arc::new(self).dmabuf()
    }

    /// Returns the memory for the library, as [`into_dmabuf`](Self::into_dmabuf); the allocation can still be
    /// [revoked](Self::revoke).
    pub fn dmabuf(self: &Arc<Self>) -> Dmabuf {
        match Dmabuf::exported(Arc::clone(self) as Arc<dyn Exporter>) {
            Ok(memory) => memory,
            // Memory with a copy engine is not mapped, and its size was checked when it was allocated or adopted.
            Err(error) => unreachable!("{error}"),
        }
    }

    /// Returns the dma-buf of the memory; exports it at the first call.
    ///
    /// # Errors
    ///
    /// [`GpuError`]: the driver refuses.
    pub fn export(&self) -> Result<BorrowedFd<'_>, GpuError> {
        self.exported().map_err(GpuError::Call)
    }

    /// Exports all bytes of the memory, but not those that were added to its last page: a NIC uses all of a dma-buf.
    fn exported(&self) -> Result<BorrowedFd<'_>, DeviceError> {
        let exported = self.dmabuf.get_or_init(|| self.memory.export(self.size));
        exported.as_ref().map(AsFd::as_fd).map_err(|error| *error)
    }
}

impl Exporter for Allocation {
    fn size(&self) -> usize {
        self.size
    }

    fn as_fd(&self) -> Option<BorrowedFd<'_>> {
        self.export().ok()
    }

    fn as_dmabuf(&self) -> Result<Option<BorrowedFd<'_>>, DeviceError> {
        self.device.lanes.context.driver.reaches_kernel_nics()?;
        self.exported().map(Some)
    }

    /// Does nothing: the CPU does not access the memory.
    fn begin_cpu_access(&self, _access: CpuAccess) -> io::Result<()> {
        Ok(())
    }

    /// Does nothing: the CPU does not access the memory.
    fn end_cpu_access(&self, _access: CpuAccess) -> io::Result<()> {
        Ok(())
    }

    fn copy_engine(&self) -> Option<Arc<dyn CopyEngine>> {
        Some(Arc::clone(&self.device.engine))
    }
}
