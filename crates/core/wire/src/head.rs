//! The first bytes of a frame or packet, which may be incomplete.

use crate::parse_error::ParseError;

/// The first bytes of a frame or packet, and its end.
#[derive(Clone, Copy)]
pub(crate) struct Head<'a> {
    pub(crate) bytes: &'a [u8],
    pub(crate) end: usize,
}

impl<'a> Head<'a> {
    #[inline]
    pub(crate) fn new(bytes: &'a [u8], end: usize) -> Self {
        Self {
            bytes: &bytes[..bytes.len().min(end)],
            end,
        }
    }

    /// Returns `len` bytes at `at`; the error tells whether the head or the whole frame is too short.
    #[inline]
    pub(crate) fn slice(self, at: usize, len: usize) -> Result<&'a [u8], ParseError> {
        let need = at.saturating_add(len);
        match self.bytes.get(at..need) {
            Some(bytes) => Ok(bytes),
            None if need > self.end => Err(ParseError::Truncated),
            None => Err(ParseError::NeedMore { need }),
        }
    }

    #[inline]
    pub(crate) fn array<const N: usize>(self, at: usize) -> Result<[u8; N], ParseError> {
        match self.slice(at, N)?.first_chunk() {
            Some(bytes) => Ok(*bytes),
            None => Err(ParseError::Truncated),
        }
    }

    /// Returns whether more than `len` bytes of the frame start at `at`.
    #[inline]
    pub(crate) fn is_longer_than(self, at: usize, len: usize) -> bool {
        self.end.saturating_sub(at) > len
    }

    /// Returns itself if the packet at `at` is longer than `longest`, the most that its length field can say: then it ends with the
    /// frame.
    #[inline]
    pub(crate) fn big_packet(self, at: usize, longest: usize) -> Result<Self, ParseError> {
        match self.is_longer_than(at, longest) {
            true => Ok(self),
            false => Err(ParseError::BadTotalLength),
        }
    }

    /// Limits the end to that of a packet of `len` bytes at `at`.
    #[inline]
    pub(crate) fn packet(self, at: usize, len: usize) -> Result<Self, ParseError> {
        let end = at.saturating_add(len);
        if end > self.end {
            Err(ParseError::Truncated)
        } else {
            Ok(Self::new(self.bytes, end))
        }
    }
}
