//! The checksum that a store has of an object, of its bytes or of its parts, and the comparison with what was loaded.

use std::fmt;
use std::ops::Range;

use client::{SumKind, SumValue};

use super::kinds::RunningSum;

/// A checksum that a server has of a file: of all its bytes, or of the checksums of its parts one after another ("composite"), as stores have for objects that
/// were uploaded in parts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredSum {
    pub(crate) kind: SumKind,
    pub(crate) value: SumValue,
    /// The parts of a composite one, one after another from the first byte to the last; empty for one of all bytes.
    pub(crate) parts: Vec<StoredPart>,
}

/// A part of an object, as it was uploaded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct StoredPart {
    pub(crate) range: Range<u64>,
    /// Its checksum, if the store tells it.
    pub(crate) sum: Option<SumValue>,
}

/// Why there is nothing to compare.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoSum {
    /// The server has no checksum of the file, or does not tell it.
    None,
    /// A server's checksum is of all bytes of a file, and these are other ones.
    NotAll,
    /// It has one of the checksums of this many parts, and does not tell where each begins.
    Parts(SumKind, u32),
    /// It has one, of a file that was uploaded in parts, and does not say whether it is of the bytes.
    Unclear(SumKind),
}

impl fmt::Display for NoSum {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::None => write!(f, "the server has none to compare"),
            Self::NotAll => write!(
                f,
                "not compared: a server's checksum is of the whole file, of which only a part is loaded"
            ),
            Self::Parts(kind, parts) => write!(
                f,
                "the server has the {kind} of the checksums of {parts} parts, and does not tell where they begin"
            ),
            Self::Unclear(kind) => write!(
                f,
                "the server has a {kind}, and does not say whether it is of the file or of the checksums of its parts"
            ),
        }
    }
}

/// What a comparison has found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Compared {
    /// The kind of the checksums.
    pub kind: SumKind,
    /// The number of parts of whose checksums they are; 0: they are of the bytes.
    pub parts: usize,
    /// The server's checksum.
    pub stored: SumValue,
    /// That of the loaded bytes.
    pub loaded: SumValue,
    /// The first part whose bytes have another checksum than the server has of it, counted from 1, and its bytes.
    pub wrong_part: Option<(usize, Range<u64>)>,
}

impl Compared {
    /// Returns whether the loaded bytes are those that the server has the checksum of.
    pub fn is_equal(&self) -> bool {
        self.stored == self.loaded
    }
}

impl StoredSum {
    /// Returns the kind of the checksum.
    pub fn kind(&self) -> SumKind {
        self.kind
    }

    /// Returns the number of parts whose checksums it is of; 0: it is of all bytes.
    pub fn parts(&self) -> usize {
        self.parts.len()
    }

    /// Compares it with the checksum of a file of `size` bytes. `sum_of` returns the checksum of a range of the loaded bytes, of the kind
    /// of this one.
    ///
    /// # Errors
    /// Those of `sum_of`.
    pub fn compare<E>(
        &self,
        size: u64,
        mut sum_of: impl FnMut(Range<u64>) -> Result<SumValue, E>,
    ) -> Result<Compared, E> {
        let mut compared = Compared {
            kind: self.kind,
            parts: self.parts.len(),
            stored: self.value.clone(),
            loaded: self.value.clone(),
            wrong_part: None,
        };
        if self.parts.is_empty() {
            compared.loaded = sum_of(0..size)?;
            return Ok(compared);
        }
        let mut sums = RunningSum::begin(self.kind);
        for (number, part) in (1..).zip(&self.parts) {
            let sum = sum_of(part.range.clone())?;
            sums.add(sum.bytes());
            let is_wrong = part.sum.as_ref().is_some_and(|stored| *stored != sum);
            if is_wrong && compared.wrong_part.is_none() {
                compared.wrong_part = Some((number, part.range.clone()));
            }
        }
        compared.loaded = sums.value();
        Ok(compared)
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use super::*;

    fn sum(kind: SumKind, bytes: &[u8]) -> SumValue {
        let mut sum = RunningSum::begin(kind);
        sum.add(bytes);
        sum.value()
    }

    fn compare(stored: &StoredSum, bytes: &[u8]) -> Compared {
        let compared = stored.compare(bytes.len() as u64, |range| {
            let bytes = &bytes[range.start as usize..range.end as usize];
            Ok::<_, Infallible>(sum(stored.kind, bytes))
        });
        let Ok(compared) = compared;
        compared
    }

    #[test]
    fn a_checksum_of_all_bytes_tells_right_bytes_from_wrong_ones() {
        for kind in SumKind::ALL {
            let stored = StoredSum {
                kind,
                value: sum(kind, b"device memory"),
                parts: Vec::new(),
            };
            assert!(compare(&stored, b"device memory").is_equal(), "{kind}");
            let wrong = compare(&stored, b"Device memory");
            assert!(!wrong.is_equal() && wrong.wrong_part.is_none(), "{kind}");
        }
    }

    #[test]
    fn a_composite_checksum_is_of_those_of_its_parts_and_names_the_wrong_one() {
        let bytes = *b"device memory TCP";
        for kind in SumKind::ALL {
            let ranges: [Range<u64>; 3] = [0..6, 6..13, 13..17];
            let of_parts: Vec<_> = ranges
                .iter()
                .map(|range| sum(kind, &bytes[range.start as usize..range.end as usize]))
                .collect();
            let all: Vec<u8> = of_parts
                .iter()
                .flat_map(|part| part.bytes().to_vec())
                .collect();
            let parts = ranges
                .into_iter()
                .zip(of_parts)
                .map(|(range, sum)| StoredPart {
                    range,
                    sum: Some(sum),
                });
            let stored = StoredSum {
                kind,
                value: sum(kind, &all),
                parts: parts.collect(),
            };
            assert!(compare(&stored, &bytes).is_equal(), "{kind}");
            let mut wrong = bytes;
            wrong[8] ^= 1;
            let wrong = compare(&stored, &wrong);
            assert!(!wrong.is_equal(), "{kind}");
            assert_eq!(wrong.wrong_part, Some((2, 6..13)), "{kind}");
        }
    }
}
