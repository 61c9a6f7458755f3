//! Lists of pieces in the form that the code of a device reads, so that many pieces cost the CPU little.

use crate::device::CopyPiece;

/// Bits of an offset.
const OFFSET_BITS: u32 = 48;

/// Pieces of copies between two memories, in two words each: the offset in the source, with one less than the number of bytes above it, and the
/// offset in the destination.
#[derive(Debug)]
pub struct PieceList {
    /// Places of pieces, of which the first `len` are taken.
    words: Box<[[u64; 2]]>,
    len: usize,
    /// Bytes of the longest piece that the list takes.
    longest: usize,
}

impl PieceList {
    /// Most pieces: a list of 96 KiB, which the cache of a processor holds until the device's copy of it is written.
    pub const PIECES: usize = 6144;

    /// Bytes of the longest memory whose offsets have room.
    pub const MEMORY_BYTES: usize = 1 << OFFSET_BITS;

    /// Bytes of the longest piece.
    pub const PIECE_BYTES: usize = 1 << (u64::BITS - OFFSET_BITS);

    /// Returns an empty list for pieces of memories that are at most `longest_memory` bytes long, with room for `pieces`, but no more than
    /// [`PIECES`](Self::PIECES).
    pub(crate) fn for_memories(longest_memory: usize, pieces: usize) -> Self {
        let is_short = longest_memory <= Self::MEMORY_BYTES;
        Self {
            words: vec![[0; 2]; pieces.clamp(1, Self::PIECES)].into_boxed_slice(),
            len: 0,
            longest: if is_short { Self::PIECE_BYTES } else { 0 },
        }
    }

    /// Returns whether the list takes a piece of `len` bytes, if it has a place: not an empty or a long one.
    #[inline]
    pub(crate) fn takes(&self, len: usize) -> bool {
        len.wrapping_sub(1) < self.longest
    }

    /// Returns the places that are free, and the bytes of the longest piece that [is taken](Self::takes).
    #[inline]
    pub(crate) fn free(&mut self) -> (&mut [[u64; 2]], usize) {
        (&mut self.words[self.len..], self.longest)
    }

    /// Takes the first of the free places, which have been written.
    pub(crate) fn take(&mut self, places: usize) {
        self.len = self.words.len().min(self.len + places);
    }

    /// Adds a piece; returns false if the list does not take it, or has no place.
    pub(crate) fn add(&mut self, piece: CopyPiece) -> bool {
        let takes = self.takes(piece.len);
        match self.words.get_mut(self.len).filter(|_| takes) {
            Some(place) => *place = piece.packed(),
            None => return false,
        }
        self.len += 1;
        true
    }

    pub(crate) fn is_full(&self) -> bool {
        self.len == self.words.len()
    }

    pub(crate) fn clear(&mut self) {
        self.len = 0;
    }

    /// Returns whether there is no piece.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns the number of pieces.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns the words of the pieces.
    pub fn words(&self) -> &[[u64; 2]] {
        &self.words[..self.len]
    }

    /// Returns the pieces.
    pub fn pieces(&self) -> impl Iterator<Item = CopyPiece> + '_ {
        self.words().iter().map(|&[from, to]| CopyPiece {
            // Each part was a `usize`.
            from: (from & ((1 << OFFSET_BITS) - 1)) as usize,
            to: to as usize,
            len: (from >> OFFSET_BITS) as usize + 1,
        })
    }
}

impl CopyPiece {
    /// Returns the words of a piece in a [`PieceList`]. It has 1 to [`PieceList::PIECE_BYTES`] bytes, at offsets that such a list has room for.
    #[inline]
    pub fn packed(self) -> [u64; 2] {
        let Self { from, to, len } = self;
        [from as u64 | (len as u64 - 1) << OFFSET_BITS, to as u64]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_are_the_same_in_a_list_up_to_the_last_offset_and_the_longest_length() {
        let last = PieceList::MEMORY_BYTES;
        let mut list = PieceList::for_memories(last, 4);
        let pieces = [
            (0, 7, 1),
            (5, 0, 65_536),
            (last - 1, last - 1, 1),
            (last - 65_536, 3, 65_536),
        ]
        .map(|(from, to, len)| CopyPiece { from, to, len });
        for piece in pieces {
            assert!(list.add(piece));
        }
        assert_eq!(list.pieces().collect::<Vec<_>>(), pieces);
        assert_eq!(list.words()[0], [0, 7]);
        assert_eq!(list.words()[1], [0xffff_0000_0000_0005, 0]);
    }

    #[test]
    fn empty_and_longer_pieces_and_those_of_longer_memories_are_not_taken_nor_more_than_fit() {
        let piece = |len| CopyPiece {
            from: 1,
            to: 2,
            len,
        };
        let mut list = PieceList::for_memories(4096, usize::MAX);
        assert!(!list.add(piece(0)) && !list.add(piece(65_537)) && list.is_empty());
        for _ in 0..PieceList::PIECES {
            assert!(list.add(piece(9)));
        }
        assert!(list.is_full() && !list.add(piece(9)));
        let longer = PieceList::MEMORY_BYTES + 1;
        assert!(!PieceList::for_memories(longer, 1).add(piece(9)));
    }
}
