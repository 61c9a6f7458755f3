//! Packets that are dropped, refused or counted.

use super::*;

#[expect(
    clippy::too_many_lines,
    reason = "one scenario, read from top to bottom"
)]
#[test]
fn packets_to_other_addresses_or_from_invalid_ones_are_counted() {
    let mut peer = peer();
    let cases = [
        (
            Ipv4Addr::new(10, 77, 0, 1),
            Ipv4Addr::new(10, 77, 0, 3),
            "ip_not_for_us",
        ),
        (
            Ipv4Addr::new(10, 77, 0, 1),
            Ipv4Addr::new(127, 0, 0, 1),
            "ip_not_for_us",
        ),
        (
            Ipv4Addr::new(127, 0, 0, 1),
            v4(Side::B),
            "ip_martian_source",
        ),
        (
            Ipv4Addr::new(224, 0, 0, 1),
            v4(Side::B),
            "ip_martian_source",
        ),
        (Ipv4Addr::BROADCAST, v4(Side::B), "ip_martian_source"),
        (
            Ipv4Addr::new(10, 77, 0, 255),
            v4(Side::B),
            "ip_martian_source",
        ),
        (Ipv4Addr::UNSPECIFIED, v4(Side::B), "ip_martian_source"),
        (v4(Side::B), v4(Side::B), "ip_martian_source"),
        (
            v4(Side::A),
            Ipv4Addr::new(10, 77, 0, 255),
            "tcp_group_destination",
        ),
        (
            v4(Side::A),
            Ipv4Addr::new(224, 0, 0, 1),
            "tcp_group_destination",
        ),
    ];
    for (src, dst, reason) in cases {
        let (src, dst) = (SocketAddr::from((src, 1)), SocketAddr::from((dst, 2)));
        let syn = RawSegment {
            flags: TcpFlags::SYN,
            ..RawSegment::default()
        };
        dropped(&mut peer, &tcp_frame(src, dst, &syn), reason);
    }
    let udp = [0, 1, 0, 2, 0, 8, 0, 0];
    dropped(
        &mut peer,
        &ip_frame(&IpRepr::v4(v4(Side::A), v4(Side::B)), protocol::UDP, &udp),
        "ip_no_protocol",
    );
    dropped(
        &mut peer,
        &ip_frame(&IpRepr::v4(v4(Side::A), v4(Side::B)), 47, &[0; 20]),
        "ip_no_protocol",
    );
    let mut other = ip_frame(&IpRepr::v4(v4(Side::A), v4(Side::B)), 47, &[0; 20]);
    other[12..14].copy_from_slice(&[0x88, 0xcc]);
    dropped(&mut peer, &other, "unhandled_protocol");
}

#[test]
fn tcp_in_a_broadcast_frame_is_ignored_although_the_address_is_ours() {
    let mut peer = peer();
    let (ours, theirs) = ends();
    peer.stack.listen(theirs, 1).unwrap();
    let mut frame = tcp_frame(
        ours,
        theirs,
        &RawSegment {
            flags: TcpFlags::SYN,
            ..RawSegment::default()
        },
    );
    frame[..6].copy_from_slice(&[0xff; 6]);
    dropped(&mut peer, &frame, "tcp_group_destination");
}

/// Makes a frame with an IP packet the fragment at `offset`, a multiple of 8, of a packet that goes on.
fn fragment_at(offset: u16, frame: &[u8]) -> Vec<u8> {
    let mut frame = frame.to_vec();
    if parse(&frame).src_ip().is_some_and(|ip| ip.is_ipv4()) {
        // The flag "more fragments" and the offset in units of 8 bytes; then a valid header checksum.
        let field = 0x2000 | (offset >> 3);
        frame[20..22].copy_from_slice(&field.to_be_bytes());
        frame[24..26].copy_from_slice(&[0, 0]);
        let sum = checksum(&frame[14..34]);
        frame[24..26].copy_from_slice(&sum.to_be_bytes());
        return frame;
    }
    let [high, low] = (offset | 1).to_be_bytes();
    let next = std::mem::replace(&mut frame[20], protocol::FRAGMENT);
    let len = u16::from_be_bytes([frame[18], frame[19]]) + 8;
    frame[18..20].copy_from_slice(&len.to_be_bytes());
    frame.splice(54..54, [next, 0, high, low, 0, 0, 0, 7]);
    frame
}

#[test]
fn fragments_of_tcp_are_refused_and_counted_and_the_connection_goes_on_without_them() {
    for (ours, theirs) in [
        (Side::A.ipv4(), Side::B.ipv4()),
        (Side::A.ipv6(), Side::B.ipv6()),
    ] {
        let mut peer = peer();
        let ends = (
            SocketAddr::new(ours, PEER_PORT),
            SocketAddr::new(theirs, PORT),
        );
        let (id, seq, ack) = open_between(&mut peer, ends, Duration::ZERO);
        let segment = RawSegment {
            seq: ack,
            ack: seq,
            payload: b"sixteen bytes...",
            ..RawSegment::default()
        };
        let whole = tcp_frame(ends.0, ends.1, &segment);
        for offset in [0, 8, 1480] {
            dropped(&mut peer, &fragment_at(offset, &whole), "ip_fragment");
        }
        peer.send(&whole);
        let mut got = [0; 32];
        let mut message = stack::RecvMsg::with_len(&mut got, 32);
        let mut nothing = devmem_uapi::CmsgWriter::new(&mut []);
        let received = peer
            .stack
            .recvmsg(id, &mut message, &mut nothing, MsgFlags::empty())
            .unwrap();
        assert_eq!(received.bytes, 16);
        assert_eq!(&got[..16], segment.payload);
    }
}

#[test]
fn a_syn_to_a_closed_port_is_answered_by_a_reset_and_a_reset_by_nothing() {
    let mut peer = peer();
    let (ours, theirs) = ends();
    let syn = RawSegment {
        seq: 7,
        flags: TcpFlags::SYN,
        payload: b"abc",
        ..RawSegment::default()
    };
    peer.send_tcp(ours, theirs, &syn);
    let (headers, _) = peer.receive_tcp().unwrap();
    let reset = headers.tcp().unwrap();
    assert_eq!(
        (reset.flags, reset.seq, reset.ack),
        (TcpFlags::RST | TcpFlags::ACK, 0, 11)
    );
    peer.send_tcp(
        ours,
        theirs,
        &RawSegment {
            seq: 7,
            ack: 99,
            ..RawSegment::default()
        },
    );
    let (headers, _) = peer.receive_tcp().unwrap();
    let reset = headers.tcp().unwrap();
    assert_eq!((reset.flags, reset.seq), (TcpFlags::RST, 99));
    let rst = RawSegment {
        seq: 7,
        flags: TcpFlags::RST,
        ..RawSegment::default()
    };
    dropped(&mut peer, &tcp_frame(ours, theirs, &rst), "tcp_no_socket");
}

#[test]
fn a_segment_with_a_wrong_checksum_is_dropped() {
    let mut peer = peer();
    let (ours, theirs) = ends();
    let mut frame = tcp_frame(
        ours,
        theirs,
        &RawSegment {
            payload: b"payload",
            ..RawSegment::default()
        },
    );
    *frame.last_mut().unwrap() ^= 1;
    dropped(&mut peer, &frame, "rx_bad_checksum");
}

#[test]
fn malformed_frames_are_counted_and_nothing_more() {
    let mut peer = peer();
    let (ours, theirs) = ends();
    let good = tcp_frame(
        ours,
        theirs,
        &RawSegment {
            payload: b"payload",
            ..RawSegment::default()
        },
    );
    // Every prefix, and every byte changed: no panic, and no memory in use afterwards.
    for len in 0..good.len() {
        peer.send(&good[..len]);
    }
    for at in 14..good.len() {
        for bits in [0x01, 0x80, 0xff] {
            let mut bad = good.clone();
            bad[at] ^= bits;
            peer.send(&bad);
        }
    }
    assert!(drops(&peer.stack).values().sum::<u64>() > 100);
    assert_eq!(peer.stack.stats().sockets, 0);
}

#[test]
fn a_round_trip_ends_when_the_packet_is_found_and_not_when_the_clock_was_read() {
    let late = Duration::from_millis(50);
    let mut peer = peer();
    let (id, _, _) = open_late(&mut peer, late);
    let info = peer.stack.info(id).unwrap().unwrap();
    assert!(info.min_rtt >= late, "{:?}", info.min_rtt);
}
