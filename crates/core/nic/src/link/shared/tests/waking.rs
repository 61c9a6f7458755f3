//! Rings: sleeping, waking and a peer that leaves.

use super::*;

fn is_readable(nic: &Nic) -> bool {
    let fd = nic.poll_fd().unwrap();
    let mut fds = [PollFd::new(&fd, PollFlags::IN)];
    poll(&mut fds, Some(&Timespec::default())).unwrap() > 0
}

/// Two NICs with rings in both directions, whose threads look for packets by themselves.
fn awake_nics() -> (Nic, Nic) {
    let (mut ours, mut peer) = nics();
    greet(&mut ours, &mut peer);
    for nic in [&mut ours, &mut peer] {
        nic.end_sleep();
        assert!(nic.poll_rx(NOW).is_none());
    }
    (ours, peer)
}

#[test]
fn only_an_end_that_sleeps_is_woken_and_once() {
    let (mut ours, mut peer) = awake_nics();
    for number in 0..100 {
        ours.transmit(short(number), NOW).unwrap();
        assert!(!is_readable(&peer), "{number}");
        assert_eq!(receive(&mut peer).headers.payload_len, 1 + number);
    }
    ours.transmit(short(1), NOW).unwrap();
    assert!(!peer.prepare_sleep(), "a packet has come meanwhile");
    peer.end_sleep();
    receive(&mut peer);
    assert!(peer.prepare_sleep());
    assert!(!is_readable(&peer));
    for number in 0..3 {
        ours.transmit(short(number), NOW).unwrap();
        assert!(is_readable(&peer), "{number}");
    }
    peer.end_sleep();
    for _ in 0..3 {
        receive(&mut peer);
    }
    assert!(peer.poll_rx(NOW).is_none());
    assert!(!is_readable(&peer), "one wake-up for three packets");
}

#[test]
fn a_thread_that_takes_the_wake_up_of_another_one_leaves_it_one_for_the_next_packet() {
    let (mut ours, mut peer) = awake_nics();
    assert!(peer.prepare_sleep());
    for number in 0..100 {
        ours.transmit(short(number), NOW).unwrap();
        assert!(is_readable(&peer), "{number}");
        // As another thread would: the sleep goes on.
        receive(&mut peer);
        assert!(peer.poll_rx(NOW).is_none());
        assert!(!is_readable(&peer), "{number}");
    }
}

#[test]
fn a_full_ring_is_waited_for_and_loses_nothing() {
    let (mut ours, mut peer) = awake_nics();
    let mut sent = 0;
    while ours.flush_tx(NOW) == 0 {
        ours.transmit(short(sent), NOW).unwrap();
        sent += 1;
    }
    assert!(ours.is_told_of_room());
    assert!(ours.prepare_sleep() && !is_readable(&ours));
    for number in 0..sent {
        let received = receive(&mut peer);
        let payload = received.payload.into_frags();
        assert_eq!(bytes(&payload), pattern(number, 1 + number % 1400));
        peer.recycle(payload);
        if is_readable(&ours) {
            ours.end_sleep();
            assert!(ours.poll_rx(NOW).is_none());
            assert_eq!(ours.flush_tx(NOW), 0);
            assert!(ours.prepare_sleep());
        }
    }
    assert!(peer.poll_rx(NOW).is_none());
    assert!(!ours.is_told_of_room());
}

#[test]
fn what_is_in_the_ring_of_a_peer_that_has_left_is_received() {
    let (mut ours, mut peer) = awake_nics();
    for number in 0..10 {
        ours.transmit(short(number), NOW).unwrap();
    }
    drop(ours);
    for _ in 0..10 {
        receive(&mut peer);
    }
    // The thread looks by itself, and finds out after a while.
    let mut looks = 0;
    while peer.is_up() {
        assert!(peer.poll_rx(NOW).is_none());
        looks += 1;
        assert!(looks < 1000, "it never looks at the socket");
    }
}

#[test]
fn a_ring_that_no_wire_has_ends_it() {
    let short = file(4096, SealFlags::SHRINK);
    let ring = || file(1 << 20, SealFlags::SHRINK);
    let cases: [(&str, Option<OwnedFd>, u32); 4] = [
        ("no file", None, 0),
        ("too short", Some(short), 0),
        ("as much as never fits", Some(ring()), 1 << 30),
        (
            "an entry that says that the socket has a packet",
            Some(ring()),
            64,
        ),
    ];
    for (what, file, written) in cases {
        let mut raw = Raw::new();
        if let Some(file) = &file {
            rustix::io::pwrite(file, &written.to_ne_bytes(), 0).unwrap();
        }
        raw.send(&FileRecord::Ring.emit(), file.as_ref());
        raw.expect_down(what);
    }
    let mut raw = Raw::new();
    for _ in 0..2 {
        raw.send(&FileRecord::Ring.emit(), Some(&ring()));
    }
    // The second one is in the socket without an entry in the first.
    assert!(raw.nic.poll_rx(NOW).is_none() && raw.nic.is_up());
    raw.send(&FileRecord::Ring.emit(), Some(&ring()));
    raw.send(&FileRecord::Ring.emit(), Some(&ring()));
    raw.expect_down("packets that the ring has no entries for");
}
