//! The pieces of a load: each is requested whole; if its connection breaks, what has not come of it is requested again.

use std::collections::VecDeque;
use std::ops::Range;

use client::Piece;

/// What is left to request, and what is done.
#[derive(Debug)]
pub(crate) struct Pieces {
    /// Ranges that no piece has been cut from yet, in the order of the source.
    ranges: VecDeque<Range<u64>>,
    /// Pieces of broken connections, in the order of the source.
    returned: VecDeque<Piece>,
    piece_bytes: u64,
    /// Length of one piece that is longer, and is still to be cut off a range that has room for it.
    long_piece: Option<u64>,
    total: u64,
    done: u64,
    finished: u64,
    repeated: u64,
}

impl Pieces {
    /// Cuts `ranges`, which must not overlap, into pieces of at most `piece_bytes`, on demand.
    pub(crate) fn new(ranges: Vec<Range<u64>>, piece_bytes: u64) -> Self {
        let total = ranges.iter().map(|range| range.end - range.start).sum();
        Self {
            ranges: ranges.into(),
            returned: VecDeque::new(),
            piece_bytes: piece_bytes.max(1),
            long_piece: None,
            total,
            done: 0,
            finished: 0,
            repeated: 0,
        }
    }

    /// Makes the first piece `bytes` long, if that is more than the others have, and if a range is as long.
    pub(crate) fn with_long_piece(mut self, bytes: u64) -> Self {
        self.long_piece = Some(bytes).filter(|bytes| *bytes > self.piece_bytes);
        self
    }

    /// Returns the next piece without taking it: one that was given back before a new one.
    pub(crate) fn peek(&self) -> Option<Piece> {
        if let Some(piece) = self.returned.front() {
            return Some(*piece);
        }
        let range = self.ranges.front()?;
        let room = range.end - range.start;
        let long = self.long_piece.filter(|bytes| *bytes <= room);
        let len = long.unwrap_or(self.piece_bytes).min(room);
        Some(Piece {
            start: range.start,
            end: range.start + len,
        })
    }

    /// Takes the next piece.
    pub(crate) fn next(&mut self) -> Option<Piece> {
        if let Some(piece) = self.returned.pop_front() {
            return Some(piece);
        }
        let piece = self.peek()?;
        if piece.len() > self.piece_bytes {
            self.long_piece = None;
        }
        let range = self.ranges.front_mut()?;
        range.start = piece.end;
        if range.is_empty() {
            self.ranges.pop_front();
        }
        Some(piece)
    }

    /// Takes back a piece that is not whole, to be requested again.
    pub(crate) fn give_back(&mut self, piece: Piece) {
        self.repeated += 1;
        self.put_back(piece);
    }

    /// Takes back a piece that was requested and not answered, to be requested then.
    pub(crate) fn put_back(&mut self, piece: Piece) {
        let index = self.returned.partition_point(|it| it.start < piece.start);
        self.returned.insert(index, piece);
    }

    /// Counts the beginning of a piece, whose rest is given back.
    pub(crate) fn keep(&mut self, part: Piece) {
        self.done += part.len();
    }

    /// Takes back a piece that was whole, to be requested again: a server has lost it.
    pub(crate) fn reopen(&mut self, piece: Piece) {
        self.done -= piece.len();
        self.finished -= 1;
        self.give_back(piece);
    }

    /// Counts a whole piece.
    pub(crate) fn finish(&mut self, piece: Piece) {
        self.done += piece.len();
        self.finished += 1;
    }

    pub(crate) fn is_done(&self) -> bool {
        self.done == self.total
    }

    /// Bytes of all ranges.
    pub(crate) fn total(&self) -> u64 {
        self.total
    }

    /// Bytes of whole pieces.
    pub(crate) fn done(&self) -> u64 {
        self.done
    }

    /// Number of whole pieces.
    pub(crate) fn finished(&self) -> u64 {
        self.finished
    }

    /// Number of pieces that were given back.
    pub(crate) fn repeated(&self) -> u64 {
        self.repeated
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(pieces: &mut Pieces) -> Vec<(u64, u64)> {
        let next = || pieces.next().map(|piece| (piece.start, piece.end));
        std::iter::from_fn(next).collect()
    }

    #[test]
    fn ranges_are_cut_into_pieces_that_never_cross_a_gap() {
        let mut pieces = Pieces::new(vec![0..25, 100..105], 10);
        assert_eq!(pieces.total(), 30);
        assert_eq!(all(&mut pieces), [(0, 10), (10, 20), (20, 25), (100, 105)]);
        assert!(pieces.peek().is_none());
        assert!(!pieces.is_done());
    }

    #[test]
    fn one_piece_is_longer_if_a_range_is_long_enough() {
        let ranges = || vec![0..15, 100..145];
        let mut pieces = Pieces::new(ranges(), 10).with_long_piece(30);
        assert_eq!(
            all(&mut pieces),
            [(0, 10), (10, 15), (100, 130), (130, 140), (140, 145)]
        );
        for not_longer in [0, 10, 46] {
            let mut pieces = Pieces::new(ranges(), 10).with_long_piece(not_longer);
            assert_eq!(all(&mut pieces).len(), 7);
        }
    }

    #[test]
    fn a_piece_that_was_given_back_comes_first_and_counts_once() {
        let mut pieces = Pieces::new(vec![0..30], 10);
        let (first, second) = (pieces.next().unwrap(), pieces.next().unwrap());
        pieces.give_back(second);
        pieces.give_back(first);
        assert_eq!(pieces.peek(), Some(first));
        assert_eq!(all(&mut pieces), [(0, 10), (10, 20), (20, 30)]);
        for start in [0, 10, 20] {
            pieces.finish(Piece {
                start,
                end: start + 10,
            });
        }
        assert!(pieces.is_done());
        assert_eq!(
            (pieces.done(), pieces.finished(), pieces.repeated()),
            (30, 3, 2)
        );
    }

    #[test]
    fn the_largest_range_needs_no_memory_until_its_pieces_are_taken() {
        let mut pieces = Pieces::new(vec![0..u64::MAX], 1 << 20);
        assert_eq!(pieces.next().unwrap().end, 1 << 20);
        assert!(Pieces::new(Vec::new(), 10).is_done());
    }
}
