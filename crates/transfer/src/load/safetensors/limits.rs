//! What a checkpoint may ask of host memory: a server chooses its files, their headers and the number of tensors.

/// Most tensors of a checkpoint. The largest of today have some 200,000.
pub(super) const MAX_TENSORS: usize = 1_000_000;
/// Most files. The largest of today have some hundred, and loaders open each of them.
pub(super) const MAX_FILES: usize = 10_000;
/// Most bytes of all headers: one of the longest that the format allows, and many of the usual ones. Names of tensors stay in memory.
pub(super) const MAX_HEADER_BYTES: u64 = 128_000_000;
/// Most bytes of tensors that came with the headers and are kept in host memory until the load. Others are requested again.
pub(super) const MAX_EARLY_BYTES: usize = 64 << 20;
/// Bytes of a file that the first request for it asks for: nearly all headers, and all of a short file. Of a long one that has no such header, fewer than
/// one in a thousand bytes are requested twice.
pub(super) const FIRST_BYTES: usize = 256 << 10;
/// Most dimensions of a tensor: those of numpy and torch have at most 64.
pub(super) const MAX_DIMENSIONS: usize = 64;

/// A checkpoint needs more host memory for its description than a load may use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CheckpointLimit {
    /// It has too many tensors.
    #[error("it has more than {MAX_TENSORS} tensors")]
    Tensors,
    /// It has too many files.
    #[error("it has more than {MAX_FILES} files")]
    Files,
    /// Its headers are too long.
    #[error("the headers of its files have more than {MAX_HEADER_BYTES} bytes together")]
    HeaderBytes,
}

/// What is left for further files of a checkpoint.
#[derive(Clone, Copy, Debug)]
pub(super) struct Budget {
    header_bytes: u64,
    tensors: usize,
}

impl Budget {
    pub(super) fn new() -> Self {
        Self {
            header_bytes: MAX_HEADER_BYTES,
            tensors: MAX_TENSORS,
        }
    }

    /// Takes the bytes of a header, before it is read.
    ///
    /// # Errors
    /// [`CheckpointLimit::HeaderBytes`].
    pub(super) fn take_header(&mut self, bytes: u32) -> Result<(), CheckpointLimit> {
        let left = self.header_bytes.checked_sub(bytes.into());
        self.header_bytes = left.ok_or(CheckpointLimit::HeaderBytes)?;
        Ok(())
    }

    /// Returns the number of tensors that another file may have.
    pub(super) fn tensors(&self) -> usize {
        self.tensors
    }

    /// Takes the tensors of a file, which has at most as many as are [left](Self::tensors).
    pub(super) fn take_tensors(&mut self, count: usize) {
        self.tensors = self.tensors.saturating_sub(count);
    }
}
