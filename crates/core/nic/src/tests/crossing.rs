//! Frames that arrive at another shard than that of their flow.

use std::net::Ipv4Addr;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use wire::{
    ArpOperation, ArpPacket, EtherType, EthernetHeader, IpRepr, Ipv4Header, MacAddr,
    NeighborSolicitation, checksum, emit_arp_frame, emit_frame_headers, protocol,
};

use super::harness::*;
use crate::*;

/// Two shards of a NIC, each with a device queue.
fn shards() -> [Bench; 2] {
    let mut crossings = Crossing::group(2, CrossingWakeup::Eventfd).unwrap();
    let mut shard = || {
        let mut bench = Bench::with_device(NicConfig::default());
        bench.nic.join(crossings.remove(0));
        bench
    };
    [shard(), shard()]
}

/// A segment of a flow that the shard `of` has.
fn segment_of(shards: &[Bench; 2], of: usize, payload: &[u8]) -> Tcp {
    let flow = |src_port| Tcp {
        src_port,
        ..tcp(payload)
    };
    let is_its = |segment: &Tcp| {
        let headers = wire::RxHeaders::parse(&segment.frame(), segment.frame().len()).unwrap();
        let owns = [0, 1].map(|n| shards[n].nic.owns(&headers.four_tuple().unwrap()));
        assert_ne!(owns[0], owns[1], "exactly one shard has the flow");
        owns[of]
    };
    (40_000..).map(flow).find(is_its).unwrap()
}

fn is_told(shard: &Bench) -> bool {
    let crossing = shard.nic.crossing.as_ref().unwrap();
    let fd = crossing.poll_fd().unwrap();
    let now = Timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    poll(&mut [PollFd::new(&fd, PollFlags::IN)], Some(&now)).unwrap() > 0
}

fn finish(shards: [Bench; 2]) {
    shards.into_iter().for_each(Bench::finish);
}

#[test]
fn a_segment_crosses_to_the_memory_of_the_shard_of_its_flow() {
    let mut shards = shards();
    for how in [Delivery::Scatter, Delivery::Whole] {
        for len in [0, 10, 1448, 60_000] {
            let segment = segment_of(&shards, 1, &pattern(len, len));
            shards[0].link.deliver(segment.frame(), PARTIAL, how);
            assert!(shards[0].receive().is_none(), "not of this shard");
            assert!(is_told(&shards[1]));
            assert_eq!(shards[1].nic.next_due(), Some(wire::Instant::ZERO));
            let packet = shards[1].receive().expect("it crossed");
            assert_eq!((packet.origin, packet.queue), (Origin::Link, Q1));
            assert!(all_in(packet.payload.frags().unwrap(), 1));
            assert_eq!(
                shards[1].read(packet.payload.frags().unwrap()),
                segment.payload
            );
            shards[1].nic.recycle(packet.payload.into_frags());
            assert!(shards[1].receive().is_none() && !is_told(&shards[1]));
            assert_eq!(shards[1].nic.next_due(), None);
        }
    }
    let [sent, received] = [0, 1].map(|n| shards[n].nic.crossing_stats());
    assert_eq!((sent.sent, sent.received), (8, 0));
    assert_eq!((received.sent, received.received), (0, 8));
    let packets = |shard: &Bench| shard.nic.queue_stats(Q1).unwrap().packets;
    assert_eq!((packets(&shards[0]), packets(&shards[1])), (0, 8));
    finish(shards);
}

#[test]
fn a_segment_of_the_shards_own_flow_does_not_cross() {
    let mut shards = shards();
    let segment = segment_of(&shards, 0, &pattern(1, 1448));
    let packet = shards[0].pass(&segment);
    shards[0].nic.recycle(packet.payload.into_frags());
    assert!(shards[1].receive().is_none());
    assert_eq!(shards[0].nic.crossing_stats(), CrossingStats::default());
    finish(shards);
}

#[test]
fn a_wrong_checksum_is_found_by_the_shard_of_the_flow() {
    let mut shards = shards();
    let mut frame = segment_of(&shards, 1, &pattern(1, 100)).frame();
    *frame.last_mut().unwrap() ^= 1;
    shards[0].link.scatter(frame, UNVERIFIED);
    assert!(shards[0].receive().is_none() && shards[1].receive().is_none());
    let bad = |shard: &Bench| shard.dropped(DropReason::RxBadChecksum);
    assert_eq!((bad(&shards[0]), bad(&shards[1])), (0, 1));
    finish(shards);
}

#[test]
fn frames_beyond_a_full_mailbox_are_dropped_and_counted() {
    const FRAMES: u64 = 300;
    let mut shards = shards();
    let segment = segment_of(&shards, 1, b"x");
    for _ in 0..FRAMES {
        shards[0].link.scatter(segment.frame(), PARTIAL);
    }
    for _ in 0..FRAMES {
        assert!(shards[0].receive().is_none());
    }
    let mut received = 0;
    while let Some(packet) = shards[1].receive() {
        received += 1;
        shards[1].nic.recycle(packet.payload.into_frags());
    }
    assert_eq!(received, 256);
    assert_eq!(shards[0].dropped(DropReason::RxCrossingFull), FRAMES - 256);
    let gone = segment_of(&shards, 1, b"y").frame();
    let [mut first, second] = shards;
    second.finish();
    first.link.scatter(gone, PARTIAL);
    assert!(first.receive().is_none());
    assert_eq!(first.dropped(DropReason::RxCrossingFull), FRAMES - 255);
    first.finish();
}

#[test]
fn the_link_and_the_mailbox_are_read_in_turn() {
    let mut shards = shards();
    let frame = segment_of(&shards, 0, b"x").frame();
    for _ in 0..4 {
        shards[1].link.scatter(frame.clone(), PARTIAL);
        shards[0].link.scatter(frame.clone(), PARTIAL);
    }
    assert!(shards[1].receive().is_none(), "all four cross");
    let crossed: Vec<_> = (0..8)
        .map(|_| {
            let packet = shards[0].receive().unwrap();
            shards[0].nic.recycle(packet.payload.into_frags());
            shards[0].nic.crossing_stats().received
        })
        .collect();
    assert_eq!(crossed, [1, 1, 2, 2, 3, 3, 4, 4]);
    finish(shards);
}

/// An ICMP error about a segment that this NIC sent on `flow`.
fn too_big(flow: &Tcp) -> Vec<u8> {
    let IpRepr::V4(Ipv4Header { src, dst, .. }) = flow.ip() else {
        panic!("a flow over IPv4");
    };
    let mut quoted = vec![0; 28];
    IpRepr::v4(dst, src).emit(protocol::TCP, 1460, &mut quoted);
    quoted[20..22].copy_from_slice(&flow.dst_port.to_be_bytes());
    quoted[22..24].copy_from_slice(&flow.src_port.to_be_bytes());
    let mut message = vec![3, 4, 0, 0, 0, 0, 5, 0];
    message.extend(quoted);
    let sum = checksum(&message);
    message[2..4].copy_from_slice(&sum.to_be_bytes());
    let mut frame = vec![0; 64];
    // From a router, not from the peer.
    let ip = IpRepr::v4(Ipv4Addr::new(10, 0, 0, 254), dst);
    let ethernet = flow.ethernet();
    let len = emit_frame_headers(&ethernet, &ip, protocol::ICMP, message.len(), &mut frame);
    frame.truncate(len);
    frame.extend(message);
    frame
}

#[test]
fn an_icmp_error_crosses_to_the_shard_of_the_segment_that_it_quotes() {
    let mut shards = shards();
    for of in [0, 1] {
        let frame = too_big(&segment_of(&shards, of, b""));
        shards[0].link.scatter(frame, VnetMeta::default());
        let here = shards[0].receive();
        let there = shards[1].receive();
        assert_eq!((here.is_some(), there.is_some()), (of == 0, of == 1));
    }
    assert_eq!(shards[1].nic.crossing_stats().received, 1);
    finish(shards);
}

#[test]
fn all_shards_learn_from_arp_and_neighbour_discovery_and_one_answers() {
    let mut shards = shards();
    let request = ArpPacket {
        op: ArpOperation::REQUEST,
        sender_mac: PEER_MAC,
        sender_ip: Ipv4Addr::new(10, 0, 0, 1),
        target_mac: MacAddr::default(),
        target_ip: Ipv4Addr::new(10, 0, 0, 2),
    };
    let mut arp = vec![0; 64];
    let ethernet = EthernetHeader {
        ethertype: EtherType::ARP,
        ..tcp(&[]).ethernet()
    };
    let len = emit_arp_frame(&ethernet, &request, &mut arp);
    arp.truncate(len);
    let mut solicitation = vec![0; 128];
    let [us, peer] = ["fd00::2", "fd00::1"].map(|text| text.parse().unwrap());
    let asked = NeighborSolicitation {
        target: us,
        source_mac: Some(PEER_MAC),
    };
    let len = asked.emit_frame(PEER_MAC, OUR_MAC, peer, us, &mut solicitation);
    solicitation.truncate(len);
    for frame in [arp, solicitation] {
        shards[1].link.scatter(frame, VnetMeta::default());
        assert_eq!(shards[1].receive().unwrap().origin, Origin::Link);
        let copy = shards[0].receive().expect("a copy");
        assert_eq!(copy.origin, Origin::Copy);
        assert!(shards[1].receive().is_none(), "a copy is not copied");
    }
    let stats = shards[0].nic.crossing_stats();
    assert_eq!((stats.received, stats.copies), (0, 2));
    finish(shards);
}

/// A request of a host for an address that is not this NIC's.
fn arp_of(number: u16) -> Vec<u8> {
    let [high, low] = number.to_be_bytes();
    let request = ArpPacket {
        op: ArpOperation::REQUEST,
        sender_mac: MacAddr([2, 0, 1, 0, high, low]),
        sender_ip: Ipv4Addr::new(10, 0, high, low),
        target_mac: MacAddr::default(),
        target_ip: Ipv4Addr::new(10, 0, 0, 77),
    };
    let ethernet = EthernetHeader {
        src: request.sender_mac,
        dst: MacAddr([0xff; 6]),
        ethertype: EtherType::ARP,
        ..tcp(&[]).ethernet()
    };
    let mut frame = vec![0; 64];
    let len = emit_arp_frame(&ethernet, &request, &mut frame);
    frame.truncate(len);
    frame
}

/// An advertisement of a host in the same way.
fn advertisement_of(number: u16) -> Vec<u8> {
    let mac = MacAddr([2, 0, 2, 0, (number >> 8) as u8, number as u8]);
    let target = std::net::Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 1, number);
    let said = wire::NeighborAdvertisement {
        target,
        target_mac: Some(mac),
        router: false,
        solicited: false,
        overrides: true,
    };
    let mut frame = vec![0; 128];
    let all_nodes = "ff02::1".parse().unwrap();
    let group = MacAddr([0x33, 0x33, 0, 0, 0, 1]);
    let len = said.emit_frame(mac, group, target, all_nodes, &mut frame);
    frame.truncate(len);
    frame
}

#[test]
fn a_flood_of_arp_or_neighbour_discovery_crosses_as_news_and_is_in_no_frames_way() {
    for flood in [arp_of, advertisement_of] {
        let mut shards = shards();
        // Each host ten times, and more hosts than the limit allows.
        for number in (0..600).flat_map(|number| [number; 10]) {
            shards[0].link.scatter(flood(number), VnetMeta::default());
            shards[0].receive();
        }
        let told = shards[0].nic.crossing_stats();
        assert_eq!(told.known + told.limited, 6000 - PLACES as u64, "{told:?}");
        let segment = segment_of(&shards, 1, b"honest");
        for _ in 0..MAILBOX {
            shards[0].link.scatter(segment.frame(), PARTIAL);
            assert!(shards[0].receive().is_none());
        }
        assert_eq!(
            shards[0].dropped(DropReason::RxCrossingFull),
            0,
            "all of them cross"
        );
        let mut received = 0;
        while let Some(packet) = shards[1].receive() {
            received += usize::from(packet.origin == Origin::Link);
            shards[1].nic.recycle(packet.payload.into_frags());
        }
        assert_eq!(received, MAILBOX);
        assert_eq!(shards[1].nic.crossing_stats().copies, PLACES as u64);
        finish(shards);
    }
}

/// Frames, and copies, that may wait for one shard.
const MAILBOX: usize = 256;
const PLACES: usize = 64;

#[test]
fn an_answer_crosses_to_the_shard_that_has_asked_also_during_a_flood() {
    let mut shards = shards();
    let flood = |shards: &mut [Bench; 2]| {
        for number in 1000..2000 {
            shards[0].link.scatter(arp_of(number), VnetMeta::default());
            shards[0].receive();
        }
        while shards[1].receive().is_some() {}
    };
    flood(&mut shards);
    let question = ArpPacket {
        op: ArpOperation::REQUEST,
        sender_mac: OUR_MAC,
        sender_ip: Ipv4Addr::new(10, 0, 0, 2),
        target_mac: MacAddr::default(),
        target_ip: Ipv4Addr::new(10, 0, 0, 5),
    };
    let ethernet = EthernetHeader {
        src: OUR_MAC,
        dst: MacAddr([0xff; 6]),
        ethertype: EtherType::ARP,
        ..tcp(&[]).ethernet()
    };
    let head = HeadBuf::with(|out| emit_arp_frame(&ethernet, &question, out));
    let packet = TxPacket {
        head,
        payload: netmem::FragList::new(),
        checksum: None,
        gso_size: 0,
    };
    shards[1].nic.transmit(packet, wire::Instant::ZERO).unwrap();
    flood(&mut shards);
    shards[0].link.scatter(arp_of(5), VnetMeta::default());
    assert!(shards[0].receive().is_some());
    let copy = shards[1].receive().expect("the answer crosses");
    assert_eq!(copy.origin, Origin::Copy);
    finish(shards);
}

#[test]
fn a_link_is_gone_after_the_frames_that_crossed() {
    let mut shards = shards();
    let segment = segment_of(&shards, 1, b"from the other shard");
    shards[0].link.scatter(segment.frame(), PARTIAL);
    assert!(shards[0].receive().is_none(), "it crosses");
    shards[1].link.lock().gone = true;
    assert_eq!(shards[1].nic.link_state(), LinkState::Down);
    let packet = shards[1].receive().unwrap();
    assert!(shards[1].receive().is_none(), "there are no more");
    assert_eq!(shards[1].nic.link_state(), LinkState::Gone);
    shards[1].nic.recycle(packet.payload.into_frags());
    finish(shards);
}
