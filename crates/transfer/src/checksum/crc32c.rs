//! CRC-32C, of bytes and of device memory.

use std::ops::Range;

use devmem_tcp::{
    Dmabuf,
    memory::{CopyError, RangeCrc32c},
};

/// A CRC-32C (RFC 3720 B.4) of bytes that are added in order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Crc32c(u32);

impl Crc32c {
    /// Adds the next bytes.
    pub fn add(&mut self, bytes: &[u8]) {
        self.0 = ::crc32c::crc32c_append(self.0, bytes);
    }

    /// Adds the bytes of a range of device memory, without a copy to the host if the device can compute ([`Dmabuf::crc32c`]). Returns the device
    /// that has computed; `None`: the CPU.
    ///
    /// # Errors
    ///
    /// [`CopyError`]: the range is not inside the memory, or the device fails.
    pub fn add_memory(
        &mut self,
        memory: &Dmabuf,
        range: Range<usize>,
    ) -> Result<Option<String>, CopyError> {
        let len = range.len();
        let RangeCrc32c { value, device } = memory.crc32c(range)?;
        self.0 = ::crc32c::crc32c_combine(self.0, value, len);
        Ok(device)
    }

    /// Returns the checksum of all bytes so far.
    pub fn value(self) -> u32 {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_in_memory_follow_those_before_them() {
        let memory = Dmabuf::anonymous(8192).unwrap();
        memory.copy_in(100, b"device memory").unwrap();
        let mut sum = Crc32c::default();
        for (range, bytes) in [(100..107, &b""[..]), (50..50, b""), (107..113, b" TCP")] {
            assert_eq!(sum.add_memory(&memory, range), Ok(None));
            sum.add(bytes);
        }
        assert_eq!(sum.value(), ::crc32c::crc32c(b"device memory TCP"));
        let before = sum;
        assert!(sum.add_memory(&memory, 8000..8193).is_err());
        assert_eq!(sum, before);
    }

    /// RFC 3720 B.4.
    #[test]
    fn the_examples_of_the_rfc_have_their_checksums() {
        let increasing: Vec<u8> = (0..32).collect();
        for (bytes, expected) in [
            (&[0; 32][..], 0x8a91_36aa),
            (&[0xff; 32], 0x62a8_ab43),
            (&increasing, 0x46dd_794e),
        ] {
            let mut sum = Crc32c::default();
            let (first, second) = bytes.split_at(5);
            sum.add(first);
            sum.add(second);
            assert_eq!(sum.value(), expected);
        }
    }
}
