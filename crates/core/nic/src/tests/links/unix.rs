//! UNIX wires, and what their peers leave behind.

use super::*;

#[test]
fn a_unix_wire_carries_super_packets_only_if_both_ends_accept_them() {
    for (one, other) in [(true, true), (true, false), (false, true)] {
        let (a, b) = unix_wire(one, other);
        let (mut ours, mut peer) = nics(a, b);
        let segment = tcp(&pattern(1, 60_000));
        let tx = packet(&segment, 1448);
        peer.transmit(tx, NOW).unwrap();
        let first = ours.poll_rx(NOW).unwrap();
        let whole = one && other;
        assert_eq!(first.segments, if whole { 42 } else { 1 });
        let mut all = bytes(first.payload.frags().unwrap());
        all.extend(receive_all(&mut ours, NOW));
        assert_eq!(all, segment.payload);
        let stats = ours.queue_stats(Q0).unwrap();
        assert_eq!(stats.checksum_trusted, u64::from(whole));
    }
}

struct NoSink;

impl FrameSink for NoSink {
    fn frame(&mut self, _: Instant, _: Direction, _: &[u8]) {}
}

#[test]
fn only_the_ends_of_unix_wires_are_near() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("wire");
    let near: [Box<dyn Link>; 2] = [
        Box::new(unix_wire(true, true).0),
        Box::new(UnixListenLink::at(&path, HELLO).unwrap()),
    ];
    for link in near {
        assert!(link.is_near());
        let watched = Captured::new(link, NoSink);
        assert!(watched.is_near());
        // The frames may be under way for long.
        let delayed = Impaired::both(Box::new(watched), "delay=20ms".parse().unwrap());
        assert!(!delayed.is_near());
    }
    assert!(!plain_wire().0.is_near());
}

#[test]
fn a_full_unix_wire_polls_readable_when_it_has_room_again_and_not_before() {
    let (a, b) = unix_wire(true, true);
    let readable = watch(&a);
    let (mut ours, mut peer) = nics(b, a);
    let segment = tcp(&pattern(0, 1000));
    assert!(!peer.is_told_of_room());
    let sent = fill_up(&mut peer, &segment);
    assert!(peer.is_told_of_room());
    assert!(!readable(), "there is no room yet");
    let mut got = 0;
    while let Some(packet) = ours.poll_rx(NOW) {
        got += 1;
        ours.recycle(packet.payload.into_frags());
    }
    assert!(readable(), "now there is");
    assert_eq!(peer.flush_tx(NOW), 0);
    assert!(!peer.is_told_of_room());
    assert!(!readable(), "room must not keep it readable");
    assert_eq!(receive_all(&mut ours, NOW).len(), (sent - got) * 1000);
}

#[test]
fn a_unix_wire_without_a_peer_is_down_and_does_not_poll_readable() {
    let (a, b) = unix_wire(true, true);
    let readable = watch(&a);
    let (mut ours, mut peer) = nics(a, b);
    let segment = tcp(b"the last words");
    let tx = packet(&segment, 0);
    assert!(!readable());
    peer.transmit(tx, NOW).unwrap();
    assert!(readable());
    drop(peer);
    assert_eq!(receive_all(&mut ours, NOW), b"the last words");
    assert!(ours.poll_rx(NOW).is_none());
    assert!(!ours.is_up());
    assert_eq!(ours.link_state(), LinkState::Gone);
    assert!(!readable(), "the hang-up must not keep it readable");
    let tx = packet(&segment, 0);
    assert_eq!(ours.transmit(tx, NOW), Err(DropReason::TxLinkDown));
}

/// Has the peer send, and leave with frames unread. Returns what it has sent.
fn leave_with_frames_unread(ours: &mut Nic, mut peer: Nic) -> Vec<u8> {
    let words = pattern(0, 20_000);
    for _ in 0..2 {
        let tx = packet(&tcp(b"unread"), 0);
        ours.transmit(tx, NOW).unwrap();
    }
    for piece in words.chunks(1000) {
        let tx = packet(&tcp(piece), 0);
        peer.transmit(tx, NOW).unwrap();
    }
    words
}

#[test]
fn what_a_peer_has_sent_before_it_left_is_received_also_if_a_send_failed_before() {
    for (shares_memory, sends) in [(false, false), (false, true), (true, false), (true, true)] {
        let (a, b) = unix_wire_of([true; 2], shares_memory);
        let (mut ours, peer) = nics(a, b);
        let words = leave_with_frames_unread(&mut ours, peer);
        if sends {
            let tx = packet(&tcp(b"late"), 0);
            assert_eq!(ours.transmit(tx, NOW), Err(DropReason::TxLinkDown));
            assert_eq!(ours.link_state(), LinkState::Down);
        }
        assert_eq!(receive_all(&mut ours, NOW), words);
        assert!(ours.poll_rx(NOW).is_none());
        assert_eq!(ours.link_state(), LinkState::Gone);
    }
}

#[test]
fn a_listening_end_also_receives_what_a_peer_has_sent_before_it_left() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("wire");
    let listening = UnixListenLink::at(&path, HELLO).unwrap();
    let joining = std::thread::spawn(move || UnixLink::join(&path, HELLO).unwrap());
    let (mut ours, _) = nics(listening, plain_wire().0);
    while !ours.is_up() {
        assert!(ours.poll_rx(NOW).is_none());
    }
    let (peer, _) = nics(joining.join().unwrap(), plain_wire().0);
    let words = leave_with_frames_unread(&mut ours, peer);
    let tx = packet(&tcp(b"late"), 0);
    assert_eq!(ours.transmit(tx, NOW), Err(DropReason::TxLinkDown));
    assert_eq!(receive_all(&mut ours, NOW), words);
}
