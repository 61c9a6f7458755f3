//! ARP and neighbour discovery.

use super::*;

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
