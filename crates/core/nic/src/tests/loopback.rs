//! Packets from this NIC to itself.

use netmem::{DmabufId, FragSource, Payload};

use super::harness::*;
use crate::*;

/// A packet from this NIC to itself, payload in memory that is bound for sending.
fn own(memory: &FragSource, segment: &Tcp, len: usize) -> TxPacket {
    let mut head = segment.head();
    // From our own address: destination and source are the first twelve bytes.
    head.copy_within(0..6, 6);
    TxPacket {
        head: HeadBuf::from_slice(&head).unwrap(),
        payload: memory.begin().frags(100, len).unwrap(),
        checksum: Some(segment.tx_checksum()),
        gso_size: 1448,
    }
}

fn sending() -> (netmem::Dmabuf, FragSource) {
    let dmabuf = netmem::Dmabuf::anonymous(1 << 20).unwrap();
    dmabuf.copy_in(100, &pattern(1, 65_000)).unwrap();
    let memory = FragSource::new(&dmabuf, DmabufId(9)).unwrap();
    (dmabuf, memory)
}

#[test]
fn a_packet_to_ourselves_is_copied_once_to_the_queues_memory_and_freed() {
    let mut bench = Bench::with_device(NicConfig::default());
    let (_dmabuf, memory) = sending();
    for len in [1, 1448, 65_000] {
        let segment = Tcp {
            payload: vec![0; len],
            ..tcp(&[])
        };
        bench
            .nic
            .transmit(own(&memory, &segment, len), NOW)
            .unwrap();
        assert_eq!(memory.in_flight(), 1);
        assert_eq!(bench.nic.next_due(), Some(wire::Instant::ZERO));
        let packet = bench.receive().expect("the packet is received");
        assert_eq!(
            (packet.origin, packet.segments as usize),
            (Origin::Loop, len.div_ceil(1448))
        );
        assert!(
            all_in(packet.payload.frags().unwrap(), 1),
            "in the queue's memory, not the sender's"
        );
        assert_eq!(
            bench.read(packet.payload.frags().unwrap()),
            pattern(1, 65_000)[..len]
        );
        assert_eq!(memory.in_flight(), 0, "the sender's memory is free");
        bench.nic.recycle(packet.payload.into_frags());
    }
    assert!(bench.receive().is_none());
    assert!(bench.link.lock().sent.is_empty(), "the link saw nothing");
    assert_eq!(
        (bench.nic.tx_stats().looped, bench.nic.tx_stats().frames),
        (3, 0)
    );
    bench.finish();
}

#[test]
fn link_and_loop_are_served_in_turn() {
    let mut bench = Bench::with_device(NicConfig::default());
    let (_dmabuf, memory) = sending();
    let segment = Tcp {
        payload: vec![0; 10],
        ..tcp(&[])
    };
    for _ in 0..3 {
        bench.nic.transmit(own(&memory, &segment, 10), NOW).unwrap();
        bench.link.scatter(tcp(b"link").frame(), PARTIAL);
    }
    let origins: Vec<_> = (0..6).map(|_| bench.receive().unwrap().origin).collect();
    let link = origins
        .iter()
        .filter(|&&origin| origin == Origin::Link)
        .count();
    assert_eq!(link, 3);
    assert!(
        origins
            .windows(3)
            .all(|three| three.contains(&Origin::Link) && three.contains(&Origin::Loop)),
        "{origins:?}"
    );
    bench.finish();
}

#[test]
fn a_full_loop_queue_and_full_queue_memory_drop_and_count() {
    let mut bench = Bench::new(
        OFFLOADED,
        NicConfig::default(),
        vec![opaque(64 << 10, 1, 4096)],
    );
    let (_dmabuf, memory) = sending();
    let segment = Tcp {
        payload: vec![0; 65_000],
        ..tcp(&[])
    };
    let room = bench.nic.tx_room();
    for _ in 0..room {
        bench
            .nic
            .transmit(own(&memory, &segment, 65_000), NOW)
            .unwrap();
    }
    assert_eq!(bench.nic.tx_room(), 0);
    let refused = bench.nic.transmit(own(&memory, &segment, 65_000), NOW);
    assert_eq!(refused, Err(DropReason::TxBusy));
    assert_eq!(bench.dropped(DropReason::TxBusy), 1);
    // The memory of the queue holds less than two of them.
    let mut kept = Vec::new();
    while bench.nic.tx_room() < room {
        kept.extend(bench.receive());
    }
    let lost = bench.dropped(DropReason::RxNoBuffers) as usize;
    assert!(
        lost > 0 && kept.len() + lost == room,
        "{} and {lost} of {room}",
        kept.len()
    );
    assert_eq!(
        memory.in_flight(),
        0,
        "the memory of the dropped packet is free"
    );
    assert!(
        kept.iter()
            .all(|packet| packet.payload.frags().unwrap().len() == 65_000)
    );
    drop(kept);
    bench.finish();
}

#[test]
fn a_packet_from_the_link_with_our_own_source_address_has_origin_link() {
    let mut bench = Bench::with_device(NicConfig::default());
    let mut frame = tcp(b"forged").frame();
    frame.copy_within(0..6, 6);
    bench.link.scatter(frame, PARTIAL);
    assert_eq!(bench.receive().unwrap().origin, Origin::Link);
    bench.finish();
}
