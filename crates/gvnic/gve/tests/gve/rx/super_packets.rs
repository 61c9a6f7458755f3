//! Super-packets: coalesced, segmented, and their checksums.

use super::*;

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
