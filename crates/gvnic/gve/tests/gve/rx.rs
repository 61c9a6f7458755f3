//! Receiving: header split, coalescing, segmentation, several buffers, and none.

use std::num::NonZeroU32;

use crate::common::frames::{Frame, checked, payload};
use crate::common::{Bench, take_all_rx, take_rx, up, up_default};
use gve::{ChecksumState, DropReason, Faults, Offload, RxOutcome};
use gve_defs::desc_dqo::{
    RX_CSUM_IP_ERR, RX_CSUM_L4_ERR, RX_HEADER_BUFFER_OVERFLOW, RX_IPV6_EX, RX_L3_L4_PROCESSED,
    l3_type, l4_type,
};
use gve_driver::{Driver, QueueOptions, RxPacket};

fn receive_one(bench: &mut Bench, driver: &mut Driver, bytes: &[u8]) -> RxPacket {
    receive_one_with(bench, driver, bytes, Offload::default())
}

fn receive_one_with(
    bench: &mut Bench,
    driver: &mut Driver,
    bytes: &[u8],
    offload: Offload,
) -> RxPacket {
    assert_eq!(bench.receive(bytes, offload), RxOutcome::Delivered);
    let mut packets = take_all_rx(bench, driver);
    assert_eq!(packets.len(), 1);
    packets.remove(0)
}

fn one_queue(options: QueueOptions) -> (Bench, Driver) {
    up(QueueOptions {
        pairs: 1,
        ..options
    })
}

#[test]
fn a_tcp_packet_is_split_after_its_headers() {
    for (frame, l3) in [
        (Frame::tcp4(1448), l3_type::IPV4),
        (Frame::tcp4(1), l3_type::IPV4),
        (Frame::tcp6(1428).tagged(), l3_type::IPV6),
    ] {
        let (mut bench, mut driver) = up_default();
        let packet = receive_one(&mut bench, &mut driver, &frame.bytes());
        assert!(packet.split);
        assert_eq!(packet.header.len(), frame.header_len());
        assert_eq!(packet.data, frame.payload);
        assert_eq!(packet.frame(), frame.bytes());
        assert_eq!(
            packet.packet_type,
            u16::from(l3) << 3 | u16::from(l4_type::TCP)
        );
        assert_eq!(packet.status & RX_L3_L4_PROCESSED, RX_L3_L4_PROCESSED);
        assert_eq!(packet.status & (RX_CSUM_IP_ERR | RX_CSUM_L4_ERR), 0);
    }
}

#[test]
fn padding_of_short_frames_is_no_payload() {
    let ack = Frame::tcp4(0).without_timestamps();
    for (frame, padded) in [(ack.clone(), 60), (ack.tagged(), 64)] {
        let (mut bench, mut driver) = one_queue(QueueOptions::default());
        let mut bytes = frame.bytes();
        let len = bytes.len();
        assert!(len < padded);
        bytes.resize(padded, 0);
        let packet = receive_one(&mut bench, &mut driver, &bytes);
        assert!(packet.split);
        assert_eq!(packet.frags, [0]);
        assert_eq!(packet.header, bytes[..len]);
    }
}

#[test]
fn what_follows_the_packet_in_a_longer_frame_is_left_to_the_host() {
    let frame = Frame::tcp4(100);
    for offload in [Offload::default(), partial(&frame)] {
        let (mut bench, mut driver) = one_queue(QueueOptions::default());
        let whole = [frame.bytes(), vec![7; 50]].concat();
        let mut sent = whole.clone();
        if offload != Offload::default() {
            sent[..166].copy_from_slice(&frame.unfinished());
        }
        let packet = receive_one_with(&mut bench, &mut driver, &sent, offload);
        assert!(packet.split);
        assert_eq!(packet.frame(), whole);
        assert_eq!(packet.status & RX_CSUM_L4_ERR, 0);
    }
}

fn partial(frame: &Frame) -> Offload {
    Offload {
        checksum: ChecksumState::Partial(frame.checksum()),
        gso: None,
    }
}

#[test]
fn packets_other_than_tcp_are_not_split() {
    let (mut bench, mut driver) = up_default();
    let mut arp = vec![0xff; 42];
    arp[12..14].copy_from_slice(&[8, 6]);
    for bytes in [Frame::udp4(100).bytes(), Frame::udp6(100).bytes(), arp] {
        let packet = receive_one(&mut bench, &mut driver, &bytes);
        assert!(!packet.split);
        assert_eq!(packet.data, bytes);
        assert_eq!(packet.header, []);
    }
    assert_eq!(bench.stats().rx.iter().map(|rx| rx.unsplit).sum::<u64>(), 0);
}

#[test]
fn a_queue_without_header_buffers_does_not_split() {
    let (mut bench, mut driver) = up(QueueOptions {
        header_bytes: 0,
        ..QueueOptions::default()
    });
    let frame = Frame::tcp4(5000).bytes();
    let packet = receive_one(&mut bench, &mut driver, &frame);
    assert!(!packet.split);
    assert_eq!(packet.data, frame);
    assert_eq!(packet.frags, [4096, frame.len() - 4096]);
}

#[test]
fn headers_longer_than_their_buffer_stay_with_the_payload() {
    let (mut bench, mut driver) = up(QueueOptions {
        header_bytes: 64,
        ..QueueOptions::default()
    });
    let frame = Frame::tcp4(100);
    assert_eq!(frame.header_len(), 66);
    let packet = receive_one(&mut bench, &mut driver, &frame.bytes());
    assert!(!packet.split);
    assert_eq!(
        packet.status & RX_HEADER_BUFFER_OVERFLOW,
        RX_HEADER_BUFFER_OVERFLOW
    );
    assert_eq!(packet.data, frame.bytes());
}

#[test]
fn a_jumbo_packet_fills_buffers_of_either_size() {
    for (buffer_bytes, frags) in [
        (4096, vec![4096, 4096, 756]),
        (2048, vec![2048, 2048, 2048, 2048, 756]),
    ] {
        let (mut bench, mut driver) = up(QueueOptions {
            buffer_bytes,
            ..QueueOptions::default()
        });
        let frame = Frame::tcp4(8948);
        let packet = receive_one(&mut bench, &mut driver, &frame.bytes());
        assert_eq!(packet.frags, frags);
        assert_eq!(packet.data, frame.payload);
    }
}

#[test]
fn payload_that_fills_its_buffers_exactly_uses_no_further_buffer() {
    let (mut bench, mut driver) = one_queue(QueueOptions::default());
    let packet = receive_one(&mut bench, &mut driver, &Frame::tcp4(4096).bytes());
    assert_eq!(packet.frags, [4096]);
}

#[test]
fn a_super_packet_is_coalesced_if_the_queue_allows_it() {
    for frame in [Frame::tcp4(65_000), Frame::tcp6(40_000).tagged()] {
        for header_bytes in [0, 256] {
            for buffer_bytes in [2048, 4096] {
                let (mut bench, mut driver) = up(QueueOptions {
                    rsc: true,
                    header_bytes,
                    buffer_bytes,
                    ..QueueOptions::default()
                });
                let offload = frame.gso(1448);
                let packet =
                    receive_one_with(&mut bench, &mut driver, &frame.unfinished(), offload);
                assert_eq!(packet.rsc, Some(1448));
                assert_eq!(packet.split, header_bytes != 0);
                assert_eq!(packet.frame(), frame.unfinished());
                assert_eq!(packet.status & RX_L3_L4_PROCESSED, RX_L3_L4_PROCESSED);
            }
        }
    }
}

#[test]
fn a_super_packet_is_segmented_if_the_queue_does_not_coalesce() {
    for frame in [Frame::tcp4(65_000), Frame::tcp6(40_001).tagged()] {
        let (mut bench, mut driver) = up_default();
        let received = bench.receive(&frame.unfinished(), frame.gso(1448));
        assert_eq!(received, RxOutcome::Delivered);
        let packets = take_all_rx(&mut bench, &mut driver);
        assert_eq!(packets.len(), frame.payload.len().div_ceil(1448));
        let mut got = Vec::new();
        for packet in &packets {
            assert_eq!(packet.rsc, None);
            let headers = checked(&packet.frame());
            assert_eq!(headers.tcp().unwrap().seq as usize, 1000 + got.len());
            got.extend_from_slice(&packet.data);
        }
        assert_eq!(got, frame.payload);
    }
}

#[test]
fn a_udp_super_packet_is_split_into_datagrams_even_if_tcp_is_coalesced() {
    for frame in [Frame::udp4(10_000), Frame::udp6(10_001)] {
        let (mut bench, mut driver) = up(QueueOptions {
            rsc: true,
            ..QueueOptions::default()
        });
        bench.receive(&frame.unfinished(), frame.gso(1000));
        let packets = take_all_rx(&mut bench, &mut driver);
        assert_eq!(packets.len(), frame.payload.len().div_ceil(1000));
        let mut got = Vec::new();
        for packet in &packets {
            let headers = checked(&packet.data);
            got.extend_from_slice(payload(&packet.data, &headers));
        }
        assert_eq!(got, frame.payload);
    }
}

#[test]
fn a_super_packet_of_one_segment_or_none_is_an_ordinary_packet() {
    let (mut bench, mut driver) = up(QueueOptions {
        rsc: true,
        ..QueueOptions::default()
    });
    for len in [0, 1, 1448] {
        let frame = Frame::tcp4(len);
        let packet = receive_one_with(
            &mut bench,
            &mut driver,
            &frame.unfinished(),
            frame.gso(1448),
        );
        assert_eq!(packet.rsc, None);
        checked(&packet.frame());
    }
}

#[test]
fn a_super_packet_of_a_kind_that_differs_from_its_headers_is_dropped() {
    let (mut bench, _driver) = up_default();
    let (tcp4, tcp6, udp) = (Frame::tcp4(5000), Frame::tcp6(5000), Frame::udp4(5000));
    for (frame, offload) in [
        (&tcp4, tcp6.gso(1000)),
        (&tcp6, tcp4.gso(1000)),
        (&udp, tcp4.gso(1000)),
        (&tcp4, udp.gso(1000)),
    ] {
        let dropped = RxOutcome::Dropped(DropReason::BadGso);
        assert_eq!(bench.receive(&frame.unfinished(), offload), dropped);
    }
    let dropped = bench.receive(&[0x55; 4000], tcp4.gso(1000));
    assert_eq!(dropped, RxOutcome::Dropped(DropReason::BadGso));
}

#[test]
fn a_checksum_is_verified_unless_the_wire_has_verified_it() {
    let (mut bench, mut driver) = up_default();
    for frame in [
        Frame::tcp4(100),
        Frame::tcp6(99),
        Frame::udp4(1),
        Frame::udp6(8),
    ] {
        let mut bytes = frame.bytes();
        *bytes.last_mut().unwrap() ^= 1;
        let packet = receive_one(&mut bench, &mut driver, &bytes);
        let told = packet.status & (RX_L3_L4_PROCESSED | RX_CSUM_L4_ERR);
        assert_eq!(told, RX_L3_L4_PROCESSED | RX_CSUM_L4_ERR);
        let verified = Offload {
            checksum: ChecksumState::Verified,
            gso: None,
        };
        let packet = receive_one_with(&mut bench, &mut driver, &bytes, verified);
        let told = packet.status & (RX_L3_L4_PROCESSED | RX_CSUM_L4_ERR);
        assert_eq!(told, RX_L3_L4_PROCESSED);
    }
    let bad: u64 = bench.stats().rx.iter().map(|rx| rx.bad_checksum).sum();
    assert_eq!(bad, 4);
}

#[test]
fn a_partial_checksum_is_completed() {
    let (mut bench, mut driver) = up_default();
    for frame in [
        Frame::tcp4(1001),
        Frame::tcp6(1000),
        Frame::udp4(99),
        Frame::udp6(0),
    ] {
        let offload = crate::common::partial(&frame);
        let packet = receive_one_with(&mut bench, &mut driver, &frame.unfinished(), offload);
        assert_eq!(packet.frame(), frame.bytes());
        assert_eq!(packet.status & RX_L3_L4_PROCESSED, RX_L3_L4_PROCESSED);
    }
}

#[test]
fn a_checksum_field_at_any_offset_is_safe() {
    let (mut bench, mut driver) = up_default();
    let frame = Frame::tcp4(100);
    for (start, offset) in [
        (0, 0),
        (14, 65_535),
        (65_535, 65_535),
        (160, 4),
        (166, 0),
        (34, 300),
    ] {
        let offload = Offload {
            checksum: ChecksumState::Partial(wire::TxChecksum { start, offset }),
            gso: None,
        };
        let packet = receive_one_with(&mut bench, &mut driver, &frame.unfinished(), offload);
        assert_eq!(packet.frame().len(), frame.unfinished().len());
    }
}

#[test]
fn a_udp_datagram_without_a_checksum_is_accepted() {
    let (mut bench, mut driver) = up_default();
    let mut bytes = Frame::udp4(10).bytes();
    bytes[40..42].fill(0);
    let packet = receive_one(&mut bench, &mut driver, &bytes);
    assert_eq!(packet.status & RX_CSUM_L4_ERR, 0);
}

#[test]
fn frames_that_cannot_be_parsed_reach_the_guest_unchanged() {
    let (mut bench, mut driver) = up_default();
    let mut bad_ip = Frame::tcp4(10).bytes();
    bad_ip[24] ^= 1;
    let packet = receive_one(&mut bench, &mut driver, &bad_ip);
    assert_eq!(packet.data, bad_ip);
    assert_eq!(packet.status & RX_CSUM_IP_ERR, RX_CSUM_IP_ERR);
    let mut jumbo_option = Frame::tcp6(100).bytes();
    jumbo_option[20] = 0;
    jumbo_option[54..58].copy_from_slice(&[6, 0, 0xc2, 4]);
    let packet = receive_one(&mut bench, &mut driver, &jumbo_option);
    assert_eq!(packet.data, jumbo_option);
    assert_eq!(packet.flags & RX_IPV6_EX, RX_IPV6_EX);
    assert_eq!(packet.status & RX_L3_L4_PROCESSED, 0);
    assert_eq!(bench.stats().device.headers_refused, 2);
}

/// Inserts eight bytes of destination options before the transport header.
fn with_destination_options(frame: &Frame) -> Vec<u8> {
    let mut bytes = frame.bytes();
    let next = std::mem::replace(&mut bytes[20], 60);
    bytes.splice(54..54, [next, 0, 1, 4, 0, 0, 0, 0]);
    let len = u16::from_be_bytes([bytes[18], bytes[19]]) + 8;
    bytes[18..20].copy_from_slice(&len.to_be_bytes());
    bytes
}

#[test]
fn tcp_behind_ipv6_extension_headers_is_checked_and_cut() {
    let (mut bench, mut driver) = up_default();
    let frame = Frame::tcp6(500);
    let bytes = with_destination_options(&frame);
    let packet = receive_one(&mut bench, &mut driver, &bytes);
    assert!(packet.split);
    assert_eq!(packet.header.len(), frame.header_len() + 8);
    assert_eq!(packet.data, frame.payload);
    let told = packet.status & (RX_L3_L4_PROCESSED | RX_CSUM_L4_ERR);
    assert_eq!(told, RX_L3_L4_PROCESSED);
    assert_eq!(packet.flags & RX_IPV6_EX, 0);
    assert_eq!(bench.stats().device.ipv6_extensions, 1);
    assert_eq!(bench.stats().device.vlan, 0);
}

#[test]
fn a_fragment_is_not_split_and_its_checksum_not_verified() {
    let (mut bench, mut driver) = up_default();
    let mut bytes = Frame::tcp4(100).bytes();
    bytes[20] = 0x20;
    bytes[24..26].fill(0);
    let sum = wire::checksum(&bytes[14..34]);
    bytes[24..26].copy_from_slice(&sum.to_be_bytes());
    let packet = receive_one(&mut bench, &mut driver, &bytes);
    assert!(!packet.split);
    assert_eq!(packet.status & RX_L3_L4_PROCESSED, 0);
    assert_eq!(packet.data, bytes);
}

#[test]
fn frames_too_short_or_too_long_are_dropped() {
    let (mut bench, _driver) = up_default();
    for len in [0, 1, 13] {
        let dropped = RxOutcome::Dropped(DropReason::Runt);
        assert_eq!(bench.receive_plain(&vec![0; len]), dropped);
    }
    let over = RxOutcome::Dropped(DropReason::OverMru);
    assert_eq!(
        bench.receive_plain(&Frame::tcp4(9000 - 51 + 4).bytes()),
        over
    );
    assert_eq!(bench.receive_plain(&[0; 20_000]), over);
    let frame = Frame::tcp4(60_000);
    let mut bytes = frame.unfinished();
    bytes.resize(65_535 + 19, 0);
    assert_eq!(bench.receive(&bytes, frame.gso(1000)), over);
    let counted: u64 = bench.stats().rx.iter().map(|rx| rx.over_mru).sum();
    assert_eq!(counted, 3);
}

#[test]
fn segments_are_no_longer_than_the_largest_mtu() {
    let (mut bench, mut driver) = up_default();
    let frame = Frame::tcp4(50_000);
    bench.receive(&frame.unfinished(), frame.gso(u16::MAX));
    let packets = take_all_rx(&mut bench, &mut driver);
    assert!(packets.iter().all(|packet| packet.frame().len() <= 9018));
    let got: usize = packets.iter().map(|packet| packet.data.len()).sum();
    assert_eq!(got, 50_000);
}

#[test]
fn the_fault_linear_bytes_leaves_payload_bytes_in_the_header_buffer() {
    let (mut bench, mut driver) = up_default();
    bench.set_faults(Faults {
        linear_bytes: 64,
        ..Faults::default()
    });
    for len in [0, 10, 64, 65, 1448] {
        let frame = Frame::tcp4(len);
        let packet = receive_one(&mut bench, &mut driver, &frame.bytes());
        let linear = len.min(64);
        assert_eq!(packet.header.len(), frame.header_len() + linear);
        assert_eq!(packet.data, frame.payload[linear..]);
    }
    bench.set_faults(Faults {
        linear_bytes: u16::MAX,
        ..Faults::default()
    });
    let packet = receive_one(&mut bench, &mut driver, &Frame::tcp4(1448).bytes());
    assert_eq!(packet.header.len(), 256);
}

#[test]
fn the_fault_unsplit_every_leaves_every_kth_packet_unsplit() {
    let (mut bench, mut driver) = one_queue(QueueOptions::default());
    bench.set_faults(Faults {
        unsplit_every: NonZeroU32::new(3),
        ..Faults::default()
    });
    let frame = Frame::tcp4(100).bytes();
    let split: Vec<_> = (0..9)
        .map(|_| receive_one(&mut bench, &mut driver, &frame).split)
        .collect();
    assert_eq!(split, [true, true, false].repeat(3));
    assert_eq!(bench.stats().rx[0].unsplit, 3);
}

#[test]
fn the_fault_rx_buffers_kept_leaves_buffers_unfilled() {
    let (mut bench, mut driver) = one_queue(QueueOptions::default());
    // 255 buffers are posted; the last doorbell was for 224.
    bench.set_faults(Faults {
        rx_buffers_kept: 220,
        ..Faults::default()
    });
    let frame = Frame::tcp4(100).bytes();
    let received: Vec<_> = (0..6).map(|_| bench.receive_plain(&frame)).collect();
    assert_eq!(received[..4], [RxOutcome::Delivered; 4]);
    assert_eq!(received[4..], [RxOutcome::Held; 2]);
    bench.set_faults(Faults::default());
    assert_eq!(bench.receive_plain(&frame), RxOutcome::Delivered);
    assert_eq!(take_rx(&mut bench, &mut driver, 0).len(), 7);
}

#[test]
fn a_queue_without_buffers_holds_frames_then_drops_and_affects_no_other_queue() {
    let (mut bench, mut driver) = up(QueueOptions {
        pairs: 4,
        ..QueueOptions::default()
    });
    // Tries ports until there is a flow for each of two queues.
    let mut ports = [0; 4];
    for port in (1..200).rev() {
        bench.receive_plain(&Frame::tcp4(1).with_port(port).bytes());
        for queue in 0..4 {
            if !take_rx(&mut bench, &mut driver, queue).is_empty() {
                ports[usize::from(queue)] = port;
            }
        }
    }
    assert!(ports.iter().all(|port| *port != 0), "{ports:?}");
    let starved = Frame::tcp4(4000).with_port(ports[3]).bytes();
    let other = Frame::tcp4(100).with_port(ports[1]).bytes();
    let (mut delivered, mut held, mut dropped) = (0usize, 0usize, 0usize);
    for _ in 0..2000 {
        match bench.receive_plain(&starved) {
            RxOutcome::Delivered => delivered += 1,
            RxOutcome::Held => held += 1,
            RxOutcome::Dropped(reason) => {
                assert_eq!(reason, DropReason::NoBuffers);
                dropped += 1;
            }
        }
        assert_eq!(bench.receive_plain(&other), RxOutcome::Delivered);
        assert_eq!(take_rx(&mut bench, &mut driver, 1).len(), 1);
    }
    assert!(delivered < 256, "{delivered}");
    assert_eq!(held, 256);
    assert_eq!(dropped, 2000 - delivered - held);
    let stats = bench.stats().rx[3];
    assert_eq!((stats.backlog, stats.drops), (256, dropped as u64));
    // The driver posts buffers again: the held frames arrive in order, then new ones.
    let mut got = 0;
    for _ in 0..8 {
        got += take_rx(&mut bench, &mut driver, 3).len();
    }
    assert_eq!(got, delivered + held);
    assert_eq!(bench.stats().rx[3].backlog, 0);
    assert_eq!(bench.receive_plain(&starved), RxOutcome::Delivered);
}

#[test]
fn a_queue_without_buffers_interrupts_the_driver_repeatedly() {
    let (mut bench, mut driver) = one_queue(QueueOptions {
        rsc: true,
        ..QueueOptions::default()
    });
    let frame = Frame::tcp4(64_000);
    while bench.receive(&frame.unfinished(), frame.gso(1448)) == RxOutcome::Delivered {}
    let start = bench.now;
    bench.take_irqs();
    driver.enable_irq(&mut bench, 4, None);
    driver.enable_irq(&mut bench, 4, None);
    bench.take_irqs();
    let every = std::time::Duration::from_millis(20);
    for round in 1..=3 {
        let due = bench.device.poll_at().expect("the queue starves");
        assert_eq!(due, start + every * round);
        bench.poll();
        assert_eq!(bench.take_irqs(), [], "not before its time");
        bench.now = due;
        bench.poll();
        assert_eq!(bench.take_irqs(), [4]);
        driver.enable_irq(&mut bench, 4, None);
    }
    take_rx(&mut bench, &mut driver, 0);
    assert_eq!(bench.stats().rx[0].backlog, 0);
    assert!(
        bench.device.poll_at() > Some(bench.now + every),
        "only statistics are due"
    );
}

#[test]
fn the_backlog_is_bounded_in_bytes_too() {
    let (mut bench, mut driver) = up(QueueOptions {
        pairs: 1,
        rsc: true,
        ..QueueOptions::default()
    });
    let frame = Frame::tcp4(64_000);
    let received: Vec<_> = (0..100)
        .map(|_| bench.receive(&frame.unfinished(), frame.gso(1448)))
        .collect();
    let held = received
        .iter()
        .filter(|one| **one == RxOutcome::Held)
        .count();
    assert_eq!(held, (1 << 20) / frame.unfinished().len());
    driver.restart_rx(&mut bench, 0).unwrap();
    assert_eq!(
        bench.stats().rx[0].backlog,
        0,
        "the backlog is dropped with its queue"
    );
    let packet = receive_one_with(
        &mut bench,
        &mut driver,
        &frame.unfinished(),
        frame.gso(1448),
    );
    assert_eq!(packet.data, frame.payload);
}

#[test]
fn held_frames_keep_their_order() {
    let (mut bench, mut driver) = one_queue(QueueOptions::default());
    let frames: Vec<_> = (0..400u32)
        .map(|seq| {
            Frame {
                seq,
                ..Frame::tcp4(20)
            }
            .bytes()
        })
        .collect();
    for frame in &frames {
        bench.receive_plain(frame);
    }
    let mut got = Vec::new();
    for _ in 0..4 {
        got.extend(take_rx(&mut bench, &mut driver, 0));
    }
    let got: Vec<_> = got.iter().map(RxPacket::frame).collect();
    assert_eq!(got, frames);
}

#[test]
fn rings_wrap_for_more_than_64_k_descriptors() {
    let (mut bench, mut driver) = one_queue(QueueOptions::default());
    let small = Frame::tcp4(40);
    let large = Frame::tcp4(8900);
    let (mut buffers, mut packets) = (0, 0);
    while buffers < 70_000 {
        let frame = if packets % 5 == 0 { &large } else { &small };
        let packet = receive_one(&mut bench, &mut driver, &frame.bytes());
        assert_eq!(packet.data, frame.payload);
        buffers += packet.frags.len();
        packets += 1;
    }
    assert_eq!(bench.stats().rx[0].packets, packets);
}

#[test]
fn interrupts_of_a_queue_respect_its_interval() {
    let (mut bench, mut driver) = one_queue(QueueOptions::default());
    let frame = Frame::tcp4(1).bytes();
    let interval = std::time::Duration::from_micros(20);
    driver.enable_irq(&mut bench, 4, Some(20));
    bench.take_irqs();
    bench.receive_plain(&frame);
    assert_eq!(bench.take_irqs(), [4]);
    let first = bench.now;
    driver.enable_irq(&mut bench, 4, None);
    bench.receive_plain(&frame);
    bench.poll();
    assert_eq!(bench.take_irqs(), []);
    assert_eq!(bench.device.poll_at(), Some(first + interval));
    bench.now = first + interval;
    bench.poll();
    assert_eq!(bench.take_irqs(), [4]);
}

#[test]
fn a_buffer_outside_of_memory_ends_the_packet_and_returns_its_buffers() {
    let (mut bench, mut driver) = one_queue(QueueOptions::default());
    let (buffers, _) = driver.rx_rings(0);
    // Address of the second buffer.
    bench.ram.put(buffers + 32 + 8, &u64::MAX.to_le_bytes());
    let dropped = RxOutcome::Dropped(DropReason::BadAddress);
    assert_eq!(bench.receive_plain(&Frame::tcp4(8000).bytes()), dropped);
    let packets = driver.poll_rx(0).unwrap();
    assert_eq!(packets.len(), 1);
    assert!(packets[0].is_damaged());
    driver.refill(&mut bench, 0, usize::MAX);
    let packet = receive_one(&mut bench, &mut driver, &Frame::tcp4(8000).bytes());
    assert!(!packet.is_damaged());
}

#[test]
fn two_devices_back_to_back_carry_a_stream() {
    for (features, rsc) in [
        (gve::WireFeatures::all(), true),
        (gve::WireFeatures::all(), false),
        (gve::WireFeatures::empty(), true),
    ] {
        let options = QueueOptions {
            rsc,
            ..QueueOptions::default()
        };
        let (mut from, mut sender) = up(options);
        let (mut to, mut receiver) = up(options);
        from.wire.features = features;
        let mut got = Vec::new();
        let mut expected = Vec::new();
        for round in 0..40u32 {
            let seq = round * 30_000;
            let frame = Frame {
                seq,
                ..Frame::tcp4(30_000)
            };
            expected.extend_from_slice(&frame.payload);
            let bytes = frame.for_tso();
            let request = gve_driver::TxRequest {
                buffer_bytes: 4096,
                checksum: true,
                tso: Some(gve_driver::Tso {
                    mss: 1448,
                    header_len: 66,
                }),
                ..gve_driver::TxRequest::plain(&bytes)
            };
            crate::common::send_done(&mut from, &mut sender, &request);
            for sent in from.take_sent() {
                assert_eq!(to.receive(&sent.bytes, sent.offload), RxOutcome::Delivered);
            }
            for packet in take_all_rx(&mut to, &mut receiver) {
                assert_eq!(packet.status & RX_L3_L4_PROCESSED, RX_L3_L4_PROCESSED);
                got.extend_from_slice(&packet.data);
            }
        }
        assert_eq!(got, expected);
        assert_eq!(to.stats().device.drops, 0);
    }
}
