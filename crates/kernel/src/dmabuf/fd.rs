//! A dma-buf that is open in this process, and why one could not be made.

use std::fmt;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::OnceLock;

use devmem_uapi::Errno;
use mapped::Mapping;
use serde::Serialize;

use crate::errors::Cause;

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
    pub(super) mapping: OnceLock<Mapping>,
}

impl DmabufFd {
    pub(super) fn new(fd: OwnedFd, size: usize, exporter: Exporter) -> Self {
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
