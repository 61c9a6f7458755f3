//! Received super-packets that are longer than their length field can say (Linux: BIG TCP).

use super::harness::*;
use crate::*;

/// A link that receives them.
const BIG: LinkCaps = LinkCaps {
    max_rx_packet: BIG_PACKET_LEN,
    ..OFFLOADED
};

const SUPER: VnetMeta = VnetMeta {
    gso_size: 1448,
    ..PARTIAL
};

/// A NIC that expects the next packet in the memory of a device.
fn bench(niov_size: usize, bytes: usize) -> Bench {
    let devices = vec![opaque(bytes, 1, niov_size)];
    let mut bench = Bench::new(BIG, NicConfig::default(), devices);
    bench.pass(&tcp(b"first"));
    bench
}

fn big(seed: usize, v6: bool, len: usize) -> Tcp {
    Tcp {
        v6,
        ..tcp(&pattern(seed, len))
    }
}

/// Sends the packet in and checks its bytes; returns how many of them were copied because no memory was posted for them.
fn spilled_of(bench: &mut Bench, packet: &Tcp, how: Delivery) -> u64 {
    let before = bench.nic.queue_stats(Q1).unwrap();
    bench.link.deliver(packet.frame(), SUPER, how);
    let received = bench.receive().expect("the packet arrives");
    assert_eq!(received.headers.payload_len, packet.payload.len());
    assert_eq!(
        received.segments as usize,
        packet.payload.len().div_ceil(1448)
    );
    assert!(all_in(received.payload.frags().unwrap(), 1));
    assert!(bench.read(received.payload.frags().unwrap()) == packet.payload);
    let after = bench.nic.queue_stats(Q1).unwrap();
    assert_eq!(after.split - before.split, 1);
    after.spilled_bytes - before.spilled_bytes
}

fn posted(bench: &Bench) -> usize {
    bench.link.lock().posted_spans.iter().sum()
}

#[test]
fn the_first_long_packet_is_copied_in_part_and_memory_is_posted_for_the_next() {
    for v6 in [false, true] {
        let mut bench = bench(65_536, 16 << 20);
        let first = big(1, v6, 300_000);
        let spilled = spilled_of(&mut bench, &first, Delivery::Scatter);
        assert!((160_000..240_000).contains(&spilled), "{spilled}");
        // The shortest one, and the longest of Linux.
        for (seed, len) in [(2, 65_536), (3, 524_200), (4, 300_000)] {
            let packet = big(seed, v6, len);
            assert_eq!(spilled_of(&mut bench, &packet, Delivery::Scatter), 0);
        }
        assert_eq!(bench.nic.drops().total(), 0);
        bench.finish();
    }
}

#[test]
fn of_a_link_that_does_not_scatter_they_are_placed_too() {
    let mut bench = bench(65_536, 16 << 20);
    for (seed, v6) in [(1, false), (2, true)] {
        let packet = big(seed, v6, 400_000);
        assert_eq!(spilled_of(&mut bench, &packet, Delivery::Whole), 0);
    }
    bench.finish();
}

#[test]
fn small_net_iovs_are_posted_up_to_what_one_read_takes() {
    for niov_size in [4096, 8192, 16_384] {
        let mut bench = bench(niov_size, 16 << 20);
        for seed in 0..4 {
            let packet = big(seed, false, 520_000);
            let spilled = spilled_of(&mut bench, &packet, Delivery::Scatter);
            let spans = bench.link.lock().posted_spans.len();
            assert!(spans <= 56, "{spans}");
            let fits = posted(&bench) >= 520_000;
            assert_eq!(fits, seed > 0 && niov_size == 16_384);
            assert_eq!(spilled > 0, !fits);
        }
        bench.finish();
    }
}

#[test]
fn without_long_packets_less_memory_is_posted_again() {
    let mut bench = bench(65_536, 16 << 20);
    spilled_of(&mut bench, &big(1, false, 200_000), Delivery::Scatter);
    spilled_of(&mut bench, &big(2, false, 1000), Delivery::Scatter);
    assert!(posted(&bench) >= BIG_PACKET_LEN);
    for seed in 0..1600 {
        bench.pass(&tcp(&pattern(seed, 1000)));
    }
    assert!(posted(&bench) < 3 * 65_536, "{}", posted(&bench));
    bench.finish();
}

#[test]
fn all_bytes_that_the_link_has_filled_are_found_when_a_net_iov_was_retired() {
    let mut bench = bench(4096, 16 << 20);
    spilled_of(&mut bench, &big(1, false, 300_000), Delivery::Scatter);
    for (seed, len) in [(2, 1000), (3, 4000)] {
        bench.pass(&tcp(&pattern(seed, len)));
    }
    // Another packet as long as the last one would lie in two net_iovs, so the first is retired: more bytes fit into the spans.
    let packet = big(4, false, 229_000);
    assert_eq!(spilled_of(&mut bench, &packet, Delivery::Scatter), 0);
    bench.finish();
}

#[test]
fn little_memory_is_not_posted_for_them_and_they_are_copied() {
    let mut bench = bench(4096, 1 << 20);
    for seed in 0..4 {
        let packet = big(seed, false, 300_000);
        let spilled = spilled_of(&mut bench, &packet, Delivery::Scatter);
        assert!(spilled > 0 && posted(&bench) < 80_000, "{spilled}");
    }
    bench.finish();
}

#[test]
fn one_that_the_memory_has_no_room_for_is_counted_and_takes_none() {
    let mut bench = bench(4096, 256 << 10);
    let space = bench.nic.rx_space(Q1);
    bench.link.scatter(big(1, false, 300_000).frame(), SUPER);
    assert!(bench.receive().is_none());
    assert_eq!(bench.dropped(DropReason::RxNoBuffers), 1);
    assert_eq!(bench.nic.rx_space(Q1), space);
    bench.finish();
}

#[test]
fn frames_that_long_that_are_no_super_packets_of_tcp_are_dropped() {
    let mut bench = bench(65_536, 16 << 20);
    for v6 in [false, true] {
        let frame = big(1, v6, 100_000).frame();
        // No segment size: nobody sends such packets on Ethernet.
        bench.link.scatter(frame.clone(), PARTIAL);
        // Bytes behind the packet: over IPv6 the option has its length, over IPv4 they are part of it.
        let mut longer = frame.clone();
        longer.push(0);
        if v6 {
            bench.link.scatter(longer, SUPER);
        }
        assert!(bench.receive().is_none());
    }
    assert_eq!(bench.dropped(DropReason::RxOversize), 3);
    let mut udp = big(1, false, 100_000).frame();
    udp[23] = wire::protocol::UDP;
    udp[24..26].fill(0);
    let sum = wire::checksum(&udp[14..34]);
    udp[24..26].copy_from_slice(&sum.to_be_bytes());
    bench.link.scatter(udp, SUPER);
    assert!(bench.receive().is_none());
    assert_eq!(bench.dropped(DropReason::RxBadIpHeader), 1);
    bench.link.scatter(vec![0; BIG_PACKET_LEN + 19], SUPER);
    assert!(bench.receive().is_none());
    assert_eq!(bench.dropped(DropReason::RxOversize), 4);
    bench.finish();
}
