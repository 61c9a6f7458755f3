use std::collections::{BTreeMap, HashMap};
use std::sync::mpsc;
use std::thread;

use proptest::prelude::*;

use devmem_uapi::DmabufId;

use super::*;
use crate::dma_port::DmaPort;
use crate::{BufSpan, Dmabuf, MemoryProvider};

const NIOV: usize = 4096;

fn provider(count: usize) -> Arc<MemoryProvider> {
    let dmabuf = Dmabuf::anonymous(count * NIOV).unwrap();
    Arc::new(MemoryProvider::of_dmabuf(&dmabuf, DmabufId(1), NiovSize::MIN).unwrap())
}

fn pool_of(provider: &Arc<MemoryProvider>, cache: usize) -> (PagePool, DmaPort) {
    let pool = PagePool::with_cache(Arc::clone(provider), cache);
    (pool, DmaPort::new())
}

fn index(netmem: &Netmem) -> u64 {
    netmem.dmabuf_offset(0) / NIOV as u64
}

fn indices(netmems: &[Netmem]) -> Vec<u64> {
    netmems.iter().map(index).collect()
}

#[test]
fn a_handle_and_an_optional_handle_are_two_words() {
    assert_eq!((size_of::<Netmem>(), size_of::<Option<Netmem>>()), (16, 16));
    assert_eq!(size_of::<crate::Frag>(), 32);
}

#[test]
fn an_empty_pool_returns_none_and_recovers() {
    let provider = provider(16);
    let (mut pool, _port) = pool_of(&provider, 128);
    let mut out = Vec::new();
    assert_eq!(pool.alloc_bulk(20, &mut out), 16);
    assert_eq!((pool.available_niovs(), pool.stats().outstanding), (0, 16));
    assert!(pool.alloc().is_none());
    assert_eq!(pool.alloc_contiguous(2, &mut out), 0);
    pool.recycle(out.pop().unwrap());
    assert_eq!(pool.available_niovs(), 1);
    assert!(pool.alloc().is_some());
    drop(out);
    assert_eq!(pool.available_niovs(), 16);
    pool.assert_all_home();
}

#[test]
fn the_counters_count_each_path_of_a_net_iov() {
    let provider = provider(1024);
    let (mut pool, _port) = pool_of(&provider, 64);
    let first = pool.alloc().unwrap();
    let expected = PoolStats {
        alloc_slow: 1,
        alloc_empty: 1,
        held: 64,
        outstanding: 1,
        ..Default::default()
    };
    assert_eq!(pool.stats(), expected);
    pool.recycle(first);
    let mut out = Vec::new();
    assert_eq!(pool.alloc_bulk(64, &mut out), 64);
    let before = PoolStats {
        alloc_fast: 64,
        recycle_cached: 1,
        outstanding: 64,
        ..expected
    };
    assert_eq!(pool.stats(), before);
    // By drop: through the ring, and out of it when the cache is empty.
    drop(out);
    assert_eq!(
        pool.stats(),
        PoolStats {
            outstanding: 0,
            ..before
        }
    );
    let one = pool.alloc().unwrap();
    let refilled = PoolStats {
        alloc_refill: 1,
        recycle_ring: 64,
        outstanding: 1,
        ..before
    };
    assert_eq!(pool.stats(), refilled);
    // One with two owners is not recycled by the first of them.
    let two = one.share();
    pool.recycle(one);
    assert_eq!(
        pool.stats(),
        PoolStats {
            recycle_released_refcnt: 1,
            ..refilled
        }
    );
    pool.recycle(two);
    assert_eq!(pool.stats().recycle_cached, 2);
    pool.assert_all_home();
}

#[test]
fn a_full_cache_gives_its_older_half_to_the_provider() {
    let provider = provider(1024);
    let (mut pool, _port) = pool_of(&provider, 64);
    let mut out = Vec::new();
    assert_eq!(pool.alloc_bulk(128, &mut out), 128);
    assert_eq!(provider.free_niovs(), 1024 - 128);
    for netmem in out {
        pool.recycle(netmem);
    }
    // 64 fit; the 65th and the 97th find it full and send 32 away.
    let stats = pool.stats();
    assert_eq!((stats.recycle_cached, stats.recycle_cache_full), (126, 2));
    assert_eq!((stats.held, provider.free_niovs()), (64, 1024 - 64));
    assert_eq!(pool.available_niovs(), 1024);
    pool.assert_all_home();
}

#[test]
#[should_panic(expected = "1 of 1 net_iovs of PoolId(")]
fn assert_all_home_panics_while_a_net_iov_is_in_use() {
    let provider = provider(16);
    let (mut pool, _port) = pool_of(&provider, 128);
    let _out = pool.alloc();
    pool.assert_all_home();
}

#[test]
fn new_memory_is_allocated_in_ascending_order() {
    let provider = provider(2048);
    let (mut pool, _port) = pool_of(&provider, 128);
    let mut out = Vec::new();
    pool.alloc_bulk(300, &mut out);
    assert_eq!(indices(&out), (0..300).collect::<Vec<_>>());
    drop(out);
    pool.assert_all_home();
}

#[test]
fn runs_are_adjacent_from_the_provider_and_from_the_cache() {
    let provider = provider(2048);
    let (mut pool, _port) = pool_of(&provider, 128);
    let mut run = Vec::new();
    assert_eq!(pool.alloc_contiguous(17, &mut run), 17);
    let fresh = indices(&run);
    assert!(fresh.is_sorted() && fresh[16] - fresh[0] == 16);
    for reversed in [false, true] {
        if reversed {
            run.reverse();
        }
        for netmem in run.drain(..) {
            pool.recycle(netmem);
        }
        assert_eq!(pool.alloc_contiguous(17, &mut run), 17);
        assert_eq!(indices(&run), fresh);
        assert!(run.windows(2).all(|pair| pair[1].is_right_after(&pair[0])));
    }
    assert_eq!((pool.stats().alloc_slow, pool.stats().alloc_fast), (1, 34));
    for netmem in run {
        pool.recycle(netmem);
    }
    pool.assert_all_home();
}

#[test]
fn a_run_that_is_scattered_in_the_cache_is_allocated_by_the_provider() {
    let provider = provider(256);
    let (mut pool, _port) = pool_of(&provider, 128);
    let mut low = Vec::new();
    assert_eq!(pool.alloc_bulk(256, &mut low), 256);
    let rest = low.split_off(20);
    let (even, odd): (Vec<_>, Vec<_>) = low
        .into_iter()
        .partition(|netmem| index(netmem).is_multiple_of(2));
    for netmem in even.into_iter().chain(odd) {
        pool.recycle(netmem);
    }
    let mut run = Vec::new();
    assert_eq!(pool.alloc_contiguous(16, &mut run), 16);
    assert_eq!(indices(&run), (0..16).collect::<Vec<_>>());
    drop((run, rest));
    pool.assert_all_home();
}

#[test]
fn without_a_run_single_net_iovs_are_allocated() {
    let provider = provider(64);
    let (mut pool, _port) = pool_of(&provider, 2);
    let mut all = Vec::new();
    assert_eq!(pool.alloc_bulk(64, &mut all), 64);
    let (even, odd): (Vec<_>, Vec<_>) = all
        .into_iter()
        .partition(|netmem| index(netmem).is_multiple_of(2));
    for netmem in even {
        pool.recycle(netmem);
    }
    let mut got = Vec::new();
    assert_eq!(pool.alloc_contiguous(40, &mut got), 32);
    assert!(got.iter().all(|netmem| index(netmem).is_multiple_of(2)));
    drop((got, odd));
    pool.assert_all_home();
}

#[test]
fn handles_of_another_pool_go_home_to_that_pool() {
    let (here, there) = (provider(16), provider(16));
    let ((mut mine, _), (mut other, _)) = (pool_of(&here, 4), pool_of(&there, 4));
    let (a, b) = (other.alloc().unwrap(), other.alloc().unwrap());
    mine.recycle(a);
    mine.recycle(b);
    assert_eq!(mine.stats(), PoolStats::default());
    other.assert_all_home();
    assert_eq!(other.available_niovs(), 16);
}

#[test]
fn a_batch_dropped_on_another_thread_goes_home_for_any_pools_and_owners() {
    let (here, there) = (provider(256), provider(256));
    let ((mut one, _), (mut two, _)) = (pool_of(&here, 8), pool_of(&there, 8));
    let mut batch = Vec::new();
    one.alloc_bulk(100, &mut batch);
    two.alloc_bulk(5, &mut batch);
    one.alloc_bulk(1, &mut batch);
    let kept = batch[3].share();
    drop(two);
    thread::spawn(move || drop(batch)).join().unwrap();
    assert_eq!(one.stats().outstanding, 1);
    assert_eq!(there.free_niovs(), 256);
    drop(kept);
    one.assert_all_home();
    drop(one);
    assert_eq!(here.free_niovs(), 256);
}

#[test]
#[cfg_attr(miri, ignore = "hundreds of net_iovs, to count them")]
fn net_iovs_beyond_an_eighth_of_the_area_bypass_the_ring() {
    let provider = provider(800);
    let ((mut busy, _), (mut idle, _)) = (pool_of(&provider, 128), pool_of(&provider, 128));
    let mut all = Vec::new();
    assert_eq!(idle.alloc_bulk(800, &mut all), 800);
    assert_eq!((busy.available_niovs(), busy.alloc().is_none()), (0, true));
    // First on another thread, then the rest here.
    let rest = all.split_off(150);
    thread::spawn(move || drop(all)).join().unwrap();
    let stats = idle.stats();
    assert_eq!(
        (stats.recycle_ring_full, stats.held, stats.outstanding),
        (50, 750, 650)
    );
    drop(rest);
    let stats = idle.stats();
    assert_eq!(
        (stats.recycle_ring_full, stats.held, stats.outstanding),
        (700, 100, 0)
    );
    // The idle pool keeps an eighth; the busy one gets the rest.
    let mut got = Vec::new();
    assert_eq!(busy.alloc_bulk(800, &mut got), 700);
    assert_eq!(
        (idle.available_niovs(), idle.alloc_bulk(800, &mut got)),
        (100, 100)
    );
    drop(got);
    assert_eq!(idle.stats().recycle_ring, 100);
    idle.assert_all_home();
    busy.assert_all_home();
    drop((idle, busy));
    assert_eq!(provider.free_niovs(), 800);
}

#[test]
fn a_run_that_went_home_through_the_ring_is_allocated_again() {
    let provider = provider(2048);
    let (mut pool, _port) = pool_of(&provider, 128);
    let mut runs: Vec<Vec<Netmem>> = Vec::new();
    for _ in 0..3 {
        let mut run = Vec::new();
        assert_eq!(pool.alloc_contiguous(17, &mut run), 17);
        runs.push(run);
    }
    let seen: Vec<_> = runs.iter().map(|run| indices(run)).collect();
    thread::spawn(move || drop(runs)).join().unwrap();
    let mut out = Vec::new();
    for seen in seen {
        let mut run = Vec::new();
        assert_eq!(pool.alloc_contiguous(17, &mut run), 17);
        assert_eq!(indices(&run), seen, "the oldest first");
        out.push(run);
    }
    assert_eq!(
        (pool.stats().alloc_slow, pool.stats().recycle_ring),
        (3, 51)
    );
    assert_eq!(pool.stats().outstanding, 51);
    drop(out);
    pool.assert_all_home();
}

#[test]
fn small_frags_share_a_net_iov_and_are_adjacent() {
    let provider = provider(32);
    let (mut pool, _port) = pool_of(&provider, 128);
    let mut frags: Vec<_> = [1, 1000, 3095]
        .map(|len| pool.alloc_frag(len).unwrap())
        .into();
    let at: Vec<_> = frags
        .iter()
        .map(|frag| (index(frag.netmem()), frag.offset(), frag.len()))
        .collect();
    assert_eq!(at, [(0, 0, 1), (0, 1, 1000), (0, 1001, 3095)]);
    // The last took the pool's own handle: the net_iov is full.
    assert_eq!((pool.stats().outstanding, pool.available_niovs()), (1, 31));
    frags.push(pool.alloc_frag(4096).unwrap());
    frags.push(pool.alloc_frag(4000).unwrap());
    frags.push(pool.alloc_frag(97).unwrap());
    let pages: Vec<_> = frags[3..]
        .iter()
        .map(|frag| (index(frag.netmem()), frag.offset()))
        .collect();
    assert_eq!(pages, [(1, 0), (2, 0), (3, 0)]);
    assert!(pool.alloc_frag(4097).is_none());
    assert_eq!(pool.stats().outstanding, 4);
    drop(frags);
    pool.assert_all_home();
    assert_eq!(pool.alloc_frag(4096).map(|frag| frag.offset()), Some(0));
    pool.assert_all_home();
    drop(pool);
    assert_eq!(provider.free_niovs(), 32);
}

#[test]
fn the_net_iov_of_small_frags_is_used_when_no_other_is_left() {
    let provider = provider(16);
    let (mut pool, _port) = pool_of(&provider, 128);
    drop(pool.alloc_frag(10));
    assert_eq!(pool.available_niovs(), 16);
    let mut out = Vec::new();
    assert_eq!(pool.alloc_bulk(17, &mut out), 16);
    assert!(pool.alloc_frag(10).is_none());
    out.pop();
    let frag = pool.alloc_frag(10).unwrap();
    assert!(pool.alloc().is_none(), "the net_iov is in use");
    drop(frag);
    assert!(pool.alloc().is_some(), "it is not");
    drop(out);
    pool.assert_all_home();
}

/// One step of a random life of a pool.
#[derive(Clone, Debug)]
enum Step {
    Alloc,
    AllocBulk(usize),
    AllocContiguous(usize),
    Share(usize),
    Recycle(usize),
    Drop(usize),
    DropLast(usize),
    /// Hand to one of two threads, which check the bytes and drop.
    Send(usize),
    /// Make the pool anew, while its net_iovs are out.
    NewPool,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    // Miri takes milliseconds for each net_iov that is looked at.
    let most = if cfg!(miri) { 6_usize } else { 90 };
    let step = prop_oneof![
        4 => Just(Step::Alloc),
        2 => (0..most).prop_map(Step::AllocBulk),
        2 => (0..most.min(20)).prop_map(Step::AllocContiguous),
        4 => any::<usize>().prop_map(Step::Share),
        6 => any::<usize>().prop_map(Step::Recycle),
        6 => any::<usize>().prop_map(Step::Drop),
        1 => (0..most).prop_map(Step::DropLast),
        6 => any::<usize>().prop_map(Step::Send),
        1 => Just(Step::NewPool),
    ];
    proptest::collection::vec(step, 1..if cfg!(miri) { 8 } else { 200 })
}

/// A pool, the handles that are out, and what must be true of them.
struct Model {
    provider: Arc<MemoryProvider>,
    pool: PagePool,
    port: Arc<DmaPort>,
    /// Handles, each with the stamp that its bytes carry.
    out: Vec<(Netmem, u64)>,
    stamp: u64,
}

impl Model {
    fn new(cache: usize) -> Self {
        let provider = provider(150);
        let (pool, port) = pool_of(&provider, cache);
        Model {
            provider,
            pool,
            port: Arc::new(port),
            out: Vec::new(),
            stamp: 0,
        }
    }

    /// Stamps net_iovs that were allocated: if anyone else owns one, he finds his stamp overwritten.
    fn adopt(&mut self, netmems: Vec<Netmem>) {
        for netmem in netmems {
            assert!(netmem.is_sole_owner());
            self.stamp += 1;
            self.port.copy_in(&netmem, 0, &self.stamp.to_ne_bytes());
            self.out.push((netmem, self.stamp));
        }
    }

    fn take(&mut self, at: usize) -> Option<(Netmem, u64)> {
        let count = self.out.len();
        (count > 0).then(|| self.out.swap_remove(at % count))
    }

    fn step(&mut self, step: Step, threads: &[mpsc::Sender<(Netmem, u64)>]) {
        let mut got = Vec::new();
        match step {
            Step::Alloc => got.extend(self.pool.alloc()),
            Step::AllocBulk(n) => assert_eq!(self.pool.alloc_bulk(n, &mut got), got.len()),
            Step::AllocContiguous(n) => {
                assert_eq!(self.pool.alloc_contiguous(n, &mut got), got.len())
            }
            Step::Share(at) => {
                let shared = self
                    .take(at)
                    .map(|(netmem, stamp)| [(netmem.share(), stamp), (netmem, stamp)]);
                self.out.extend(shared.into_iter().flatten());
            }
            Step::Recycle(at) => {
                if let Some((netmem, _)) = self.take(at) {
                    self.pool.recycle(netmem);
                }
            }
            Step::Drop(at) => drop(self.take(at)),
            Step::DropLast(n) => {
                let last = self.out.len().saturating_sub(n);
                self.out.truncate(last);
            }
            Step::Send(at) => {
                if let Some(handle) = self.take(at) {
                    threads[at % threads.len()].send(handle).unwrap();
                }
            }
            Step::NewPool => self.pool = pool_of(&self.provider, 7).0,
        }
        self.adopt(got);
    }

    /// Checks the bytes of all handles, and that no net_iov is counted twice.
    fn check(&self) {
        let mut owned: BTreeMap<u64, u64> = BTreeMap::new();
        for (netmem, stamp) in &self.out {
            assert_stamp(&self.port, netmem, *stamp);
            assert_eq!(*owned.entry(index(netmem)).or_insert(*stamp), *stamp);
        }
        let known = owned.len() as u32 + self.pool.available_niovs();
        assert!(
            known <= self.provider.area().count(),
            "{known} net_iovs are known to be somewhere"
        );
    }
}

fn assert_stamp(port: &DmaPort, netmem: &Netmem, stamp: u64) {
    let mut bytes = [0; 8];
    let frag = crate::Frag::new(netmem.share(), 0, 8);
    port.copy_out(&frag, 0, &mut bytes);
    assert_eq!(
        u64::from_ne_bytes(bytes),
        stamp,
        "net_iov {} has two owners",
        index(netmem)
    );
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: if cfg!(miri) { 1 } else { 150 },
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn no_life_of_a_pool_loses_or_doubles_a_net_iov(
        steps in steps(),
        cache in prop_oneof![Just(2_usize), Just(16), Just(128)],
    ) {
        let mut model = Model::new(cache);
        thread::scope(|scope| {
            let threads = [0, 1].map(|_| {
                let (sender, receiver) = mpsc::channel::<(Netmem, u64)>();
                let port = Arc::clone(&model.port);
                scope.spawn(move || {
                    for (netmem, stamp) in receiver {
                        assert_stamp(&port, &netmem, stamp);
                    }
                });
                sender
            });
            for step in steps {
                model.step(step, &threads);
                model.check();
            }
        });
        model.out.clear();
        model.pool.assert_all_home();
        prop_assert_eq!(model.pool.available_niovs(), 150);
        drop(model.pool);
        prop_assert_eq!(model.provider.free_niovs(), 150);
    }
}

/// Threads that drop while the owner allocates, recycles and in the end goes, over and over.
#[test]
fn a_pool_used_by_two_threads_ends_with_all_home() {
    let provider = provider(200);
    let rounds = if cfg!(miri) { 2 } else { 40 };
    for _ in 0..rounds {
        let (mut pool, port) = pool_of(&provider, 16);
        thread::scope(|scope| {
            let senders = [0, 1].map(|_| {
                let (sender, receiver) = mpsc::sync_channel::<Netmem>(32);
                scope.spawn(move || receiver.into_iter().for_each(drop));
                sender
            });
            for i in 0..if cfg!(miri) { 60 } else { 2000 } {
                let Some(netmem) = pool.alloc() else { continue };
                port.copy_in(&netmem, 0, &[1; 64]);
                assert_ne!(
                    port.checksum(BufSpan {
                        netmem: &netmem,
                        offset: 0,
                        len: 64
                    }),
                    0
                );
                match i % 3 {
                    0 => pool.recycle(netmem),
                    1 => senders[0].send(netmem).unwrap(),
                    _ => {
                        let shared = netmem.share();
                        senders[0].send(netmem).unwrap();
                        senders[1].send(shared).unwrap();
                    }
                }
            }
            // The pool goes first; what the threads hold yet goes to the provider.
            drop(pool);
        });
        assert_eq!(provider.free_niovs(), 200);
    }
}

#[test]
fn pools_have_different_numbers() {
    let provider = provider(16);
    let ids: HashMap<PoolId, usize> = (0..4).map(|i| (pool_of(&provider, 2).0.id(), i)).collect();
    assert_eq!(ids.len(), 4);
}
