//! TAPs: virtio-net headers, queues, offloads, refusals.

use super::*;

const NEEDS_CSUM_TCP4_1448: [u8; 10] = {
    let [a, b] = 66_u16.to_ne_bytes();
    let [c, d] = 1448_u16.to_ne_bytes();
    let [e, f] = 34_u16.to_ne_bytes();
    let [g, h] = 16_u16.to_ne_bytes();
    [1, 1, a, b, c, d, e, f, g, h]
};

#[test]
fn a_tap_scatters_super_packets_straight_into_device_memory() {
    let (tap, kernel) = fake_tap(1, TapOptions::default());
    let config = NicConfig {
        mac: OUR_MAC,
        ..NicConfig::default()
    };
    let mut nic = Nic::new(Box::new(tap), config).unwrap();
    let device = opaque(1 << 20, 1, 65_536);
    let choice = ProviderChoice::Provider(Arc::clone(&device));
    nic.restart_queue(Q0, choice).unwrap();
    assert!(nic.poll_rx(NOW).is_none());
    for seed in 0..30 {
        let segment = tcp(&pattern(seed, 65_160));
        write_frame(&kernel[0], &NEEDS_CSUM_TCP4_1448, &segment.frame());
        let packet = nic.poll_rx(NOW).unwrap();
        assert_eq!(
            (
                packet.segments,
                packet.payload.frags().unwrap().frag_count()
            ),
            (45, 1)
        );
        let frag = packet.payload.frags().unwrap().first().unwrap();
        let mut got = vec![0; frag.len()];
        device
            .observer()
            .upgrade()
            .unwrap()
            .device_read(frag.dmabuf_offset() as usize, &mut got);
        assert_eq!(got, segment.payload);
        nic.recycle(packet.payload.into_frags());
    }
    let stats = nic.queue_stats(Q0).unwrap();
    assert_eq!(
        (
            stats.checksum_trusted,
            stats.header_longer,
            stats.header_shorter
        ),
        (30, 0, 0)
    );
    assert_eq!(nic.drops().total(), 0);
}

#[test]
fn a_tap_gets_virtio_net_headers_with_the_offloads_to_do() {
    let (tap, kernel) = fake_tap(1, TapOptions::default());
    let (mut nic, _) = nics(tap, plain_wire().0);
    let segment = tcp(&pattern(1, 60_000));
    let tx = packet(&segment, 1448);
    nic.transmit(tx, NOW).unwrap();
    let mut got = vec![0; 70_000];
    let (n, _) = rustix::io::read(&kernel[0], &mut got)
        .map(|n| (n, ()))
        .unwrap();
    assert_eq!(got[..10], NEEDS_CSUM_TCP4_1448);
    assert_eq!(got[10..n], [segment.head(), segment.payload].concat());
    // With CWR, which only the first segment may have.
    let segment = Tcp {
        flags: wire::TcpFlags::ACK | wire::TcpFlags::CWR,
        ..tcp(&pattern(1, 60_000))
    };
    let tx = packet(&segment, 1448);
    nic.transmit(tx, NOW).unwrap();
    rustix::io::read(&kernel[0], &mut got).unwrap();
    assert_eq!(got[1], 1 | 0x80, "VIRTIO_NET_HDR_GSO_ECN");
    // An IPv6 packet without segmentation.
    let segment = Tcp {
        v6: true,
        ..tcp(b"six")
    };
    let tx = packet(&segment, 0);
    nic.transmit(tx, NOW).unwrap();
    let n = rustix::io::read(&kernel[0], &mut got).unwrap();
    assert_eq!((got[0], got[1]), (1, 0));
    assert_eq!(u16::from_ne_bytes([got[6], got[7]]), 54);
    assert_eq!(got[10..n], [segment.head(), segment.payload].concat());
}

#[test]
fn a_tap_without_offloads_gets_complete_checksums() {
    let options = TapOptions {
        offloads: false,
        ..TapOptions::default()
    };
    let (tap, kernel) = fake_tap(1, options);
    let (mut nic, _) = nics(tap, plain_wire().0);
    let segment = tcp(&pattern(1, 1000));
    let tx = packet(&segment, 0);
    nic.transmit(tx, NOW).unwrap();
    let mut got = vec![0; 2000];
    let n = rustix::io::read(&kernel[0], &mut got).unwrap();
    assert_eq!(got[..10], [0; 10]);
    assert_eq!(got[10..n], segment.frame());
}

#[test]
fn a_tap_is_read_from_all_queues() {
    let (tap, kernel) = fake_tap(3, TapOptions::default());
    let (mut nic, _) = nics(tap, plain_wire().0);
    assert!(!readable(&nic));
    for (queue, fd) in kernel.iter().enumerate() {
        let frame = tcp(&pattern(queue, 100)).frame();
        write_frame(fd, &NEEDS_CSUM_TCP4_1448, &frame);
    }
    assert!(readable(&nic));
    let mut got = Vec::new();
    for _ in 0..3 {
        got.push(bytes(nic.poll_rx(NOW).unwrap().payload.frags().unwrap()));
    }
    assert_eq!(got, [0, 1, 2].map(|queue| pattern(queue, 100)));
    assert!(nic.poll_rx(NOW).is_none());
}

#[test]
fn a_tap_queue_that_always_has_frames_does_not_keep_the_others_from_being_read() {
    let (tap, kernel) = fake_tap(2, TapOptions::default());
    let (mut nic, _) = nics(tap, plain_wire().0);
    let busy = tcp(b"busy").frame();
    write_frame(&kernel[0], &NEEDS_CSUM_TCP4_1448, &busy);
    write_frame(&kernel[1], &NEEDS_CSUM_TCP4_1448, &tcp(b"other").frame());
    let before = (0..1000).position(|_| {
        write_frame(&kernel[0], &NEEDS_CSUM_TCP4_1448, &busy);
        bytes(nic.poll_rx(NOW).unwrap().payload.frags().unwrap()) == b"other"
    });
    assert_eq!(before, Some(64));
}

#[test]
fn a_tap_sends_each_connection_on_one_queue_whichever_was_read_last() {
    const QUEUES: usize = 3;
    let (tap, kernel) = fake_tap(QUEUES, TapOptions::default());
    let (mut nic, _) = nics(tap, plain_wire().0);
    for v6 in [false, true] {
        let mut used = [0; QUEUES];
        // Linux gives its connections ports of one parity.
        for src_port in (40_000..40_200).step_by(2) {
            let answer = Tcp {
                v6,
                src_port,
                ..tcp(b"answer")
            };
            let mut sent_on = Vec::new();
            for read in &kernel {
                write_frame(read, &NEEDS_CSUM_TCP4_1448, &tcp(b"hello").frame());
                assert!(nic.poll_rx(NOW).is_some());
                let tx = packet(&answer, 0);
                nic.transmit(tx, NOW).unwrap();
                let mut room = [0; 200];
                let has_frame = |fd: &OwnedFd| rustix::io::read(fd, &mut room).is_ok();
                sent_on.extend(kernel.iter().position(has_frame));
            }
            let queue = sent_on[0];
            assert_eq!(sent_on, [queue; QUEUES], "port {src_port}");
            used[queue] += 1;
        }
        assert!(used.iter().all(|count| *count > 20), "{used:?}");
    }
}

#[test]
fn a_deleted_tap_is_down_and_its_frames_are_counted() {
    let (tap, kernel) = fake_tap(1, TapOptions::default());
    let (mut nic, _) = nics(tap, plain_wire().0);
    assert!(nic.is_up());
    write_frame(&kernel[0], &[0; 3], &[]);
    assert!(nic.poll_rx(NOW).is_none());
    assert_eq!(
        nic.drops().get(DropReason::RxRunt),
        1,
        "shorter than a virtio-net header"
    );
    assert!(nic.is_up());
    drop(kernel);
    assert!(nic.poll_rx(NOW).is_none());
    assert!(!nic.is_up());
    assert_eq!(nic.drops().get(DropReason::RxLinkError), 1);
    assert!(nic.poll_rx(NOW).is_none());
    assert_eq!(
        nic.drops().get(DropReason::RxLinkError),
        1,
        "nothing more was lost"
    );
}

#[test]
fn a_tap_full_of_frames_makes_the_sender_wait() {
    let (tap, kernel) = fake_tap(1, TapOptions::default());
    let (mut nic, _) = nics(tap, plain_wire().0);
    let segment = tcp(&pattern(0, 1000));
    let sent = fill_up(&mut nic, &segment);
    assert!(!nic.is_told_of_room());
    let mut got = vec![0; 2000];
    for _ in 0..sent {
        nic.flush_tx(NOW);
        let n = rustix::io::read(&kernel[0], &mut got).unwrap();
        assert_eq!(got[10..n].len(), segment.frame().len());
    }
    assert_eq!(nic.drops().total(), 0);
}

#[test]
fn a_tap_needs_an_fd() {
    assert!(TapLink::new(vec![], TapOptions::default()).is_err());
}

#[test]
fn a_tap_sends_packets_with_more_pieces_than_a_write_can_have() {
    let (tap, kernel) = fake_tap(1, TapOptions::default());
    let (mut nic, _) = nics(tap, plain_wire().0);
    let segment = tcp(&pattern(1, 1000));
    let mut payload = netmem::FragList::new();
    for piece in segment.payload.chunks(5) {
        payload.append(host_payload(piece));
    }
    assert_eq!(payload.frag_count(), 200);
    let tx = packet(&segment, 0);
    nic.transmit(TxPacket { payload, ..tx }, NOW).unwrap();
    let mut got = vec![0; 2000];
    let n = rustix::io::read(&kernel[0], &mut got).unwrap();
    assert_eq!(got[10..n], [segment.head(), segment.payload].concat());
}

#[test]
fn a_tap_sends_packets_with_any_number_of_separate_pieces() {
    let (tap, kernel) = fake_tap(1, TapOptions::default());
    let (mut nic, _) = nics(tap, plain_wire().0);
    for pieces in [1, 63, 64, 90, 91, 120] {
        let bytes = pattern(1, pieces * 10);
        let segment = tcp(&bytes);
        let mut payload = netmem::FragList::new();
        let mut between = Vec::new();
        for piece in segment.payload.chunks(10) {
            payload.append(host_payload(piece));
            // Consecutive host payloads are adjacent: this separates two pieces.
            between.push(host_payload(&[0xff; 10]));
        }
        assert_eq!(payload.frag_count(), pieces);
        let tx = packet(&segment, 0);
        nic.transmit(TxPacket { payload, ..tx }, NOW).unwrap();
        let mut got = vec![0; 2000];
        let n = rustix::io::read(&kernel[0], &mut got);
        let n = n.unwrap_or_else(|errno| panic!("{pieces} pieces: {errno}, {:?}", nic.drops()));
        assert_eq!(
            got[10..n],
            [segment.head(), segment.payload].concat(),
            "{pieces} pieces"
        );
    }
    assert_eq!(nic.drops().total(), 0);
}

#[test]
fn unfit_payload_lengths_are_those_that_linux_stores_in_too_many_pieces() {
    let ends = socketpair(
        AddressFamily::UNIX,
        SocketType::DGRAM,
        SocketFlags::empty(),
        None,
    );
    let (end, _other) = ends.unwrap();
    let big = TapOptions {
        max_super_packet: BIG_PACKET_LEN,
        ..TapOptions::default()
    };
    let caps = TapLink::new(vec![end], big).unwrap().caps();
    let unfit = caps.unfit_payload().unwrap();
    // Pieces of 8 pages, and one for each bit of what is left (linux `alloc_skb_with_frags`).
    let pieces = |len: u32| len.div_ceil(4096) / 8 + (len.div_ceil(4096) % 8).count_ones();
    for len in 1..=u32::try_from(caps.max_super_packet).unwrap() {
        assert_eq!(unfit.contains(&len), pieces(len) > 17, "{len}");
    }
    let usual = LinkCaps {
        max_super_packet: MAX_PACKET_LEN,
        max_rx_packet: MAX_PACKET_LEN,
        ..caps
    };
    assert_eq!(usual.unfit_payload(), None);
}
