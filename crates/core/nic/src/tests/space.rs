//! A queue receives as much as its advertised space.

use netmem::FragList;

use super::harness::*;
use crate::*;

/// Sends `bytes` in packets of the sizes that `next` gives, keeping all; returns the frags.
fn fill(bench: &mut Bench, bytes: usize, mut next: impl FnMut(usize) -> usize) -> Vec<FragList> {
    let mut held = Vec::new();
    let mut sent = 0;
    for i in 0.. {
        let len = next(i).min(bytes - sent);
        if len == 0 {
            break;
        }
        bench.link.scatter(tcp(&pattern(i, len)).frame(), PARTIAL);
        let packet = bench
            .receive()
            .unwrap_or_else(|| panic!("{sent} of {bytes} bytes fit"));
        held.push(packet.payload.into_frags());
        sent += len;
    }
    held
}

#[test]
fn advertised_space_suffices_for_full_segments_of_every_size() {
    for niov_size in [4096, 16_384, 65_536, 1 << 20] {
        for len in [
            1050, 1208, 1400, 1428, 1448, 2000, 4096, 8948, 9000, 20_000, 40_000, 65_160, 65_483,
        ] {
            for size in [1 << 20, 8 << 20] {
                let mut bench = Bench::new(
                    OFFLOADED,
                    NicConfig::default(),
                    vec![opaque(size, 1, niov_size)],
                );
                let space = bench.nic.rx_space(Q1);
                assert_eq!(space.niov_size, niov_size);
                assert!(space.bytes <= size);
                assert!(
                    space.bytes >= size * 7 / 10,
                    "{} of {size} bytes promised",
                    space.bytes
                );
                let held = fill(&mut bench, space.bytes, |_| len);
                assert_eq!(
                    bench.nic.drops().total(),
                    0,
                    "{len} bytes in net_iovs of {niov_size}"
                );
                for payload in held {
                    bench.nic.recycle(payload);
                }
                // All but the net_iov in use, which is retired only when the next packets fill it.
                let after = bench.nic.rx_space(Q1);
                assert!(
                    after.bytes + niov_size >= space.bytes,
                    "{after:?} after {space:?}"
                );
                bench.finish();
            }
        }
    }
}

#[test]
fn advertised_space_suffices_for_alternating_super_packets_and_short_ones() {
    // A sender that calls send() with 1 MiB: 16 super-packets and the rest.
    for tail in [1, 100, 6016, 40_000] {
        let mut bench = Bench::new(
            OFFLOADED,
            NicConfig::default(),
            vec![opaque(8 << 20, 1, 65_536)],
        );
        let mut promised = bench.nic.rx_space(Q1).bytes;
        let mut held = std::collections::VecDeque::new();
        for round in 0..2000 {
            let len = if round % 17 == 16 { tail } else { 65_160 };
            if len > promised {
                // The application returns half of it, and the peer gets the new window.
                for payload in held.drain(..held.len() / 2) {
                    bench.nic.recycle(payload);
                }
                promised = promised.max(bench.nic.rx_space(Q1).bytes);
                continue;
            }
            bench
                .link
                .scatter(tcp(&pattern(round, len)).frame(), PARTIAL);
            held.push_back(
                bench
                    .receive()
                    .expect("the advertised space suffices")
                    .payload
                    .into_frags(),
            );
            promised -= len;
        }
        assert_eq!(bench.nic.drops().total(), 0);
        drop(held);
        bench.finish();
    }
}

#[test]
fn after_a_small_packet_super_packets_are_in_one_net_iov_again() {
    let mut bench = Bench::with_device(NicConfig::default());
    let whole = tcp(&pattern(0, 65_160));
    bench.nic.rx_space(Q1);
    bench.pass(&whole);
    let mut straddling = 0;
    for round in 0..100 {
        let tail = bench.pass(&tcp(&pattern(round, 6016)));
        bench.nic.recycle(tail.payload.into_frags());
        for _ in 0..16 {
            let packet = bench.pass(&whole);
            straddling += packet.payload.frags().unwrap().frag_count() - 1;
            bench.nic.recycle(packet.payload.into_frags());
        }
    }
    // Only the first after each small one.
    assert_eq!(straddling, 100);
    assert_eq!(bench.nic.queue_stats(Q1).unwrap().tidied, 100);
    bench.finish();
}

#[test]
fn a_net_iov_is_not_retired_early_if_advertised_space_needs_it() {
    let mut bench = Bench::new(
        OFFLOADED,
        NicConfig::default(),
        vec![opaque(4 << 20, 1, 65_536)],
    );
    let mut left = bench.nic.rx_space(Q1).bytes;
    let mut held = Vec::new();
    // The worst pattern: every super-packet is in two net_iovs, and the rest of one could be retired each time.
    for round in 0.. {
        let len = if round % 2 == 0 { 1000 } else { 65_160 }.min(left);
        if len == 0 {
            break;
        }
        held.push(bench.pass(&tcp(&pattern(round, len))));
        left -= len;
    }
    let tidied = bench.nic.queue_stats(Q1).unwrap().tidied;
    assert!(
        tidied > 0 && tidied < held.len() as u64 / 2,
        "{tidied} of {}",
        held.len()
    );
    assert_eq!(bench.nic.drops().total(), 0);
    drop(held);
    bench.finish();
}

#[test]
fn space_falls_with_held_payload_and_recovers() {
    let mut bench = Bench::with_device(NicConfig::default());
    let empty = bench.nic.rx_space(Q1);
    let mut last = empty.bytes;
    let mut held = Vec::new();
    for round in 0..20 {
        held.push(bench.pass(&tcp(&pattern(round, 65_160))));
        let now = bench.nic.rx_space(Q1).bytes;
        assert!(now < last);
        last = now;
    }
    for packet in held {
        bench.nic.recycle(packet.payload.into_frags());
    }
    let after = bench.nic.rx_space(Q1);
    assert_eq!(after.free_niovs, empty.free_niovs);
    assert_eq!(bench.nic.rx_space(steer::RxQueueId(9)), RxSpace::default());
    bench.finish();
}

#[test]
fn one_byte_packets_exhaust_memory_before_the_advertised_space_and_are_counted() {
    let mut bench = Bench::new(
        OFFLOADED,
        NicConfig::default(),
        vec![opaque(131_072, 1, 65_536)],
    );
    let promised = bench.nic.rx_space(Q1).bytes;
    let mut held = Vec::new();
    for i in 0..promised {
        bench.link.scatter(tcp(&pattern(i, 1)).frame(), PARTIAL);
        match bench.receive() {
            Some(packet) => held.push(packet.payload),
            None => break,
        }
    }
    assert_eq!(bench.dropped(DropReason::RxNoBuffers), 1);
    // One cache line each, but for the sixteenth of a net_iov that is not filled further.
    assert!(
        held.len() >= 2 * (65_536 / 64) * 15 / 16 - 2,
        "{}",
        held.len()
    );
    assert_eq!(bench.nic.rx_space(Q1).bytes, 0);
    drop(held);
    bench.finish();
}

#[test]
fn advertised_space_suffices_for_linear_bytes() {
    for linear_bytes in [1, 64, 100, 1000, 1500] {
        let config = NicConfig {
            linear_bytes,
            host_mem_bytes: 1 << 20,
            ..NicConfig::default()
        };
        let mut bench = Bench::new(OFFLOADED, config, vec![opaque(8 << 20, 1, 65_536)]);
        let space = bench.nic.rx_space(Q1);
        let held = fill(&mut bench, space.bytes, |_| 1448);
        assert_eq!(bench.nic.drops().total(), 0, "{linear_bytes} linear bytes");
        assert!(!held.is_empty());
        drop(held);
        bench.finish();
    }
}
