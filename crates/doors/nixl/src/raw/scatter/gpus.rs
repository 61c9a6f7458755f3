// UNSAFETY: has NICs and GPUs read and write registered memory.

//! Ranges in memory of GPUs, which a NIC sends from and GPUs copy: no byte passes through this process.

use std::io;
use std::ops::Range;
use std::sync::Arc;

use devmem_tcp::memory::DeviceGather;
use devmem_tcp::{BoundTx, Dmabuf};

use super::Scatter;
use crate::raw::gpu::{GpuMemory, failed};

/// Ranges of one send (`UIO_MAXIOV`), and pieces that a GPU copies together.
const MAX_RANGES: usize = 1024;

/// Lists that are used again and again. They are empty between calls.
#[derive(Debug, Default)]
pub(crate) struct Lists {
    ranges: Vec<Range<usize>>,
    pieces: Vec<(Range<usize>, usize)>,
    gathers: Vec<DeviceGather>,
}

impl Scatter {
    /// Lends the next places, which are in one memory of a GPU, at most `at_most` bytes, to a call that returns how many of them it has queued.
    pub(crate) fn send_by(
        &mut self,
        at_most: usize,
        lists: &mut Lists,
        send: impl FnOnce(&BoundTx, &[Range<usize>]) -> io::Result<usize>,
    ) -> io::Result<usize> {
        self.check()?;
        let Some((bound, region)) = self.front_bound() else {
            return Err(io::Error::from_raw_os_error(libc::EFAULT));
        };
        let ranges = &mut lists.ranges;
        ranges.clear();
        let (mut skip, mut left) = (self.done, at_most);
        for (index, (at, len)) in self.places.iter().enumerate().skip(self.next) {
            if left == 0 || ranges.len() == MAX_RANGES || self.regions.get(index) != Some(&region) {
                break;
            }
            let len = (len - skip).min(left);
            if let Some(gpu) = self.gpu_of(region) {
                ranges.push(gpu.within(at + skip, len));
            }
            (skip, left) = (0, left - len);
        }
        let sent = send(&bound, ranges)?.min(at_most - left);
        self.advance(sent);
        Ok(sent)
    }

    fn front_bound(&self) -> Option<(Arc<BoundTx>, usize)> {
        let region = *self.regions.get(self.next)?;
        Some((self.gpu_of(region)?.bound()?, region))
    }

    fn gpu_of(&self, region: usize) -> Option<&GpuMemory> {
        self.uses.0.get(region)?.region().gpu()
    }

    /// Has bytes that a NIC has written to `pool`, at these ranges in order, copied to the places by the GPU of both, and waits for it. What
    /// belongs to host memory is copied there. Returns how many bytes those were.
    pub(crate) fn land(
        &mut self,
        pool: &Dmabuf,
        frags: impl Iterator<Item = Range<usize>>,
        lists: &mut Lists,
    ) -> io::Result<usize> {
        self.check()?;
        let landed = self.start_landing(pool, frags, lists);
        lists.pieces.clear();
        // All are waited for, also after an error: the pool is received into again.
        let mut copied = Ok(());
        for gather in lists.gathers.drain(..) {
            copied = copied.and(gather.wait());
        }
        copied.map_err(|error| failed(error.into()))?;
        landed
    }

    fn start_landing(
        &mut self,
        pool: &Dmabuf,
        frags: impl Iterator<Item = Range<usize>>,
        lists: &mut Lists,
    ) -> io::Result<usize> {
        let mut to_host = 0;
        // The memory that the pieces are for.
        let mut region = None;
        for mut frag in frags {
            while !frag.is_empty() {
                let front = self.front(frag.len());
                let Some((at, len)) = front else {
                    return Err(io::ErrorKind::InvalidData.into());
                };
                let now = frag.start..frag.start + len;
                frag.start = now.end;
                let here = self.regions.get(self.next).copied();
                if here != region || lists.pieces.len() == MAX_RANGES {
                    self.start(region, pool, lists)?;
                    region = here;
                }
                if self.front_gpu().is_some() {
                    lists.pieces.push((now, at));
                    self.advance(len);
                } else {
                    to_host += len;
                    self.fill_by(len, |place| {
                        pool.copy_out(now.start, place).map_err(failed)?;
                        Ok(place.len())
                    })?;
                }
            }
        }
        self.start(region, pool, lists)?;
        Ok(to_host)
    }

    /// Starts the copies of the pieces to a region.
    fn start(&self, region: Option<usize>, pool: &Dmabuf, lists: &mut Lists) -> io::Result<()> {
        if lists.pieces.is_empty() {
            return Ok(());
        }
        let gpu = region.and_then(|region| self.gpu_of(region));
        let gather = gpu
            .map(|gpu| gpu.scatter_from(pool, &lists.pieces))
            .transpose();
        lists.pieces.clear();
        // Memory of another GPU is not registered.
        let gather = gather?.flatten().ok_or(io::ErrorKind::Unsupported)?;
        lists.gathers.push(gather);
        Ok(())
    }

    /// Copies from the first place to the first one of `to`, both in memory of GPUs: by the GPU if it has both.
    pub(super) fn copy_by_gpu(&mut self, to: &mut Self, at_most: usize) -> io::Result<usize> {
        self.check()?;
        to.check()?;
        let front = self.front(at_most);
        let front = front.and_then(|(from, len)| to.front(len).map(|(at, len)| (from, at, len)));
        let (Some((from, at, len)), Some(source), Some(target)) =
            (front, self.front_gpu(), to.front_gpu())
        else {
            return Ok(0);
        };
        target.copy_from(source, from, at, len)?;
        self.advance(len);
        to.advance(len);
        Ok(len)
    }
}
