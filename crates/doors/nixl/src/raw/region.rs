// UNSAFETY: vouches for memory that NIXL has registered, which transfers read and write by its address.

//! One registered range of memory, and how long it may be touched.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::gpu::GpuMemory;

/// Of [`Region::uses`]: the region was deregistered.
const CLOSED: usize = 1 << (usize::BITS - 1);

/// Memory that NIXL has registered.
///
/// Invariant: until `uses` has `CLOSED`, the `len` bytes at `address` are memory of this process that may be read and written; or, with `gpu`,
/// memory of a GPU.
#[derive(Debug)]
pub(crate) struct Region {
    address: usize,
    len: usize,
    /// The number by which peers name it: random, so that a peer can only name what it was told.
    key: u64,
    /// Uses by transfers, of this agent and of peers; and `CLOSED`. Who touches the memory holds the lock of the agent, and so does who
    /// sets `CLOSED`.
    uses: AtomicUsize,
    /// The bytes are memory of a GPU, which only its driver copies.
    gpu: Option<GpuMemory>,
}

impl Region {
    /// # Safety
    /// The `len` bytes at `address` are readable and writable memory of this process until [`close`](Self::close) is called. Whoever else writes to them does so by machine instructions whose effects are bytes, not as a Rust reference:
    /// the memory belongs to programs in other languages. That is NIXL's contract of `registerMem`.
    pub(crate) unsafe fn new(address: usize, len: usize, key: u64) -> Option<Arc<Self>> {
        address.checked_add(len)?;
        if address == 0 && len > 0 {
            return None;
        }
        Some(Arc::new(Self::with(address, len, key, None)))
    }

    /// Takes memory of a GPU.
    pub(crate) fn of_gpu(
        address: usize,
        len: usize,
        key: u64,
        gpu: GpuMemory,
    ) -> Option<Arc<Self>> {
        address.checked_add(len)?;
        Some(Arc::new(Self::with(address, len, key, Some(gpu))))
    }

    fn with(address: usize, len: usize, key: u64, gpu: Option<GpuMemory>) -> Self {
        Self {
            address,
            len,
            key,
            uses: AtomicUsize::new(0),
            gpu,
        }
    }

    /// Returns the memory of a GPU that the region is, if it is one.
    pub(crate) fn gpu(&self) -> Option<&GpuMemory> {
        self.gpu.as_ref()
    }

    pub(crate) fn address(&self) -> usize {
        self.address
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    pub(crate) fn key(&self) -> u64 {
        self.key
    }

    /// Returns the offset of an address range of this process, if all of it is in the region.
    pub(crate) fn offset_of(&self, address: usize, len: usize) -> Option<usize> {
        let offset = address.checked_sub(self.address)?;
        (offset.checked_add(len)? <= self.len).then_some(offset)
    }

    /// Begins a use, unless the region was deregistered.
    pub(crate) fn take(self: &Arc<Self>) -> Option<Use> {
        let more = |uses| (uses & CLOSED == 0).then(|| uses + 1);
        let taken = self
            .uses
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, more);
        taken.ok().map(|_| Use(Arc::clone(self)))
    }

    /// Deregisters the region: nothing touches the memory any more. `Err`: that many uses were going on, and fail.
    pub(crate) fn close(&self) -> Result<(), usize> {
        if let Some(gpu) = &self.gpu {
            gpu.revoke();
        }
        match self.uses.fetch_or(CLOSED, Ordering::Relaxed) & !CLOSED {
            0 => Ok(()),
            uses => Err(uses),
        }
    }
}

/// A use of a region by a transfer, or a part of one.
#[derive(Debug)]
pub(crate) struct Use(Arc<Region>);

impl Use {
    pub(super) fn region(&self) -> &Arc<Region> {
        &self.0
    }

    /// Returns whether the memory may still be touched.
    pub(super) fn is_live(&self) -> bool {
        self.0.uses.load(Ordering::Relaxed) & CLOSED == 0
    }

    /// Returns where a range is, and its length, if it is in the region: its address; or of a GPU's memory, its offset.
    pub(super) fn place(&self, offset: u64, len: u64) -> Option<(usize, usize)> {
        let (offset, len) = (usize::try_from(offset).ok()?, usize::try_from(len).ok()?);
        if offset.checked_add(len)? > self.0.len {
            return None;
        }
        let start = match self.0.gpu {
            // No overflow: the offset is in the region, and `new` has checked its end.
            None => self.0.address + offset,
            Some(_) => offset,
        };
        Some((start, len))
    }
}

impl Drop for Use {
    fn drop(&mut self) {
        self.0.uses.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// Registers bytes that live as long as the process.
    pub(crate) fn leaked(bytes: Vec<u8>, key: u64) -> Arc<Region> {
        let bytes = bytes.leak();
        // SAFETY: the bytes are never freed, and nobody else has them.
        unsafe { Region::new(bytes.as_mut_ptr().expose_provenance(), bytes.len(), key) }.unwrap()
    }

    #[test]
    fn a_deregistered_region_is_not_used_any_more() {
        let region = leaked(vec![0; 8], 1);
        let (first, second) = (region.take().unwrap(), region.take().unwrap());
        assert!(first.is_live());
        assert_eq!(region.close(), Err(2));
        assert!(!first.is_live());
        assert!(region.take().is_none());
        drop(first);
        assert_eq!(region.close(), Err(1));
        drop(second);
        assert_eq!(region.close(), Ok(()));
        assert!(region.take().is_none());
    }

    #[test]
    fn only_ranges_inside_have_a_place() {
        let region = leaked(vec![0; 100], 1);
        let it = region.take().unwrap();
        assert_eq!(it.place(90, 10), Some((region.address() + 90, 10)));
        assert_eq!(it.place(90, 11), None);
        assert_eq!(it.place(u64::MAX, 1), None);
        assert_eq!(it.place(1, u64::MAX), None);
        assert_eq!(region.offset_of(region.address() + 1, 99), Some(1));
        assert_eq!(region.offset_of(region.address() + 1, 100), None);
        assert_eq!(region.offset_of(0, 1), None);
    }

    #[test]
    fn a_range_that_wraps_around_is_no_region() {
        // SAFETY: nothing is made.
        assert!(unsafe { Region::new(usize::MAX, 2, 1) }.is_none());
        // SAFETY: as above.
        assert!(unsafe { Region::new(0, 2, 1) }.is_none());
    }
}
