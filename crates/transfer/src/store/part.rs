//! The ranges of an export that are written, and the places of their bytes in memory.

use std::ops::Range;

use client::Piece;

use super::error::StoreError;
use crate::parallel::ranges::{joined, sorted_apart};

/// A range of an export, and the place of its bytes in the memory that is stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Part {
    /// Byte offsets in the export.
    pub target: Range<u64>,
    /// The place of the first byte in memory.
    pub offset: usize,
}

/// Parts in the order of the export.
#[derive(Debug)]
pub(crate) struct Layout {
    parts: Vec<Part>,
}

impl Layout {
    /// Sorts the parts and checks them.
    ///
    /// # Errors
    /// A part is not inside the memory of `size` bytes, or two parts overlap in the export.
    pub(crate) fn new(parts: &[Part], size: usize) -> Result<Self, StoreError> {
        let mut parts: Vec<_> = parts.to_vec();
        parts.retain(|part| !part.target.is_empty());
        parts.sort_unstable_by_key(|part| part.target.start);
        for Part { target, offset } in &parts {
            let (len, offset) = (target.end - target.start, *offset);
            let room = size.checked_sub(offset).map(|room| room as u64);
            if room.is_none_or(|room| len > room) {
                return Err(StoreError::OutsideMemory { offset, len, size });
            }
        }
        sorted_apart(parts.iter().map(|part| part.target.clone()))?;
        Ok(Self { parts })
    }

    /// Returns the ranges of the export; neighbours make one range, so that one request can write many small parts.
    pub(crate) fn ranges(&self) -> Vec<Range<u64>> {
        joined(self.parts.iter().map(|part| part.target.clone()))
    }

    /// Returns the places of a piece in memory, in the order of the export. The piece is from [`ranges`](Self::ranges).
    pub(crate) fn places(&self, piece: Piece) -> Vec<Range<usize>> {
        let first = self
            .parts
            .partition_point(|part| part.target.end <= piece.start);
        let inside = self.parts[first..].iter();
        let inside = inside.take_while(|part| part.target.start < piece.end);
        inside
            .map(|Part { target, offset }| {
                let (start, end) = (target.start.max(piece.start), target.end.min(piece.end));
                // Both fit: the part is inside the memory.
                let start = offset + usize::try_from(start - target.start).unwrap_or(0);
                start..offset + usize::try_from(end - target.start).unwrap_or(0)
            })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn part(target: Range<u64>, offset: usize) -> Part {
        Part { target, offset }
    }

    #[test]
    fn a_piece_over_several_parts_has_all_their_places_in_the_order_of_the_export() {
        let parts = [part(300..310, 0), part(100..200, 256), part(200..300, 1024)];
        let layout = Layout::new(&parts, 4096).unwrap();
        assert_eq!(layout.ranges(), [100..310]);
        let places = |start, end| layout.places(Piece { start, end });
        assert_eq!(places(100, 310), [256..356, 1024..1124, 0..10]);
        assert_eq!(places(199, 201), [355..356, 1024..1025]);
        assert_eq!(places(110, 120), [266..276]);
    }

    #[test]
    fn parts_outside_the_memory_or_over_each_other_are_refused() {
        for bad in [
            part(0..4097, 0),
            part(0..1, 4096),
            part(0..u64::MAX, 0),
            part(0..1, 9999),
        ] {
            let refused = Layout::new(&[bad], 4096);
            assert!(matches!(refused, Err(StoreError::OutsideMemory { .. })));
        }
        let refused = Layout::new(&[part(9..20, 50), part(0..10, 0)], 4096);
        assert!(matches!(refused, Err(StoreError::Overlap { first, .. }) if first == (0..10)));
    }
}
