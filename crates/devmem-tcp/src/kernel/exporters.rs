//! Memory that a NIC of the kernel can reach: a [`Dmabuf`] over one of the kernel's dma-bufs.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use devmem_linux::dmabuf::{Access, DmabufFd, ExportError};
use netmem::{CpuAccess, Dmabuf, Exporter};

use crate::error::DeviceMemoryError;

/// A dma-buf of the kernel, told of the CPU's accesses by its sync ioctl.
struct KernelDmabuf(DmabufFd);

impl Exporter for KernelDmabuf {
    fn size(&self) -> usize {
        self.0.size()
    }

    fn as_fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.0.as_fd())
    }

    fn begin_cpu_access(&self, access: CpuAccess) -> io::Result<()> {
        self.0.begin_cpu_access(kind(access))
    }

    fn end_cpu_access(&self, access: CpuAccess) -> io::Result<()> {
        self.0.end_cpu_access(kind(access))
    }
}

fn kind(access: CpuAccess) -> Access {
    match access {
        CpuAccess::Read => Access::Read,
        CpuAccess::Write => Access::Write,
        CpuAccess::ReadWrite => Access::ReadWrite,
    }
}

/// Makes device memory of `size` bytes (rounded up to whole pages) of ordinary memory, through /dev/udmabuf. Serves
/// both backends.
///
/// # Errors
/// There is no /dev/udmabuf, or `size` is over its limit (64 MiB unless raised): with the command that mends it.
pub fn udmabuf(size: usize) -> Result<Dmabuf, DeviceMemoryError> {
    mapped(DmabufFd::udmabuf(size)?)
}

/// Makes device memory of `size` bytes (rounded up to whole pages) from the dma-heap `name`; "system" is the common
/// one, and has no small limit. Serves both backends.
///
/// # Errors
/// There is no such heap, or it has not as much memory.
pub fn dma_heap(name: &str, size: usize) -> Result<Dmabuf, DeviceMemoryError> {
    mapped(DmabufFd::heap(name, size)?)
}

/// Takes a dma-buf that another driver exported. It must allow the CPU to map it.
///
/// # Errors
/// The descriptor is not a dma-buf, or its exporter does not let it be mapped.
pub fn import(fd: OwnedFd) -> Result<Dmabuf, DeviceMemoryError> {
    mapped(DmabufFd::import(fd).map_err(DeviceMemoryError::NotADmabuf)?)
}

fn mapped(dmabuf: DmabufFd) -> Result<Dmabuf, DeviceMemoryError> {
    Ok(Dmabuf::exported(Arc::new(KernelDmabuf(dmabuf)))?)
}

/// The dma-buf of `memory`. A memory file is made one now, through /dev/udmabuf, and stays one: the CPU's accesses are
/// announced from then on. `None`: anonymous memory can be none.
pub(super) fn dmabuf_of(memory: &Dmabuf) -> Result<Option<Arc<dyn Exporter>>, ExportError> {
    let made = memory.export_with(|file, size| {
        let dmabuf = DmabufFd::udmabuf_of(file, size)?;
        Ok::<Arc<dyn Exporter>, ExportError>(Arc::new(KernelDmabuf(dmabuf)))
    })?;
    Ok(made.map(Arc::clone))
}
