//! Access of the CPU to device memory; the exporter is called before and after it.

use std::fmt;
use std::io;
use std::sync::Arc;

use devmem_uapi::Errno;

use crate::device::{CopyPiece, CopyWay, CpuAccess, DeviceError, Exporter, Lane};
use crate::memory::{Memory, OutOfBounds};

/// Bytes that are copied at a time where a copy takes more than one: they fit into the second-level cache.
pub(crate) const BLOCK_BYTES: usize = 256 << 10;

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
    /// The device could not copy its memory.
    #[error(transparent)]
    Device(#[from] DeviceError),
}

impl CopyError {
    fn sync(error: io::Error) -> Self {
        let device = error.get_ref().and_then(|inner| inner.downcast_ref());
        match device {
            Some(device) => Self::Device(*device),
            None => Self::Sync {
                errno: Errno(error.raw_os_error().unwrap_or(Errno::EIO.0)),
            },
        }
    }
}

/// An access of the CPU to device memory; it ends when the view is dropped.
///
/// Each copying method of [`Dmabuf`](crate::Dmabuf) begins and ends an access. For many copies in a row, one view calls the
/// exporter only once. Without an exporter both cost nothing.
#[must_use = "the access ends when this is dropped"]
pub struct CpuView<'a> {
    memory: &'a Memory,
    /// The exporter to call at the end.
    exporter: Option<&'a Arc<dyn Exporter>>,
    access: CpuAccess,
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
    /// [`CopyError`]; out of bounds, nothing is copied.
    pub fn copy_in(&self, offset: usize, bytes: &[u8]) -> Result<(), CopyError> {
        self.memory.check(offset, bytes.len())?;
        match self.memory.device_at(offset) {
            Some((engine, to)) => engine.write(to, bytes)?,
            None => self.memory.cpu().copy_in(offset, bytes),
        }
        Ok(())
    }

    /// Copies from `offset` to all of `out`.
    ///
    /// # Errors
    ///
    /// [`CopyError`]; out of bounds, nothing is copied.
    pub fn copy_out(&self, offset: usize, out: &mut [u8]) -> Result<(), CopyError> {
        self.memory.check(offset, out.len())?;
        match self.memory.device_at(offset) {
            Some((engine, from)) => engine.read(from, out)?,
            None => self.memory.cpu().copy_out(offset, out),
        }
        Ok(())
    }

    /// Sets `len` bytes from `offset` to `byte`.
    ///
    /// # Errors
    ///
    /// [`CopyError`]; out of bounds, nothing is written.
    pub fn fill(&self, offset: usize, len: usize, byte: u8) -> Result<(), CopyError> {
        self.memory.check(offset, len)?;
        if self.memory.engine().is_none() {
            self.memory.cpu().fill(offset, len, byte);
            return Ok(());
        }
        let block = vec![byte; len.min(BLOCK_BYTES)];
        for done in (0..len).step_by(BLOCK_BYTES) {
            // No overflow: `offset + len` has none.
            self.copy_in(offset + done, &block[..BLOCK_BYTES.min(len - done)])?;
        }
        Ok(())
    }

    /// Copies `len` bytes at `source_offset` of `source` to `offset` of this memory, device to device. Both may be
    /// the same memory, and the ranges may overlap (memmove).
    ///
    /// # Errors
    ///
    /// [`CopyError`]; out of bounds for either range, nothing is copied.
    pub fn copy_from(
        &self,
        source: &CpuView<'_>,
        source_offset: usize,
        offset: usize,
        len: usize,
    ) -> Result<(), CopyError> {
        source.memory.check(source_offset, len)?;
        self.memory.check(offset, len)?;
        let ends = (
            source.memory.device_at(source_offset),
            self.memory.device_at(offset),
        );
        match ends {
            _ if len == 0 => {}
            (None, None) => {
                let span = source.memory.span(source_offset, len);
                self.memory.dma().copy_from(offset, span);
            }
            (Some((engine, from)), Some((other, to)))
                if Arc::ptr_eq(engine, other)
                    && !self.overlaps(source, source_offset, offset, len) =>
            {
                let way = CopyWay::Within {
                    from: from.memory,
                    to: to.memory,
                };
                let piece = CopyPiece {
                    from: source_offset,
                    to: offset,
                    len,
                };
                engine.wait(engine.submit(Lane::Gather, way, &[piece])?)?;
            }
            _ => self.copy_through_host(source, source_offset, offset, len)?,
        }
        Ok(())
    }

    /// Copies blocks by way of host memory, in the order that overlapping ranges require.
    fn copy_through_host(
        &self,
        source: &CpuView<'_>,
        source_offset: usize,
        offset: usize,
        len: usize,
    ) -> Result<(), CopyError> {
        let mut block = vec![0; len.min(BLOCK_BYTES)];
        let blocks = len.div_ceil(BLOCK_BYTES);
        let is_forward = offset <= source_offset;
        for nth in 0..blocks {
            let index = if is_forward { nth } else { blocks - 1 - nth };
            let done = index * BLOCK_BYTES;
            let block = &mut block[..BLOCK_BYTES.min(len - done)];
            source.copy_out(source_offset + done, block)?;
            self.copy_in(offset + done, block)?;
        }
        Ok(())
    }

    fn overlaps(&self, source: &CpuView<'_>, from: usize, to: usize, len: usize) -> bool {
        std::ptr::eq(self.memory, source.memory) && from.abs_diff(to) < len
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
