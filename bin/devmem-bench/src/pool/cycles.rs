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
use netmem::{
    Dmabuf, DmabufId, DmabufProvider, HostProvider, MemoryProvider, Netmem, NiovSize, PagePool,
    PoolConfig,
};

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

/// One figure of a report, in nanoseconds per element.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct BenchRow {
    /// What was timed.
    pub case: BenchCase,
    /// On which memory.
    pub memory: BenchMemory,
    /// The median of the repetitions.
    pub median_ns: f64,
    /// The fastest repetition.
    pub min_ns: f64,
    /// The slowest repetition.
    pub max_ns: f64,
}

/// How much to measure.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BenchConfig {
    /// Repetitions, each of all cases; 5 or more tell the spread.
    pub repetitions: usize,
    /// Timed runs per repetition and case, of which the median is taken.
    pub runs: usize,
    /// Elements per run: enough to make reading the clock not count.
    pub elements: usize,
}

impl Default for BenchConfig {
    fn default() -> Self {
        BenchConfig {
            repetitions: 7,
            runs: 401,
            elements: 2 * NIOVS,
        }
    }
}

/// The loops that are timed, in the order of the report.
const CASES: [(BenchCase, BenchMemory); 8] = [
    (BenchCase::EmptyLoop, BenchMemory::None),
    (BenchCase::AtomicInc, BenchMemory::None),
    (BenchCase::FastPath, BenchMemory::Host),
    (BenchCase::FastPath, BenchMemory::NetIov),
    (BenchCase::ReturnRing, BenchMemory::Host),
    (BenchCase::ReturnRing, BenchMemory::NetIov),
    (BenchCase::SlowPath, BenchMemory::Host),
    (BenchCase::SlowPath, BenchMemory::NetIov),
];

/// Measures all cases. It takes the whole of one core for about a second with the default settings.
///
/// # Errors
///
/// When the 16 MiB of memory for each pool cannot be had.
pub fn run(config: BenchConfig) -> Result<Vec<BenchRow>> {
    let bytes = NIOVS * NiovSize::MIN.bytes();
    let dmabuf = Dmabuf::anonymous(bytes)?;
    let net_iovs = DmabufProvider::new(&dmabuf, DmabufId(1), NiovSize::MIN)?;
    let mut host = pool(Arc::new(HostProvider::new(bytes, NiovSize::MIN)?))?;
    let mut net_iov = pool(Arc::new(net_iovs))?;
    let mut figures = CASES.map(|_| Vec::with_capacity(config.repetitions));
    for _ in 0..config.repetitions.max(1) {
        for (figures, (case, memory)) in figures.iter_mut().zip(CASES) {
            let pool = if memory == BenchMemory::NetIov {
                &mut net_iov
            } else {
                &mut host
            };
            figures.push(repetition(case, pool, config));
        }
    }
    Ok(CASES
        .into_iter()
        .zip(&mut figures)
        .map(|(what, figures)| row(what, figures))
        .collect())
}

fn pool(provider: Arc<dyn MemoryProvider>) -> Result<PagePool> {
    Ok(PagePool::create(provider, PoolConfig::default())?)
}

fn row((case, memory): (BenchCase, BenchMemory), figures: &mut [f64]) -> BenchRow {
    let median_ns = median(figures);
    let min_ns = figures.first().copied().unwrap_or(f64::NAN);
    let max_ns = figures.last().copied().unwrap_or(f64::NAN);
    BenchRow {
        case,
        memory,
        median_ns,
        min_ns,
        max_ns,
    }
}

/// Sorts the figures and returns the middle one.
fn median(figures: &mut [f64]) -> f64 {
    figures.sort_by(f64::total_cmp);
    figures.get(figures.len() / 2).copied().unwrap_or(f64::NAN)
}

/// Returns the median time per element of many runs of one case.
fn repetition(case: BenchCase, pool: &mut PagePool, config: BenchConfig) -> f64 {
    let elements = config.elements.max(1);
    let counter = AtomicU64::new(0);
    let mut held = Vec::with_capacity(NIOVS);
    let mut timed: Vec<f64> = (0..config.runs.max(1))
        .map(|_| {
            let start = Instant::now();
            match case {
                BenchCase::EmptyLoop => empty_loop(elements),
                BenchCase::AtomicInc => atomic_inc(&counter, elements),
                BenchCase::FastPath => fast_path(pool, elements),
                BenchCase::ReturnRing => return_ring(pool, elements),
                BenchCase::SlowPath => slow_path(pool, &mut held, elements),
            }
            start.elapsed().as_nanos() as f64 / elements as f64
        })
        .collect();
    median(&mut timed)
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
        pool.recycle_bulk(held.drain(..));
        left -= burst;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[cfg_attr(miri, ignore = "long loops over what other tests cover")]
    fn every_case_runs_and_has_a_row() {
        let rows = run(BenchConfig {
            repetitions: 2,
            runs: 3,
            elements: 300,
        })
        .unwrap();
        assert_eq!(rows.len(), CASES.len());
        for row in rows {
            assert!(
                row.min_ns <= row.median_ns && row.median_ns <= row.max_ns,
                "{row:?}"
            );
        }
    }

    #[test]
    #[cfg_attr(miri, ignore = "long loops over what other tests cover")]
    fn the_cases_use_the_paths_in_their_names() {
        let bytes = NIOVS * NiovSize::MIN.bytes();
        let provider = Arc::new(HostProvider::new(bytes, NiovSize::MIN).unwrap());
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
