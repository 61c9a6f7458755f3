//! What a page pool counts, under the kernel's names.

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
    /// Returns that found the ring full: none, it has room for all.
    pub recycle_ring_full: u64,
    /// Returns of memory that others still hold; the last of them brings it home.
    pub recycle_released_refcnt: u64,
    /// How many net_iovs the pool has from its provider now.
    pub held: u64,
    /// How many of those are out: neither cached nor in the return ring.
    pub outstanding: u64,
}
