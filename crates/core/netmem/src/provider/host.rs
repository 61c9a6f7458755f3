//! Host pages: the memory of a queue without a binding.

use std::sync::Arc;

use devmem_uapi::DmabufId;

use super::{Chunked, Stock};
use crate::dmabuf::DmabufError;
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
        let memory = Arc::new(Memory::lazy(bytes)?);
        let area = NetIovArea::cut(memory, 0, bytes, niov_size)?;
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
