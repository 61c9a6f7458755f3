//! Copies between two buffers.
//!
// UNSAFETY: none in this file: its ranges are what the unsafe code of `queue.rs` relies on.

use std::marker::PhantomData;

use ash::vk;
use netmem::CopyPiece;

use super::memory::BufferMemory;

/// Copies between checked ranges of two buffers. Invariant: there is at least one; the ranges are at least a byte long, inside their
/// buffers, and the two of a copy do not overlap. The memory outlives them: owners wait for the queue when they are dropped.
pub(crate) struct RawCopies<'a> {
    pub(super) from: vk::Buffer,
    pub(super) to: vk::Buffer,
    regions: Vec<vk::BufferCopy>,
    memory: PhantomData<&'a BufferMemory>,
}

impl<'a> RawCopies<'a> {
    /// Returns the copies; `None` if there is none, a range is not inside its memory, or two overlap.
    pub(crate) fn new(
        from: &'a BufferMemory,
        to: &'a BufferMemory,
        pieces: &[CopyPiece],
    ) -> Option<Self> {
        let is_same = from.buffer() == to.buffer();
        let region = |piece: &CopyPiece| {
            let CopyPiece {
                from: source,
                to: place,
                len,
            } = *piece;
            let is_inside = len > 0 && from.has(source, len) && to.has(place, len);
            let overlaps = is_same && source.abs_diff(place) < len;
            (is_inside && !overlaps).then(|| {
                vk::BufferCopy::default()
                    .src_offset(source as u64)
                    .dst_offset(place as u64)
                    .size(len as u64)
            })
        };
        let regions: Vec<_> = pieces.iter().map(region).collect::<Option<_>>()?;
        (!regions.is_empty()).then(|| Self {
            from: from.buffer(),
            to: to.buffer(),
            regions,
            memory: PhantomData,
        })
    }

    pub(super) fn regions(&self) -> &[vk::BufferCopy] {
        &self.regions
    }
}
