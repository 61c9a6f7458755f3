//! The rules for commands to a namespace.

/// What the commands of a namespace obey.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Number of the namespace in its subsystem.
    pub nsid: u32,
    /// A block has 2 to this power bytes.
    pub block_log2: u8,
    /// Longest transfer of a command, a multiple of the block.
    pub max_bytes: u64,
    /// Most data of a write in its capsule.
    pub capsule_bytes: u64,
    /// Whether the controller takes Write Zeroes.
    pub writes_zeroes: bool,
    /// Whether it takes Dataset Management for blocks that are of no use any more.
    pub deallocates: bool,
    /// I/O queues of an association.
    pub queues: usize,
}

impl Limits {
    /// Blocks of 512 bytes, and everything that is optional.
    #[cfg(any(test, feature = "test-util"))]
    pub const FOR_TESTS: Self = Self {
        nsid: 1,
        block_log2: 9,
        max_bytes: 1 << 20,
        capsule_bytes: 0,
        writes_zeroes: true,
        deallocates: true,
        queues: 4,
    };

    /// Returns the size of a block.
    #[inline]
    pub fn block_bytes(&self) -> u64 {
        1 << self.block_log2
    }
}
