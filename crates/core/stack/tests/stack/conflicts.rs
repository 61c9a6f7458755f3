//! Stations that have the addresses of a stack: asked about before use, defended against afterwards.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use netsim::{RawPeer, RawSegment, Side};
use nic::{Nic, NicConfig, WireLink, WireOptions};
use stack::{
    AcceptError, AddressCheck, AddressConflict, ConflictOutcome, LeasedAddress, PROBE_WAIT, PROBES,
    Secret, Stack, StackConfig, StackError,
};
use tcp::TcpError;
use wire::{
    ArpOperation, ArpPacket, EtherType, EthernetHeader, Instant, MacAddr, NeighborAdvertisement,
    NeighborSolicitation, RxHeaders, TcpFlags, emit_arp_frame, protocol, solicited_node,
};

use crate::network::{v4, v6};
use crate::scenarios::common::PORT;

/// The station that has our address.
const OTHER: MacAddr = MacAddr([2, 0, 0, 0, 0, 0x77]);

const ALL_NODES: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1);

/// Time until an address is used.
const ASKING: Duration = PROBE_WAIT.saturating_mul(PROBES as u32);

fn peer(check: AddressCheck) -> RawPeer {
    RawPeer::with(|_, config| config.address_check = check)
}

fn arp(packet: &ArpPacket) -> Vec<u8> {
    let ethernet = EthernetHeader {
        dst: MacAddr::BROADCAST,
        src: packet.sender_mac,
        ethertype: EtherType::ARP,
        vlan: None,
    };
    let mut frame = vec![0; 60];
    emit_arp_frame(&ethernet, packet, &mut frame);
    frame
}

/// Another station announces, or defends, `ip`.
fn claim(ip: IpAddr) -> Vec<u8> {
    match ip {
        IpAddr::V4(ip) => arp(&ArpPacket::request(OTHER, ip, ip)),
        IpAddr::V6(target) => {
            let told = NeighborAdvertisement {
                target,
                target_mac: Some(OTHER),
                router: false,
                solicited: false,
                overrides: true,
            };
            let mut frame = vec![0; 128];
            let to = MacAddr::for_ipv6_multicast(ALL_NODES);
            let len = told.emit_frame(OTHER, to, target, ALL_NODES, &mut frame);
            frame.truncate(len);
            frame
        }
    }
}

/// Another station asks whether somebody has `ip`.
fn question(ip: IpAddr) -> Vec<u8> {
    match ip {
        IpAddr::V4(ip) => arp(&ArpPacket::request(OTHER, Ipv4Addr::UNSPECIFIED, ip)),
        IpAddr::V6(target) => {
            let asked = NeighborSolicitation {
                target,
                source_mac: None,
            };
            let group = solicited_node(target);
            let to = MacAddr::for_ipv6_multicast(group);
            let mut frame = vec![0; 128];
            let len = asked.emit_frame(OTHER, to, Ipv6Addr::UNSPECIFIED, group, &mut frame);
            frame.truncate(len);
            frame
        }
    }
}

/// What the frames of a stack say about an address.
#[derive(Debug, PartialEq, Eq)]
enum Message {
    Asks(IpAddr),
    Has(IpAddr),
    Other,
}

fn message(frame: &[u8]) -> Message {
    let headers = RxHeaders::parse(frame, frame.len()).unwrap();
    if let Ok(arp) = ArpPacket::parse(&frame[headers.header_len..])
        && headers.network == wire::Network::Arp
    {
        return match arp.sender_ip.is_unspecified() {
            true => Message::Asks(arp.target_ip.into()),
            false => Message::Has(arp.sender_ip.into()),
        };
    }
    if frame[20] != protocol::ICMPV6 {
        return Message::Other;
    }
    let target = Ipv6Addr::from(<[u8; 16]>::try_from(&frame[62..78]).unwrap());
    match (frame[54], headers.src_ip()) {
        (135, Some(source)) if source.is_unspecified() => Message::Asks(target.into()),
        (136, _) => Message::Has(target.into()),
        _ => Message::Other,
    }
}

/// Returns what the stack has said of `ip` since the last call.
fn heard(peer: &mut RawPeer, ip: IpAddr) -> Vec<Message> {
    let frames = std::iter::from_fn(|| peer.receive());
    let about = |it: &Message| *it == Message::Asks(ip) || *it == Message::Has(ip);
    frames.map(|frame| message(&frame)).filter(about).collect()
}

fn conflicts(stack: &Stack) -> Vec<AddressConflict> {
    stack.address_conflicts().since(0)
}

fn conflict(ip: IpAddr, outcome: ConflictOutcome) -> AddressConflict {
    AddressConflict {
        ip,
        by: OTHER,
        outcome,
    }
}

fn count(stack: &Stack, reason: &str) -> u64 {
    let found = stack.drops().find(|&(name, _)| name == reason);
    found.expect("a reason").1
}

fn has(peer: &RawPeer, ip: IpAddr) -> bool {
    peer.stack.addresses().any(|ours| ours == ip)
}

#[test]
fn an_address_is_used_when_nobody_has_answered_three_questions() {
    let mut peer = peer(AddressCheck::AskFirst);
    let ips = [Side::B.ipv4(), Side::B.ipv6()];
    peer.poll();
    assert!(peer.stack.is_checking_addresses());
    // Nothing is at the address yet.
    let resolve = arp(&ArpPacket::request(Side::A.mac(), v4(Side::A), v4(Side::B)));
    peer.send(&resolve);
    let syn = RawSegment {
        flags: TcpFlags::SYN,
        ..RawSegment::default()
    };
    let to = SocketAddr::new(Side::B.ipv4(), PORT);
    peer.send_tcp(SocketAddr::new(Side::A.ipv4(), 9), to, &syn);
    assert_eq!(count(&peer.stack, "ip_not_for_us"), 1);
    peer.run_for(ASKING - Duration::from_millis(1));
    let frames: Vec<_> = std::iter::from_fn(|| peer.receive()).collect();
    for ip in ips {
        let about = frames.iter().map(|frame| message(frame));
        let about: Vec<_> = about
            .filter(|it| *it == Message::Asks(ip) || *it == Message::Has(ip))
            .collect();
        assert_eq!(
            about,
            [Message::Asks(ip), Message::Asks(ip), Message::Asks(ip)]
        );
        assert!(!has(&peer, ip));
    }
    assert!(peer.stack.is_checking_addresses());
    peer.run_for(Duration::from_millis(2));
    assert!(!peer.stack.is_checking_addresses());
    assert!(ips.iter().all(|ip| has(&peer, *ip)));
    let frames: Vec<_> = std::iter::from_fn(|| peer.receive()).collect();
    // With the link-local address.
    assert_eq!(frames.len(), 3, "each is announced");
    peer.send(&resolve);
    assert_eq!(
        heard(&mut peer, ips[0]),
        [Message::Has(ips[0])],
        "it is used"
    );
    peer.run_for(Duration::from_secs(60));
    for ip in ips {
        assert!(has(&peer, ip));
    }
    assert_eq!(conflicts(&peer.stack), []);
}

#[test]
fn an_address_of_another_station_is_not_used_and_the_station_is_named() {
    for ip in [Side::B.ipv4(), Side::B.ipv6()] {
        let other = match ip {
            IpAddr::V4(_) => Side::B.ipv6(),
            IpAddr::V6(_) => Side::B.ipv4(),
        };
        let mut peer = peer(AddressCheck::AskFirst);
        peer.poll();
        peer.run_for(ASKING - Duration::from_millis(1));
        peer.send(&claim(ip));
        assert_eq!(
            conflicts(&peer.stack),
            [conflict(ip, ConflictOutcome::NotUsed)]
        );
        assert_eq!(count(&peer.stack, "address_conflict"), 1);
        peer.forget();
        peer.run_for(Duration::from_secs(60));
        assert!(!has(&peer, ip) && has(&peer, other));
        assert_eq!(heard(&mut peer, ip), []);
        assert!(!peer.stack.is_checking_addresses());
    }
}

#[test]
fn an_answer_to_the_question_that_is_sent_to_this_station_alone_is_a_conflict_too() {
    let mut peer = peer(AddressCheck::AskFirst);
    peer.poll();
    // As Linux answers a probe.
    let reply = ArpPacket {
        op: ArpOperation::REPLY,
        target_mac: Side::B.mac(),
        ..ArpPacket::request(OTHER, v4(Side::B), Ipv4Addr::UNSPECIFIED)
    };
    let mut frame = arp(&reply);
    frame[..6].copy_from_slice(&Side::B.mac().0);
    peer.send(&frame);
    let expected = conflict(Side::B.ipv4(), ConflictOutcome::NotUsed);
    assert_eq!(conflicts(&peer.stack), [expected]);
}

#[test]
fn of_two_stations_that_ask_at_the_same_time_neither_uses_the_address() {
    for ip in [Side::B.ipv4(), Side::B.ipv6()] {
        let mut peer = peer(AddressCheck::AskFirst);
        peer.poll();
        peer.send(&question(ip));
        let expected = conflict(ip, ConflictOutcome::NotUsed);
        assert_eq!(conflicts(&peer.stack), [expected]);
        peer.run_for(Duration::from_secs(1));
        assert!(!has(&peer, ip));
    }
}

#[test]
fn our_own_frames_that_a_link_returns_are_no_conflict() {
    let mut peer = peer(AddressCheck::AskFirst);
    peer.poll();
    for _ in 0..5 {
        let sent: Vec<_> = std::iter::from_fn(|| peer.receive()).collect();
        for frame in sent {
            peer.send(&frame);
        }
        peer.run_for(PROBE_WAIT);
    }
    assert!(has(&peer, Side::B.ipv4()) && has(&peer, Side::B.ipv6()));
    assert_eq!(conflicts(&peer.stack), []);
    assert_eq!(count(&peer.stack, "address_conflict"), 0);
}

#[test]
fn an_address_in_use_is_defended_once_and_then_given_up_with_its_sockets() {
    for ip in [Side::B.ipv4(), Side::B.ipv6()] {
        let mut peer = peer(AddressCheck::Announce);
        peer.introduce();
        let local = SocketAddr::new(ip, PORT);
        let listener = peer.stack.listen(local, 4).unwrap();
        let any = SocketAddr::new(Ipv6Addr::UNSPECIFIED.into(), PORT + 1);
        let anywhere = peer.stack.listen(any, 4).unwrap();
        let from = match ip {
            IpAddr::V4(_) => Side::A.ipv4(),
            IpAddr::V6(_) => Side::A.ipv6(),
        };
        let now = peer.now();
        let remote = SocketAddr::new(from, 9);
        let opening = peer.stack.connect(remote, now).unwrap();
        peer.poll();
        peer.forget();

        peer.send(&claim(ip));
        assert_eq!(heard(&mut peer, ip), [Message::Has(ip)], "it is defended");
        assert_eq!(peer.stack.take_error(opening), Ok(None));
        peer.send(&question(ip));
        assert_eq!(
            heard(&mut peer, ip),
            [Message::Has(ip)],
            "who asks is answered"
        );

        peer.run_for(Duration::from_secs(5));
        peer.forget();
        peer.send(&claim(ip));
        assert!(!has(&peer, ip));
        assert_eq!(
            peer.stack.take_error(opening),
            Ok(Some(TcpError::AddressTaken))
        );
        assert_eq!(
            peer.stack.accept(listener),
            Err(AcceptError::AddressTaken),
            "a program must not wait for ever"
        );
        assert_eq!(peer.stack.accept(anywhere), Err(AcceptError::WouldBlock));
        let outcomes = [ConflictOutcome::Defended, ConflictOutcome::Lost];
        assert_eq!(
            conflicts(&peer.stack),
            outcomes.map(|outcome| conflict(ip, outcome))
        );
        assert_eq!(count(&peer.stack, "address_conflict"), 2);
        // Nothing comes from the address any more, not even a reset.
        peer.send(&question(ip));
        let syn = RawSegment {
            flags: TcpFlags::SYN,
            ..RawSegment::default()
        };
        peer.send_tcp(SocketAddr::new(from, 10), local, &syn);
        peer.run_for(Duration::from_secs(30));
        let frames = std::iter::from_fn(|| peer.receive());
        for frame in frames {
            let headers = RxHeaders::parse(&frame, frame.len()).unwrap();
            assert_ne!(headers.src_ip(), Some(ip));
            assert_ne!(message(&frame), Message::Has(ip));
        }
    }
}

#[test]
fn a_listener_on_all_addresses_ends_with_the_last_one_unless_another_may_be_leased() {
    for is_lent in [false, true] {
        let mut peer = RawPeer::with(|_, config| {
            config.addresses = vec![(Side::B.ipv4(), 24)];
            if is_lent {
                config.leased = vec![LeasedAddress::new(Side::B.ipv4(), 24)];
            }
        });
        peer.poll();
        let any = SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), PORT);
        let listener = peer.stack.listen(any, 4).unwrap();
        peer.send(&claim(Side::B.ipv4()));
        assert_eq!(peer.stack.accept(listener), Err(AcceptError::WouldBlock));
        peer.send(&claim(Side::B.ipv4()));
        let expected = match is_lent {
            true => AcceptError::WouldBlock,
            false => AcceptError::AddressTaken,
        };
        assert_eq!(peer.stack.accept(listener), Err(expected));
    }
}

#[test]
fn a_small_mtu_is_refused_for_ipv6_also_before_the_address_is_used() {
    let (near, _far) = WireLink::pair(WireOptions::default()).unwrap();
    let nic = NicConfig {
        mtu: 1279,
        ..NicConfig::default()
    };
    let nic = Nic::new(Box::new(near), nic).unwrap();
    let config = StackConfig {
        address_check: AddressCheck::AskFirst,
        ..StackConfig::new(Side::A.ipv6(), 64, Secret::from_seed(1))
    };
    assert!(matches!(
        Stack::new(nic, config),
        Err(StackError::Mtu { least: 1280, .. })
    ));
}

#[test]
fn a_flood_of_claims_is_answered_once() {
    let mut peer = peer(AddressCheck::Announce);
    peer.poll();
    peer.forget();
    let ip = Side::B.ipv4();
    for _ in 0..1000 {
        peer.send(&claim(ip));
    }
    assert_eq!(heard(&mut peer, ip), [Message::Has(ip)]);
    assert_eq!(conflicts(&peer.stack).len(), 2);
}

#[test]
fn a_packet_of_tcp_from_our_own_address_is_no_claim() {
    let mut peer = peer(AddressCheck::Announce);
    peer.introduce();
    let ours = SocketAddr::new(Side::B.ipv6(), PORT);
    peer.send_tcp(ours, ours, &RawSegment::default());
    assert_eq!(count(&peer.stack, "ip_martian_source"), 1);
    assert_eq!(conflicts(&peer.stack), []);
}

/// Two stacks with the same address on one wire.
fn twins(check: [AddressCheck; 2]) -> [Stack; 2] {
    let (near, far) = WireLink::pair(WireOptions::default()).unwrap();
    let stack = |side: Side, link: WireLink, check| {
        let nic = NicConfig {
            mac: side.mac(),
            host_mem_bytes: 4 << 20,
            ..NicConfig::default()
        };
        let nic = Nic::new(Box::new(link), nic).unwrap();
        let secret = Secret::from_seed(side as u64);
        let config = StackConfig {
            address_check: check,
            ..StackConfig::new(Side::A.ipv4(), 24, secret)
        };
        Stack::new(nic, config).unwrap()
    };
    [
        stack(Side::A, near, check[0]),
        stack(Side::B, far, check[1]),
    ]
}

fn run(stacks: &mut [Stack; 2], from: u64, until: u64) {
    for millis in (from..until).step_by(5) {
        for stack in stacks.iter_mut() {
            stack.poll(Instant::from_millis(millis));
        }
    }
}

#[test]
fn of_two_stacks_with_one_address_the_one_that_was_there_keeps_it() {
    for check in [AddressCheck::AskFirst, AddressCheck::AskMeanwhile] {
        let mut stacks = twins([AddressCheck::Announce, check]);
        run(&mut stacks, 0, 3_000);
        let [first, second] = &stacks;
        assert_eq!(first.addresses().collect::<Vec<_>>(), [Side::A.ipv4()]);
        assert_eq!(second.addresses().count(), 0, "{check:?}");
        let seen = second.address_conflicts().since(0);
        assert_eq!(seen.len(), 1);
        assert_eq!(seen[0].by, Side::A.mac());
        assert_eq!(first.address_conflicts().count(), 0);
    }
}

#[test]
fn two_stacks_that_come_at_the_same_time_with_one_address_both_go_without() {
    let mut stacks = twins([AddressCheck::AskFirst; 2]);
    run(&mut stacks, 0, 3_000);
    assert!(stacks.iter().all(|stack| stack.addresses().count() == 0));
    assert!(
        stacks
            .iter()
            .all(|stack| stack.address_conflicts().count() == 1)
    );
}

#[test]
fn a_stack_that_does_not_wait_has_its_addresses_and_asks_meanwhile() {
    let mut peer = peer(AddressCheck::AskFirst);
    peer.poll();
    peer.stack.use_addresses_now();
    assert!(!peer.stack.is_checking_addresses());
    assert!(has(&peer, Side::B.ipv4()));
    peer.run_for(PROBE_WAIT);
    peer.send(&claim(Side::B.ipv4()));
    let expected = conflict(Side::B.ipv4(), ConflictOutcome::Lost);
    assert_eq!(conflicts(&peer.stack), [expected]);
    assert!(!has(&peer, Side::B.ipv4()));
    assert_eq!(v6(Side::B), Side::B.ipv6());
}
