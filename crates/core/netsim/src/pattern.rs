//! Test patterns in which every byte depends on its position in the stream.

use std::fmt;

/// A stream in which every byte depends on its position and the seed, so that lost, repeated and
/// moved bytes and those of another stream do not match.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pattern {
    seed: u64,
}

/// A wrong byte.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Mismatch {
    /// Position in the stream.
    pub position: u64,
    /// Byte of the pattern.
    pub expected: u8,
    /// Byte that was received.
    pub found: u8,
}

impl fmt::Display for Mismatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            position,
            expected,
            found,
        } = self;
        write!(
            f,
            "byte {position} of the stream is {found:#04x} instead of {expected:#04x}"
        )
    }
}

impl Pattern {
    /// Returns the stream of `seed`.
    pub const fn new(seed: u64) -> Self {
        Self { seed }
    }

    /// Returns the byte at `position`.
    pub const fn byte(&self, position: u64) -> u8 {
        let word = self.word(position / 8);
        word.to_le_bytes()[(position % 8) as usize]
    }

    /// Writes the bytes from `position` on to all of `out`.
    pub fn fill(&self, position: u64, out: &mut [u8]) {
        for (byte, at) in out.iter_mut().zip(position..) {
            *byte = self.byte(at);
        }
    }

    /// Checks that `bytes` are those from `position` on.
    ///
    /// # Errors
    /// The first [`Mismatch`].
    pub fn check(&self, position: u64, bytes: &[u8]) -> Result<(), Mismatch> {
        for (&found, at) in bytes.iter().zip(position..) {
            let expected = self.byte(at);
            if found != expected {
                return Err(Mismatch {
                    position: at,
                    expected,
                    found,
                });
            }
        }
        Ok(())
    }

    const fn word(&self, index: u64) -> u64 {
        // SplitMix64's mixer: neighbouring words are unrelated.
        let mut z = index
            .wrapping_add(self.seed)
            .wrapping_mul(0x9e37_79b9_7f4a_7c15);
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z ^ (z >> 27)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_moved_or_changed_byte_is_found() {
        let pattern = Pattern::new(3);
        let mut bytes = [0; 1000];
        pattern.fill(77, &mut bytes);
        assert_eq!(pattern.check(77, &bytes), Ok(()));
        assert!(pattern.check(78, &bytes).is_err());
        assert!(Pattern::new(4).check(77, &bytes).is_err());
        bytes[500] ^= 1;
        assert_eq!(pattern.check(77, &bytes).unwrap_err().position, 577);
    }
}
