//! Small frags are moved together to free net_iovs.

use netmem::Payload;

use super::harness::*;
use crate::*;

const MEMORY: RxMemory = RxMemory::Queue(Q1);

/// Receives one small packet and one that fills the rest of a net_iov, again and again; returns the small ones' payload.
fn small_among_large(bench: &mut Bench, count: usize) -> Vec<netmem::FragList> {
    let mut small = Vec::new();
    for round in 0..count {
        small.push(bench.pass(&tcp(&pattern(round, 3))).payload.into_frags());
        let large = bench.pass(&tcp(&pattern(round, 65_160))).payload;
        bench.nic.recycle(large.into_frags());
    }
    small
}

fn usage_of(bench: &Bench, payloads: &[netmem::FragList]) -> NiovUsage {
    let mut usage = NiovUsage::default();
    for payload in payloads {
        bench.nic.measure(MEMORY, payload, &mut usage);
    }
    usage
}

#[test]
fn collapsed_frags_share_a_net_iov_and_keep_their_bytes_and_their_dma_buf() {
    let mut bench = Bench::with_device(NicConfig::default());
    let mut small = small_among_large(&mut bench, 100);
    let before = bench.nic.memory_level(MEMORY).free_bytes;
    let usage = usage_of(&bench, &small);
    assert!(usage.niovs() >= 99, "{} net_iovs", usage.niovs());
    for payload in &mut small {
        bench.nic.collapse(MEMORY, payload, &usage);
    }
    assert!(usage_of(&bench, &small).niovs() <= 2);
    let freed = bench.nic.memory_level(MEMORY).free_bytes - before;
    assert!(freed >= 97 * 65_536, "{freed}");
    for (round, payload) in small.iter().enumerate() {
        assert_eq!(payload.len(), 3);
        assert!(all_in(payload, 1));
        assert_eq!(bench.read(payload), pattern(round, 3));
    }
    let stats = bench.nic.queue_stats(Q1).unwrap();
    assert_eq!((stats.collapsed, stats.collapsed_bytes), (100, 300));
    drop(small);
    bench.finish();
}

#[test]
fn a_net_iov_that_is_not_sparse_is_not_collapsed() {
    let mut bench = Bench::with_device(NicConfig::default());
    let mut waiting: Vec<_> = (0..40)
        .map(|round| bench.pass(&tcp(&pattern(round, 1448))).payload.into_frags())
        .collect();
    let usage = usage_of(&bench, &waiting);
    for payload in &mut waiting {
        bench.nic.collapse(MEMORY, payload, &usage);
    }
    assert_eq!(bench.nic.queue_stats(Q1).unwrap().collapsed, 0);
    drop(waiting);
    bench.finish();
}

#[test]
fn without_memory_for_the_copy_nothing_is_moved() {
    let mut bench = Bench::new(
        OFFLOADED,
        NicConfig::default(),
        vec![opaque(1 << 20, 1, 65_536)],
    );
    let mut small = small_among_large(&mut bench, 8);
    let mut held = Vec::new();
    loop {
        bench
            .link
            .scatter(tcp(&pattern(0, 65_160)).frame(), PARTIAL);
        match bench.nic.poll_rx(NOW) {
            Some(packet) if packet.payload.frags().is_some() => held.push(packet.payload),
            Some(packet) => {
                assert!(matches!(packet.payload, Placed::Unplaced));
                break;
            }
            None => break,
        }
    }
    assert_eq!(bench.dropped(DropReason::RxNoBuffers), 1);
    assert_eq!(bench.nic.take_memory_demand(), MemoryDemand::Short);
    assert_eq!(bench.nic.take_memory_demand(), MemoryDemand::None);
    let usage = usage_of(&bench, &small);
    for (round, payload) in small.iter_mut().enumerate() {
        bench.nic.collapse(MEMORY, payload, &usage);
        assert_eq!(bench.read(payload), pattern(round, 3));
    }
    drop((small, held));
    bench.finish();
}

#[test]
fn frags_of_another_binding_are_not_moved() {
    let mut bench = Bench::with_device(NicConfig::default());
    let mut small = small_among_large(&mut bench, 4);
    let usage = usage_of(&bench, &small);
    let other = RxMemory::Queue(Q0);
    for payload in &mut small {
        bench.nic.collapse(other, payload, &usage);
    }
    assert_eq!(bench.nic.queue_stats(Q0).unwrap().collapsed, 0);
    assert_eq!(bench.nic.queue_stats(Q1).unwrap().collapsed, 0);
    drop(small);
    bench.finish();
}
