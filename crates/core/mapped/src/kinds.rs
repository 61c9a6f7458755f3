//! How memory is mapped, and why a range of it is refused.

/// When anonymous memory is accounted for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Commit {
    /// When it is mapped.
    Now,
    /// When it is first touched.
    Lazily,
}

/// What a mapping of a file may be used for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum MapAccess {
    /// Reading.
    Read,
    /// Reading and writing.
    ReadWrite,
}

/// What to ask of the kernel about the pages of a mapping.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Advice {
    /// Take huge pages when touched (anonymous memory).
    Huge,
    /// Touch every page now.
    Populate,
    /// Turn touched base pages into huge pages now.
    Collapse,
}

/// Why bytes were not copied. None was.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum RangeError {
    /// The range does not lie inside.
    #[error("{len} bytes at offset {offset} of {size}")]
    OutOfBounds {
        /// Where the range begins.
        offset: usize,
        /// Bytes of the range.
        len: usize,
        /// Bytes of the mapping.
        size: usize,
    },
    /// The memory was mapped for reading.
    #[error("the memory is mapped for reading only")]
    ReadOnly,
}
