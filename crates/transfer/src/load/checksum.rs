//! CRC-32C of what was loaded.

/// A CRC-32C (RFC 3720 B.4) of bytes that are added in order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Crc32c(u32);

impl Crc32c {
    /// Adds the next bytes.
    pub fn add(&mut self, bytes: &[u8]) {
        self.0 = crc32c::crc32c_append(self.0, bytes);
    }

    /// Returns the checksum of all bytes so far.
    pub fn value(self) -> u32 {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
