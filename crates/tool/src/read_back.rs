//! Reads received payload in stream order: the access of an application to its memory, not a part of receiving.

use std::fmt;
use std::io;
use std::ops::Range;

use devmem_tcp::{Dmabuf, Frag, RxBatch};

use pattern::BLOCK_BYTES;

/// Bytes that a device copies to host memory at a time: a copy of its own for each frag takes longer than the bytes.
const READ_BYTES: usize = 4 << 20;

/// Reads batches of one memory in blocks that fit in the cache.
pub(crate) struct ReadBack {
    memory: Dmabuf,
    /// Where a device copies its memory that the CPU cannot access; `None` for other memory.
    host: Option<Dmabuf>,
    /// Ranges of that memory to read next, of at most [`READ_BYTES`] together.
    ranges: Vec<Range<usize>>,
    block: Box<[u8]>,
}

impl fmt::Debug for ReadBack {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ReadBack({:?})", self.memory)
    }
}

impl ReadBack {
    /// Prepares to read batches of `memory`.
    ///
    /// # Errors
    ///
    /// There is no host memory for a device's copies.
    pub(crate) fn new(memory: &Dmabuf) -> io::Result<Self> {
        let pinned = || Dmabuf::pinned_for(memory, READ_BYTES).map_err(io::Error::other);
        Ok(Self {
            memory: memory.clone(),
            host: memory.copy_engine().map(|_| pinned()).transpose()?,
            ranges: Vec::new(),
            block: vec![0; BLOCK_BYTES].into_boxed_slice(),
        })
    }

    /// Passes the bytes of a batch to `look`, in stream order.
    ///
    /// # Errors
    ///
    /// Of the copies, or of `look`.
    pub(crate) fn for_each_block(
        &mut self,
        batch: &RxBatch,
        mut look: impl FnMut(&[u8]) -> io::Result<()>,
    ) -> io::Result<()> {
        for frag in batch {
            match frag {
                Frag::Linear(bytes) => {
                    self.look_at_ranges(&mut look)?;
                    look(bytes)?;
                }
                Frag::Device { range, .. } if self.host.is_none() => {
                    blocks(&self.memory, range.clone(), &mut self.block, &mut look)?;
                }
                Frag::Device { range, .. } => {
                    for start in range.clone().step_by(READ_BYTES) {
                        self.add(start..range.end.min(start + READ_BYTES), &mut look)?;
                    }
                }
            }
        }
        self.look_at_ranges(&mut look)
    }

    /// Adds a range of at most [`READ_BYTES`]; reads those before it if there is no room.
    fn add(
        &mut self,
        range: Range<usize>,
        look: &mut impl FnMut(&[u8]) -> io::Result<()>,
    ) -> io::Result<()> {
        let waiting: usize = self.ranges.iter().map(Range::len).sum();
        if waiting + range.len() > READ_BYTES {
            self.look_at_ranges(look)?;
        }
        self.ranges.push(range);
        Ok(())
    }

    /// Has the device copy the ranges, and looks at them.
    fn look_at_ranges(&mut self, look: &mut impl FnMut(&[u8]) -> io::Result<()>) -> io::Result<()> {
        let Some(host) = self.host.as_ref().filter(|_| !self.ranges.is_empty()) else {
            return Ok(());
        };
        let len = self.ranges.iter().map(Range::len).sum();
        let copies = host.gather_from(&self.memory, self.ranges.iter().cloned(), 0);
        let copies = copies.map_err(io::Error::other)?;
        let copies =
            copies.ok_or_else(|| io::Error::other("the device does not copy its memory"))?;
        copies.wait().map_err(io::Error::other)?;
        self.ranges.clear();
        blocks(host, 0..len, &mut self.block, look)
    }
}

/// Passes a range of memory that the CPU can access to `look`, a block at a time.
fn blocks(
    memory: &Dmabuf,
    range: Range<usize>,
    block: &mut [u8],
    look: &mut impl FnMut(&[u8]) -> io::Result<()>,
) -> io::Result<()> {
    for start in range.clone().step_by(block.len()) {
        let end = range.end.min(start + block.len());
        let bytes = &mut block[..end - start];
        memory.copy_out(start, bytes).map_err(io::Error::other)?;
        look(bytes)?;
    }
    Ok(())
}
