//! Access of the CPU to device memory; the exporter is called before and after it.

use std::fmt;
use std::io;
use std::sync::Arc;

use devmem_uapi::Errno;

use crate::dmabuf::{CpuAccess, Dmabuf, Exporter};
use crate::memory::{Memory, OutOfBounds};

/// Why bytes were not copied to or from device memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum CopyError {
    /// The range is not inside the memory. Nothing was copied.
    #[error(transparent)]
    OutOfBounds(#[from] OutOfBounds),
    /// The exporter could not synchronise (DMA_BUF_IOCTL_SYNC): the CPU or the device may see old data.
    #[error("the exporter of the memory could not synchronise it for the CPU: {errno}")]
    Sync {
        /// Its error.
        errno: Errno,
    },
}

impl CopyError {
    fn sync(error: io::Error) -> Self {
        Self::Sync {
            errno: Errno(error.raw_os_error().unwrap_or(Errno::EIO.0)),
        }
    }
}

/// An access of the CPU to device memory; it ends when the view is dropped.
///
/// Each copying method of [`Dmabuf`] begins and ends an access. For many copies in a row, one view calls the
/// exporter only once. Without an exporter both cost nothing.
#[must_use = "the access ends when this is dropped"]
pub struct CpuView<'a> {
    memory: &'a Memory,
    /// The exporter to call at the end.
    exporter: Option<&'a Arc<dyn Exporter>>,
    access: CpuAccess,
}

impl Dmabuf {
    /// Begins an access of the CPU: the writes of devices become visible to it.
    ///
    /// # Errors
    ///
    /// [`CopyError::Sync`] when the exporter cannot synchronise.
    pub fn cpu_view(&self, access: CpuAccess) -> Result<CpuView<'_>, CopyError> {
        CpuView::of(self.memory(), access)
    }
}

impl<'a> CpuView<'a> {
    pub(crate) fn of(memory: &'a Memory, access: CpuAccess) -> Result<Self, CopyError> {
        let exporter = memory.exporter();
        if let Some(exporter) = exporter {
            exporter.begin_cpu_access(access).map_err(CopyError::sync)?;
        }
        Ok(Self {
            memory,
            exporter,
            access,
        })
    }

    /// Copies `bytes` to `offset`.
    ///
    /// # Errors
    ///
    /// [`OutOfBounds`], and nothing is copied.
    pub fn copy_in(&self, offset: usize, bytes: &[u8]) -> Result<(), OutOfBounds> {
        self.memory.check(offset, bytes.len())?;
        self.memory.cpu().copy_in(offset, bytes);
        Ok(())
    }

    /// Copies from `offset` to all of `out`.
    ///
    /// # Errors
    ///
    /// [`OutOfBounds`], and nothing is copied.
    pub fn copy_out(&self, offset: usize, out: &mut [u8]) -> Result<(), OutOfBounds> {
        self.memory.check(offset, out.len())?;
        self.memory.cpu().copy_out(offset, out);
        Ok(())
    }

    /// Sets `len` bytes from `offset` to `byte`.
    ///
    /// # Errors
    ///
    /// [`OutOfBounds`], and nothing is written.
    pub fn fill(&self, offset: usize, len: usize, byte: u8) -> Result<(), OutOfBounds> {
        self.memory.check(offset, len)?;
        self.memory.cpu().fill(offset, len, byte);
        Ok(())
    }

    /// Copies `len` bytes at `source_offset` of `source` to `offset` of this memory, device to device. Both may be
    /// the same memory, and the ranges may overlap (memmove).
    ///
    /// # Errors
    ///
    /// [`OutOfBounds`] for either range, and nothing is copied.
    pub fn copy_from(
        &self,
        source: &CpuView<'_>,
        source_offset: usize,
        offset: usize,
        len: usize,
    ) -> Result<(), OutOfBounds> {
        source.memory.check(source_offset, len)?;
        self.memory.check(offset, len)?;
        let span = source.memory.span(source_offset, len);
        self.memory.dma().copy_from(offset, span);
        Ok(())
    }

    /// Ends the access and returns errors, which dropping the view ignores.
    ///
    /// # Errors
    ///
    /// [`CopyError::Sync`]: devices may not see the written data.
    pub fn end(mut self) -> Result<(), CopyError> {
        match self.exporter.take() {
            Some(exporter) => exporter
                .end_cpu_access(self.access)
                .map_err(CopyError::sync),
            None => Ok(()),
        }
    }
}

impl Drop for CpuView<'_> {
    fn drop(&mut self) {
        if let Some(exporter) = self.exporter.take() {
            // A caller that needs the error calls `end`.
            let _ = exporter.end_cpu_access(self.access);
        }
    }
}

impl fmt::Debug for CpuView<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CpuView")
            .field("access", &self.access)
            .field("size", &self.memory.size())
            .finish_non_exhaustive()
    }
}
