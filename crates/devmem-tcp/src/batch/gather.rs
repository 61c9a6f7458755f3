//! Copying the frags of a batch to contiguous memory: by the CPU, or by a GPU, which a [`Gather`] waits for.

use std::fmt;
use std::marker::PhantomData;
use std::ops::Range;

use devmem_uapi::{DmabufId, Errno, TokenRanges};
use netmem::{CopyError, CpuAccess, CpuView, DeviceGather, Dmabuf, Fence, RxClaim};

use super::RxBatch;
use crate::error::Error;
use crate::frags::Item;

/// Copies of the frags of a batch to contiguous memory, by a GPU: see [`RxBatch::start_gather`]. Dropping it waits.
#[must_use = "dropping it waits for the copies"]
pub struct Gather<'a> {
    bytes: usize,
    /// Copies that may not be done.
    copies: Vec<DeviceGather>,
    batch: PhantomData<&'a RxBatch>,
}

impl Gather<'_> {
    fn new(bytes: usize) -> Self {
        Self {
            bytes,
            copies: Vec::new(),
            batch: PhantomData,
        }
    }

    /// Returns the number of bytes that are copied.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Returns whether all bytes are in their place. Does not wait.
    ///
    /// # Errors
    /// The GPU failed.
    pub fn is_done(&mut self) -> Result<bool, Error> {
        for copies in &mut self.copies {
            if !copies.is_done().map_err(CopyError::Device)? {
                return Ok(false);
            }
        }
        self.copies.clear();
        Ok(true)
    }

    /// Returns the points in the GPU's lane at which the bytes are in their place, for streams that have to wait for them.
    pub fn fences(&self) -> impl Iterator<Item = Fence> + '_ {
        self.copies.iter().filter_map(DeviceGather::fence)
    }

    /// Waits until all bytes are in their place, and returns their number.
    ///
    /// # Errors
    /// The GPU failed.
    pub fn wait(self) -> Result<usize, Error> {
        for copies in self.copies {
            copies.wait().map_err(CopyError::Device)?;
        }
        Ok(self.bytes)
    }
}

impl fmt::Debug for Gather<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Gather")
            .field("bytes", &self.bytes)
            .field("copies", &self.copies.len())
            .finish()
    }
}

/// A batch, and the copies of its frags to contiguous memory, by a GPU: see [`RxBatch::into_gather`]. Dropping it waits for the copies, and then releases
/// the batch.
#[derive(Debug)]
#[must_use = "dropping it waits for the copies"]
pub struct BatchGather {
    // Before the batch: its frags are held until the copies are over.
    gather: Gather<'static>,
    batch: RxBatch,
}

impl BatchGather {
    /// Returns whether all bytes are in their place. Does not wait.
    ///
    /// # Errors
    /// The GPU failed.
    pub fn is_done(&mut self) -> Result<bool, Error> {
        self.gather.is_done()
    }

    /// Waits until all bytes are in their place, and returns the batch, which still holds its frags.
    ///
    /// # Errors
    /// The GPU failed.
    pub fn wait(self) -> Result<RxBatch, Error> {
        self.gather.wait()?;
        Ok(self.batch)
    }
}

/// Frags of one memory that follow one another in the stream.
struct Run<'a> {
    items: &'a [Item],
    /// `None`: host memory of the batch.
    memory: Option<Dmabuf>,
    /// Offset of the first byte in the target.
    at: usize,
}

impl Run<'_> {
    fn bytes(&self) -> usize {
        self.items.iter().map(Item::len).sum()
    }

    fn ranges(&self) -> impl Iterator<Item = Range<usize>> + Clone {
        let items = self.items.iter();
        items.map(|item| item.start()..item.start() + item.len())
    }

    fn is_in(&self, target: &Dmabuf) -> bool {
        let memory = self.memory.as_ref();
        memory.is_some_and(|memory| memory.is_same(target))
    }

    /// Returns whether the bytes are in the target already, each at its place: see
    /// [`RecvHalf::place_next`](crate::RecvHalf::place_next).
    fn is_at_place(&self, target: &Dmabuf) -> bool {
        let mut at = self.at;
        let is_there = |range: Range<usize>| {
            let is_there = range.start == at;
            at += range.len();
            is_there
        };
        self.is_in(target) && self.ranges().all(is_there)
    }

    /// Returns whether bytes of the run are in `place` of the target: copies to it, in any order, could overwrite them.
    fn is_inside(&self, target: &Dmabuf, place: &Range<usize>) -> bool {
        let meets = |range: Range<usize>| range.start < place.end && place.start < range.end;
        self.is_in(target) && self.ranges().any(meets)
    }

    /// Copies the run to its place of the target; returns the copies that a GPU has begun.
    fn copy(
        &self,
        batch: &RxBatch,
        target: &Dmabuf,
        to: &CpuView<'_>,
    ) -> Result<Option<DeviceGather>, Error> {
        let Some(memory) = &self.memory else {
            let mut at = self.at;
            for item in self.items {
                to.copy_in(at, item.linear(&batch.frags.host))?;
                at += item.len();
            }
            return Ok(None);
        };
        if let Some(copies) = target.gather_from(memory, self.ranges(), self.at)? {
            return Ok(Some(copies));
        }
        let from = memory.cpu_view(CpuAccess::Read)?;
        let mut at = self.at;
        for item in self.items {
            to.copy_from(&from, item.start(), at, item.len())?;
            at += item.len();
        }
        from.end()?;
        Ok(None)
    }
}

impl RxBatch {
    /// Copies all bytes, in stream order and without gaps, to `target` at `offset`, device to device in one pass.
    /// Returns the number of bytes. Memory of a GPU is copied by the GPU: see [`start_gather`](Self::start_gather).
    ///
    /// `target` is written as by [`Dmabuf::copy_from`]. It may be memory in which streams receive directly
    /// ([`RecvHalf::place_next`](crate::RecvHalf::place_next)): bytes that are at their place are not copied, and those of the batch that are elsewhere
    /// in it are moved, also where both overlap.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidInput`](crate::ErrorKind::InvalidInput) if the bytes do not fit, [`ErrorKind::InUse`](crate::ErrorKind::InUse) if the copy would overwrite received bytes that
    /// are still needed, [`ErrorKind::InvalidInput`](crate::ErrorKind::InvalidInput) if the memory of a frag is no longer bound: then nothing was copied.
    /// After another error, the bytes before the failing frag may have been copied.
    pub fn gather_into(&self, target: &Dmabuf, offset: usize) -> Result<usize, Error> {
        self.start_gather(target, offset)?.wait()
    }

    /// As [`gather_into`](Self::gather_into), without waiting for copies that a GPU does: those between memory of one GPU.
    /// The batch keeps its frags until the result is dropped, which waits. Other copies are done when this returns.
    ///
    /// # Errors
    /// As [`gather_into`](Self::gather_into).
    pub fn start_gather(&self, target: &Dmabuf, offset: usize) -> Result<Gather<'_>, Error> {
        self.begin_gather(target, offset)
    }

    /// As [`start_gather`](Self::start_gather), with the batch in the result: for programs that receive into other batches while a GPU copies.
    ///
    /// # Errors
    /// As [`gather_into`](Self::gather_into). The batch is released.
    pub fn into_gather(self, target: &Dmabuf, offset: usize) -> Result<BatchGather, Error> {
        let gather = self.begin_gather(target, offset)?;
        let batch = self;
        Ok(BatchGather { gather, batch })
    }

    /// Starts the copies. The caller keeps the batch until they are over.
    fn begin_gather<'a>(&self, target: &Dmabuf, offset: usize) -> Result<Gather<'a>, Error> {
        let needed = self.device_bytes() + self.linear_bytes();
        if target.size().saturating_sub(offset) < needed {
            return Err(does_not_fit(needed, offset, target.size()));
        }
        let place = offset..offset + needed;
        let mut runs = self.runs(offset)?;
        runs.retain(|run| !run.is_at_place(target));
        let mut gather = Gather::new(needed);
        if !runs.is_empty() {
            self.check_free(target, &place, &runs)?;
            if runs.iter().any(|run| run.is_inside(target, &place)) {
                let mut bytes = vec![0; needed];
                self.copy_to(&mut bytes)?;
                target.copy_in(offset, &bytes)?;
            } else {
                // One CPU access to the target, and one to the memory of each run.
                let to = target.cpu_view(CpuAccess::Write)?;
                for run in runs {
                    gather.copies.extend(run.copy(self, target, &to)?);
                }
                to.end()?;
            }
        }
        if gather.copies.is_empty() {
            self.note_gathered();
        }
        Ok(gather)
    }

    /// Copies the first bytes of the batch, in stream order, to `out` in host memory: as many as fit, or as there are.
    /// Returns their number.
    ///
    /// # Errors
    /// As [`gather_into`](Self::gather_into), except that everything fits.
    pub fn copy_to(&self, out: &mut [u8]) -> Result<usize, Error> {
        let mut done = 0;
        for item in &self.frags.items {
            let Some(room) = out.get_mut(done..).filter(|room| !room.is_empty()) else {
                break;
            };
            let len = item.len().min(room.len());
            let room = &mut room[..len];
            match item.dmabuf() {
                None => room.copy_from_slice(&item.linear(&self.frags.host)[..len]),
                Some(dmabuf) => self.memory_of(dmabuf)?.copy_out(item.start(), room)?,
            }
            done += len;
        }
        Ok(done)
    }

    /// Returns the memory of a binding of which the batch has frags, also after its unbinding.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidInput`](crate::ErrorKind::InvalidInput) if the batch has no frag of that binding, or holds none any more; the NIC belongs to another process.
    pub fn memory_of(&self, dmabuf: DmabufId) -> Result<Dmabuf, Error> {
        let owner = self.owner.as_ref();
        let memory = owner.map(|owner| owner.memory(dmabuf)).transpose()?;
        memory.flatten().ok_or_else(|| gone(dmabuf))
    }

    /// Returns the runs of frags of the same memory; the first byte belongs at `offset`.
    fn runs(&self, offset: usize) -> Result<Vec<Run<'_>>, Error> {
        let mut at = offset;
        let items = &self.frags.items;
        let runs = items.chunk_by(|one, next| one.dmabuf() == next.dmabuf());
        let runs = runs.map(|items| {
            let dmabuf = items.first().and_then(Item::dmabuf);
            let memory = dmabuf.map(|dmabuf| self.memory_of(dmabuf)).transpose()?;
            let run = Run { items, memory, at };
            at += run.bytes();
            Ok(run)
        });
        runs.collect()
    }

    /// Checks that a copy of `runs` to `place` destroys no payload.
    fn check_free(
        &self,
        target: &Dmabuf,
        place: &Range<usize>,
        runs: &[Run<'_>],
    ) -> Result<(), Error> {
        let Range { start, end } = *place;
        if runs.iter().any(|run| run.is_in(target)) && RxClaim::is_bound(target) {
            let used = "are bound for receiving, and a NIC writes any packets there";
            return Err(in_use(start..end, used, "gather into other memory"));
        }
        let Some(owner) = self.owner.as_ref().filter(|owner| owner.has_targets()) else {
            return Ok(());
        };
        let found = owner.place_in_use(target, place, &self.lent_tokens());
        found.map_or(Ok(()), |found| {
            Err(in_use(
                found.range,
                &found.used.to_string(),
                found.used.remedy(),
            ))
        })
    }

    /// Tells the stack that frags which were received at a place may be overwritten, because they were gathered.
    fn note_gathered(&self) {
        if let Some(owner) = self.owner.as_ref().filter(|owner| owner.has_targets()) {
            owner.note_gathered(&self.lent_tokens());
        }
    }

    fn lent_tokens(&self) -> TokenRanges {
        self.frags.tokens().collect()
    }
}

fn does_not_fit(needed: usize, offset: usize, size: usize) -> Error {
    let reason = format!("{needed} bytes do not fit at offset {offset} of {size} bytes");
    Error::invalid(reason).with_remedy("gather at a smaller offset or into larger memory")
}

/// The memory of a frag was freed: its token was returned without the library.
fn gone(dmabuf: DmabufId) -> Error {
    Error::invalid(format!("the memory bound as {dmabuf:?} is gone"))
        .with_remedy("a frag's token was returned while the batch still held it")
}

/// The copy would overwrite received bytes that are still needed; `used` says for what.
fn in_use(bytes: Range<usize>, used: &str, remedy: &'static str) -> Error {
    let Range { start, end } = bytes;
    let reason = format!("bytes {start} to {end} of the target {used}");
    Error::of_errno(Errno::EBUSY, reason).with_remedy(remedy)
}
