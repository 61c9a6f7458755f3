//! Sources of memory for page pools.

mod chunks;

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use devmem_uapi::DmabufId;

use crate::device::CopyEngine;
use crate::dmabuf::{Dmabuf, MemoryObserver};
use crate::errors::{DmabufError, GeometryError};
use crate::memory::{Memory, MemoryAccess};
use crate::net_iov::{NetIovArea, NiovSize};
use chunks::Chunks;

/// A source of net_iovs for one or more page pools: device memory that is bound to receive queues (linux
/// net/core/devmem.c), or host pages. It keeps the memory mapped until the last net_iov is home. No call is on the fast
/// path; a net_iov is identified by its index in [`area`](Self::area).
#[doc(alias = "memory_provider_ops")]
pub struct MemoryProvider {
    area: Arc<NetIovArea>,
    pub(crate) chunks: Chunks,
    dmabuf_id: Option<DmabufId>,
}

impl MemoryProvider {
    /// Cuts all of `dmabuf` into net_iovs.
    ///
    /// # Errors
    ///
    /// [`GeometryError`] when the size is not a multiple of `niov_size`.
    pub fn of_dmabuf(
        dmabuf: &Dmabuf,
        id: DmabufId,
        niov_size: NiovSize,
    ) -> Result<Self, GeometryError> {
        Self::of_range(dmabuf, 0..dmabuf.size(), id, niov_size)
    }

    /// Cuts a range of `dmabuf` into net_iovs.
    ///
    /// # Errors
    ///
    /// [`GeometryError`] when the range is not inside the memory, or not a number of whole, aligned net_iovs.
    pub fn of_range(
        dmabuf: &Dmabuf,
        range: Range<usize>,
        id: DmabufId,
        niov_size: NiovSize,
    ) -> Result<Self, GeometryError> {
        let memory = Arc::clone(dmabuf.memory());
        let area = NetIovArea::cut(memory, range.start, range.len(), niov_size)?;
        Ok(Self::of(area, Some(id)))
    }

    /// Maps `bytes` of host memory, which the stack may read, in pages of `niov_size`. Pages are allocated when they are
    /// first touched; the lowest ones are used first, so an idle queue touches few.
    ///
    /// # Errors
    ///
    /// [`DmabufError`] when `bytes` is not a positive multiple of `niov_size` or mapping fails.
    pub fn host(bytes: usize, niov_size: NiovSize) -> Result<Self, DmabufError> {
        Self::of_host(Memory::lazy(bytes)?, niov_size)
    }

    /// Maps `bytes` of host memory in pages of `niov_size` that another process may map, too: a memory file, for a link
    /// that passes it to one peer. The link alone knows it, by its [`observer`](Self::observer).
    ///
    /// # Errors
    ///
    /// As [`host`](Self::host), or the file cannot be made.
    pub fn shareable(bytes: usize, niov_size: NiovSize) -> Result<Self, DmabufError> {
        Self::of_host(Memory::shareable(bytes)?, niov_size)
    }

    /// Maps `bytes` of host memory in pages of `niov_size`, and registers it with a device for its copies.
    ///
    /// # Errors
    ///
    /// As [`host`](Self::host), or the device refuses.
    pub fn pinned(
        bytes: usize,
        niov_size: NiovSize,
        engine: &Arc<dyn CopyEngine>,
    ) -> Result<Self, DmabufError> {
        Self::of_host(
            Memory::pinned(bytes, MemoryAccess::Host, engine)?,
            niov_size,
        )
    }

    fn of_host(memory: Memory, niov_size: NiovSize) -> Result<Self, DmabufError> {
        let bytes = memory.size();
        let area = NetIovArea::cut(Arc::new(memory), 0, bytes, niov_size)?;
        Ok(Self::of(area, None))
    }

    fn of(area: Arc<NetIovArea>, dmabuf_id: Option<DmabufId>) -> Self {
        MemoryProvider {
            chunks: Chunks::new(area.count()),
            area,
            dmabuf_id,
        }
    }

    /// Returns an observer of the memory, which does not keep it.
    pub fn observer(&self) -> MemoryObserver {
        MemoryObserver::of(self.area.memory())
    }

    /// Returns the number of free net_iovs; other pools may allocate them first.
    pub fn free_niovs(&self) -> u32 {
        self.chunks.free()
    }

    /// Returns the net_iovs.
    pub fn area(&self) -> &Arc<NetIovArea> {
        &self.area
    }

    /// Returns the id of the dma-buf that the memory belongs to; `None` for host memory, which the stack may read.
    pub fn dmabuf_id(&self) -> Option<DmabufId> {
        self.dmabuf_id
    }
}

impl fmt::Debug for MemoryProvider {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemoryProvider")
            .field("area", &self.area)
            .field("dmabuf_id", &self.dmabuf_id)
            .field("free_niovs", &self.free_niovs())
            .finish()
    }
}

#[cfg(test)]
mod tests;
