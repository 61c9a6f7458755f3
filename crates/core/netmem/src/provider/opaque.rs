//! A test's device memory: whoever looks at it with the CPU fails the test.

use devmem_uapi::DmabufId;

use super::{Chunked, Stock};
use crate::dmabuf::{Dmabuf, DmabufError};
use crate::memory::{Memory, MemoryAccess};
use crate::net_iov::{NetIovArea, NiovSize};

/// Device memory whose bytes only a [`crate::DmaPort`] may move. Any other access panics, also
/// through [`OpaqueProvider::dmabuf`]. The test itself looks with [`OpaqueProvider::device_read`].
pub struct OpaqueProvider {
    stock: Stock,
    dmabuf: Dmabuf,
    id: DmabufId,
}

impl OpaqueProvider {
    /// Makes `bytes` of opaque device memory in net_iovs of `niov_size`.
    ///
    /// # Errors
    ///
    /// [`DmabufError`] when `bytes` is not a positive multiple of `niov_size` or memory is short.
    pub fn new(bytes: usize, id: DmabufId, niov_size: NiovSize) -> Result<Self, DmabufError> {
        let dmabuf = Dmabuf::new(Memory::anonymous(bytes, MemoryAccess::Opaque)?);
        let area = NetIovArea::new(&dmabuf, 0, bytes, niov_size)?;
        Ok(OpaqueProvider {
            stock: Stock::new(area),
            dmabuf,
            id,
        })
    }

    /// Returns the memory as its user would hold it; reading or writing it panics.
    pub fn dmabuf(&self) -> &Dmabuf {
        &self.dmabuf
    }

    /// Writes what the device would.
    ///
    /// # Panics
    ///
    /// When the range is not inside the memory.
    pub fn device_write(&self, offset: usize, bytes: &[u8]) {
        self.dmabuf.memory().dma().copy_in(offset, bytes);
    }

    /// Copies out what the device would see.
    ///
    /// # Panics
    ///
    /// When the range is not inside the memory.
    pub fn device_read(&self, offset: usize, out: &mut [u8]) {
        self.dmabuf.memory().dma().copy_out(offset, out);
    }
}

impl Chunked for OpaqueProvider {
    fn stock(&self) -> &Stock {
        &self.stock
    }

    fn dmabuf_id(&self) -> Option<DmabufId> {
        Some(self.id)
    }
}
