//! CRC-32C of device memory, computed by the device that has it, where that can.

use std::ops::Range;

use crate::cpu_view::CopyError;
use crate::dmabuf::{CpuAccess, Dmabuf};

/// Bytes that the CPU copies at a time.
const BLOCK_BYTES: usize = 32 << 10;

/// The CRC-32C (RFC 3720 12.1) of a range of device memory.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RangeCrc32c {
    /// The checksum; 0 for no bytes.
    pub value: u32,
    /// The device that computed it, such as `cuda:0`; `None`: the CPU.
    pub device: Option<String>,
}

impl Dmabuf {
    /// Returns the CRC-32C of a range. Memory that the CPU cannot access is not copied to the host if its device has code for the checksum
    /// ([`CopyEngine::crc32c`](crate::CopyEngine::crc32c)); otherwise the bytes pass through a buffer of 32 KiB.
    ///
    /// The memory is not received into meanwhile.
    ///
    /// # Errors
    ///
    /// [`CopyError`]: the range is not inside the memory, or the device fails.
    pub fn crc32c(&self, range: Range<usize>) -> Result<RangeCrc32c, CopyError> {
        let (offset, len) = self.check_range(&range)?;
        if let Some((engine, from)) = self.memory().device_at(offset)
            && let Some(value) = engine.crc32c(from, len)?
        {
            let device = Some(engine.device());
            return Ok(RangeCrc32c { value, device });
        }
        let view = self.cpu_view(CpuAccess::Read)?;
        let mut block = vec![0; len.min(BLOCK_BYTES)];
        let mut value = 0;
        for done in (0..len).step_by(BLOCK_BYTES) {
            let bytes = &mut block[..BLOCK_BYTES.min(len - done)];
            // No overflow: `offset + len` has none.
            view.copy_out(offset + done, bytes)?;
            value = crc32c::crc32c_append(value, bytes);
        }
        view.end()?;
        let device = None;
        Ok(RangeCrc32c { value, device })
    }
}
