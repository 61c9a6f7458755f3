//! Checksums of what was loaded.

mod kinds;
mod stored;

use std::fmt;
use std::hash::Hasher as _;
use std::ops::Range;

use devmem_tcp::{
    Dmabuf,
    memory::{CopyError, RangeCrc32c},
};
use twox_hash::XxHash3_64;

pub use client::{SumKind, SumValue};
pub use kinds::RunningSum;
pub(crate) use stored::StoredPart;
pub use stored::{Compared, NoSum, StoredSum};

/// A CRC-32C (RFC 3720 B.4) of bytes that are added in order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Crc32c(u32);

impl Crc32c {
    /// Adds the next bytes.
    pub fn add(&mut self, bytes: &[u8]) {
        self.0 = crc32c::crc32c_append(self.0, bytes);
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
        self.0 = crc32c::crc32c_combine(self.0, value, len);
        Ok(device)
    }

    /// Returns the checksum of all bytes so far.
    pub fn value(self) -> u32 {
        self.0
    }
}

/// An XXH3 of 64 bits, without a seed, of bytes that are added in order: as `xxhsum -H3` computes it.
#[derive(Clone)]
pub struct Xxh3(XxHash3_64);

impl Default for Xxh3 {
    fn default() -> Self {
        Self(XxHash3_64::with_seed(0))
    }
}

impl Xxh3 {
    /// Adds the next bytes.
    pub fn add(&mut self, bytes: &[u8]) {
        self.0.write(bytes);
    }

    /// Returns the checksum of all bytes so far.
    pub fn value(&self) -> u64 {
        self.0.finish()
    }
}

impl fmt::Debug for Xxh3 {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Xxh3").field(&self.value()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Values of the reference implementation (xxhsum 0.8).
    #[test]
    fn xxh3_is_that_of_the_reference_however_the_bytes_are_cut() {
        const XXH3: [(usize, u64); 5] = [
            (0, 0x2d06_8005_38d3_94c2),
            (1, 0xc44b_dff4_074e_ecdb),
            (17, 0x9ef3_41a9_9de3_7328),
            (200, 0xf42a_8864_feaf_0703),
            (1000, 0xd33d_d80b_46f6_0e50),
        ];
        let increasing: Vec<u8> = (0..1000_u32).map(|at| at as u8).collect();
        for (bytes, expected) in XXH3 {
            let bytes = &increasing[..bytes];
            for cut in [0, bytes.len() / 3, bytes.len()] {
                let mut sum = Xxh3::default();
                sum.add(&bytes[..cut]);
                sum.add(&bytes[cut..]);
                assert_eq!(sum.value(), expected, "{} bytes", bytes.len());
            }
        }
    }

    #[test]
    fn bytes_in_memory_follow_those_before_them() {
        let memory = Dmabuf::anonymous(8192).unwrap();
        memory.copy_in(100, b"device memory").unwrap();
        let mut sum = Crc32c::default();
        for (range, bytes) in [(100..107, &b""[..]), (50..50, b""), (107..113, b" TCP")] {
            assert_eq!(sum.add_memory(&memory, range), Ok(None));
            sum.add(bytes);
        }
        assert_eq!(sum.value(), crc32c::crc32c(b"device memory TCP"));
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
