//! Memory of a device.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, OnceLock};

use netmem::{CopyEngine, CpuAccess, DeviceError, Dmabuf, Exporter, LentMemory};

use crate::device::{Device, Engine};
use crate::error::VulkanError;
use crate::memory_types::Placement;
use crate::static_attach;
use crate::sys::memory::BufferMemory;

/// The unit of dma-bufs.
const PAGE_BYTES: usize = 4096;

/// Memory of a device.
#[derive(Debug)]
pub struct Allocation {
    dmabuf: OnceLock<Result<OwnedFd, DeviceError>>,
    memory: Arc<BufferMemory>,
    placement: Placement,
    device: Device,
}

impl Allocation {
    pub(crate) fn new(
        device: &Device,
        size: usize,
        placement: Placement,
    ) -> Result<Self, VulkanError> {
        if size == 0 || !size.is_multiple_of(PAGE_BYTES) {
            return Err(VulkanError::Size { size });
        }
        let memory = BufferMemory::new(&device.engine.gpu, size, placement)?;
        Ok(Self {
            dmabuf: OnceLock::new(),
            memory: Arc::new(memory),
            placement,
            device: device.clone(),
        })
    }

    pub(crate) fn memory(&self) -> &BufferMemory {
        &self.memory
    }

    /// Returns the device.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// Returns whether the CPU accesses the memory. If not, payload passes through host memory, and the device copies it.
    pub fn is_mapped(&self) -> bool {
        self.placement == Placement::Mapped
    }

    /// Returns the memory for the library, which binds, gathers and copies it.
    pub fn into_dmabuf(self) -> Dmabuf {
        match Dmabuf::exported(Arc::new(self)) {
            Ok(memory) => memory,
            // The size was checked when it was allocated, and all of it is mapped, or none.
            Err(error) => unreachable!("{error}"),
        }
    }

    /// Returns the dma-buf of the memory; exports it at the first call.
    ///
    /// # Errors
    ///
    /// [`VulkanError`]: the driver does not export it.
    pub fn export(&self) -> Result<BorrowedFd<'_>, VulkanError> {
        self.exported().map_err(VulkanError::Call)
    }

    fn exported(&self) -> Result<BorrowedFd<'_>, DeviceError> {
        let exported = self.dmabuf.get_or_init(|| self.memory.export());
        exported.as_ref().map(AsFd::as_fd).map_err(|error| *error)
    }

    /// Refuses accesses of a child by fork(2), in which the bytes may not be mapped.
    fn check_process(&self) -> io::Result<()> {
        Ok(self.memory.gpu.check_usable()?)
    }
}

impl Exporter for Allocation {
    fn size(&self) -> usize {
        self.memory.len()
    }

    fn as_fd(&self) -> Option<BorrowedFd<'_>> {
        self.exported().ok()
    }

    fn as_dmabuf(&self) -> Result<Option<BorrowedFd<'_>>, DeviceError> {
        static_attach::check(self.memory.gpu.physical.vendor())?;
        self.exported().map(Some)
    }

    /// Synchronises nothing: mapped memory is coherent.
    fn begin_cpu_access(&self, _access: CpuAccess) -> io::Result<()> {
        self.check_process()
    }

    /// Synchronises nothing: mapped memory is coherent.
    fn end_cpu_access(&self, _access: CpuAccess) -> io::Result<()> {
        Ok(())
    }

    fn copy_engine(&self) -> Option<Arc<dyn CopyEngine>> {
        match self.is_mapped() {
            true => None,
            false => self.gather_engine(),
        }
    }

    fn mapping(&self) -> Option<LentMemory> {
        self.memory.mapping().map(LentMemory::from)
    }

    fn gather_engine(&self) -> Option<Arc<dyn CopyEngine>> {
        let engine: Arc<Engine> = Arc::clone(&self.device.engine);
        Some(engine)
    }
}
