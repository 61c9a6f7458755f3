//! Wires in memory, captures of them, and NICs on other threads.

use super::*;

#[test]
fn a_wire_carries_super_packets_with_offloads_and_segments_without() {
    for offload in [true, false] {
        let (a, b) = WireLink::pair(WireOptions {
            offload,
            ..WireOptions::default()
        })
        .unwrap();
        let (mut ours, mut peer) = nics(a, b);
        let segment = tcp(&pattern(1, 60_000));
        let tx = packet(&segment, 1448);
        peer.transmit(tx, NOW).unwrap();
        let first = ours.poll_rx(NOW).unwrap();
        assert_eq!(first.segments, if offload { 42 } else { 1 });
        assert_eq!(
            first.payload.frags().unwrap().len(),
            if offload { 60_000 } else { 1448 }
        );
        let mut all = bytes(first.payload.frags().unwrap());
        all.extend(receive_all(&mut ours, NOW));
        assert_eq!(all, segment.payload);
        let stats = ours.queue_stats(Q0).unwrap();
        assert_eq!(stats.checksum_trusted, u64::from(offload));
        assert_eq!(stats.checksum_verified, if offload { 0 } else { 42 });
    }
}

#[test]
fn a_full_wire_makes_its_sender_wait() {
    let options = WireOptions {
        queue_frames: 2,
        ..WireOptions::default()
    };
    let (a, b) = WireLink::pair(options).unwrap();
    let (mut ours, mut peer) = nics(a, b);
    let mut expected = Vec::new();
    for i in 0..5 {
        let segment = tcp(&pattern(i, 100));
        let tx = packet(&segment, 0);
        peer.transmit(tx, NOW).unwrap();
        expected.extend(segment.payload);
    }
    let mut got = receive_all(&mut ours, NOW);
    while peer.flush_tx(NOW) > 0 || got.len() < expected.len() {
        let more = receive_all(&mut ours, NOW);
        assert!(!more.is_empty());
        got.extend(more);
    }
    assert_eq!(got, expected);
    assert_eq!(peer.drops().total() + ours.drops().total(), 0);
}

#[test]
fn a_pulled_cable_loses_frames_and_carries_them_again_when_plugged() {
    let (a, b) = WireLink::pair(WireOptions::default()).unwrap();
    let cable = a.cable();
    let (mut ours, mut peer) = nics(a, b);
    let segment = tcp(b"payload");
    let tx = packet(&segment, 0);
    peer.transmit(tx, NOW).unwrap();
    cable.pull();
    assert!(!ours.is_up() && !peer.is_up());
    let tx = packet(&segment, 0);
    assert_eq!(peer.transmit(tx, NOW), Err(DropReason::TxLinkDown));
    assert!(ours.poll_rx(NOW).is_none());
    cable.plug();
    let tx = packet(&segment, 0);
    peer.transmit(tx, NOW).unwrap();
    assert_eq!(receive_all(&mut ours, NOW), segment.payload);
}

#[test]
fn a_wire_is_gone_when_all_frames_of_the_end_that_was_dropped_are_received() {
    let (a, b) = WireLink::pair(WireOptions::default()).unwrap();
    let cable = a.cable();
    let (mut ours, mut peer) = nics(a, b);
    cable.pull();
    assert_eq!(ours.link_state(), LinkState::Down);
    cable.plug();
    let tx = packet(&tcp(b"the last words"), 0);
    peer.transmit(tx, NOW).unwrap();
    assert_eq!(ours.link_state(), LinkState::Up);
    drop(peer);
    assert_eq!(ours.link_state(), LinkState::Down);
    assert_eq!(receive_all(&mut ours, NOW), b"the last words");
    assert_eq!(ours.link_state(), LinkState::Gone);
    cable.plug();
    assert!(!ours.is_up());
    let tx = packet(&tcp(b"late"), 0);
    assert_eq!(ours.transmit(tx, NOW), Err(DropReason::TxLinkDown));
}

#[test]
fn a_wire_with_wakeup_polls_readable_while_frames_wait() {
    let (a, b) = WireLink::pair(WireOptions {
        wakeup: true,
        ..WireOptions::default()
    })
    .unwrap();
    let (mut ours, mut peer) = nics(a, b);
    assert!(!readable(&ours));
    for _ in 0..3 {
        let tx = packet(&tcp(b"x"), 0);
        peer.transmit(tx, NOW).unwrap();
    }
    for _ in 0..3 {
        assert!(readable(&ours));
        assert!(ours.poll_rx(NOW).is_some());
    }
    assert!(ours.poll_rx(NOW).is_none());
    assert!(!readable(&ours));
    drop(peer);
    assert!(readable(&ours), "the end of the peer wakes it");
}

#[test]
fn the_ends_of_a_wire_work_on_two_threads() {
    let options = WireOptions {
        queue_frames: 8,
        wakeup: true,
        ..WireOptions::default()
    };
    let (a, b) = WireLink::pair(options).unwrap();
    let (mut ours, mut peer) = nics(a, b);
    let total = 2000;
    let sender = std::thread::spawn(move || {
        for i in 0..total {
            let tx = packet(&tcp(&pattern(i, 1000)), 0);
            peer.transmit(tx, NOW).unwrap();
            while peer.flush_tx(NOW) > 0 {
                std::thread::yield_now();
            }
        }
        peer
    });
    let mut received = 0;
    while received < total {
        let fd = ours.poll_fd().unwrap();
        let mut fds = [rustix::event::PollFd::new(
            &fd,
            rustix::event::PollFlags::IN,
        )];
        rustix::event::poll(&mut fds, None).unwrap();
        while let Some(packet) = ours.poll_rx(NOW) {
            assert_eq!(
                bytes(packet.payload.frags().unwrap()),
                pattern(received, 1000)
            );
            received += 1;
        }
    }
    drop(sender.join().unwrap());
}

type Seen = Arc<Mutex<Vec<(Direction, Vec<u8>)>>>;

fn captured(link: impl Link + 'static) -> (Captured<impl FrameSink>, Seen) {
    let seen: Seen = Arc::default();
    let sink = Arc::clone(&seen);
    let see = move |_: Instant, direction: Direction, frame: &[u8]| {
        sink.lock().unwrap().push((direction, frame.to_vec()));
    };
    (Captured::new(Box::new(link), see), seen)
}

#[test]
fn a_capture_has_whole_frames_and_the_payload_goes_to_device_memory() {
    let (link, script) = ScriptedLink::new(PLAIN);
    let (link, seen) = captured(link);
    let config = NicConfig {
        mac: OUR_MAC,
        ..NicConfig::default()
    };
    let mut nic = Nic::new(Box::new(link), config).unwrap();
    let device = opaque(1 << 20, 1, 65_536);
    nic.restart_queue(Q0, ProviderChoice::Provider(device))
        .unwrap();
    let mut expected = Vec::new();
    for (len, delivery) in [
        (0, Delivery::Scatter),
        (3, Delivery::Scatter),
        (65_160, Delivery::Scatter),
        (2000, Delivery::Whole),
    ] {
        let segment = tcp(&pattern(len, len));
        script.deliver(segment.frame(), PARTIAL, delivery);
        let packet = nic.poll_rx(NOW).unwrap();
        assert_eq!(packet.payload.frags().unwrap().is_unreadable(), len > 0);
        expected.push((Direction::Rx, segment.frame()));
    }
    // More than fits into the queue, so that a part is in the spill buffer.
    let mut held = Vec::new();
    for seed in 0..20 {
        let segment = tcp(&pattern(seed, 65_160));
        script.deliver(segment.frame(), PARTIAL, Delivery::Scatter);
        expected.push((Direction::Rx, segment.frame()));
        held.extend(nic.poll_rx(NOW));
    }
    assert!(nic.drops().get(DropReason::RxNoBuffers) > 0);
    let segment = tcp(&pattern(9, 1000));
    let tx = packet(&segment, 0);
    nic.transmit(tx, NOW).unwrap();
    expected.push((Direction::Tx, segment.frame()));
    script.lock().takes = 0;
    let tx = packet(&segment, 0);
    nic.transmit(tx, NOW).unwrap();
    assert_eq!(
        *seen.lock().unwrap(),
        expected,
        "and a frame that waits is not shown yet"
    );
}

#[test]
fn a_nic_can_be_moved_to_another_thread() {
    fn is_send<T: Send>() {}
    is_send::<Nic>();
}
