//! ICMP: pings, errors, path MTUs.

use super::*;

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

/// Returns an echo request to [`Side::B`].
fn ping_v6(source: Ipv6Addr) -> Vec<u8> {
    let echo = Echo {
        ident: 1,
        seq: 2,
        data: b"hello",
    };
    let mut message = vec![0; echo.message_len()];
    echo.emit_v6(EchoKind::Request, source, v6(Side::B), &mut message);
    message
}

#[test]
fn a_ping_over_ipv6_is_answered_too() {
    let mut peer = peer();
    let message = ping_v6(v6(Side::A));
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
    let nobody = Ipv6Addr::UNSPECIFIED;
    let message = ping_v6(nobody);
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
