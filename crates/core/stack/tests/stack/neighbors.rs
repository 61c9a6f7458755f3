//! ARP and neighbour discovery against hand-written frames: which claims change the neighbour table.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use netsim::{RawPeer, RawSegment, Side, ip_frame};
use wire::{
    ArpOperation, ArpPacket, Checksum, EtherType, EthernetHeader, IpRepr, MacAddr,
    NeighborAdvertisement, NeighborSolicitation, RxHeaders, TcpFlags, emit_arp_frame, protocol,
    solicited_node,
};

use crate::network::{v4, v6};
use crate::scenarios::common::PORT;

const OTHER: MacAddr = MacAddr([2, 0, 0, 0, 0, 0x77]);
const ZERO: MacAddr = MacAddr([0; 6]);
/// The hardware address of an IPv6 multicast group.
const GROUP: MacAddr = MacAddr([0x33, 0x33, 0, 0, 0, 1]);

/// A stack with an empty neighbour table.
fn stranger() -> RawPeer {
    let mut peer = RawPeer::new();
    peer.poll();
    peer.forget();
    peer
}

/// A stack with a reachable entry for side A.
fn confirmed() -> RawPeer {
    let mut peer = stranger();
    peer.introduce();
    let reply = ArpPacket {
        op: ArpOperation::REPLY,
        target_mac: Side::B.mac(),
        ..ArpPacket::request(Side::A.mac(), v4(Side::A), v4(Side::B))
    };
    peer.send(&arp(&reply, Side::B.mac()));
    peer.send(&advertisement(&told(Side::A.mac()), v6(Side::B)));
    peer.run_for(Duration::from_secs(2));
    assert_eq!(goes_to(&mut peer, Side::A.ipv4()), Some(Side::A.mac()));
    assert_eq!(goes_to(&mut peer, Side::A.ipv6()), Some(Side::A.mac()));
    assert_eq!(asked(&mut peer), 0, "it is confirmed");
    peer
}

fn arp(packet: &ArpPacket, dst: MacAddr) -> Vec<u8> {
    let ethernet = EthernetHeader {
        dst,
        src: packet.sender_mac,
        ethertype: EtherType::ARP,
        vlan: None,
    };
    let mut frame = vec![0; 60];
    emit_arp_frame(&ethernet, packet, &mut frame);
    frame
}

/// A's reply to a solicitation.
fn told(mac: MacAddr) -> NeighborAdvertisement {
    NeighborAdvertisement {
        target: v6(Side::A),
        target_mac: Some(mac),
        router: false,
        solicited: true,
        overrides: true,
    }
}

fn advertisement(told: &NeighborAdvertisement, to: Ipv6Addr) -> Vec<u8> {
    let mut frame = vec![0; 128];
    let (from_mac, to_mac) = (Side::A.mac(), Side::B.mac());
    let len = told.emit_frame(from_mac, to_mac, v6(Side::A), to, &mut frame);
    frame.truncate(len);
    frame
}

fn solicitation(source_mac: Option<MacAddr>, from: Ipv6Addr, to: Ipv6Addr) -> Vec<u8> {
    let asked = NeighborSolicitation {
        target: v6(Side::B),
        source_mac,
    };
    let mut frame = vec![0; 128];
    let len = asked.emit_frame(Side::A.mac(), Side::B.mac(), from, to, &mut frame);
    frame.truncate(len);
    frame
}

/// Changes the ICMPv6 message of a frame, and corrects length and checksum.
fn edited(mut frame: Vec<u8>, edit: impl FnOnce(&mut Vec<u8>)) -> Vec<u8> {
    let mut message = frame.split_off(54);
    edit(&mut message);
    message[2..4].fill(0);
    let address = |at: usize| Ipv6Addr::from(<[u8; 16]>::try_from(&frame[at..at + 16]).unwrap());
    let len = message.len();
    let mut sum = Checksum::pseudo_v6(address(22), address(38), protocol::ICMPV6, len as u32);
    sum.add_bytes(&message);
    message[2..4].copy_from_slice(&sum.finish().to_be_bytes());
    frame[18..20].copy_from_slice(&(len as u16).to_be_bytes());
    frame.extend(message);
    frame
}

fn count(peer: &RawPeer, reason: &str) -> u64 {
    let mut drops = peer.stack.drops();
    drops.find(|&(name, _)| name == reason).unwrap().1
}

/// Sends a frame that must be counted under `reason`, get no reply, and change nothing.
fn refused(peer: &mut RawPeer, frame: &[u8], reason: &str) {
    peer.forget();
    let before = (count(peer, reason), peer.stack.stats().neighbors);
    peer.send(frame);
    let after = (count(peer, reason), peer.stack.stats().neighbors);
    assert_eq!(after, (before.0 + 1, before.1), "{reason}");
    assert_eq!(peer.receive(), None, "{reason}");
}

/// Returns the hardware address that a reply to `ip` is sent to; `None` if the stack resolves it first.
fn goes_to(peer: &mut RawPeer, ip: IpAddr) -> Option<MacAddr> {
    let ours = match ip {
        IpAddr::V4(_) => Side::B.ipv4(),
        IpAddr::V6(_) => Side::B.ipv6(),
    };
    peer.forget();
    let syn = RawSegment {
        flags: TcpFlags::SYN,
        ..RawSegment::default()
    };
    peer.send_tcp(SocketAddr::new(ip, 4000), SocketAddr::new(ours, PORT), &syn);
    let (headers, _) = peer.receive_tcp()?;
    Some(headers.ethernet.dst)
}

/// Returns how many requests the stack has sent, and drops all frames that it has sent.
fn asked(peer: &mut RawPeer) -> usize {
    let frames = std::iter::from_fn(|| peer.receive());
    let questions = frames.filter(|frame| {
        let headers = RxHeaders::parse(frame, frame.len()).unwrap();
        headers.network == wire::Network::Arp || frame[20] == protocol::ICMPV6 && frame[54] == 135
    });
    questions.count()
}

#[test]
fn arp_from_a_broadcast_multicast_zero_or_our_own_hardware_address_is_refused() {
    let mut peer = stranger();
    for mac in [MacAddr::BROADCAST, GROUP, ZERO, Side::B.mac()] {
        for op in [ArpOperation::REQUEST, ArpOperation::REPLY] {
            let packet = ArpPacket {
                op,
                ..ArpPacket::request(mac, v4(Side::A), v4(Side::B))
            };
            refused(&mut peer, &arp(&packet, Side::B.mac()), "arp_invalid");
        }
    }
}

#[test]
fn arp_of_another_operation_or_about_a_group_is_refused() {
    let mut peer = stranger();
    let good = ArpPacket::request(Side::A.mac(), v4(Side::A), v4(Side::B));
    for op in [0, 3, 8, 0x0100] {
        let packet = ArpPacket {
            op: ArpOperation(op),
            ..good
        };
        refused(&mut peer, &arp(&packet, Side::B.mac()), "arp_invalid");
    }
    for target_ip in [[224, 0, 0, 1], [127, 0, 0, 1]] {
        let target_ip = target_ip.into();
        let packet = ArpPacket { target_ip, ..good };
        refused(&mut peer, &arp(&packet, Side::B.mac()), "arp_invalid");
    }
    let reply_from_nobody = ArpPacket {
        op: ArpOperation::REPLY,
        sender_ip: Ipv4Addr::UNSPECIFIED,
        ..good
    };
    let frame = arp(&reply_from_nobody, Side::B.mac());
    refused(&mut peer, &frame, "arp_invalid");
}

#[test]
fn arp_that_claims_our_address_is_a_conflict_and_changes_no_neighbour() {
    let mut peer = confirmed();
    for op in [ArpOperation::REQUEST, ArpOperation::REPLY] {
        for target_ip in [v4(Side::A), v4(Side::B)] {
            let packet = ArpPacket {
                op,
                target_mac: OTHER,
                ..ArpPacket::request(OTHER, v4(Side::B), target_ip)
            };
            peer.forget();
            let before = (
                count(&peer, "address_conflict"),
                peer.stack.stats().neighbors,
            );
            peer.send(&arp(&packet, MacAddr::BROADCAST));
            let after = (
                count(&peer, "address_conflict"),
                peer.stack.stats().neighbors,
            );
            assert_eq!(after, (before.0 + 1, before.1));
            let frame = peer.receive().expect("it is defended");
            let announced = ArpPacket::request(Side::B.mac(), v4(Side::B), v4(Side::B));
            assert_eq!(ArpPacket::parse(&frame[14..]), Ok(announced));
            peer.run_for(stack::DEFEND_INTERVAL);
        }
    }
    let request = ArpPacket::request(Side::A.mac(), v4(Side::A), v4(Side::B));
    peer.send(&arp(&request, MacAddr::BROADCAST));
    let frame = peer.receive().unwrap();
    let reply = ArpPacket::parse(&frame[14..]).unwrap();
    assert_eq!(reply, request.reply(Side::B.mac()), "our own entry stays");
}

#[test]
fn an_arp_reply_by_broadcast_confirms_nothing() {
    let mut peer = stranger();
    peer.introduce();
    let reply = ArpPacket {
        op: ArpOperation::REPLY,
        target_mac: Side::B.mac(),
        ..ArpPacket::request(Side::A.mac(), v4(Side::A), v4(Side::B))
    };
    peer.send(&arp(&reply, MacAddr::BROADCAST));
    peer.run_for(Duration::from_secs(1));
    assert_eq!(goes_to(&mut peer, Side::A.ipv4()), Some(Side::A.mac()));
    assert_eq!(asked(&mut peer), 1, "it is used and asked about");
}

#[test]
fn gratuitous_arp_moves_a_confirmed_entry_which_is_asked_about_before_it_is_trusted() {
    let mut peer = confirmed();
    let announced = ArpPacket::request(OTHER, v4(Side::A), v4(Side::A));
    peer.send(&arp(&announced, MacAddr::BROADCAST));
    peer.run_for(Duration::from_millis(1));
    assert_eq!(goes_to(&mut peer, Side::A.ipv4()), Some(OTHER));
    assert_eq!(asked(&mut peer), 1);
}

#[test]
fn a_second_arp_reply_within_a_second_does_not_replace_the_first() {
    let mut peer = stranger();
    assert_eq!(goes_to(&mut peer, Side::A.ipv4()), None);
    let reply = |mac| {
        let packet = ArpPacket {
            op: ArpOperation::REPLY,
            target_mac: Side::B.mac(),
            ..ArpPacket::request(mac, v4(Side::A), v4(Side::B))
        };
        arp(&packet, Side::B.mac())
    };
    peer.send(&reply(Side::A.mac()));
    refused(&mut peer, &reply(OTHER), "neighbor_claim_refused");
    // Nor does a reply that is not gratuitous: a gratuitous one has the same sender and target.
    let pretender = ArpPacket {
        op: ArpOperation::REPLY,
        target_mac: MacAddr::BROADCAST,
        ..ArpPacket::request(OTHER, v4(Side::A), v4(Side::A))
    };
    let frame = arp(&pretender, MacAddr::BROADCAST);
    refused(&mut peer, &frame, "neighbor_claim_refused");
    assert_eq!(goes_to(&mut peer, Side::A.ipv4()), Some(Side::A.mac()));
    peer.run_for(Duration::from_millis(1001));
    peer.send(&reply(OTHER));
    assert_eq!(goes_to(&mut peer, Side::A.ipv4()), Some(OTHER));
}

#[test]
fn a_link_layer_option_with_a_broadcast_multicast_zero_or_our_own_address_is_refused() {
    let mut peer = stranger();
    for mac in [MacAddr::BROADCAST, GROUP, ZERO, Side::B.mac()] {
        let asked = solicitation(Some(mac), v6(Side::A), v6(Side::B));
        refused(&mut peer, &asked, "icmp_invalid");
        let told = advertisement(&told(mac), v6(Side::B));
        refused(&mut peer, &told, "icmp_invalid");
    }
    // Nor does it resolve a neighbour.
    assert_eq!(goes_to(&mut peer, Side::A.ipv6()), None);
    for mac in [MacAddr::BROADCAST, GROUP, ZERO, Side::B.mac()] {
        let told = advertisement(&told(mac), v6(Side::B));
        refused(&mut peer, &told, "icmp_invalid");
    }
    assert_eq!(peer.stack.stats().neighbors_asked, 1);
}

#[test]
fn a_solicitation_without_an_option_from_an_invalid_mac_is_refused() {
    let mut peer = stranger();
    for mac in [MacAddr::BROADCAST, GROUP, ZERO] {
        let mut frame = solicitation(None, v6(Side::A), v6(Side::B));
        frame[6..12].copy_from_slice(&mac.0);
        refused(&mut peer, &frame, "icmp_invalid");
    }
}

#[test]
fn a_solicitation_without_an_option_is_answered_and_teaches_nothing() {
    let mut peer = stranger();
    peer.send(&solicitation(None, v6(Side::A), v6(Side::B)));
    let answer = peer.receive().expect("an advertisement");
    assert_eq!((&answer[..6], answer[54]), (&Side::A.mac().0[..], 136));
    assert_eq!(peer.stack.stats().neighbors, 0);
}

#[test]
fn neighbour_discovery_through_a_router_with_a_code_or_cut_short_is_refused() {
    let mut peer = stranger();
    let solicitation = solicitation(Some(Side::A.mac()), v6(Side::A), v6(Side::B));
    let advertisement = advertisement(&told(Side::A.mac()), v6(Side::B));
    for good in [solicitation, advertisement] {
        let mut routed = good.clone();
        routed[21] = 254;
        let bad = [
            routed,
            edited(good.clone(), |message| message[1] = 1),
            edited(good.clone(), |message| message.truncate(23)),
            // Options of length 0, longer than the message, and of a length that is not that of an Ethernet address.
            edited(good.clone(), |message| message[25] = 0),
            edited(good.clone(), |message| message[25] = 2),
            edited(good.clone(), |message| {
                message[25] = 2;
                message.extend([0; 8]);
            }),
            edited(good.clone(), |message| message.truncate(28)),
            // A multicast target.
            edited(good.clone(), |message| message[8] = 0xff),
        ];
        for frame in bad {
            refused(&mut peer, &frame, "icmp_invalid");
        }
    }
}

#[test]
fn duplicate_address_detection_names_no_source_and_goes_to_the_solicited_node_group() {
    let mut peer = stranger();
    let nobody = Ipv6Addr::UNSPECIFIED;
    let group = solicited_node(v6(Side::B));
    let all_nodes = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1);
    for (source_mac, to) in [
        (Some(Side::A.mac()), group),
        (None, v6(Side::B)),
        (None, all_nodes),
    ] {
        let frame = solicitation(source_mac, nobody, to);
        refused(&mut peer, &frame, "icmp_invalid");
    }
    peer.send(&solicitation(None, nobody, group));
    let answer = peer.receive().expect("an advertisement");
    let all_nodes = MacAddr::for_ipv6_multicast(all_nodes);
    assert_eq!((&answer[..6], answer[54]), (&all_nodes.0[..], 136));
    assert_eq!(peer.stack.stats().neighbors, 0);
}

#[test]
fn a_solicited_advertisement_to_a_group_is_refused() {
    let mut peer = stranger();
    let all_nodes = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1);
    let frame = advertisement(&told(OTHER), all_nodes);
    refused(&mut peer, &frame, "icmp_invalid");
}

#[test]
fn an_advertisement_of_our_address_is_a_conflict_and_is_defended() {
    let mut peer = confirmed();
    let target = v6(Side::B);
    let ours = |mac| NeighborAdvertisement {
        target,
        ..told(mac)
    };
    peer.forget();
    peer.send(&advertisement(&ours(OTHER), target));
    assert_eq!(count(&peer, "address_conflict"), 1);
    let defended = peer.receive().expect("an advertisement");
    assert_eq!(
        (&defended[62..78], defended[54]),
        (&target.octets()[..], 136)
    );
    // An advertisement of the stack that the link returns is no conflict.
    let frame = advertisement(&ours(Side::B.mac()), target);
    refused(&mut peer, &frame, "icmp_invalid");
    peer.send(&solicitation(Some(Side::A.mac()), v6(Side::A), target));
    let answer = peer.receive().expect("an advertisement");
    assert_eq!(&answer[80..86], &Side::B.mac().0);
}

#[test]
fn an_advertisement_without_override_does_not_replace_a_confirmed_entry_nor_confirm_it() {
    let mut peer = confirmed();
    let weak = NeighborAdvertisement {
        overrides: false,
        ..told(OTHER)
    };
    let frame = advertisement(&weak, v6(Side::B));
    refused(&mut peer, &frame, "neighbor_claim_refused");
    peer.run_for(Duration::from_millis(1));
    assert_eq!(goes_to(&mut peer, Side::A.ipv6()), Some(Side::A.mac()));
    assert_eq!(asked(&mut peer), 1, "it is asked about");
}

#[test]
fn a_router_solicitation_makes_no_entry() {
    let mut peer = stranger();
    let ip = IpRepr::v6(v6(Side::A), v6(Side::B));
    let mut message = vec![133, 0, 0, 0, 0, 0, 0, 0, 1, 1];
    message.extend(Side::A.mac().0);
    let frame = ip_frame(&ip, protocol::ICMPV6, &message);
    let frame = edited(frame, |_| {});
    refused(&mut peer, &frame, "icmp_ignored");
}
