//! A range of network memory.

use crate::netmem::Netmem;
use crate::region::RegionSpan;

/// A range of network memory: free memory for a received packet, or the bytes of a frag.
#[derive(Clone, Copy, Debug)]
pub struct BufSpan<'a> {
    /// The memory.
    pub netmem: &'a Netmem,
    /// Offset of the range in it, in bytes.
    pub offset: u32,
    /// Bytes of the range.
    pub len: u32,
}

impl<'a> BufSpan<'a> {
    pub(crate) fn span(&self) -> RegionSpan<'a> {
        self.netmem.span(self.offset, self.len as usize)
    }

    pub(crate) fn mapped(&self) -> mapped::Span<'a> {
        self.span().mapped()
    }
}
