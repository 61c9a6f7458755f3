//! Host pages: the memory of a queue without a binding.

use std::sync::Arc;

use devmem_uapi::DmabufId;

use super::{Chunked, Stock};
use crate::device::CopyEngine;
use crate::errors::DmabufError;
use crate::memory::Memory;
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

    /// Maps `bytes` of host memory in pages of `niov_size` that another process can map, too: a memory file.
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
        engine: &dyn CopyEngine,
    ) -> Result<Self, DmabufError> {
        Self::of(Memory::pinned(bytes, engine)?, niov_size)
    }

    fn of(memory: Memory, niov_size: NiovSize) -> Result<Self, DmabufError> {
        let bytes = memory.size();
        let area = NetIovArea::cut(Arc::new(memory), 0, bytes, niov_size)?;
        Ok(HostProvider {
            stock: Stock::new(area),
        })
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
