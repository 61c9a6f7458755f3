//! ARP, neighbour discovery, ICMP and addresses: one stack against hand-written frames.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use devmem_uapi::MsgFlags;
use netsim::{Door as _, PairConfig, RawPeer, RawSegment, Side, ip_frame, tcp_frame};
use stack::{SendMsg, SocketId, Stack};
use wire::{
    ArpOperation, ArpPacket, Checksum, Echo, EchoKind, EtherType, EthernetHeader, IpRepr, MacAddr,
    Network, RxHeaders, TcpFlags, Transport, checksum, emit_arp_frame, protocol,
};

use crate::scenarios::Pair;
use crate::scenarios::common::PORT;

const PEER_PORT: u16 = 4000;

/// Returns the counters that moved.
fn drops(stack: &Stack) -> BTreeMap<&'static str, u64> {
    stack.drops().filter(|&(_, count)| count > 0).collect()
}

/// Returns the IPv4 address of a side.
pub fn v4(side: Side) -> Ipv4Addr {
    match side.ipv4() {
        IpAddr::V4(ip) => ip,
        IpAddr::V6(_) => unreachable!(),
    }
}

/// Returns the IPv6 address of a side.
pub fn v6(side: Side) -> Ipv6Addr {
    match side.ipv6() {
        IpAddr::V6(ip) => ip,
        IpAddr::V4(_) => unreachable!(),
    }
}

/// A stack with an entry for its peer, and nothing to send.
fn peer() -> RawPeer {
    let mut peer = RawPeer::new();
    peer.introduce();
    peer
}

fn parse(frame: &[u8]) -> RxHeaders {
    RxHeaders::parse(frame, frame.len()).unwrap()
}

fn arp_frame(arp: &ArpPacket, dst: MacAddr) -> Vec<u8> {
    let ethernet = EthernetHeader {
        dst,
        src: arp.sender_mac,
        ethertype: EtherType::ARP,
        vlan: None,
    };
    let mut frame = vec![0; 60];
    emit_arp_frame(&ethernet, arp, &mut frame);
    frame
}

fn parse_arp(frame: &[u8]) -> Option<ArpPacket> {
    let headers = parse(frame);
    (headers.network == Network::Arp)
        .then(|| ArpPacket::parse(&frame[headers.header_len..]).unwrap())
}

/// Sends a frame that must be dropped for `reason` and get no reply.
fn dropped(peer: &mut RawPeer, frame: &[u8], reason: &str) {
    peer.forget();
    let before = drops(&peer.stack).get(reason).copied().unwrap_or(0);
    peer.send(frame);
    assert_eq!(
        drops(&peer.stack).get(reason),
        Some(&(before + 1)),
        "{reason} in {:?}",
        drops(&peer.stack)
    );
    assert_eq!(peer.receive(), None, "{reason}");
}

/// Opens a connection from the peer; returns it with the stack's and the peer's next sequence
/// numbers.
fn open(peer: &mut RawPeer) -> (SocketId, u32, u32) {
    open_late(peer, Duration::ZERO)
}

/// As [`open`], with a last segment that arrives `late` after the stack has read its clock.
fn open_late(peer: &mut RawPeer, late: Duration) -> (SocketId, u32, u32) {
    open_between(peer, ends(), late)
}

/// As [`open_late`], between the addresses of the hand-made peer and of the stack.
fn open_between(
    peer: &mut RawPeer,
    (ours, theirs): (SocketAddr, SocketAddr),
    late: Duration,
) -> (SocketId, u32, u32) {
    let listener = peer.stack.listen(theirs, 4).unwrap();
    peer.send_tcp(
        ours,
        theirs,
        &RawSegment {
            seq: 100,
            flags: TcpFlags::SYN,
            ..RawSegment::default()
        },
    );
    let (headers, _) = peer.receive_tcp().expect("a SYN-ACK");
    let iss = headers.tcp().unwrap().seq;
    let ack = RawSegment {
        seq: 101,
        ack: iss + 1,
        ..RawSegment::default()
    };
    peer.send_late(&tcp_frame(ours, theirs, &ack), late);
    peer.poll();
    let (id, _) = peer.stack.accept(listener).unwrap();
    peer.stack.close(listener).unwrap();
    peer.forget();
    (id, iss + 1, 101)
}

/// The addresses of the hand-made peer and of the stack.
fn ends() -> (SocketAddr, SocketAddr) {
    (
        SocketAddr::new(Side::A.ipv4(), PEER_PORT),
        SocketAddr::new(Side::B.ipv4(), PORT),
    )
}

#[test]
fn the_first_poll_announces_every_address() {
    let mut peer = RawPeer::new();
    peer.poll();
    let frames: Vec<_> = std::iter::from_fn(|| peer.receive()).collect();
    let arps: Vec<_> = frames.iter().filter_map(|frame| parse_arp(frame)).collect();
    assert_eq!(
        arps,
        [ArpPacket::request(Side::B.mac(), v4(Side::B), v4(Side::B))]
    );
    let advertised = frames
        .iter()
        .filter(|frame| matches!(parse(frame).transport, Transport::Other(protocol::ICMPV6)));
    assert_eq!(
        advertised.count(),
        2,
        "the configured IPv6 address and the link-local one"
    );
}

#[test]
fn addresses_are_announced_again_when_the_link_comes_back() {
    let mut pair = Pair::new(&PairConfig::default());
    pair.run_for(Duration::from_millis(1));
    let sent = pair.a.stats().tx_packets;
    pair.cable().pull();
    pair.run_for(Duration::from_secs(1));
    assert_eq!(pair.a.stats().tx_packets, sent);
    pair.cable().plug();
    pair.run_for(Duration::from_secs(1));
    assert_eq!(pair.a.stats().tx_packets, sent + 3);
    pair.finish();
}

#[test]
fn arp_for_our_address_is_answered_and_for_others_it_is_not() {
    let mut peer = peer();
    let request = ArpPacket::request(Side::A.mac(), v4(Side::A), v4(Side::B));
    peer.send(&arp_frame(&request, MacAddr::BROADCAST));
    let reply = parse_arp(&peer.receive().unwrap()).unwrap();
    assert_eq!(reply, request.reply(Side::B.mac()));
    let other = ArpPacket::request(Side::A.mac(), v4(Side::A), Ipv4Addr::new(10, 77, 0, 77));
    peer.send(&arp_frame(&other, MacAddr::BROADCAST));
    assert_eq!(peer.receive(), None);
}

#[test]
fn an_address_probe_is_answered_and_teaches_nothing() {
    let mut peer = peer();
    let probe = ArpPacket::request(Side::A.mac(), Ipv4Addr::UNSPECIFIED, v4(Side::B));
    peer.send(&arp_frame(&probe, MacAddr::BROADCAST));
    assert!(parse_arp(&peer.receive().unwrap()).is_some_and(|arp| arp.op == ArpOperation::REPLY));
}

#[test]
fn arp_that_cannot_be_is_dropped() {
    let mut peer = peer();
    let good = ArpPacket::request(Side::A.mac(), v4(Side::A), v4(Side::B));
    for bad in [
        ArpPacket {
            sender_mac: MacAddr::BROADCAST,
            ..good
        },
        ArpPacket {
            sender_ip: Ipv4Addr::new(192, 168, 1, 1),
            ..good
        },
        ArpPacket {
            sender_ip: Ipv4Addr::new(10, 77, 0, 255),
            ..good
        },
    ] {
        let mut frame = arp_frame(&bad, MacAddr::BROADCAST);
        frame[6..12].copy_from_slice(&bad.sender_mac.0);
        dropped(&mut peer, &frame, "arp_invalid");
    }
    // The frame and the ARP packet have different senders.
    let mut frame = arp_frame(&good, MacAddr::BROADCAST);
    frame[6] ^= 4;
    dropped(&mut peer, &frame, "arp_invalid");
    dropped(
        &mut peer,
        &arp_frame(&good, MacAddr::BROADCAST)[..30],
        "arp_invalid",
    );
}

#[test]
fn a_ping_is_answered_byte_for_byte() {
    for len in [0, 1, 56, 1400] {
        let mut peer = peer();
        let data: Vec<u8> = (0..len).map(|n| n as u8).collect();
        let echo = Echo {
            ident: 7,
            seq: 9,
            data: &data,
        };
        let mut message = vec![0; echo.message_len()];
        echo.emit_v4(EchoKind::Request, &mut message);
        peer.send_ip(
            &IpRepr::v4(v4(Side::A), v4(Side::B)),
            protocol::ICMP,
            &message,
        );
        let frame = peer.receive().unwrap();
        let headers = parse(&frame);
        let reply = &frame[headers.header_len..headers.header_len + headers.payload_len];
        assert_eq!(checksum(reply), 0);
        assert_eq!((reply[0], &reply[4..]), (0, &message[4..]));
        assert_eq!(
            (headers.src_ip(), headers.dst_ip()),
            (Some(Side::B.ipv4()), Some(Side::A.ipv4()))
        );
    }
}

#[test]
fn a_ping_over_ipv6_is_answered_too() {
    let mut peer = peer();
    let echo = Echo {
        ident: 1,
        seq: 2,
        data: b"hello",
    };
    let mut message = vec![0; echo.message_len()];
    echo.emit_v6(EchoKind::Request, v6(Side::A), v6(Side::B), &mut message);
    peer.send_ip(
        &IpRepr::v6(v6(Side::A), v6(Side::B)),
        protocol::ICMPV6,
        &message,
    );
    let frame = peer.receive().unwrap();
    let headers = parse(&frame);
    let reply = &frame[headers.header_len..];
    let mut sum = Checksum::pseudo_v6(
        v6(Side::B),
        v6(Side::A),
        protocol::ICMPV6,
        reply.len() as u32,
    );
    sum.add_bytes(reply);
    assert_eq!(
        (sum.finish(), reply[0], &reply[4..]),
        (0, 129, &message[4..])
    );
}

#[test]
fn a_ping_from_the_unspecified_address_is_dropped() {
    let mut peer = peer();
    let echo = Echo {
        ident: 1,
        seq: 2,
        data: b"hello",
    };
    let mut message = vec![0; echo.message_len()];
    let nobody = std::net::Ipv6Addr::UNSPECIFIED;
    echo.emit_v6(EchoKind::Request, nobody, v6(Side::B), &mut message);
    let ping = ip_frame(&IpRepr::v6(nobody, v6(Side::B)), protocol::ICMPV6, &message);
    dropped(&mut peer, &ping, "ip_martian_source");
}

#[test]
fn a_ping_longer_than_the_mtu_is_not_answered_and_that_is_counted() {
    let mut peer = peer();
    let echo = Echo {
        ident: 1,
        seq: 2,
        data: &[7; 3000],
    };
    let mut message = vec![0; echo.message_len()];
    echo.emit_v4(EchoKind::Request, &mut message);
    peer.send_ip(
        &IpRepr::v4(v4(Side::A), v4(Side::B)),
        protocol::ICMP,
        &message,
    );
    assert_eq!(drops(&peer.stack)["tx_invalid"], 1);
    assert_eq!(peer.answer_arp(), [], "nothing but questions");
}

#[test]
fn pings_are_rate_limited_and_pings_to_everybody_ignored() {
    let mut peer = peer();
    let echo = Echo {
        ident: 7,
        seq: 9,
        data: b"x",
    };
    let mut message = vec![0; echo.message_len()];
    echo.emit_v4(EchoKind::Request, &mut message);
    let broadcast = ip_frame(
        &IpRepr::v4(v4(Side::A), Ipv4Addr::new(10, 77, 0, 255)),
        protocol::ICMP,
        &message,
    );
    dropped(&mut peer, &broadcast, "icmp_ignored");
    let single = ip_frame(
        &IpRepr::v4(v4(Side::A), v4(Side::B)),
        protocol::ICMP,
        &message,
    );
    let answered = (0..500).filter(|_| {
        peer.send(&single);
        peer.receive().is_some()
    });
    let answered = answered.count();
    assert!((50..70).contains(&answered), "{answered} of 500 at once");
    assert!(drops(&peer.stack)["icmp_rate_limited"] > 400);
}

/// Sends echo requests until no more are answered.
fn flood(peer: &mut RawPeer) {
    let echo = Echo {
        ident: 7,
        seq: 9,
        data: b"x",
    };
    let mut message = vec![0; echo.message_len()];
    echo.emit_v4(EchoKind::Request, &mut message);
    for _ in 0..500 {
        peer.send_ip(
            &IpRepr::v4(v4(Side::A), v4(Side::B)),
            protocol::ICMP,
            &message,
        );
    }
    assert!(drops(&peer.stack)["icmp_rate_limited"] > 0);
    peer.forget();
}

#[test]
fn a_flood_of_pings_stops_neither_neighbour_discovery_nor_icmp_errors() {
    let mut peer = peer();
    flood(&mut peer);
    let ip = IpRepr::v4(v4(Side::A), v4(Side::B));
    let about_nobody = ip_frame(&ip, protocol::ICMP, &icmp_error(3, 1, 0, 1));
    dropped(&mut peer, &about_nobody, "icmp_no_connection");
    let asked = wire::NeighborSolicitation {
        target: v6(Side::B),
        source_mac: Some(Side::A.mac()),
    };
    let mut frame = vec![0; 128];
    let (from, to) = (Side::A.mac(), Side::B.mac());
    let len = asked.emit_frame(from, to, v6(Side::A), v6(Side::B), &mut frame);
    peer.send(&frame[..len]);
    let answer = parse(&peer.receive().expect("an advertisement"));
    assert_eq!(answer.dst_ip(), Some(Side::A.ipv6()));
}

#[test]
fn icmp_with_a_wrong_checksum_is_dropped() {
    let mut peer = peer();
    let mut message = vec![8, 0, 1, 2, 0, 0, 0, 0];
    dropped(
        &mut peer,
        &ip_frame(
            &IpRepr::v4(v4(Side::A), v4(Side::B)),
            protocol::ICMP,
            &message,
        ),
        "icmp_invalid",
    );
    message[0] = 128;
    dropped(
        &mut peer,
        &ip_frame(
            &IpRepr::v6(v6(Side::A), v6(Side::B)),
            protocol::ICMPV6,
            &message,
        ),
        "icmp_invalid",
    );
    dropped(
        &mut peer,
        &ip_frame(&IpRepr::v4(v4(Side::A), v4(Side::B)), protocol::ICMP, &[8]),
        "icmp_invalid",
    );
}

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

/// Returns an ICMPv4 error of this type and code that quotes a TCP packet of the stack with this sequence number.
fn icmp_error(kind: u8, code: u8, mtu: u16, seq: u32) -> Vec<u8> {
    let mut quoted = vec![0; 28];
    let ip = IpRepr::v4(v4(Side::B), v4(Side::A));
    ip.emit(protocol::TCP, 1460, &mut quoted);
    quoted[20..22].copy_from_slice(&PORT.to_be_bytes());
    quoted[22..24].copy_from_slice(&PEER_PORT.to_be_bytes());
    quoted[24..28].copy_from_slice(&seq.to_be_bytes());
    let mut message = vec![kind, code, 0, 0, 0, 0];
    message.extend(mtu.to_be_bytes());
    message.extend(quoted);
    let sum = checksum(&message);
    message[2..4].copy_from_slice(&sum.to_be_bytes());
    message
}

#[test]
fn a_path_mtu_is_learnt_if_the_quoted_segment_is_under_way_and_not_otherwise() {
    let mut peer = peer();
    let (id, seq, _) = open(&mut peer);
    let mss = |peer: &RawPeer| peer.stack.info(id).unwrap().unwrap().snd_mss;
    let before = mss(&peer);
    peer.stack
        .sendmsg(id, &SendMsg::new(&[1; 5000]), MsgFlags::empty())
        .unwrap();
    peer.poll();
    let ip = IpRepr::v4(Ipv4Addr::new(10, 77, 0, 1), v4(Side::B));
    for forged in [seq.wrapping_sub(1), seq + 5001, seq.wrapping_add(1 << 31)] {
        peer.send_ip(&ip, protocol::ICMP, &icmp_error(3, 4, 1000, forged));
        assert_eq!(mss(&peer), before);
    }
    assert_eq!(drops(&peer.stack)["icmp_no_connection"], 3);
    peer.send_ip(&ip, protocol::ICMP, &icmp_error(3, 4, 1000, seq));
    assert_eq!(mss(&peer), 960.min(before));
    peer.forget();
    // The bytes are sent again in smaller segments.
    peer.run_for(Duration::from_secs(2));
    let (headers, payload) = peer.receive_tcp().unwrap();
    assert!(
        headers.tcp().unwrap().seq == seq && payload.len() <= 960,
        "{} bytes",
        payload.len()
    );
    peer.stack.abort(id).unwrap();
}

#[test]
fn port_unreachable_ends_an_attempt_to_connect_but_not_a_connection() {
    let mut peer = peer();
    let ip = IpRepr::v4(v4(Side::A), v4(Side::B));
    let (id, seq, _) = open(&mut peer);
    peer.stack
        .sendmsg(id, &SendMsg::new(b"x"), MsgFlags::empty())
        .unwrap();
    peer.poll();
    peer.send_ip(&ip, protocol::ICMP, &icmp_error(3, 3, 0, seq));
    assert_eq!(peer.stack.take_error(id), Ok(None));
    peer.stack.abort(id).unwrap();
    peer.poll();
    peer.forget();

    let now = peer.now();
    let id = peer
        .stack
        .connect(SocketAddr::new(Side::A.ipv4(), 80), now)
        .unwrap();
    peer.poll();
    let (headers, _) = peer.receive_tcp().unwrap();
    let syn = headers.tcp().unwrap();
    let mut message = icmp_error(3, 3, 0, syn.seq);
    message[28..30].copy_from_slice(&syn.src_port.to_be_bytes());
    message[30..32].copy_from_slice(&80_u16.to_be_bytes());
    message[2..4].copy_from_slice(&[0, 0]);
    let sum = checksum(&message);
    message[2..4].copy_from_slice(&sum.to_be_bytes());
    peer.send_ip(&ip, protocol::ICMP, &message);
    assert_eq!(peer.stack.take_error(id), Ok(Some(tcp::TcpError::Refused)));
}

#[test]
fn an_icmp_error_without_a_connection_is_counted() {
    let mut peer = peer();
    let ip = IpRepr::v4(v4(Side::A), v4(Side::B));
    let frame = ip_frame(&ip, protocol::ICMP, &icmp_error(3, 1, 0, 1));
    dropped(&mut peer, &frame, "icmp_no_connection");
    let mut quenched = icmp_error(4, 0, 0, 1);
    quenched[0] = 4;
    dropped(
        &mut peer,
        &ip_frame(&ip, protocol::ICMP, &quenched),
        "icmp_ignored",
    );
}

#[test]
fn a_neighbour_that_moves_is_followed() {
    let mut peer = peer();
    let (id, ..) = open(&mut peer);
    let moved = MacAddr([2, 0, 0, 0, 0, 0x77]);
    let gratuitous = ArpPacket::request(moved, v4(Side::A), v4(Side::A));
    peer.send(&arp_frame(&gratuitous, MacAddr::BROADCAST));
    peer.stack
        .sendmsg(id, &SendMsg::new(b"x"), MsgFlags::empty())
        .unwrap();
    peer.poll();
    let frame = peer.receive().unwrap();
    assert_eq!(parse(&frame).ethernet.dst, moved);
    peer.stack.abort(id).unwrap();
}

#[test]
fn packets_to_other_networks_go_to_the_gateway() {
    let mut peer = RawPeer::with(|_, config| config.gateways = vec![Side::A.ipv4()]);
    peer.introduce();
    let now = peer.now();
    let id = peer
        .stack
        .connect("198.51.100.7:80".parse().unwrap(), now)
        .unwrap();
    peer.poll();
    let (headers, _) = peer.receive_tcp().unwrap();
    assert_eq!(headers.ethernet.dst, Side::A.mac());
    assert_eq!(headers.dst_ip(), Some("198.51.100.7".parse().unwrap()));
    peer.stack.close(id).unwrap();
}

#[test]
fn a_neighbour_solicitation_is_answered_with_our_mac() {
    let mut peer = RawPeer::new();
    peer.poll();
    peer.forget();
    let asked = wire::NeighborSolicitation {
        target: v6(Side::B),
        source_mac: Some(Side::A.mac()),
    };
    let group = wire::solicited_node(v6(Side::B));
    let mut frame = vec![0; 128];
    let to = MacAddr::for_ipv6_multicast(group);
    let len = asked.emit_frame(Side::A.mac(), to, v6(Side::A), group, &mut frame);
    peer.send(&frame[..len]);
    let answer = peer.receive().unwrap();
    let headers = parse(&answer);
    let Network::Ipv6(ip) = headers.network else {
        panic!("{headers:?}")
    };
    match wire::Icmp::parse_v6(&ip, &answer[headers.header_len..]).unwrap() {
        wire::Icmp::NeighborAdvertisement(told) => {
            assert_eq!(
                (told.target, told.target_mac),
                (v6(Side::B), Some(Side::B.mac()))
            );
            assert!(told.solicited && told.overrides && !told.router);
        }
        other => panic!("{other:?}"),
    }
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
