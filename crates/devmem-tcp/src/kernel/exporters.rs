//! Memory that a kernel NIC can access: a [`Dmabuf`] over one of the kernel's dma-bufs.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use devmem_linux::dmabuf::{self, DmabufFd, ExportError};
use netmem::{CpuAccess, Dmabuf, Exporter};

use crate::error::Error;

/// A dma-buf of the kernel; CPU accesses are announced with `DMA_BUF_IOCTL_SYNC`.
struct KernelDmabuf {
    dmabuf: DmabufFd,
    /// Bytes of one page, if they are known.
    page_bytes: Option<usize>,
}

impl Exporter for KernelDmabuf {
    fn size(&self) -> usize {
        self.dmabuf.size()
    }

    fn as_fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.dmabuf.as_fd())
    }

    fn page_bytes(&self) -> Option<usize> {
        self.page_bytes
    }

    fn begin_cpu_access(&self, access: CpuAccess) -> io::Result<()> {
        self.dmabuf.begin_cpu_access(kind(access))
    }

    fn end_cpu_access(&self, access: CpuAccess) -> io::Result<()> {
        self.dmabuf.end_cpu_access(kind(access))
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
    let dmabuf = DmabufFd::udmabuf(size).map_err(Error::from)?;
    mapped(dmabuf, Some(rustix::param::page_size()))
}

/// Allocates device memory of `size` bytes (rounded up to whole pages) from the dma-heap `name`. The common heap is
/// "system", which has no limit like udmabuf's. For both backends.
///
/// # Errors
/// There is no such heap, or it does not have enough memory.
pub fn dma_heap(name: &str, size: usize) -> Result<Dmabuf, Error> {
    // Its pages are of several sizes.
    mapped(DmabufFd::heap(name, size).map_err(Error::from)?, None)
}

/// Imports a dma-buf exported by another driver. The exporter must allow mapping it for the CPU.
///
/// # Errors
/// The descriptor is not a dma-buf, or its exporter does not allow mapping it.
pub fn import(fd: OwnedFd) -> Result<Dmabuf, Error> {
    mapped(
        DmabufFd::import(fd).map_err(|error| not_a_dmabuf(&error))?,
        None,
    )
}

fn not_a_dmabuf(error: &std::io::Error) -> Error {
    Error::invalid(format!("the descriptor is not an open dma-buf: {error}"))
        .with_remedy("pass one that an exporter of the kernel or a GPU library returned")
}

fn mapped(dmabuf: DmabufFd, page_bytes: Option<usize>) -> Result<Dmabuf, Error> {
    let exporter = KernelDmabuf { dmabuf, page_bytes };
    Ok(Dmabuf::exported(Arc::new(exporter))?)
}

/// Returns the dma-buf of `memory`. Turns a memory file into one, permanently, through /dev/udmabuf: from then on CPU
/// accesses are announced. `None` for anonymous memory, which cannot become a dma-buf.
pub(super) fn dmabuf_of(memory: &Dmabuf) -> Result<Option<Arc<dyn Exporter>>, ExportError> {
    let made = memory.export_with(|file, size| {
        let exporter = KernelDmabuf {
            dmabuf: DmabufFd::udmabuf_of(file, size)?,
            // The memory knows the pages of its file.
            page_bytes: None,
        };
        Ok::<Arc<dyn Exporter>, ExportError>(Arc::new(exporter))
    })?;
    Ok(made.map(Arc::clone))
}
