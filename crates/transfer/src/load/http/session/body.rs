//! The body of a response: which bytes of the source it has, and where it ends.

use client::http::chunks::Chunks;

/// The body of a response.
#[derive(Debug)]
pub(super) struct Body {
    /// Offset of its next byte in the source.
    pub(super) at: u64,
    /// End of its bytes in the source, if that is known.
    pub(super) end: Option<u64>,
    /// It has more than was requested: all of the file, or a longer range. Further pieces come by themselves.
    pub(super) is_stream: bool,
    pub(super) framing: Framing,
    pub(super) is_last: bool,
}

/// How the end of a body is found.
#[derive(Debug)]
pub(super) enum Framing {
    /// After this many more bytes.
    Length(u64),
    Chunked(Chunks),
    /// At the end of the connection.
    Close,
}

impl Framing {
    pub(super) fn chunked() -> Self {
        Self::Chunked(Chunks::default())
    }

    pub(super) fn is_over(&self) -> bool {
        match self {
            Self::Length(left) => *left == 0,
            Self::Chunked(chunks) => chunks.is_over(),
            Self::Close => false,
        }
    }

    /// Returns how many payload bytes follow; 0 if the next bytes belong to the coding.
    pub(super) fn data_left(&self) -> u64 {
        match self {
            Self::Length(left) => *left,
            Self::Chunked(chunks) => chunks.data_left(),
            Self::Close => u64::MAX,
        }
    }
}

impl Body {
    /// Returns whether it is the payload alone, of a length that is known.
    pub(super) fn has_length(&self) -> bool {
        matches!(self.framing, Framing::Length(_))
    }

    /// Reads bytes of the coding, and returns how many of them belong to it.
    ///
    /// # Errors
    /// The bytes are not chunked, or the body is longer than it may be.
    pub(super) fn on_coding(&mut self, bytes: &[u8]) -> Result<usize, &'static str> {
        let Framing::Chunked(chunks) = &mut self.framing else {
            return Ok(0);
        };
        let used = chunks.on_text(bytes)?;
        let reach = self.at.checked_add(chunks.data_left());
        let is_inside = |reach: u64| self.end.is_none_or(|end| reach <= end);
        match reach.is_some_and(is_inside) {
            true => Ok(used),
            false => Err("the body is longer than the requested range"),
        }
    }

    /// Counts payload bytes.
    pub(super) fn on_data(&mut self, len: u64) {
        self.at = self.at.saturating_add(len);
        match &mut self.framing {
            Framing::Length(left) => *left = left.saturating_sub(len),
            Framing::Chunked(chunks) => chunks.on_data(len),
            Framing::Close => {}
        }
    }
}
