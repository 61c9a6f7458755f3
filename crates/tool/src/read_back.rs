//! Reads received payload in stream order: the access of an application to its memory, not a part of receiving.
//!
//! The CPU reads most memory where it is. Other memory is copied by its device, while the program receives what comes next: batches wait until a copy is
//! worth its start, and are looked at when the next copy starts, or when nothing else arrives and the copy is done. Until then their frags are held.

#[cfg(test)]
mod tests;

use std::fmt;
use std::io;
use std::mem;
use std::ops::Range;

use devmem_tcp::memory::DeviceGather;
use devmem_tcp::{Dmabuf, Frag, RxBatch};

use pattern::BLOCK_BYTES;

/// Most bytes of a batch.
pub(crate) const BATCH_BYTES: usize = 4 << 20;

/// Bytes for which a device starts a copy without waiting for more: beside an H200, the start takes a processor 5 us, in which it receives 30 KB.
const COPY_BYTES: usize = 1 << 20;

/// Divisor: batches wait for others until they have this part of the memory, so that the rest receives.
const HELD_PART: usize = 16;

/// Bytes of a copy: those that waited, and the batch that made them enough.
const WINDOW_BYTES: usize = COPY_BYTES + BATCH_BYTES;

/// A received batch whose bytes have not been looked at: at most [`BATCH_BYTES`].
#[derive(Debug)]
pub(crate) struct Unread {
    /// The number of its connection.
    pub(crate) connection: u64,
    pub(crate) batch: RxBatch,
}

/// Reads batches of one memory in blocks that fit in the cache.
pub(crate) struct ReadBack {
    memory: Dmabuf,
    /// For memory that the CPU cannot access.
    copier: Option<Copier>,
    block: Box<[u8]>,
    /// A list that was returned, and is empty.
    spare: Vec<Unread>,
}

/// Has a device copy batches to host memory.
struct Copier {
    /// The next copy goes to the first one; the second one has the copy that was started last.
    windows: [Dmabuf; 2],
    /// Batches whose copy has not been started, and their bytes on the device.
    waiting: Vec<Unread>,
    waiting_bytes: usize,
    started: Option<StartedCopy>,
    /// Waiting bytes from which on a copy is started.
    enough: usize,
}

/// A copy of batches. The fields are dropped in their order: the frags are held until it has ended.
struct StartedCopy {
    gather: DeviceGather,
    batches: Vec<Unread>,
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
        let copier = memory.copy_engine().map(|_| Copier::new(memory));
        Ok(Self {
            memory: memory.clone(),
            copier: copier.transpose()?,
            block: vec![0; BLOCK_BYTES].into_boxed_slice(),
            spare: Vec::new(),
        })
    }

    /// Takes a batch over, and returns those that are done with: their bytes were passed to `look` in stream order, with the number of their
    /// connection. That may be this batch, or others that were taken over before it.
    ///
    /// # Errors
    ///
    /// Of the copies, or of `look`.
    pub(crate) fn pass(
        &mut self,
        unread: Unread,
        mut look: impl FnMut(u64, &[u8]) -> io::Result<()>,
    ) -> io::Result<Vec<Unread>> {
        let Some(copier) = &mut self.copier else {
            let mut look = |bytes: &[u8]| look(unread.connection, bytes);
            look_at_memory(&self.memory, &unread.batch, &mut self.block, &mut look)?;
            let mut done = mem::take(&mut self.spare);
            done.push(unread);
            return Ok(done);
        };
        match copier.add(unread) {
            true => copier.turn(&self.memory, &mut self.block, &mut look),
            false => Ok(Vec::new()),
        }
    }

    /// Takes an empty list back, for the next batch.
    pub(crate) fn reuse(&mut self, done: Vec<Unread>) {
        debug_assert!(done.is_empty());
        self.spare = done;
    }

    /// Returns batches in the same way when nothing arrives: none if their copies are not done. Does not wait.
    ///
    /// # Errors
    ///
    /// As [`pass`](Self::pass).
    pub(crate) fn advance(
        &mut self,
        mut look: impl FnMut(u64, &[u8]) -> io::Result<()>,
    ) -> io::Result<Vec<Unread>> {
        let Some(copier) = &mut self.copier else {
            return Ok(Vec::new());
        };
        if !copier.has_batches() || copier.is_copying()? {
            return Ok(Vec::new());
        }
        copier.turn(&self.memory, &mut self.block, &mut look)
    }

    /// Returns all batches that were taken over and not returned, in the same way, and waits for their copies.
    ///
    /// # Errors
    ///
    /// As [`pass`](Self::pass).
    pub(crate) fn finish(
        &mut self,
        mut look: impl FnMut(u64, &[u8]) -> io::Result<()>,
    ) -> io::Result<Vec<Unread>> {
        let mut done = Vec::new();
        if let Some(copier) = &mut self.copier {
            while copier.has_batches() {
                done.extend(copier.turn(&self.memory, &mut self.block, &mut look)?);
            }
        }
        Ok(done)
    }

    /// Returns whether there are batches that were taken over and not returned.
    pub(crate) fn has_batches(&self) -> bool {
        self.copier.as_ref().is_some_and(Copier::has_batches)
    }
}

impl Copier {
    fn new(memory: &Dmabuf) -> io::Result<Self> {
        let pinned = || Dmabuf::pinned_for(memory, WINDOW_BYTES).map_err(io::Error::other);
        Ok(Self {
            windows: [pinned()?, pinned()?],
            waiting: Vec::new(),
            waiting_bytes: 0,
            started: None,
            enough: COPY_BYTES.min(memory.size() / HELD_PART),
        })
    }

    fn has_batches(&self) -> bool {
        !self.waiting.is_empty() || self.started.is_some()
    }

    /// Returns whether a copy was started that is not done.
    fn is_copying(&mut self) -> io::Result<bool> {
        match &mut self.started {
            Some(copy) => Ok(!copy.gather.is_done().map_err(io::Error::other)?),
            None => Ok(false),
        }
    }

    /// Adds a batch; returns whether it is time for a [`turn`](Self::turn).
    fn add(&mut self, unread: Unread) -> bool {
        self.waiting_bytes += unread.batch.device_bytes();
        self.waiting.push(unread);
        self.waiting_bytes >= self.enough
    }

    /// Starts the copy of the batches that wait, if there are any. Then waits for the copy before it, looks at its batches, and returns them.
    fn turn(
        &mut self,
        memory: &Dmabuf,
        block: &mut [u8],
        look: &mut impl FnMut(u64, &[u8]) -> io::Result<()>,
    ) -> io::Result<Vec<Unread>> {
        let next = match self.waiting.is_empty() {
            true => None,
            false => Some(self.start(memory)?),
        };
        self.windows.swap(0, 1);
        let Some(StartedCopy { gather, batches }) = mem::replace(&mut self.started, next) else {
            return Ok(Vec::new());
        };
        gather.wait().map_err(io::Error::other)?;
        let mut at = 0;
        for Unread { connection, batch } in &batches {
            let mut look = |bytes: &[u8]| look(*connection, bytes);
            look_at_copy(&self.windows[0], at, batch, block, &mut look)?;
            at += batch.device_bytes();
        }
        Ok(batches)
    }

    /// Starts the copy of the batches that wait to the first window.
    fn start(&mut self, memory: &Dmabuf) -> io::Result<StartedCopy> {
        self.waiting_bytes = 0;
        let batches = mem::take(&mut self.waiting);
        let frags = batches.iter().flat_map(|unread| &unread.batch);
        let ranges = frags.filter_map(|frag| match frag {
            Frag::Device { range, .. } => Some(range),
            Frag::Linear(_) => None,
        });
        let gather = self.windows[0].gather_from(memory, ranges, 0);
        let gather = gather.map_err(io::Error::other)?;
        let gather =
            gather.ok_or_else(|| io::Error::other("the device does not copy its memory"))?;
        Ok(StartedCopy { gather, batches })
    }
}

/// Passes the bytes of a batch in memory that the CPU can access to `look`.
fn look_at_memory(
    memory: &Dmabuf,
    batch: &RxBatch,
    block: &mut [u8],
    look: &mut impl FnMut(&[u8]) -> io::Result<()>,
) -> io::Result<()> {
    batch.iter().try_for_each(|frag| match frag {
        Frag::Linear(bytes) => look(bytes),
        Frag::Device { range, .. } => blocks(memory, range, block, look),
    })
}

/// Passes the bytes of frags that were copied to `start` of a window, one after another, to `look`.
fn look_at_copy<'a>(
    window: &Dmabuf,
    start: usize,
    frags: impl IntoIterator<Item = Frag<'a>>,
    block: &mut [u8],
    look: &mut impl FnMut(&[u8]) -> io::Result<()>,
) -> io::Result<()> {
    // Copied bytes that were passed over.
    let mut run = start..start;
    for frag in frags {
        match frag {
            Frag::Device { range, .. } => run.end += range.len(),
            Frag::Linear(bytes) => {
                blocks(window, run.clone(), block, look)?;
                run.start = run.end;
                look(bytes)?;
            }
        }
    }
    blocks(window, run, block, look)
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
