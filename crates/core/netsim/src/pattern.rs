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
        // Whole words between the bytes at both ends.
        let before = (position.next_multiple_of(8) - position) as usize;
        let (first, rest) = out.split_at_mut(before.min(out.len()));
        for (byte, at) in first.iter_mut().zip(position..) {
            *byte = self.byte(at);
        }
        let (words, last) = rest.as_chunks_mut::<8>();
        let mut index = position.div_ceil(8);
        for word in words {
            *word = self.word(index).to_le_bytes();
            index += 1;
        }
        last.copy_from_slice(&self.word(index).to_le_bytes()[..last.len()]);
    }

    /// Checks that `bytes` are those from `position` on.
    ///
    /// # Errors
    /// The first [`Mismatch`].
    pub fn check(&self, position: u64, bytes: &[u8]) -> Result<(), Mismatch> {
        let mut expected = [0; 256];
        let mut position = position;
        for part in bytes.chunks(expected.len()) {
            let expected = &mut expected[..part.len()];
            self.fill(position, expected);
            if part != expected {
                let pairs = part.iter().zip(expected.iter());
                let at = pairs
                    .take_while(|(found, expected)| found == expected)
                    .count();
                return Err(Mismatch {
                    position: position + at as u64,
                    expected: expected[at],
                    found: part[at],
                });
            }
            position += part.len() as u64;
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

    #[test]
    fn a_part_of_any_place_and_length_has_the_bytes_of_its_positions() {
        let pattern = Pattern::new(5);
        for position in 0..20 {
            for len in 0..40 {
                let mut bytes = vec![0; len];
                pattern.fill(position, &mut bytes);
                let expected: Vec<u8> = (position..).take(len).map(|at| pattern.byte(at)).collect();
                assert_eq!(bytes, expected, "{len} bytes from {position} on");
            }
        }
    }
}
