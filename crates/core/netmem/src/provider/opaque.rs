//! Device memory for tests: an access by the CPU fails the test.

use devmem_uapi::DmabufId;

use super::{Chunked, Stock};
use crate::dmabuf::Dmabuf;
use crate::errors::DmabufError;
use crate::memory::{Memory, MemoryAccess};
use crate::net_iov::{NetIovArea, NiovSize};

/// Device memory that only a [`crate::DmaPort`] may access. Any other access panics, also
/// through [`OpaqueProvider::dmabuf`]. The test reads it with [`OpaqueProvider::device_read`].
pub struct OpaqueProvider {
    stock: Stock,
    dmabuf: Dmabuf,
    id: DmabufId,
}

impl OpaqueProvider {
    /// Creates `bytes` of opaque device memory in net_iovs of `niov_size`.
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

    /// Returns the memory as an application has it; reading or writing it panics.
    pub fn dmabuf(&self) -> &Dmabuf {
        &self.dmabuf
    }

    /// Writes like the device.
    ///
    /// # Panics
    ///
    /// When the range is not inside the memory.
    pub fn device_write(&self, offset: usize, bytes: &[u8]) {
        self.dmabuf.memory().dma().copy_in(offset, bytes);
    }

    /// Reads like the device.
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
