//! Device memory of the kernel: dma-bufs, from an exporter or given to us.
//!
//! A [`DmabufFd`] is made by [`udmabuf`](DmabufFd::udmabuf), by a [dma-heap](DmabufFd::heap), or
//! [imported](DmabufFd::import) from a driver that exports its own (a GPU). The CPU reaches its bytes only inside
//! a [`CpuAccess`], which tells the exporter before and after: without that, caches may lie.

mod access;
mod exporters;

use std::fmt;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::OnceLock;

use devmem_uapi::Errno;
use mapped::Mapping;
use rustix::fs::{SeekFrom, seek};
use serde::Serialize;

pub use access::{Access, AccessError, CpuAccess};
pub use exporters::{UdmabufLimits, dma_heaps, udmabuf_limits};

use crate::errors::{Cause, Operation};

/// Where a dma-buf comes from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Exporter {
    /// Pages of a memfd, through /dev/udmabuf.
    Udmabuf,
    /// A heap of /dev/dma_heap, by its name.
    Heap(String),
    /// Another driver; it was given to us.
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

/// Why a dma-buf could not be made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExportError {
    /// From whom.
    pub exporter: Exporter,
    /// How many bytes were asked for.
    pub bytes: u64,
    /// The system call that failed.
    pub call: &'static str,
    /// What it returned.
    pub errno: Errno,
    /// What that means here and what mends it.
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

/// A dma-buf, open in this process. The memory lives as long as this, a binding of it, or the last
/// net_iov that a NIC cut from it.
#[derive(Debug)]
pub struct DmabufFd {
    fd: OwnedFd,
    size: usize,
    exporter: Exporter,
    /// Made at the first access of the CPU: a GPU's memory may never see one, and may not be mappable.
    mapping: OnceLock<Mapping>,
}

impl DmabufFd {
    /// Takes a dma-buf that another driver exported, for instance a GPU's.
    ///
    /// # Errors
    ///
    /// `EBADF` or `EINVAL` if the descriptor is not a dma-buf.
    pub fn import(fd: OwnedFd) -> Result<Self, io::Error> {
        // Only dma-bufs take the ioctl (ENOTTY elsewhere); an access that reads nothing changes nothing.
        access::sync(fd.as_fd(), Access::Read, access::Moment::Begin)?;
        access::sync(fd.as_fd(), Access::Read, access::Moment::End)?;
        // The size of a dma-buf is where its end is (linux drivers/dma-buf/dma-buf.c dma_buf_llseek).
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

    /// Returns the number of bytes.
    pub fn size(&self) -> usize {
        self.size
    }

    /// Returns where it comes from.
    pub fn exporter(&self) -> &Exporter {
        &self.exporter
    }
}

impl AsFd for DmabufFd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
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
