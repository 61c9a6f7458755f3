//! What a page pool is made with, refuses, and counts (linux include/net/page_pool/types.h).

use std::sync::atomic::{AtomicU32, Ordering};

/// The number of a page pool, unique in this process.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct PoolId(u32);

impl PoolId {
    /// Of memory that is sent and was never allocated from a pool.
    pub(crate) const NONE: PoolId = PoolId(0);

    pub(crate) fn next() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(1);
        PoolId(NEXT.fetch_add(1, Ordering::Relaxed))
    }
}

/// Settings of a page pool.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PoolConfig {
    /// How many free net_iovs the owner keeps at hand, 2 to 32768 (linux PP_ALLOC_CACHE_SIZE: 128);
    /// never more than an eighth of the area, which other queues may share.
    pub cache: usize,
    /// How many net_iovs that come home by themselves wait for the owner before more go to the provider
    /// instead (linux ring_qsize: 1024); never more than an eighth of the area.
    pub ring: u32,
}

impl Default for PoolConfig {
    fn default() -> Self {
        PoolConfig {
            cache: 128,
            ring: 1024,
        }
    }
}

/// Why a page pool was not made.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum PoolError {
    /// The cache size is outside its bounds.
    #[error("a page pool cache of {cache} entries: take 2 to 32768 (128 is usual)")]
    Cache {
        /// The size asked for.
        cache: usize,
    },
    /// The provider will not serve another pool.
    #[error("the memory provider refused the pool: {reason}")]
    Refused {
        /// What it said.
        reason: &'static str,
    },
}

/// Counters of a page pool (linux include/net/page_pool/types.h, struct page_pool_alloc_stats and
/// page_pool_recycle_stats; netdev netlink names). They count since the pool was made.
#[doc(alias = "page_pool_stats")]
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct PoolStats {
    /// Allocations from the cache.
    pub alloc_fast: u64,
    /// Refills from the provider.
    pub alloc_slow: u64,
    /// Allocations of more than one page in one piece: none here.
    pub alloc_slow_high_order: u64,
    /// Refills that found the return ring empty and went to the provider.
    pub alloc_empty: u64,
    /// Refills from the return ring.
    pub alloc_refill: u64,
    /// Entries of the return ring that could not be used (NUMA): none here.
    pub alloc_waive: u64,
    /// Returns into the cache.
    pub recycle_cached: u64,
    /// Returns that found the cache full; half of it then goes to the provider.
    pub recycle_cache_full: u64,
    /// Returns through the ring, counted when taken from it.
    pub recycle_ring: u64,
    /// Returns that found the ring full and went to the provider.
    pub recycle_ring_full: u64,
    /// Returns of memory that others still hold; the last of them brings it home.
    pub recycle_released_refcnt: u64,
    /// How many net_iovs the pool has from its provider now.
    pub held: u64,
    /// How many of those are out: neither cached nor in the return ring.
    pub outstanding: u64,
}
