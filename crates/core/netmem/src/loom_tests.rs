//! Every interleaving of the few places where threads meet: the return ring, the reference count, and
//! a page pool that goes while its net_iovs come home. Run with `--cfg loom`.

use std::sync::Arc;

use devmem_uapi::DmabufId;
use loom::thread;

use crate::net_iov::NetIov;
use crate::return_ring::{Chain, PushError, ReturnRing};
use crate::sync::{AtomicU32, Ordering};
use crate::{Dmabuf, MemoryProvider, Netmem, NiovSize, PagePool};

/// Tries every interleaving with up to three switches that a thread did not ask for: those that
/// bugs need, in two seconds rather than four minutes. LOOM_MAX_PREEMPTIONS overrides it.
fn model(test: impl Fn() + Send + Sync + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound.get_or_insert(3);
    builder.check(test);
}

/// A ring and net_iovs, each with a word that stands for its bytes.
struct Shared {
    ring: ReturnRing,
    slots: Vec<NetIov>,
    bytes: Vec<AtomicU32>,
}

impl Shared {
    fn new(count: usize) -> Arc<Self> {
        Self::with_capacity(count, count as u32)
    }

    fn with_capacity(count: usize, capacity: u32) -> Arc<Self> {
        Arc::new(Shared {
            ring: ReturnRing::new(capacity),
            slots: (0..count).map(|_| NetIov::free()).collect(),
            bytes: (0..count).map(|_| AtomicU32::new(0)).collect(),
        })
    }

    /// Uses net_iovs and pushes them; returns what a closed ring left with the caller.
    fn use_and_push(&self, indices: &[u32]) -> Vec<u32> {
        for &index in indices {
            self.bytes[index as usize].store(index + 100, Ordering::Relaxed);
        }
        match self.ring.push(&self.slots, indices) {
            Ok(()) => vec![],
            Err(_) => indices.to_vec(),
        }
    }

    /// Lists a chain, and checks that the bytes of all its net_iovs are seen.
    fn list(&self, mut chain: Chain) -> Vec<u32> {
        let len = chain.len;
        let all: Vec<u32> = std::iter::from_fn(|| chain.pop(&self.slots)).collect();
        assert_eq!(all.len(), len as usize);
        for &index in &all {
            assert_eq!(
                self.bytes[index as usize].load(Ordering::Relaxed),
                index + 100
            );
        }
        all
    }
}

fn sorted(mut indices: Vec<u32>) -> Vec<u32> {
    indices.sort_unstable();
    indices
}

#[test]
fn the_ring_returns_each_net_iov_once_in_every_interleaving() {
    model(|| {
        let shared = Shared::new(4);
        let pushers = [vec![0, 1], vec![2], vec![3]].map(|indices| {
            let shared = Arc::clone(&shared);
            move || assert!(shared.use_and_push(&indices).is_empty())
        });
        let [a, b, c] = pushers;
        let (a, b) = (thread::spawn(a), thread::spawn(b));
        c();
        let mut all = shared.list(shared.ring.take());
        a.join().unwrap();
        all.extend(shared.list(shared.ring.take()));
        b.join().unwrap();
        all.extend(shared.list(shared.ring.take()));
        assert_eq!(sorted(all), [0, 1, 2, 3]);
        assert_eq!(shared.ring.len(), 0);
    });
}

#[test]
fn a_push_concurrent_with_close_is_either_taken_or_refused() {
    model(|| {
        let shared = Shared::new(3);
        let pushers = [vec![0, 1], vec![2]].map(|indices| {
            let shared = Arc::clone(&shared);
            thread::spawn(move || shared.use_and_push(&indices))
        });
        let mut all = shared.list(shared.ring.close());
        for pusher in pushers {
            all.extend(pusher.join().unwrap());
        }
        assert_eq!(sorted(all), [0, 1, 2]);
        assert_eq!(
            shared.ring.push(&shared.slots, &[0]),
            Err(PushError::Closed)
        );
    });
}

#[test]
fn a_full_ring_refuses_further_net_iovs() {
    model(|| {
        let shared = Shared::with_capacity(3, 1);
        let pushers = [vec![0], vec![1]].map(|indices| {
            let shared = Arc::clone(&shared);
            thread::spawn(move || shared.use_and_push(&indices))
        });
        let mut all = shared.list(shared.ring.take());
        let mut refused = 0;
        for pusher in pushers {
            let back = pusher.join().unwrap();
            refused += back.len();
            all.extend(back);
        }
        assert!(refused < 2, "the first of all is taken");
        all.extend(shared.list(shared.ring.take()));
        assert_eq!(sorted(all), [0, 1]);
        assert_eq!(shared.ring.push(&shared.slots, &[0, 1]), Ok(()));
        assert_eq!(shared.ring.push(&shared.slots, &[2]), Err(PushError::Full));
        shared.ring.close();
        assert_eq!(
            shared.ring.push(&shared.slots, &[2]),
            Err(PushError::Closed)
        );
    });
}

#[test]
fn exactly_one_owner_is_last_and_sees_the_writes_of_the_others() {
    model(|| {
        let shared = Shared::new(2);
        shared.slots[0].claim();
        shared.slots[0].add_owner();
        let other = Arc::clone(&shared);
        let other = thread::spawn(move || {
            other.bytes[0].store(7, Ordering::Relaxed);
            let last = other.slots[0].let_go();
            assert!(!last || other.bytes[1].load(Ordering::Relaxed) == 9);
            last
        });
        shared.bytes[1].store(9, Ordering::Relaxed);
        let last = shared.slots[0].let_go();
        assert!(!last || shared.bytes[0].load(Ordering::Relaxed) == 7);
        assert!(last != other.join().unwrap());
    });
}

#[test]
fn the_only_owner_sees_the_writes_of_the_others() {
    model(|| {
        let shared = Shared::new(1);
        shared.slots[0].claim();
        shared.slots[0].add_owner();
        let looker = Arc::clone(&shared);
        // The thread that checks is spawned, the other access is in this one: loom forgets an access that is followed by
        // another of the same thread, and with the roles swapped would not try the order in which the check comes last.
        let looker = thread::spawn(move || {
            let sole = looker.slots[0].is_sole();
            assert!(!sole || looker.bytes[0].load(Ordering::Relaxed) == 7);
        });
        shared.bytes[0].store(7, Ordering::Relaxed);
        assert!(!shared.slots[0].let_go(), "the looker is an owner yet");
        looker.join().unwrap();
        assert!(shared.slots[0].is_sole());
    });
}

/// A pool of `count` net_iovs, all of them out.
fn pool_with_all_out(count: usize) -> (Arc<MemoryProvider>, PagePool, Vec<Netmem>) {
    let dmabuf = Dmabuf::anonymous(count * NiovSize::MIN.bytes()).unwrap();
    let provider =
        Arc::new(MemoryProvider::of_dmabuf(&dmabuf, DmabufId(1), NiovSize::MIN).unwrap());
    let shared: Arc<MemoryProvider> = provider.clone();
    let mut pool = PagePool::new(shared);
    let mut out = Vec::new();
    assert_eq!(pool.alloc_bulk(count, &mut out), count);
    (provider, pool, out)
}

#[test]
fn a_pool_dropped_while_net_iovs_go_home_loses_none() {
    model(|| {
        let (provider, mut pool, mut out) = pool_with_all_out(3);
        let shared_twice = out[0].share();
        let (one, two) = (out.pop(), out.pop());
        let first = thread::spawn(move || drop((one, shared_twice)));
        let second = thread::spawn(move || drop(two));
        for netmem in out {
            pool.recycle(netmem);
        }
        drop(pool);
        first.join().unwrap();
        second.join().unwrap();
        assert_eq!(provider.free_niovs(), 3);
    });
}

#[test]
fn a_pool_that_drains_its_ring_while_net_iovs_go_home_gets_all() {
    model(|| {
        let (_provider, mut pool, mut out) = pool_with_all_out(2);
        let (one, two) = (out.pop(), out.pop());
        let first = thread::spawn(move || drop(one));
        let second = thread::spawn(move || drop(two));
        let got = pool.alloc();
        first.join().unwrap();
        second.join().unwrap();
        assert_eq!(pool.stats().outstanding, u64::from(got.is_some()));
        drop(got);
        pool.assert_all_home();
        assert_eq!(pool.alloc_bulk(3, &mut Vec::new()), 2);
    });
}
