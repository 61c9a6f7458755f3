//! Options of mappings, and the error of a refused range.

/// When anonymous memory is accounted for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Commit {
    /// When it is mapped.
    Now,
    /// When it is first touched.
    Lazily,
}

/// Access rights of a mapping of a file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum MapAccess {
    /// Reading.
    Read,
    /// Reading and writing.
    ReadWrite,
}

/// A request to the kernel about the pages of a mapping.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Advice {
    /// Use huge pages when memory is touched (anonymous memory).
    Huge,
    /// Use base pages when memory is touched.
    Base,
    /// Touch every page now.
    Populate,
    /// Turn touched base pages into huge pages now.
    Collapse,
}

/// Why nothing was copied.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum RangeError {
    /// The range is not inside the mapping.
    #[error("{len} bytes at offset {offset} of {size}")]
    OutOfBounds {
        /// Start of the range.
        offset: usize,
        /// Bytes of the range.
        len: usize,
        /// Bytes of the mapping.
        size: usize,
    },
    /// The memory is mapped for reading only.
    #[error("the memory is mapped for reading only")]
    ReadOnly,
}
