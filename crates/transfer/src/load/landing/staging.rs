//! Host memory in which bytes wait for memory whose each access costs: that of a device, or memory that is synchronised by calls.

use std::ops::Range;

use client::LoadError;
use devmem_tcp::Dmabuf;
use devmem_tcp::memory::{CopyError, DeviceGather};

use crate::load::part::Layout;

/// Bytes that are copied together: they fit into the second-level cache.
pub(super) const BLOCK_BYTES: usize = 256 << 10;

/// Bytes on their way to their places. While a device copies a block, the next one is filled.
#[derive(Default)]
pub(super) struct Staging {
    filling: Block,
    copying: Block,
}

/// Bytes that are one after another in the source.
#[derive(Default)]
struct Block {
    /// Pinned for the device of the first bytes, so that it copies while the CPU does other work. `None`: nothing has come yet.
    memory: Option<Dmabuf>,
    /// Offset of the first byte in the source.
    at: u64,
    len: usize,
    /// Copies to their places that the device does.
    copies: Vec<DeviceGather>,
}

impl Staging {
    /// Returns whether `len` bytes from `at` on follow what is there, and fit.
    pub(super) fn has_room(&self, at: u64, len: usize) -> bool {
        let Block {
            at: first,
            len: used,
            ..
        } = self.filling;
        used == 0 || at == first.saturating_add(used as u64) && used + len <= BLOCK_BYTES
    }

    /// Adds at most a block of bytes, for which [there is room](Self::has_room), on their way to `place`.
    ///
    /// # Errors
    /// There is no memory for them.
    pub(super) fn add(&mut self, place: &Dmabuf, at: u64, bytes: &[u8]) -> Result<(), LoadError> {
        let block = &mut self.filling;
        let memory = match block.memory.take() {
            Some(memory) => memory,
            None => Dmabuf::pinned_for(place, BLOCK_BYTES).map_err(failed)?,
        };
        let memory = block.memory.insert(memory);
        if block.len == 0 {
            block.at = at;
        }
        memory.copy_in(block.len, bytes).map_err(failed)?;
        block.len += bytes.len();
        Ok(())
    }

    /// Starts to copy what was added to its places. Returns the bytes of the block before, which are in theirs: if nothing was added, only those that are
    /// there already.
    ///
    /// # Errors
    /// A copy failed.
    pub(super) fn start(&mut self, layout: &Layout) -> Result<Range<u64>, LoadError> {
        if self.filling.len == 0 && !self.copying.is_done()? {
            return Ok(0..0);
        }
        self.filling.start(layout)?;
        let done = self.copying.finish()?;
        std::mem::swap(&mut self.filling, &mut self.copying);
        Ok(done)
    }

    /// Waits until all bytes are in their places. Returns those of the last two blocks.
    ///
    /// # Errors
    /// A copy failed.
    pub(super) fn finish(&mut self, layout: &Layout) -> Result<[Range<u64>; 2], LoadError> {
        let before = self.start(layout)?;
        Ok([before, self.copying.finish()?])
    }
}

impl Block {
    /// Starts copies to the places of the bytes. Those that no device does are done at once.
    fn start(&mut self, layout: &Layout) -> Result<(), LoadError> {
        let Some(memory) = &self.memory else {
            return Ok(());
        };
        let (mut at, mut from) = (self.at, 0);
        while from < self.len {
            let place = layout.place(at).ok_or(LoadError::Unasked { at })?;
            let room = usize::try_from(place.room).unwrap_or(usize::MAX);
            let len = room.min(self.len - from);
            let range = from..from + len;
            let copies = place.memory.gather_from(memory, [range], place.offset);
            match copies.map_err(failed)? {
                Some(copies) => self.copies.push(copies),
                None => {
                    let copied = place.memory.copy_from(memory, from, place.offset, len);
                    copied.map_err(failed)?;
                }
            }
            at = at.saturating_add(len as u64);
            from += len;
        }
        Ok(())
    }

    fn is_done(&mut self) -> Result<bool, LoadError> {
        for copies in &mut self.copies {
            if !copies.is_done().map_err(CopyError::from).map_err(failed)? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Waits for the copies. Returns the bytes, which are in their places, and is empty.
    fn finish(&mut self) -> Result<Range<u64>, LoadError> {
        for copies in self.copies.drain(..) {
            copies.wait().map_err(CopyError::from).map_err(failed)?;
        }
        let len = std::mem::take(&mut self.len) as u64;
        Ok(self.at..self.at.saturating_add(len))
    }
}

fn failed(error: impl Into<devmem_tcp::Error>) -> LoadError {
    LoadError::Gather(error.into())
}
