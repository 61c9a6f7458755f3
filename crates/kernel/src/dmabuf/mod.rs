//! Device memory of the kernel: dma-bufs.
//!
//! A [`DmabufFd`] comes from [`udmabuf`](DmabufFd::udmabuf), from a [dma-heap](DmabufFd::heap), or is
//! [imported](DmabufFd::import) from another driver (a GPU's, for example). The CPU can access its bytes only during a
//! [`CpuView`], which notifies the exporter before and after; otherwise caches may hold stale data.

mod access;
mod exporters;
mod large_pages;

use std::fmt;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::OnceLock;

use devmem_uapi::Errno;
use mapped::Mapping;
use rustix::fs::{SeekFrom, seek};
use serde::Serialize;

pub use access::{AccessError, CpuAccess, CpuView};
pub use exporters::{UdmabufLimits, dma_heaps, udmabuf_limits};
pub use large_pages::memory_files_may_have_large_pages;

use crate::errors::{Cause, CauseKind, Operation};

/// The source of a dma-buf.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Exporter {
    /// Pages of a memfd, through /dev/udmabuf.
    Udmabuf,
    /// A heap of /dev/dma_heap, by its name.
    Heap(String),
    /// Imported from another driver.
    Imported,
}

impl fmt::Display for Exporter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Udmabuf => f.write_str("udmabuf"),
            Self::Heap(name) => write!(f, "dma-heap {name}"),
            Self::Imported => f.write_str("imported dma-buf"),
        }
    }
}

/// Why a dma-buf could not be created or imported.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExportError {
    /// Its intended source.
    pub exporter: Exporter,
    /// Requested bytes.
    pub bytes: u64,
    /// The system call that failed.
    pub call: &'static str,
    /// The errno that it returned.
    pub errno: Errno,
    /// The cause and the remedy.
    pub cause: Box<Cause>,
}

impl fmt::Display for ExportError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            exporter,
            bytes,
            call,
            errno,
            cause,
        } = self;
        write!(f, "{bytes} bytes of {exporter}: {call}: {errno}: {cause}")
    }
}

impl std::error::Error for ExportError {}

/// A dma-buf, open in this process. Its memory is freed when this, all bindings of it, and the last net_iov of it in a NIC
/// are gone.
#[derive(Debug)]
pub struct DmabufFd {
    fd: OwnedFd,
    size: usize,
    exporter: Exporter,
    /// Created at the first CPU access: memory of a GPU may never need a mapping, and may not be mappable.
    mapping: OnceLock<Mapping>,
}

impl DmabufFd {
    /// Imports a dma-buf that another driver exported, for example of a GPU.
    ///
    /// # Errors
    ///
    /// `EBADF` or `EINVAL` if the descriptor is not a dma-buf.
    pub fn import(fd: OwnedFd) -> Result<Self, io::Error> {
        // Only dma-bufs support the ioctl (ENOTTY otherwise); a read access has no side effect.
        access::sync(fd.as_fd(), CpuAccess::Read, access::Moment::Begin)?;
        access::sync(fd.as_fd(), CpuAccess::Read, access::Moment::End)?;
        // Seeking to the end returns the size of a dma-buf (linux drivers/dma-buf/dma-buf.c dma_buf_llseek).
        let size = seek(&fd, SeekFrom::End(0))?;
        let size = usize::try_from(size).map_err(|_| io::Error::from(Errno::EOVERFLOW))?;
        Ok(Self::new(fd, size, Exporter::Imported))
    }

    fn new(fd: OwnedFd, size: usize, exporter: Exporter) -> Self {
        Self {
            fd,
            size,
            exporter,
            mapping: OnceLock::new(),
        }
    }

    /// Returns the size in bytes.
    pub fn size(&self) -> usize {
        self.size
    }

    /// Returns its source.
    pub fn exporter(&self) -> &Exporter {
        &self.exporter
    }
}

impl AsFd for DmabufFd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// The error of a udmabuf that the process has no memory for.
fn no_room(refused: mapped::NoRoom) -> ExportError {
    ExportError {
        exporter: Exporter::Udmabuf,
        bytes: refused.bytes,
        call: "allocate its pages",
        errno: Errno::ENOMEM,
        cause: Box::new(Cause {
            kind: CauseKind::NoResources,
            message: refused.to_string(),
            hint: Some(refused.remedy()),
        }),
    }
}

fn export_error(
    exporter: Exporter,
    bytes: u64,
    call: &'static str,
    errno: rustix::io::Errno,
) -> ExportError {
    let operation = match exporter {
        Exporter::Heap(_) => Operation::DmaHeap,
        Exporter::Udmabuf | Exporter::Imported => Operation::Udmabuf,
    };
    let errno = Errno(errno.raw_os_error());
    let facts = crate::errors::Facts {
        bytes: Some(bytes),
        bytes_max: udmabuf_limits().map(|limits| limits.size_limit_bytes()),
        ..crate::errors::Facts::default()
    };
    ExportError {
        exporter,
        bytes,
        call,
        errno,
        cause: Box::new(crate::errors::cause(operation, errno, &facts)),
    }
}
