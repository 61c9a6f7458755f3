//! The rules for commands to a namespace.

/// What the commands of a namespace obey.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Limits {
    pub(crate) nsid: u32,
    pub(crate) block_log2: u8,
    /// Longest transfer of a command, a multiple of the block.
    pub(crate) max_bytes: u64,
    /// Most data of a write in its capsule.
    pub(crate) capsule_bytes: u64,
    pub(crate) writes_zeroes: bool,
    pub(crate) deallocates: bool,
    /// I/O queues of an association.
    pub(crate) queues: usize,
}

impl Limits {
    /// Blocks of 512 bytes, and everything that is optional.
    #[cfg(any(test, feature = "test-util"))]
    pub(crate) const FOR_TESTS: Self = Self {
        nsid: 1,
        block_log2: 9,
        max_bytes: 1 << 20,
        capsule_bytes: 0,
        writes_zeroes: true,
        deallocates: true,
        queues: 4,
    };

    /// Returns the size of a block.
    pub(crate) fn block_bytes(&self) -> u64 {
        1 << self.block_log2
    }
}
