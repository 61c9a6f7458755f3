//! What crosses between two NICs, by reference or by a copy.

use super::*;

/// As [`nics`]; the peer of the first one may read the payload that is in its send memory.
fn nics_with_send_memory() -> (Nic, Nic, PagePool) {
    let (a, b) = sockets();
    let mut link = UnixLink::new(a, HELLO, HELLO).unwrap();
    link.share_send_memory().unwrap();
    let provider = Arc::clone(crate::Link::send_memory(&link).unwrap());
    let pool = PagePool::new(provider);
    let (mut ours, mut peer) = (nic_of(link, OURS), nic_on(b, THEIRS));
    greet(&mut ours, &mut peer);
    (ours, peer, pool)
}

fn q0(nic: &Nic) -> crate::RxQueueStats {
    nic.queue_stats(RxQueueId(0)).unwrap()
}

#[test]
fn device_memory_crosses_by_reference_or_by_a_copy_and_is_held_until_it_was_copied() {
    let memories = [
        (Dmabuf::shared_memfd(MIB), true),
        (Dmabuf::memfd(MIB), false),
        (Dmabuf::anonymous(MIB), false),
    ];
    for (memory, is_shared) in memories.map(|(memory, shared)| (memory.unwrap(), shared)) {
        for family in [Family::V4, Family::V6] {
            for len in [
                MIN_REFERENCE,
                60_000,
                65_494,
                65_496,
                65_500,
                65_536,
                500_000,
            ] {
                let (mut ours, mut peer) = nics();
                let (_bound, mut send, payload) = device(&memory, len, len);
                ours.transmit(packet(family, payload), NOW).unwrap();
                assert_eq!(send.is_over(), !is_shared, "the peer has not read it");
                let received = receive(&mut peer);
                assert_eq!(received.headers.payload_len, len, "{family:?}");
                assert_eq!(received.segments as usize, len.div_ceil(1440));
                assert_eq!(bytes(received.payload.frags().unwrap()), pattern(len, len));
                assert_eq!(q0(&peer).kept, 0, "its program waits for the memory");
                // The next polls find that it was copied.
                assert!(peer.poll_rx(NOW).is_none());
                assert!(ours.poll_rx(NOW).is_none());
                assert!(send.is_over());
                peer.recycle(received.payload.into_frags());
            }
        }
    }
}

#[test]
fn payload_beside_the_headers_of_a_frame_is_received_with_the_rest() {
    let (mut ours, mut peer, mut pool) = nics_with_send_memory();
    let sent = pattern(1, 60_000);
    let whole = FragList::from_host_bytes(&mut pool, &sent).unwrap();
    let TxPacket { head, payload, .. } = packet(Family::V4, whole);
    let mut with_payload = head.as_slice().to_vec();
    with_payload.extend_from_slice(&sent[..6]);
    let odd = TxPacket {
        head: HeadBuf::from_slice(&with_payload).unwrap(),
        payload: payload.share(6, sent.len() - 6),
        ..packet(Family::V4, payload)
    };
    ours.transmit(odd, NOW).unwrap();
    let received = receive(&mut peer);
    assert_eq!(received.headers.payload_len, sent.len());
    assert_eq!(bytes(received.payload.frags().unwrap()), sent);
}

#[test]
fn host_memory_stays_at_the_sender_until_it_was_read_and_its_peer_may_read_less_than_all() {
    let (mut ours, mut peer, mut pool) = nics_with_send_memory();
    let sent = pattern(1, 300_000);
    let payload = FragList::from_host_bytes(&mut pool, &sent).unwrap();
    ours.transmit(packet(Family::V4, payload), NOW).unwrap();
    let mut received = receive(&mut peer).payload.into_frags();
    assert_eq!((q0(&peer).kept, q0(&peer).kept_bytes), (1, 300_000));
    assert!(!received.is_unreadable());
    let first = received.split_off_front(1000);
    assert_eq!(bytes(&first), sent[..1000]);
    drop(first);
    for nic in [&mut peer, &mut ours] {
        assert!(nic.poll_rx(NOW).is_none());
    }
    assert!(pool.stats().outstanding > 0, "the rest was not read");
    assert_eq!(bytes(&received), sent[1000..]);
    peer.recycle(received);
    for nic in [&mut peer, &mut ours] {
        assert!(nic.poll_rx(NOW).is_none());
    }
    pool.assert_all_home();
}

#[test]
fn short_payload_crosses_whole() {
    let (mut ours, mut peer) = nics();
    let mut pool = host_pool();
    for len in [0, 1, 1400, MIN_REFERENCE - 1] {
        let payload = FragList::from_host_bytes(&mut pool, &pattern(len, len)).unwrap();
        ours.transmit(packet(Family::V6, payload), NOW).unwrap();
        pool.assert_all_home();
        assert_eq!(
            bytes(receive(&mut peer).payload.frags().unwrap()),
            pattern(len, len)
        );
    }
    assert_eq!(q0(&peer).kept, 0);
}

#[test]
fn a_peer_that_reads_nothing_gets_as_many_frames_as_there_are_slots() {
    let (mut ours, mut peer) = nics();
    let memory = Dmabuf::shared_memfd(MIB).unwrap();
    let (_bound, send, payload) = device(&memory, 4096, 1);
    while ours.flush_tx(NOW) == 0 {
        let again = payload.share(0, payload.len());
        ours.transmit(packet(Family::V4, again), NOW).unwrap();
    }
    let sent = ours.tx_stats().packets;
    assert_eq!(sent, limits::SLOTS as u64);
    assert!(
        !ours.is_told_of_room(),
        "nothing tells when the peer has read"
    );
    assert!(ours.next_due().is_some());
    drop(payload);
    let mut got = 0;
    while ours.flush_tx(NOW) > 0 || got <= sent {
        let received = receive(&mut peer);
        peer.recycle(received.payload.into_frags());
        got += 1;
    }
    for nic in [&mut peer, &mut ours] {
        assert!(nic.poll_rx(NOW).is_none());
    }
    let mut send = send;
    assert!(send.is_over());
}

#[test]
fn what_a_program_does_not_read_uses_up_a_part_of_the_senders_host_memory_only() {
    let (mut ours, mut peer, mut pool) = nics_with_send_memory();
    let mut unread = Vec::new();
    for number in 0..40 {
        let payload = FragList::from_host_bytes(&mut pool, &pattern(number, MIB / 2)).unwrap();
        let mut tx = packet(Family::V4, payload.share(0, MIB / 2 - 100));
        drop(payload);
        tx.gso_size = 1440;
        ours.transmit(tx, NOW).unwrap();
        let received = peer.poll_rx(NOW).unwrap();
        assert!(ours.poll_rx(NOW).is_none());
        unread.push(received.payload);
    }
    let kept = q0(&peer).kept;
    assert_eq!(kept, 32, "16 MiB");
    // The others were copied while there was memory, and are dropped then: the sender has their memory back.
    assert!(peer.poll_rx(NOW).is_none() && ours.poll_rx(NOW).is_none());
    assert_eq!(pool.stats().outstanding as usize * 65_536, 16 * MIB);
    drop(unread);
}

#[test]
fn the_files_of_freed_memory_are_revoked_and_further_files_are_accepted() {
    let (mut ours, mut peer) = nics();
    let mut alive = Vec::new();
    for number in 0..2 * limits::REGIONS + 10 {
        let memory = Dmabuf::shared_memfd(64 << 10).unwrap();
        let observer = memory.observer();
        let (bound, _, payload) = device(&memory, 5000, number);
        ours.transmit(packet(Family::V4, payload), NOW).unwrap();
        let received = receive(&mut peer);
        assert_eq!(
            bytes(received.payload.frags().unwrap()),
            pattern(number, 5000)
        );
        for nic in [&mut peer, &mut ours] {
            assert!(nic.poll_rx(NOW).is_none());
        }
        // Half of them stay: more than there are places for. They are copied to memory of the link then.
        match number % 2 {
            0 => alive.push((memory, bound)),
            _ => {
                drop((memory, bound));
                assert!(observer.is_freed());
            }
        }
    }
    assert_eq!(peer.drops().total(), 0);
    // Long frames, too, cross by reference to the copy.
    let last = Dmabuf::shared_memfd(MIB).unwrap();
    let (_bound, _, payload) = device(&last, 500_000, 1);
    ours.transmit(packet(Family::V4, payload), NOW).unwrap();
    assert_eq!(
        bytes(receive(&mut peer).payload.frags().unwrap()),
        pattern(1, 500_000)
    );
}

#[test]
fn what_was_sent_before_the_peer_left_is_received() {
    let (a, b) = sockets();
    let (mut ours, mut peer) = (nic_on(a, OURS), nic_on(b, THEIRS));
    let payload = FragList::from_host_bytes(&mut host_pool(), b"the last words").unwrap();
    ours.transmit(packet(Family::V4, payload), NOW).unwrap();
    // It has not told anything yet.
    drop(ours);
    assert_eq!(
        bytes(receive(&mut peer).payload.frags().unwrap()),
        b"the last words"
    );
    assert!(peer.poll_rx(NOW).is_none());
    assert!(!peer.is_up());
}
