//! The page pool: one receive queue's allocator and recycler (linux net/core/page_pool.c).
//!
//! The owner's fast path has no atomic read-modify-write, no lock and no dynamic call, and is the same
//! for host pages and net_iovs: the cache holds ready [`Netmem`]s, each with its reference to the pool
//! and its count at 1, so allocating pops and recycling checks the count and pushes. Everything else
//! (the return ring, the provider) moves net_iovs in bulk.
//!
//! A pool may be dropped while its net_iovs are in use. A net_iov is in one place at a time: its
//! provider, the cache, the ring, or its owners. Dropping the pool closes the ring and returns cache
//! and ring to the provider; a last owner that is dropped later finds the ring closed
//! (see [`crate::return_ring`]: there is no state between) and returns the net_iov to the provider. The
//! [`PoolShared`] that its handle refers to, the provider and the memory live until then.

use std::fmt;
use std::sync::Arc;

use devmem_uapi::DmabufId;

use crate::frag::Frag;
use crate::net_iov::NiovSize;
use crate::netmem::Netmem;
use crate::pool_shared::PoolShared;
use crate::pool_types::{PoolId, PoolStats};
use crate::provider::MemoryProvider;
use crate::return_ring::Chain;

/// Number of net_iovs that move at once between pool and provider or ring (linux PP_ALLOC_CACHE_REFILL).
const REFILL: usize = 64;

/// Maximum number of free net_iovs in a pool's cache (linux PP_ALLOC_CACHE_SIZE).
const CACHE: usize = 128;

/// Maximum number of dropped net_iovs that wait in a pool's return ring; further ones go to the provider (linux ring_qsize).
const RING: u32 = 1024;

/// Divisor: a pool's cache holds at most 1 / this of the area's net_iovs, and so does its ring, so that an idle queue
/// leaves most of a binding to the others.
const IDLE_PARTS: u32 = 8;

/// Divisor: a refill takes at most 1 / this of the area's net_iovs.
const REFILL_PARTS: usize = 16;

/// A page pool. It is owned by the one thread that allocates for its queue.
#[doc(alias = "page_pool")]
pub struct PagePool {
    /// Ready handles, each the only owner of its net_iov. Never grows: its capacity is the limit.
    cache: Vec<Netmem>,
    shared: Arc<PoolShared>,
    provider: Arc<MemoryProvider>,
    /// Net_iovs from the return ring that do not fit into the cache yet.
    homecomers: Chain,
    /// The net_iov that frags are cut from, and the number of bytes cut off (linux page_pool frag_page).
    frag_page: Option<(Netmem, u32)>,
    /// Number of net_iovs per refill, up to [`REFILL`].
    refill: usize,
    stats: PoolStats,
}

impl PagePool {
    /// Creates a pool with memory of `provider`. This gives no access to bytes that the CPU may not read; only the NIC has
    /// it ([`PagePool::dma_port`]).
    pub fn new(provider: Arc<MemoryProvider>) -> Self {
        Self::with_cache(provider, CACHE)
    }

    fn with_cache(provider: Arc<MemoryProvider>, cache: usize) -> Self {
        let count = provider.area().count();
        let share = (count / IDLE_PARTS).max(2);
        let count = count as usize;
        PagePool {
            cache: Vec::with_capacity(cache.min(share as usize)),
            shared: Arc::new(PoolShared::new(Arc::clone(&provider), RING.min(share))),
            provider,
            homecomers: Chain::EMPTY,
            frag_page: None,
            refill: REFILL.min(count / REFILL_PARTS).min(cache).max(1),
            stats: PoolStats::default(),
        }
    }

    /// Returns the pool's number, which its handles have too.
    pub fn id(&self) -> PoolId {
        self.shared.id()
    }

    /// Returns what the pool allocates from.
    pub fn provider(&self) -> &Arc<MemoryProvider> {
        &self.provider
    }

    /// Returns whether the stack may read the pool's memory.
    pub fn is_readable(&self) -> bool {
        self.shared.is_readable()
    }

    /// Returns the dma-buf that the pool's memory belongs to.
    pub fn dmabuf_id(&self) -> Option<DmabufId> {
        self.shared.dmabuf_id()
    }

    /// Returns the size of each net_iov.
    pub fn niov_size(&self) -> NiovSize {
        self.shared.area().niov_size()
    }

    /// Returns whether `netmem` is part of the memory of this pool's provider, also if another pool has allocated it.
    pub fn covers(&self, netmem: &Netmem) -> bool {
        Arc::ptr_eq(netmem.pool().area(), self.shared.area())
    }

    /// Returns the number of net_iovs of the memory that the pool allocates from, which other pools may share.
    pub fn niov_count(&self) -> u32 {
        self.shared.area().count()
    }

    /// Returns one net_iov; `None` when cache, ring and provider are empty.
    #[inline]
    pub fn alloc(&mut self) -> Option<Netmem> {
        match self.cache.pop() {
            Some(netmem) => {
                self.stats.alloc_fast += 1;
                Some(netmem)
            }
            None => self.alloc_slow(),
        }
    }

    #[cold]
    #[inline(never)]
    fn alloc_slow(&mut self) -> Option<Netmem> {
        self.refill();
        self.cache.pop()
    }

    /// Appends up to `n` net_iovs to `out`. Returns the number.
    pub fn alloc_bulk(&mut self, n: usize, out: &mut impl Extend<Netmem>) -> usize {
        let mut got = 0;
        while got < n {
            if self.cache.is_empty() && !self.refill() {
                break;
            }
            let take = (n - got).min(self.cache.len());
            out.extend(self.cache.drain(self.cache.len() - take..).rev());
            got += take;
        }
        self.stats.alloc_fast += got as u64;
        got
    }

    /// Appends up to `n` net_iovs to `out`, adjacent and ascending if possible (more than 64 in
    /// runs of 64), otherwise as [`PagePool::alloc_bulk`]. Returns the number.
    pub fn alloc_contiguous(&mut self, n: usize, out: &mut impl Extend<Netmem>) -> usize {
        let mut got = 0;
        while got < n {
            let run = (n - got).min(REFILL);
            if !self.home_run(run, out) && !self.provided_run(run, out) {
                return got + self.alloc_bulk(n - got, out);
            }
            got += run;
        }
        got
    }

    /// Takes `n` adjacent net_iovs from the cache, or from the ring through the cache.
    fn home_run(&mut self, n: usize, out: &mut impl Extend<Netmem>) -> bool {
        if self.cached_run(n, out) {
            return true;
        }
        let room = self.cache.capacity() - self.cache.len();
        self.cache.len() < n && self.take_home(room) && self.cached_run(n, out)
    }

    /// Takes `n` net_iovs off the top of the cache when they are adjacent: net_iovs that were allocated
    /// together are often recycled together, in ascending or descending order.
    fn cached_run(&mut self, n: usize, out: &mut impl Extend<Netmem>) -> bool {
        let Some(from) = self.cache.len().checked_sub(n) else {
            return false;
        };
        let top = &self.cache[from..];
        if top.windows(2).all(|pair| pair[1].is_right_after(&pair[0])) {
            out.extend(self.cache.drain(from..));
        } else if top.windows(2).all(|pair| pair[0].is_right_after(&pair[1])) {
            out.extend(self.cache.drain(from..).rev());
        } else {
            return false;
        }
        self.stats.alloc_fast += n as u64;
        true
    }

    /// Takes `n` adjacent net_iovs, at most [`REFILL`], from the provider; when it has none, returns the
    /// free net_iovs of this pool to it and tries once more.
    fn provided_run(&mut self, n: usize, out: &mut impl Extend<Netmem>) -> bool {
        let mut buffer = [0; REFILL];
        let indices = &mut buffer[..n];
        let mut found = self.provider.chunks.alloc_run(indices);
        if !found && self.at_home() >= n as u64 {
            self.release_cached(self.cache.len());
            self.take_ring();
            let chain = std::mem::replace(&mut self.homecomers, Chain::EMPTY);
            self.release_chain(chain);
            found = self.provider.chunks.alloc_run(indices);
        }
        if found {
            self.stats.alloc_slow += 1;
            self.stats.held += n as u64;
            out.extend(
                indices
                    .iter()
                    .map(|&index| Netmem::claim(&self.shared, index)),
            );
        }
        found
    }

    /// Returns `len` bytes of memory in a net_iov shared with other such frags; `None` when the pool is
    /// empty or `len` is more than a net_iov. For small pieces, each of which would waste a net_iov. Consecutive
    /// pieces are adjacent.
    #[doc(alias = "page_pool_alloc_frag")]
    pub fn alloc_frag(&mut self, len: u32) -> Option<Frag> {
        // At most 2 MiB: fits.
        let size = self.niov_size().bytes() as u32;
        if len > size {
            return None;
        }
        if let Some((page, used)) = &mut self.frag_page
            && page.is_sole_owner()
        {
            *used = 0;
        }
        let (page, used) = match self.frag_page.take() {
            Some((page, used)) if len <= size - used => (page, used),
            _ => (self.alloc()?, 0),
        };
        let end = used + len;
        if end < size {
            self.frag_page = Some((page.share(), end));
        }
        Some(Frag::new(page, used, len))
    }

    /// Fills the empty cache from the ring, otherwise from the provider. Returns false if both are empty.
    fn refill(&mut self) -> bool {
        if self.take_home(self.refill) {
            return true;
        }
        self.stats.alloc_empty += 1;
        let mut indices = [0; REFILL];
        let got = self.provider.chunks.alloc_bulk(&mut indices[..self.refill]);
        if got > 0 {
            self.stats.alloc_slow += 1;
            self.stats.held += got as u64;
        }
        if got == 0 {
            let idle = self.frag_page.take_if(|(page, _)| page.is_sole_owner());
            self.cache.extend(idle.map(|(page, _)| page));
        }
        // The lowest index is on top.
        for &index in indices[..got].iter().rev() {
            self.cache.push(Netmem::claim(&self.shared, index));
        }
        !self.cache.is_empty()
    }

    /// Moves up to `n` net_iovs, for which the cache has room, from the ring into it. Returns false if the ring is empty.
    fn take_home(&mut self, n: usize) -> bool {
        self.take_ring();
        if self.homecomers.len == 0 {
            return false;
        }
        self.stats.alloc_refill += 1;
        // The newest first, so that the oldest is on top: frags of a packet that were dropped in order
        // are allocated in the same order.
        for _ in 0..n {
            let Some(index) = self.homecomers.pop(self.shared.area().slots()) else {
                break;
            };
            self.cache.push(Netmem::claim(&self.shared, index));
        }
        true
    }

    fn take_ring(&mut self) {
        if self.homecomers.len == 0 {
            self.homecomers = self.shared.ring().take();
            self.stats.recycle_ring += u64::from(self.homecomers.len);
        }
    }

    /// Recycles a handle: the last handle of one of this pool's net_iovs goes to the cache; any
    /// other is dropped.
    #[inline]
    pub fn recycle(&mut self, netmem: Netmem) {
        let ours = Arc::ptr_eq(netmem.pool(), &self.shared);
        if ours && netmem.is_sole_owner() && self.cache.len() < self.cache.capacity() {
            self.stats.recycle_cached += 1;
            self.cache.push(netmem);
        } else {
            self.recycle_slow(netmem);
        }
    }

    #[cold]
    #[inline(never)]
    fn recycle_slow(&mut self, netmem: Netmem) {
        if !Arc::ptr_eq(netmem.pool(), &self.shared) {
            return;
        }
        if !netmem.is_sole_owner() {
            self.stats.recycle_released_refcnt += 1;
            return;
        }
        self.stats.recycle_cache_full += 1;
        self.release_cached(self.cache.len() / 2);
        self.cache.push(netmem);
    }

    /// Returns the `n` oldest entries of the cache to the provider.
    fn release_cached(&mut self, n: usize) {
        let mut indices = [0; REFILL];
        let mut oldest = self.cache.drain(..n);
        loop {
            let mut count = 0;
            for (slot, netmem) in indices.iter_mut().zip(oldest.by_ref()) {
                *slot = netmem.disclaim();
                count += 1;
            }
            if count == 0 {
                break;
            }
            self.stats.held -= count as u64;
            self.provider.chunks.release(&indices[..count]);
        }
    }

    /// Returns a chain from the ring to the provider.
    fn release_chain(&mut self, mut chain: Chain) {
        self.stats.held -= u64::from(chain.len);
        while chain.len > 0 {
            let mut indices = [0; REFILL];
            let mut count = 0;
            while let Some(slot) = indices.get_mut(count)
                && let Some(index) = chain.pop(self.shared.area().slots())
            {
                *slot = index;
                count += 1;
            }
            self.provider.chunks.release(&indices[..count]);
        }
    }

    /// Returns how many net_iovs can be allocated now, unless other pools of the same provider allocate them first.
    #[inline]
    pub fn available_niovs(&self) -> u32 {
        // At most the net_iovs of one area, whose count is a u32.
        (self.at_home() as u32).saturating_add(self.provider.free_niovs())
    }

    /// Returns how many of the pool's net_iovs are in the cache, the ring, or between the two.
    fn at_home(&self) -> u64 {
        let idle = self
            .frag_page
            .as_ref()
            .is_some_and(|(page, _)| page.is_sole_owner());
        let own = self.cache.len() as u64 + u64::from(idle);
        own + u64::from(self.homecomers.len) + u64::from(self.shared.ring().len())
    }

    /// Returns the counters.
    pub fn stats(&self) -> PoolStats {
        // In this order nothing is subtracted that is not in `held`: net_iovs that bypassed the ring were in use.
        let recycle_ring_full = self.shared.passed_ring();
        let held = self.stats.held - recycle_ring_full;
        let outstanding = held - self.at_home();
        PoolStats {
            outstanding,
            held,
            recycle_ring_full,
            ..self.stats
        }
    }

    /// Checks that all net_iovs of this pool are home; for the end of every test.
    ///
    /// # Panics
    ///
    /// When one is still in use.
    pub fn assert_all_home(&self) {
        let PoolStats {
            outstanding, held, ..
        } = self.stats();
        assert!(
            outstanding == 0,
            "{outstanding} of {held} net_iovs of {:?} are not home",
            self.id()
        );
    }
}

impl Drop for PagePool {
    fn drop(&mut self) {
        // Closed first: net_iovs that are dropped from now on go to the provider.
        let ring = self.shared.ring().close();
        self.release_chain(ring);
        self.release_chain(self.homecomers);
        self.release_cached(self.cache.len());
    }
}

impl fmt::Debug for PagePool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PagePool")
            .field("id", &self.id())
            .field("stats", &self.stats())
            .finish()
    }
}

#[cfg(test)]
mod tests;
