//! XXH3, the checksum that the CPU computes fastest.

use std::fmt;
use std::hash::Hasher as _;

use twox_hash::XxHash3_64;

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
}
