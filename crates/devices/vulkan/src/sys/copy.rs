//! A copy between two buffers.
//!
// UNSAFETY: none in this file: its ranges are what the unsafe code of `queue.rs` relies on.

use std::marker::PhantomData;

use ash::vk;

use super::memory::BufferMemory;

/// A copy between checked ranges. Invariant: both are at least a byte long, inside their buffers, and do not overlap. The memory
/// outlives it: owners wait for the queue when they are dropped.
pub(crate) struct RawCopy<'a> {
    from: vk::Buffer,
    to: vk::Buffer,
    region: vk::BufferCopy,
    memory: PhantomData<&'a BufferMemory>,
}

impl<'a> RawCopy<'a> {
    /// Returns the copy of `len` bytes; `None` if a range is not inside its memory, or they overlap.
    pub(crate) fn new(
        from: (&'a BufferMemory, usize),
        to: (&'a BufferMemory, usize),
        len: usize,
    ) -> Option<Self> {
        let ((from, from_at), (to, to_at)) = (from, to);
        let (from, to) = (from.buffer_with(from_at, len)?, to.buffer_with(to_at, len)?);
        let overlaps = from == to && from_at.abs_diff(to_at) < len;
        (len > 0 && !overlaps).then(|| Self {
            from,
            to,
            region: vk::BufferCopy::default()
                .src_offset(from_at as u64)
                .dst_offset(to_at as u64)
                .size(len as u64),
            memory: PhantomData,
        })
    }

    /// Returns the source and the destination.
    pub(crate) fn buffers(&self) -> (vk::Buffer, vk::Buffer) {
        (self.from, self.to)
    }

    pub(crate) fn region(&self) -> vk::BufferCopy {
        self.region
    }
}
