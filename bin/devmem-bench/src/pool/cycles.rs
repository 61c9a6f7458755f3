//! How long a page pool takes per net_iov: the three cases of the kernel's benchmark
//! (linux tools/testing/selftests/net/bench/page_pool/bench_page_pool_simple.c) and its baselines.
//!
//! Many short runs, each timed as a whole; their median is one repetition's figure, so that a run which
//! the machine's other work disturbed does not count. Repetitions of all cases are interleaved. A
//! figure means something only beside the others of the same report.

use std::fmt;
use std::hint::black_box;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use anyhow::Result;
use netmem::{Dmabuf, DmabufId, MemoryProvider, Netmem, NiovSize, PagePool};

use crate::spread::Spread;

/// Net_iovs per pool: more than a cache holds, so that the slow case gets past it.
const NIOVS: usize = 4096;

/// What is timed.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum BenchCase {
    /// A loop that does nothing: what the other figures contain.
    EmptyLoop,
    /// One atomic increment, uncontended.
    AtomicInc,
    /// Allocate and recycle on the owning thread (the kernel's page_pool01_fast_path).
    FastPath,
    /// Allocate, and let go as another thread would: through the return ring (page_pool02_ptr_ring).
    ReturnRing,
    /// Allocate from the provider and give back to it, past a full cache (page_pool03_slow).
    SlowPath,
}

impl fmt::Display for BenchCase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            BenchCase::EmptyLoop => "empty_loop",
            BenchCase::AtomicInc => "atomic_inc",
            BenchCase::FastPath => "fast_path",
            BenchCase::ReturnRing => "return_ring",
            BenchCase::SlowPath => "slow_path",
        })
    }
}

/// Which memory the pool is of.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum BenchMemory {
    /// No pool: a baseline.
    None,
    /// Host pages.
    Host,
    /// Net_iovs of a dma-buf.
    NetIov,
}

impl fmt::Display for BenchMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            BenchMemory::None => "none",
            BenchMemory::Host => "host",
            BenchMemory::NetIov => "net_iov",
        })
    }
}

/// How much of a case is timed at once.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Length {
    /// Timed runs, of which the median is taken.
    pub runs: usize,
    /// Elements per run: enough to make reading the clock not count.
    pub elements: usize,
}

impl Default for Length {
    fn default() -> Self {
        Self {
            runs: 401,
            elements: 2 * NIOVS,
        }
    }
}

/// The loops that are timed, in the order of the report.
pub const CASES: [(BenchCase, BenchMemory); 8] = [
    (BenchCase::EmptyLoop, BenchMemory::None),
    (BenchCase::AtomicInc, BenchMemory::None),
    (BenchCase::FastPath, BenchMemory::Host),
    (BenchCase::FastPath, BenchMemory::NetIov),
    (BenchCase::ReturnRing, BenchMemory::Host),
    (BenchCase::ReturnRing, BenchMemory::NetIov),
    (BenchCase::SlowPath, BenchMemory::Host),
    (BenchCase::SlowPath, BenchMemory::NetIov),
];

/// The pools of both kinds of memory.
pub struct Pools {
    host: PagePool,
    net_iov: PagePool,
    held: Vec<Netmem>,
    counter: AtomicU64,
}

impl Pools {
    /// Allocates 16 MiB of memory for each pool.
    ///
    /// # Errors
    ///
    /// There is not so much memory.
    pub fn new() -> Result<Self> {
        let bytes = NIOVS * NiovSize::MIN.bytes();
        let dmabuf = Dmabuf::anonymous(bytes)?;
        let net_iovs = MemoryProvider::of_dmabuf(&dmabuf, DmabufId(1), NiovSize::MIN)?;
        Ok(Self {
            host: pool(Arc::new(MemoryProvider::host(bytes, NiovSize::MIN)?))?,
            net_iov: pool(Arc::new(net_iovs))?,
            held: Vec::with_capacity(NIOVS),
            counter: AtomicU64::new(0),
        })
    }

    /// Returns the median time per element of the runs of one case, in nanoseconds.
    pub fn time(&mut self, case: BenchCase, memory: BenchMemory, length: Length) -> f64 {
        let Length { runs, elements } = length;
        let pool = match memory {
            BenchMemory::NetIov => &mut self.net_iov,
            BenchMemory::Host | BenchMemory::None => &mut self.host,
        };
        let timed = (0..runs).map(|_| {
            let start = Instant::now();
            match case {
                BenchCase::EmptyLoop => empty_loop(elements),
                BenchCase::AtomicInc => atomic_inc(&self.counter, elements),
                BenchCase::FastPath => fast_path(pool, elements),
                BenchCase::ReturnRing => return_ring(pool, elements),
                BenchCase::SlowPath => slow_path(pool, &mut self.held, elements),
            }
            start.elapsed().as_nanos() as f64 / elements as f64
        });
        Spread::of(timed).map_or(f64::NAN, |times| times.median)
    }
}

fn pool(provider: Arc<MemoryProvider>) -> Result<PagePool> {
    Ok(PagePool::new(provider))
}

#[inline(never)]
fn empty_loop(elements: usize) {
    for i in 0..elements {
        black_box(i);
    }
}

#[inline(never)]
fn atomic_inc(counter: &AtomicU64, elements: usize) {
    for _ in 0..elements {
        counter.fetch_add(1, Ordering::Relaxed);
    }
}

#[inline(never)]
fn fast_path(pool: &mut PagePool, elements: usize) {
    for _ in 0..elements {
        if let Some(netmem) = pool.alloc() {
            pool.recycle(black_box(netmem));
        }
    }
}

#[inline(never)]
fn return_ring(pool: &mut PagePool, elements: usize) {
    for _ in 0..elements {
        drop(black_box(pool.alloc()));
    }
}

/// Takes all there is, far more than the cache holds, and gives it back.
#[inline(never)]
fn slow_path(pool: &mut PagePool, held: &mut Vec<Netmem>, elements: usize) {
    let mut left = elements;
    while left > 0 {
        let burst = left.min(NIOVS);
        held.extend((0..burst).map_while(|_| pool.alloc()));
        for netmem in held.drain(..) {
            pool.recycle(netmem);
        }
        left -= burst;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_case_takes_time() {
        let mut pools = Pools::new().unwrap();
        let length = Length {
            runs: 3,
            elements: 300,
        };
        for (case, memory) in CASES {
            let time = pools.time(case, memory, length);
            assert!(time > 0.0, "{case} {memory}: {time}");
        }
    }

    #[test]
    fn the_cases_use_the_paths_in_their_names() {
        let bytes = NIOVS * NiovSize::MIN.bytes();
        let provider = Arc::new(MemoryProvider::host(bytes, NiovSize::MIN).unwrap());
        let mut pool = pool(provider).unwrap();
        drop(pool.alloc());
        fast_path(&mut pool, 100);
        assert_eq!(
            (pool.stats().alloc_fast, pool.stats().recycle_cached),
            (100, 100)
        );
        return_ring(&mut pool, 640);
        // Up to a cache full of the last ones lies in the ring, not taken yet.
        assert!(pool.stats().recycle_ring >= 640 - 128, "{:?}", pool.stats());
        let before = pool.stats();
        slow_path(&mut pool, &mut Vec::new(), NIOVS);
        assert!(pool.stats().alloc_slow - before.alloc_slow >= (NIOVS / 64 - 4) as u64);
        assert!(pool.stats().recycle_cache_full > before.recycle_cache_full);
        pool.assert_all_home();
    }
}
