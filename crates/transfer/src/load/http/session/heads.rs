//! How long the heads of the next responses are likely to be. A server answers requests for ranges of one file with heads that differ in
//! the digits of their numbers only.

use client::Piece;

/// Heads in a row of the predicted length after which others are predicted, at first.
const FIRST_NEEDED: u32 = 2;

/// What the heads of a connection were like.
#[derive(Debug)]
pub(super) struct Heads {
    /// Bytes of the last one without the digits of its range.
    rest: Option<usize>,
    /// Heads in a row that were as long as the one before them.
    alike: u32,
    /// So many must be.
    needed: u32,
}

impl Default for Heads {
    fn default() -> Self {
        Self {
            rest: None,
            alike: 0,
            needed: FIRST_NEEDED,
        }
    }
}

impl Heads {
    /// Notes a head of `len` bytes, of the response with the bytes `range` of its file. After each that was predicted and had another length
    /// twice as many are needed: what arrives in a wrong place costs a copy of all that is on the way.
    pub(super) fn note(&mut self, len: usize, range: Piece) {
        let rest = len.checked_sub(digits(range));
        if rest.is_some() && rest == self.rest {
            self.alike = self.alike.saturating_add(1);
            return;
        }
        if self.are_predicted() {
            self.needed = self.needed.saturating_mul(2);
        }
        (self.rest, self.alike) = (rest, 0);
    }

    /// Returns how long the head of the response with the bytes `range` is likely to be.
    pub(super) fn predict(&self, range: Piece) -> Option<usize> {
        let rest = self.rest.filter(|_| self.are_predicted())?;
        rest.checked_add(digits(range))
    }

    fn are_predicted(&self) -> bool {
        self.alike >= self.needed
    }
}

/// Returns the digits of the numbers in the fields Content-Range and Content-Length that differ from range to range.
fn digits(range: Piece) -> usize {
    let count = |number: u64| number.checked_ilog10().unwrap_or(0) as usize + 1;
    count(range.start) + count(range.end.saturating_sub(1)) + count(range.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn range(start: u64, end: u64) -> Piece {
        Piece { start, end }
    }

    fn head(Piece { start, end }: Piece, more: &str) -> usize {
        let (last, len) = (end - 1, end - start);
        format!("HTTP/1.1 206 Partial Content\r\nContent-Length: {len}\r\nContent-Range: bytes {start}-{last}/20000\r\n{more}\r\n").len()
    }

    #[test]
    fn heads_are_predicted_by_their_digits_after_three_alike() {
        let mut heads = Heads::default();
        for (start, end) in [(0, 10), (10, 100), (100, 9000)] {
            let range = range(start, end);
            assert_eq!(heads.predict(range), None);
            heads.note(head(range, ""), range);
        }
        for (start, end) in [(0, 1), (9, 10), (99, 101), (9999, 10_001), (0, 20_000)] {
            let range = range(start, end);
            assert_eq!(heads.predict(range), Some(head(range, "")));
        }
    }

    #[test]
    fn each_other_length_doubles_the_heads_that_must_be_alike() {
        let (mut heads, range) = (Heads::default(), range(0, 10));
        for (alike, more) in [(3, ""), (5, "Age: 1\r\n"), (9, "")] {
            let len = head(range, more);
            for _ in 0..alike {
                assert_ne!(heads.predict(range), Some(len));
                heads.note(len, range);
            }
            assert_eq!(heads.predict(range), Some(len));
        }
    }
}
