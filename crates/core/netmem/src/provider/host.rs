//! Host pages: the memory of a queue without a binding.

use std::fmt;
use std::sync::Arc;

use devmem_uapi::DmabufId;

use super::{Chunked, Stock};
use crate::device::CopyEngine;
use crate::dmabuf::MemoryObserver;
use crate::errors::DmabufError;
use crate::memory::{Memory, MemoryAccess};
use crate::net_iov::{NetIovArea, NiovSize};

/// Host memory, which the stack may read. Pages are allocated when they are first touched; the lowest
/// ones are used first, so an idle queue touches few.
pub struct HostProvider {
    stock: Stock,
}

impl HostProvider {
    /// Maps `bytes` of host memory in pages of `niov_size`.
    ///
    /// # Errors
    ///
    /// [`DmabufError`] when `bytes` is not a positive multiple of `niov_size` or mapping fails.
    pub fn new(bytes: usize, niov_size: NiovSize) -> Result<Self, DmabufError> {
        Self::of(Memory::lazy(bytes)?, niov_size)
    }

    /// Maps `bytes` of host memory in pages of `niov_size` that another process may map, too: a memory file, for a link
    /// that passes it to one peer. The link alone knows it, by its [`observer`](Self::observer).
    ///
    /// # Errors
    ///
    /// As [`new`](Self::new), or the file cannot be made.
    pub fn shareable(bytes: usize, niov_size: NiovSize) -> Result<Self, DmabufError> {
        Self::of(Memory::shareable(bytes)?, niov_size)
    }

    /// Maps `bytes` of host memory in pages of `niov_size`, and registers it with a device for its copies.
    ///
    /// # Errors
    ///
    /// As [`new`](Self::new), or the device refuses.
    pub fn pinned(
        bytes: usize,
        niov_size: NiovSize,
        engine: &Arc<dyn CopyEngine>,
    ) -> Result<Self, DmabufError> {
        Self::of(
            Memory::pinned(bytes, MemoryAccess::Host, engine)?,
            niov_size,
        )
    }

    /// Returns an observer of the memory, which does not keep it.
    pub fn observer(&self) -> MemoryObserver {
        MemoryObserver::of(self.stock.area.memory())
    }

    fn of(memory: Memory, niov_size: NiovSize) -> Result<Self, DmabufError> {
        let bytes = memory.size();
        let area = NetIovArea::cut(Arc::new(memory), 0, bytes, niov_size)?;
        Ok(HostProvider {
            stock: Stock::new(area),
        })
    }
}

impl fmt::Debug for HostProvider {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HostProvider")
            .field("bytes", &self.stock.area.memory().size())
            .finish_non_exhaustive()
    }
}

impl Chunked for HostProvider {
    fn stock(&self) -> &Stock {
        &self.stock
    }

    fn dmabuf_id(&self) -> Option<DmabufId> {
        None
    }
}
