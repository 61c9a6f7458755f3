//! What one request asks for.

/// A range of the source that one request asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    /// Its first byte.
    pub start: u64,
    /// Behind its last byte.
    pub end: u64,
}

#[expect(clippy::len_without_is_empty, reason = "no request is for nothing")]
impl Piece {
    /// Returns the number of bytes.
    #[inline]
    pub fn len(self) -> u64 {
        self.end - self.start
    }

    /// Returns the value of the field Range (RFC 9110 14.1.2).
    #[inline]
    pub(crate) fn byte_range(self) -> String {
        format!("bytes={}-{}", self.start, self.end.saturating_sub(1))
    }
}
