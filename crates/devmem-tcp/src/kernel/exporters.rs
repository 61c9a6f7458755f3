//! Memory that a kernel NIC can access: a [`Dmabuf`] over one of the kernel's dma-bufs.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use devmem_linux::dmabuf::{self, DmabufFd, ExportError};
use netmem::{CpuAccess, Dmabuf, Exporter};

use crate::error::Error;

/// A dma-buf of the kernel; CPU accesses are announced with `DMA_BUF_IOCTL_SYNC`.
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

fn kind(access: CpuAccess) -> dmabuf::CpuAccess {
    match access {
        CpuAccess::Read => dmabuf::CpuAccess::Read,
        CpuAccess::Write => dmabuf::CpuAccess::Write,
        CpuAccess::ReadWrite => dmabuf::CpuAccess::ReadWrite,
    }
}

/// Creates device memory of `size` bytes (rounded up to whole pages) from ordinary memory, through /dev/udmabuf. For both
/// backends.
///
/// # Errors
/// There is no /dev/udmabuf, or `size` exceeds its limit (64 MiB by default). The error contains the command that
/// loads the module or raises the limit.
pub fn udmabuf(size: usize) -> Result<Dmabuf, Error> {
    mapped(DmabufFd::udmabuf(size).map_err(Error::from)?)
}

/// Allocates device memory of `size` bytes (rounded up to whole pages) from the dma-heap `name`. The common heap is
/// "system", which has no limit like udmabuf's. For both backends.
///
/// # Errors
/// There is no such heap, or it does not have enough memory.
pub fn dma_heap(name: &str, size: usize) -> Result<Dmabuf, Error> {
    mapped(DmabufFd::heap(name, size).map_err(Error::from)?)
}

/// Imports a dma-buf exported by another driver. The exporter must allow mapping it for the CPU.
///
/// # Errors
/// The descriptor is not a dma-buf, or its exporter does not allow mapping it.
pub fn import(fd: OwnedFd) -> Result<Dmabuf, Error> {
    mapped(DmabufFd::import(fd).map_err(not_a_dmabuf)?)
}

fn not_a_dmabuf(error: std::io::Error) -> Error {
    Error::invalid(format!("the descriptor is not an open dma-buf: {error}"))
        .with_remedy("pass one that an exporter of the kernel or a GPU library returned")
        .caused_by(error)
}

fn mapped(dmabuf: DmabufFd) -> Result<Dmabuf, Error> {
    Ok(Dmabuf::exported(Arc::new(KernelDmabuf(dmabuf)))?)
}

/// Returns the dma-buf of `memory`. Turns a memory file into one, permanently, through /dev/udmabuf: from then on CPU
/// accesses are announced. `None` for anonymous memory, which cannot become a dma-buf.
pub(super) fn dmabuf_of(memory: &Dmabuf) -> Result<Option<Arc<dyn Exporter>>, ExportError> {
    let made = memory.export_with(|file, size| {
        let dmabuf = DmabufFd::udmabuf_of(file, size)?;
        Ok::<Arc<dyn Exporter>, ExportError>(Arc::new(KernelDmabuf(dmabuf)))
    })?;
    Ok(made.map(Arc::clone))
}
