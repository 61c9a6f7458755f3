//! CRC-32C of device memory, computed by the device that has it, where that can.

use std::ops::Range;

use crate::cpu_view::{BLOCK_BYTES, CopyError};
use crate::device::CpuAccess;
use crate::dmabuf::Dmabuf;

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
    /// ([`CopyEngine::crc32c`](crate::CopyEngine::crc32c)); otherwise the bytes pass through a buffer
    /// of 256 KiB.
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fake_device::{FakeDevice, FakePace};

    fn check(memory: &Dmabuf) {
        let bytes: Vec<u8> = (0..memory.size()).map(|at| (at / 7) as u8).collect();
        memory.copy_in(0, &bytes).unwrap();
        let last = bytes.len();
        for range in [0..0, last..last, 0..1, 3..4096, 5..last] {
            let sum = memory.crc32c(range.clone()).unwrap();
            assert_eq!(sum.value, crc32c::crc32c(&bytes[range]));
            assert_eq!(sum.device, None);
        }
        for range in [0..last + 1, last + 1..last + 1, 1..usize::MAX] {
            let result = memory.crc32c(range);
            assert!(matches!(result, Err(CopyError::OutOfBounds(_))));
        }
    }

    #[test]
    fn the_cpu_computes_the_checksum_of_mapped_memory_and_of_devices_without_code() {
        // More than a block, but Miri checks the accesses, not the sums.
        let size = if cfg!(miri) { 8192 } else { BLOCK_BYTES + 8192 };
        check(&Dmabuf::anonymous(size).unwrap());
        check(&FakeDevice::new(FakePace::AtOnce).alloc(size).unwrap());
    }
}
