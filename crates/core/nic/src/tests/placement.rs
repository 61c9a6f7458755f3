//! Placement of payload with right and wrong predictions.

use netmem::Payload;
use wire::{SackBlocks, TcpFlags, TcpOptions, Transport};

use super::harness::*;
use crate::*;

#[test]
fn a_flow_of_super_packets_lies_in_one_frag_each_and_moves_no_byte() {
    let mut bench = Bench::with_device(NicConfig::default());
    let segment = tcp(&pattern(1, 65_160));
    bench.pass(&segment);
    for _ in 0..1000 {
        let packet = bench.pass(&segment);
        assert_eq!(packet.payload.frags().unwrap().frag_count(), 1);
        assert!(all_in(packet.payload.frags().unwrap(), 1));
        bench.nic.recycle(packet.payload.into_frags());
    }
    let stats = bench.nic.queue_stats(Q1).unwrap();
    assert_eq!((stats.packets, stats.split, stats.placed), (1001, 1001, 1));
    assert_eq!(
        (stats.header_longer, stats.header_shorter, stats.tidied),
        (0, 0, 0)
    );
    assert_eq!(stats.bytes, 1001 * 65_160);
    assert_eq!(bench.nic.drops().total(), 0);
    bench.finish();
}

#[test]
fn small_packets_share_a_net_iov_aligned_to_cache_lines() {
    let mut bench = Bench::with_device(NicConfig::default());
    let packets: Vec<_> = (0..40)
        .map(|i| bench.pass(&tcp(&pattern(i, 1448))))
        .collect();
    for pair in packets.windows(2) {
        let [first, second] =
            [&pair[0], &pair[1]].map(|packet| packet.payload.frags().unwrap().first().unwrap());
        assert!(first.netmem().is_same(second.netmem()));
        assert_eq!(second.offset() % 64, 0);
        assert_eq!(second.offset() - first.offset(), 1472);
    }
    drop(packets);
    bench.finish();
}

#[test]
fn a_longer_header_than_predicted_moves_nothing_in_device_memory() {
    let mut bench = Bench::with_device(NicConfig::default());
    bench.pass(&tcp(&pattern(0, 5000)));
    let mut options = timestamps();
    options.sack = SackBlocks::new();
    assert!(options.sack.push(1, 2) && options.sack.push(3, 4));
    let longer = Tcp {
        options,
        ..tcp(&pattern(1, 5000))
    };
    let packet = bench.pass(&longer);
    assert_eq!(packet.payload.frags().unwrap().frag_count(), 1);
    // The payload starts after the header bytes that landed in device memory.
    assert_eq!(
        packet.payload.frags().unwrap().first().unwrap().offset() % 64,
        20
    );
    assert_eq!(bench.nic.queue_stats(Q1).unwrap().header_longer, 1);
    // Now the length is predicted.
    bench.pass(&longer);
    assert_eq!(bench.nic.queue_stats(Q1).unwrap().header_longer, 1);
    drop(packet);
    bench.finish();
}

#[test]
fn a_shorter_header_than_predicted_moves_a_few_bytes_into_the_headroom() {
    let mut bench = Bench::with_device(NicConfig::default());
    bench.pass(&tcp(&pattern(0, 5000)));
    let packet = bench.pass(&Tcp {
        options: TcpOptions::default(),
        ..tcp(&pattern(1, 5000))
    });
    assert_eq!(packet.payload.frags().unwrap().frag_count(), 1);
    assert_eq!(
        packet.payload.frags().unwrap().first().unwrap().offset() % 64,
        64 - 12
    );
    assert_eq!(bench.nic.queue_stats(Q1).unwrap().header_shorter, 1);
    drop(packet);
    bench.finish();
}

#[test]
fn headers_that_end_beyond_the_header_buffer_are_fetched_from_device_memory() {
    let mut bench = Bench::with_device(NicConfig::default());
    bench.pass(&Tcp {
        options: TcpOptions::default(),
        ..tcp(&pattern(0, 3000))
    });
    // From 54 to 14 + 4 + 40 + 32 = 90 bytes: even the fixed TCP header was not all in the buffer.
    let packet = bench.pass(&Tcp {
        v6: true,
        vlan: Some(0),
        ..tcp(&pattern(1, 3000))
    });
    assert_eq!(packet.headers.header_len, 90);
    // And back: 36 bytes are moved into the headroom.
    bench.pass(&Tcp {
        options: TcpOptions::default(),
        ..tcp(&pattern(2, 3000))
    });
    let stats = bench.nic.queue_stats(Q1).unwrap();
    assert_eq!((stats.header_longer, stats.header_shorter), (1, 1));
    drop(packet);
    bench.finish();
}

#[test]
fn payload_that_landed_in_the_header_buffer_is_copied_to_device_memory() {
    let mut bench = Bench::with_device(NicConfig::default());
    bench.pass(&tcp(&pattern(0, 100)));
    for len in 1..=13 {
        let packet = bench.pass(&Tcp {
            options: TcpOptions::default(),
            ..tcp(&pattern(1, len))
        });
        assert!(all_in(packet.payload.frags().unwrap(), 1));
        // The next prediction is long again.
        bench.pass(&tcp(&pattern(2, 100)));
    }
    bench.finish();
}

#[test]
fn a_wrong_predicted_queue_is_corrected_and_counted() {
    let devices = vec![opaque(4 << 20, 1, 65_536), opaque(4 << 20, 2, 4096)];
    let mut bench = Bench::new(OFFLOADED, NicConfig::default(), devices);
    let to = |port, seed| Tcp {
        dst_port: port,
        ..tcp(&pattern(seed, 65_000))
    };
    for round in 0..20 {
        for (port, id) in [(5201, 1), (5202, 2), (5202, 2), (5201, 1)] {
            let packet = bench.pass(&to(port, round));
            assert!(
                all_in(packet.payload.frags().unwrap(), id),
                "port {port} lands in dma-buf {id}"
            );
            bench.nic.recycle(packet.payload.into_frags());
        }
        let packet = bench.pass(&to(80, round));
        assert!(
            !packet.payload.frags().unwrap().is_unreadable(),
            "not steered: ordinary bytes"
        );
    }
    let placed = [Q0, Q1, Q2].map(|queue| bench.nic.queue_stats(queue).unwrap().placed);
    // In (1, 2, 2, 1, host) each packet after one of another queue, except the first.
    assert_eq!(placed, [20, 40, 20]);
    let stats = bench.nic.queue_stats(Q1).unwrap();
    assert_eq!(stats.placed_bytes, 40 * 65_000);
    bench.finish();
}

#[test]
fn a_wrong_predicted_queue_without_memory_loses_nothing() {
    let devices = vec![opaque(65_536, 1, 65_536), opaque(4 << 20, 2, 65_536)];
    let mut bench = Bench::new(OFFLOADED, NicConfig::default(), devices);
    let held = bench.pass(&tcp(&pattern(0, 65_160)));
    // Queue 1 is predicted and has no memory left: the frame lands in the spill buffer.
    let other = Tcp {
        dst_port: 5202,
        ..tcp(&pattern(1, 65_160))
    };
    let packet = bench.pass(&other);
    assert!(all_in(packet.payload.frags().unwrap(), 2));
    // Packets for queue 1 are dropped until memory is home; an ACK without payload needs none.
    bench.pass(&tcp(&[]));
    bench.link.scatter(tcp(&pattern(2, 1000)).frame(), PARTIAL);
    assert!(bench.receive().is_none());
    assert_eq!(bench.dropped(DropReason::RxNoBuffers), 1);
    bench.nic.recycle(held.payload.into_frags());
    bench.pass(&tcp(&pattern(3, 65_160)));
    drop(packet);
    bench.finish();
}

#[test]
fn the_linear_option_leaves_the_first_bytes_in_host_memory() {
    let config = NicConfig {
        linear_bytes: 100,
        ..NicConfig::default()
    };
    let mut bench = Bench::with_device(config);
    for (len, options) in [
        (5000, timestamps()),
        (5000, timestamps()),
        (5000, TcpOptions::default()),
        (5000, timestamps()),
        (100, timestamps()),
        (101, timestamps()),
        (99, timestamps()),
        (1, TcpOptions::default()),
        (112, TcpOptions::default()),
        (65_160, timestamps()),
    ] {
        let packet = bench.pass(&Tcp {
            options,
            ..tcp(&pattern(len, len))
        });
        let linear: usize = packet
            .payload
            .frags()
            .unwrap()
            .iter()
            .filter(|frag| frag.is_linear())
            .map(|f| f.len())
            .sum();
        assert_eq!(linear, len.min(100));
        assert!(
            packet
                .payload
                .frags()
                .unwrap()
                .iter()
                .all(|frag| frag.is_linear() == frag.is_readable())
        );
        assert!(
            packet.payload.frags().unwrap().first().unwrap().is_linear(),
            "linear bytes come first"
        );
        bench.nic.recycle(packet.payload.into_frags());
    }
    // Readable packets have no linear part.
    let packet = bench.pass(&Tcp {
        dst_port: 80,
        ..tcp(&pattern(1, 5000))
    });
    assert!(
        packet
            .payload
            .frags()
            .unwrap()
            .iter()
            .all(|frag| !frag.is_linear())
    );
    let stats = bench.nic.queue_stats(Q1).unwrap();
    assert_eq!(stats.linear_bytes, 100 * 6 + 99 + 1 + 100 + 100);
    drop(packet);
    bench.finish();
}

#[test]
fn linear_bytes_without_host_memory_are_a_counted_drop() {
    let config = NicConfig {
        linear_bytes: 4096,
        host_mem_bytes: 65_536,
        ..NicConfig::default()
    };
    let mut bench = Bench::with_device(config);
    let held: Vec<_> = (0..15)
        .map(|i| bench.pass(&tcp(&pattern(i, 8192))))
        .collect();
    bench.link.scatter(tcp(&pattern(0, 8192)).frame(), PARTIAL);
    bench.link.scatter(tcp(&pattern(0, 8192)).frame(), PARTIAL);
    while bench.receive().is_some() {}
    assert!(bench.dropped(DropReason::RxNoHostBuffers) > 0);
    assert_eq!(bench.dropped(DropReason::RxNoBuffers), 0);
    drop(held);
    bench.pass(&tcp(&pattern(0, 8192)));
    bench.finish();
}

/// Frames that are not split: UDP, ICMP, ARP, a fragment, an unknown EtherType.
fn whole_frames() -> Vec<(&'static str, Vec<u8>)> {
    let as_protocol = |protocol: u8, more_fragments: bool| {
        let mut frame = Tcp {
            options: TcpOptions::default(),
            ..tcp(&pattern(9, 1200))
        }
        .frame();
        frame[23] = protocol;
        frame[20] = if more_fragments { 0x20 } else { 0x40 };
        frame[24..26].fill(0);
        let sum = wire::checksum(&frame[14..34]);
        frame[24..26].copy_from_slice(&sum.to_be_bytes());
        frame
    };
    let mut udp = as_protocol(17, false);
    let len = (udp.len() - 34) as u16;
    udp[38..40].copy_from_slice(&len.to_be_bytes());
    udp[40..42].fill(0);
    let mut other = vec![0xff; 6];
    other.extend_from_slice(&PEER_MAC.0);
    let mut arp = other.clone();
    arp.extend_from_slice(&[0x08, 0x06]);
    arp.extend_from_slice(&pattern(5, 46));
    other.extend_from_slice(&[0x88, 0xb5]);
    other.extend_from_slice(&pattern(6, 1000));
    vec![
        ("udp", udp),
        ("icmp", as_protocol(1, false)),
        ("fragment", as_protocol(6, true)),
        ("arp", arp),
        ("other", other),
    ]
}

#[test]
fn packets_that_cannot_be_split_go_to_host_memory_only() {
    for delivery in [Delivery::Scatter, Delivery::Whole] {
        let mut bench = Bench::with_device(NicConfig::default());
        bench.pass(&tcp(&pattern(0, 3000)));
        let before = bench.nic.rx_space(Q1);
        for (name, frame) in whole_frames() {
            bench.link.deliver(frame.clone(), UNVERIFIED, delivery);
            let packet = bench.receive().unwrap_or_else(|| panic!("{name} arrives"));
            assert!(
                !packet.payload.frags().unwrap().is_unreadable(),
                "{name} is readable"
            );
            let headers = packet.headers;
            let expected = &frame[headers.header_len..headers.header_len + headers.payload_len];
            assert_eq!(
                bench.read(packet.payload.frags().unwrap()),
                expected,
                "{name}"
            );
        }
        assert_eq!(bench.nic.rx_space(Q1), before);
        assert_eq!(bench.nic.queue_stats(Q0).unwrap().whole, 5);
        assert_eq!(bench.nic.drops().total(), 0);
        bench.finish();
    }
}

#[test]
fn a_frame_in_host_memory_is_copied_once_to_the_right_queue() {
    let devices = vec![opaque(4 << 20, 1, 65_536), opaque(4 << 20, 2, 4096)];
    let mut bench = Bench::new(PLAIN, NicConfig::default(), devices);
    for (seed, (port, len)) in [
        (5201, 1448),
        (5202, 8948),
        (5202, 1),
        (80, 500),
        (5201, 65_000),
    ]
    .into_iter()
    .enumerate()
    {
        let segment = Tcp {
            dst_port: port,
            ..tcp(&pattern(seed, len))
        };
        bench
            .link
            .deliver(segment.frame(), UNVERIFIED, Delivery::Whole);
        let packet = bench.receive().unwrap();
        assert_eq!(bench.read(packet.payload.frags().unwrap()), segment.payload);
        assert_eq!(packet.payload.frags().unwrap().is_unreadable(), port != 80);
    }
    assert_eq!(
        bench.nic.queue_stats(Q1).unwrap().placed,
        0,
        "nothing was guessed"
    );
    bench.finish();
}

#[test]
fn with_header_split_off_the_payload_of_a_device_queue_goes_to_host_memory() {
    let mut bench = Bench::with_device(NicConfig::default());
    bench.nic.restart_queue(Q1, ProviderChoice::Host).unwrap();
    let rings = Rings {
        tcp_data_split: TcpDataSplit::Disabled,
        ..bench.nic.rings()
    };
    bench.nic.set_rings(rings).unwrap();
    let packet = bench.pass(&tcp(&pattern(0, 2000)));
    assert!(!packet.payload.frags().unwrap().is_unreadable());
    drop(packet);
    bench.finish();
}

#[test]
fn padding_of_short_frames_is_not_payload() {
    let mut bench = Bench::with_device(NicConfig::default());
    bench.pass(&tcp(&pattern(0, 100)));
    let segment = Tcp {
        options: TcpOptions::default(),
        ..tcp(b"abc")
    };
    let mut frame = segment.frame();
    frame.resize(60, 0xee);
    bench.link.scatter(frame, UNVERIFIED);
    let packet = bench.receive().unwrap();
    assert_eq!(bench.read(packet.payload.frags().unwrap()), b"abc");
    assert_eq!(bench.nic.queue_stats(Q1).unwrap().checksum_verified, 1);
    drop(packet);
    bench.finish();
}

#[test]
fn super_packets_have_their_number_of_segments() {
    let mut bench = Bench::with_device(NicConfig::default());
    for (len, gso_size, segments) in [
        (65_160, 1448, 45),
        (1448, 1448, 1),
        (1449, 1448, 2),
        (0, 1448, 1),
        (5000, 0, 1),
    ] {
        bench.link.scatter(
            tcp(&pattern(0, len)).frame(),
            VnetMeta {
                gso_size,
                ..PARTIAL
            },
        );
        let packet = bench.receive().unwrap();
        assert_eq!(
            (packet.segments, packet.payload.frags().unwrap().len()),
            (segments, len)
        );
    }
    bench.finish();
}

#[test]
fn the_headers_of_a_split_packet_are_those_that_were_sent() {
    let mut bench = Bench::with_device(NicConfig::default());
    let sent = Tcp {
        seq: 0xdead_beef,
        flags: TcpFlags::ACK | TcpFlags::PSH,
        ..tcp(&pattern(0, 10))
    };
    let packet = bench.pass(&sent);
    let Transport::Tcp(header) = packet.headers.transport else {
        panic!("not TCP")
    };
    assert_eq!(
        (header.seq, header.flags, header.options),
        (sent.seq, sent.flags, sent.options)
    );
    drop(packet);
    bench.finish();
}

#[test]
fn four_kib_net_iovs_are_filled_in_runs() {
    let mut bench = Bench::new(
        OFFLOADED,
        NicConfig::default(),
        vec![opaque(4 << 20, 1, 4096)],
    );
    bench.pass(&tcp(&pattern(0, 65_160)));
    let packet = bench.pass(&tcp(&pattern(1, 65_160)));
    let frags: Vec<_> = packet.payload.frags().unwrap().iter().collect();
    assert_eq!(frags.len(), 16, "each starts in a fresh net_iov");
    for pair in frags.windows(2) {
        assert!(
            pair[1].netmem().is_right_after(pair[0].netmem()),
            "adjacent in memory"
        );
        assert_eq!(
            pair[0].dmabuf_offset() + pair[0].len() as u64,
            pair[1].dmabuf_offset()
        );
    }
    drop(packet);
    bench.finish();
}
