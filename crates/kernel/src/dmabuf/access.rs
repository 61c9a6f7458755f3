//! CPU access to a dma-buf, announced to its exporter (linux Documentation/driver-api/dma-buf.rst).

use std::io;
use std::os::fd::{AsFd, BorrowedFd};

use devmem_uapi::Errno;
use mapped::{MappableFile, Mapping, RangeError, UnmappableFile};

use super::fd::DmabufFd;
use crate::sys;

/// `DMA_BUF_SYNC_READ`, `_WRITE`, `_END` (linux include/uapi/linux/dma-buf.h).
const SYNC_READ: u64 = 1;
const SYNC_WRITE: u64 = 2;
const SYNC_END: u64 = 4;

/// Kind of CPU access.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CpuAccess {
    /// The CPU reads.
    Read,
    /// The CPU writes.
    Write,
    /// The CPU reads and writes.
    ReadWrite,
}

/// Beginning or end of an access.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Moment {
    Begin,
    End,
}

/// Why the CPU could not access the bytes.
#[derive(Debug, thiserror::Error)]
pub enum AccessError {
    /// The exporter does not allow mapping its memory for the CPU.
    #[error("map the dma-buf: {0}")]
    Map(io::Error),
    /// The exporter refused or failed to synchronise.
    #[error("synchronise the dma-buf: {0}")]
    Sync(io::Error),
    /// The range exceeds the dma-buf.
    #[error("{len} bytes at {offset} of a dma-buf of {size}")]
    Range {
        /// Offset of the range.
        offset: usize,
        /// Length of the range in bytes.
        len: usize,
        /// Size of the dma-buf in bytes.
        size: usize,
    },
}

/// A CPU access in progress; dropping it ends it.
#[derive(Debug)]
#[must_use = "the access ends when this is dropped"]
pub struct CpuView<'a> {
    dmabuf: &'a DmabufFd,
    mapping: &'a Mapping,
    access: CpuAccess,
    ended: bool,
}

impl DmabufFd {
    /// Begins a CPU access: data written by devices becomes visible to the CPU. The first access maps the memory.
    ///
    /// # Errors
    ///
    /// If the exporter does not allow mapping, or cannot synchronise.
    pub fn cpu_view(&self, access: CpuAccess) -> Result<CpuView<'_>, AccessError> {
        let mapping = match self.mapping.get() {
            Some(mapping) => mapping,
            None => {
                let made = self.map().map_err(AccessError::Map)?;
                // Two threads may have mapped it at the same time; the second mapping is removed.
                self.mapping.get_or_init(|| made)
            }
        };
        self.begin_cpu_access(access).map_err(AccessError::Sync)?;
        Ok(CpuView {
            dmabuf: self,
            mapping,
            access,
            ended: false,
        })
    }

    /// Maps the whole dma-buf. Its size never changes. Checks that `fd` is a dma-buf, or at least a file that cannot shrink.
    fn map(&self) -> io::Result<Mapping> {
        let map = |file: MappableFile<'_>| {
            Mapping::file(&file, 0, self.size(), mapped::MapAccess::ReadWrite)
        };
        MappableFile::memfd_or_dmabuf(self.as_fd())
            .and_then(map)
            .map_err(|refused| match refused {
                UnmappableFile::System(errno) => errno.into(),
                refused => io::Error::new(io::ErrorKind::InvalidInput, refused),
            })
    }

    /// Announces the beginning of a CPU access to the exporter, for a caller with another mapping (of the memfd behind a
    /// udmabuf).
    ///
    /// # Errors
    ///
    /// If the exporter cannot synchronise.
    pub fn begin_cpu_access(&self, access: CpuAccess) -> io::Result<()> {
        sync(self.as_fd(), access, Moment::Begin)
    }

    /// Announces the end of a CPU access to the exporter.
    ///
    /// # Errors
    ///
    /// If the exporter cannot synchronise.
    pub fn end_cpu_access(&self, access: CpuAccess) -> io::Result<()> {
        sync(self.as_fd(), access, Moment::End)
    }
}

impl CpuView<'_> {
    /// Copies `bytes` to `offset`.
    ///
    /// # Errors
    ///
    /// If they do not fit; nothing was copied.
    pub fn copy_in(&self, offset: usize, bytes: &[u8]) -> Result<(), AccessError> {
        let copied = self.mapping.copy_in(offset, bytes);
        self.in_range(copied, offset, bytes.len())
    }

    /// Copies from `offset` to all of `out`.
    ///
    /// # Errors
    ///
    /// If there are fewer bytes; nothing was copied.
    pub fn copy_out(&self, offset: usize, out: &mut [u8]) -> Result<(), AccessError> {
        let copied = self.mapping.copy_out(offset, out);
        self.in_range(copied, offset, out.len())
    }

    /// Ends the access and returns whether that worked; dropping it ignores errors.
    ///
    /// # Errors
    ///
    /// If the exporter cannot synchronise: devices may not see what was written.
    pub fn end(mut self) -> Result<(), AccessError> {
        self.ended = true;
        let ended = self.dmabuf.end_cpu_access(self.access);
        ended.map_err(AccessError::Sync)
    }

    /// Translates a refusal; the mapping is writable, so that only the range can be wrong.
    fn in_range(
        &self,
        copied: Result<(), RangeError>,
        offset: usize,
        len: usize,
    ) -> Result<(), AccessError> {
        copied.map_err(|_out_of_bounds| AccessError::Range {
            offset,
            len,
            size: self.dmabuf.size(),
        })
    }
}

impl Drop for CpuView<'_> {
    fn drop(&mut self) {
        if !self.ended {
            let _ = self.dmabuf.end_cpu_access(self.access);
        }
    }
}

/// Calls `DMA_BUF_IOCTL_SYNC`, again when interrupted, as the kernel's documentation demands.
pub(super) fn sync(dmabuf: BorrowedFd<'_>, access: CpuAccess, moment: Moment) -> io::Result<()> {
    let what = match access {
        CpuAccess::Read => SYNC_READ,
        CpuAccess::Write => SYNC_WRITE,
        CpuAccess::ReadWrite => SYNC_READ | SYNC_WRITE,
    };
    let when = match moment {
        Moment::Begin => 0,
        Moment::End => SYNC_END,
    };
    loop {
        match sys::dmabuf::sync(dmabuf, what | when) {
            Err(rustix::io::Errno::INTR | rustix::io::Errno::AGAIN) => {}
            Err(rustix::io::Errno::NOTTY) => return Err(Errno::EINVAL.into()),
            other => return Ok(other?),
        }
    }
}

#[cfg(test)]
mod tests {
    use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};

    use super::super::Exporter;
    use super::*;

    /// A memfd that cannot shrink behaves like a dma-buf in everything but the synchronisation.
    fn memory(size: usize) -> DmabufFd {
        memfd(size, SealFlags::SHRINK)
    }

    fn memfd(size: usize, seals: SealFlags) -> DmabufFd {
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let fd = memfd_create(c"devmem-test", flags).unwrap();
        ftruncate(&fd, size as u64).unwrap();
        fcntl_add_seals(&fd, seals).unwrap();
        DmabufFd::new(fd, size, Exporter::Imported)
    }

    #[test]
    fn a_file_that_may_shrink_is_not_mapped() {
        let memory = memfd(8192, SealFlags::GROW);
        let error = memory.cpu_view(CpuAccess::Read).unwrap_err();
        assert!(matches!(error, AccessError::Map(_)), "{error}");
        assert!(error.to_string().contains("F_SEAL_SHRINK"), "{error}");
    }

    #[test]
    fn a_descriptor_that_is_no_dma_buf_is_not_imported() {
        let memfd = memfd_create(c"devmem-test", MemfdFlags::CLOEXEC).unwrap();
        let error = DmabufFd::import(memfd).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(Errno::EINVAL.0));
    }

    #[test]
    fn access_without_synchronisation_is_refused() {
        let memory = memory(8192);
        let error = memory.cpu_view(CpuAccess::ReadWrite).unwrap_err();
        assert!(matches!(error, AccessError::Sync(_)), "{error}");
    }

    #[test]
    fn bytes_beyond_the_end_are_not_reached() {
        let memory = memory(8192);
        let mapping = memory.map().unwrap();
        let access = CpuView {
            dmabuf: &memory,
            mapping: &mapping,
            access: CpuAccess::ReadWrite,
            ended: true,
        };
        access.copy_in(8190, &[1, 2]).unwrap();
        access.copy_in(8191, &[1, 2]).unwrap_err();
        access.copy_in(usize::MAX, &[1]).unwrap_err();
        let mut out = [0; 2];
        access.copy_out(8190, &mut out).unwrap();
        assert_eq!(out, [1, 2]);
        access.copy_out(8191, &mut out).unwrap_err();
        access.copy_out(8192, &mut []).unwrap();
    }
}
