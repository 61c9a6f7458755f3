//! The blocks of a SACK option.

/// Up to four ranges of sequence numbers that arrived out of order (RFC 2018), left edge included,
/// right edge not; the first may be a D-SACK (RFC 2883).
#[derive(Clone, Copy, Default)]
pub struct SackBlocks {
    blocks: [(u32, u32); Self::CAPACITY],
    len: u8,
}

impl SackBlocks {
    /// Maximum number of blocks in a header.
    pub const CAPACITY: usize = 4;

    /// Returns no blocks.
    pub const fn new() -> Self {
        Self {
            blocks: [(0, 0); Self::CAPACITY],
            len: 0,
        }
    }

    /// Appends a block; false if there was no room for it.
    pub fn push(&mut self, left: u32, right: u32) -> bool {
        match self.blocks.get_mut(usize::from(self.len)) {
            Some(slot) => {
                *slot = (left, right);
                self.len += 1;
                true
            }
            None => false,
        }
    }

    /// Returns the blocks in wire order.
    pub fn as_slice(&self) -> &[(u32, u32)] {
        &self.blocks[..usize::from(self.len)]
    }

    /// Iterates over `(left, right)` in wire order.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (u32, u32)> + '_ {
        self.as_slice().iter().copied()
    }

    /// Returns the number of blocks.
    pub fn len(&self) -> usize {
        self.len.into()
    }

    /// True if there is no block.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }
}

impl PartialEq for SackBlocks {
    fn eq(&self, other: &Self) -> bool {
        self.as_slice() == other.as_slice()
    }
}

impl Eq for SackBlocks {}

impl std::fmt::Debug for SackBlocks {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(self.as_slice()).finish()
    }
}
