//! Device memory bound to receive queues (linux net/core/devmem.c).

use std::ops::Range;

use devmem_uapi::DmabufId;

use super::{Chunked, Stock};
use crate::dmabuf::Dmabuf;
use crate::errors::GeometryError;
use crate::net_iov::{NetIovArea, NiovSize};

/// The net_iovs of one binding. It serves every queue of the binding, with one pool each,
/// and keeps the memory mapped until the last net_iov is home.
pub struct DmabufProvider {
    stock: Stock,
    id: DmabufId,
}

impl DmabufProvider {
    /// Cuts all of `dmabuf` into net_iovs.
    ///
    /// # Errors
    ///
    /// [`GeometryError`] when the size is not a multiple of `niov_size`.
    pub fn new(dmabuf: &Dmabuf, id: DmabufId, niov_size: NiovSize) -> Result<Self, GeometryError> {
        Self::with_range(dmabuf, 0..dmabuf.size(), id, niov_size)
    }

    /// Cuts a range of `dmabuf` into net_iovs.
    ///
    /// # Errors
    ///
    /// [`GeometryError`] when the range is not inside the memory, or not a number of whole, aligned net_iovs.
    pub fn with_range(
        dmabuf: &Dmabuf,
        range: Range<usize>,
        id: DmabufId,
        niov_size: NiovSize,
    ) -> Result<Self, GeometryError> {
        let area = NetIovArea::new(dmabuf, range.start, range.len(), niov_size)?;
        Ok(DmabufProvider {
            stock: Stock::new(area),
            id,
        })
    }
}

impl Chunked for DmabufProvider {
    fn stock(&self) -> &Stock {
        &self.stock
    }

    fn dmabuf_id(&self) -> Option<DmabufId> {
        Some(self.id)
    }
}
