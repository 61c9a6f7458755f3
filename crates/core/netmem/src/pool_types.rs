//! Number and counters of a page pool (linux include/net/page_pool/types.h).

use std::sync::atomic::{AtomicU32, Ordering};

/// The number of a page pool, unique in this process.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct PoolId(u32);

impl PoolId {
    /// For memory that is sent, which is not allocated from a pool.
    pub(crate) const NONE: PoolId = PoolId(0);

    pub(crate) fn next() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(1);
        PoolId(NEXT.fetch_add(1, Ordering::Relaxed))
    }
}

/// Counters of a page pool (linux include/net/page_pool/types.h, struct page_pool_alloc_stats and
/// page_pool_recycle_stats; netdev netlink names), since the pool was created.
#[doc(alias = "page_pool_stats")]
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct PoolStats {
    /// Allocations from the cache.
    pub alloc_fast: u64,
    /// Refills from the provider.
    pub alloc_slow: u64,
    /// Refills that found the return ring empty and went to the provider.
    pub alloc_empty: u64,
    /// Refills from the return ring.
    pub alloc_refill: u64,
    /// Returns into the cache.
    pub recycle_cached: u64,
    /// Returns that found the cache full; half of it then goes to the provider.
    pub recycle_cache_full: u64,
    /// Returns through the ring, counted when taken from it.
    pub recycle_ring: u64,
    /// Returns that found the ring full and went to the provider.
    pub recycle_ring_full: u64,
    /// Returns of memory that has other owners; it goes home with the last of them.
    pub recycle_released_refcnt: u64,
    /// Number of net_iovs that the pool currently has from its provider.
    pub held: u64,
    /// Number of those in use: neither cached nor in the return ring.
    pub outstanding: u64,
}
