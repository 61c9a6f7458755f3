//! Links between two NICs.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use netmem::{MemoryProvider, NiovSize, PagePool, Payload};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use wire::Instant;

use super::harness::*;
use crate::*;

/// Two NICs, the second sends to the first.
fn nics(a: impl Link + 'static, b: impl Link + 'static) -> (Nic, Nic) {
    let config = NicConfig {
        mac: OUR_MAC,
        ..NicConfig::default()
    };
    let peer = NicConfig {
        mac: PEER_MAC,
        ..NicConfig::default()
    };
    (
        Nic::new(Box::new(a), config).unwrap(),
        Nic::new(Box::new(b), peer).unwrap(),
    )
}

fn bytes(payload: &netmem::FragList) -> Vec<u8> {
    let mut out = vec![0; payload.len()];
    let mut at = 0;
    for frag in payload {
        frag.copy_to(0, &mut out[at..at + frag.len()]).unwrap();
        at += frag.len();
    }
    out
}

fn receive_all(nic: &mut Nic, now: Instant) -> Vec<u8> {
    let mut all = Vec::new();
    while let Some(packet) = nic.poll_rx(now) {
        all.extend(bytes(packet.payload.frags().unwrap()));
        nic.recycle(packet.payload.into_frags());
    }
    all
}

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
    assert_eq!(peer.transmit(tx, NOW), Err(TransmitError::LinkDown));
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
    assert_eq!(ours.transmit(tx, NOW), Err(TransmitError::LinkDown));
}

#[test]
fn an_impaired_wire_is_gone_after_its_delayed_frames() {
    let (a, b) = plain_wire();
    let delay = "delay=5ms".parse().unwrap();
    let (mut ours, mut peer) = nics(Impaired::new(Box::new(a), delay, Impairment::NONE), b);
    let tx = packet(&tcp(b"delayed"), 0);
    peer.transmit(tx, NOW).unwrap();
    drop(peer);
    assert!(ours.poll_rx(NOW).is_none());
    assert_eq!(ours.link_state(), LinkState::Down);
    let due = ours.next_due().expect("the frame is delayed");
    assert_eq!(receive_all(&mut ours, due), b"delayed");
    assert_eq!(ours.link_state(), LinkState::Gone);
}

fn readable(nic: &Nic) -> bool {
    let fd = nic.poll_fd().expect("the wire has a wakeup fd");
    let mut fds = [rustix::event::PollFd::new(
        &fd,
        rustix::event::PollFlags::IN,
    )];
    rustix::event::poll(&mut fds, Some(&rustix::event::Timespec::default())).unwrap() > 0
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

#[test]
fn an_impaired_link_cuts_the_super_packets_of_its_inner_link() {
    let (a, b) = WireLink::pair(WireOptions::default()).unwrap();
    let seen = Arc::new(Mutex::new(Vec::new()));
    let frames = Arc::clone(&seen);
    let sink = move |_, _, frame: &[u8]| frames.lock().unwrap().push(frame.len());
    let impaired = Impaired::both(Box::new(a), Impairment::NONE);
    assert!(!impaired.caps().tso && !impaired.caps().tx_checksum);
    let (mut ours, mut peer) = nics(Captured::new(Box::new(impaired), sink), b);
    let segment = tcp(&pattern(3, 2500));
    let tx = packet(&segment, 1000);
    peer.transmit(tx, NOW).unwrap();
    assert_eq!(receive_all(&mut ours, NOW), pattern(3, 2500));
    let head = segment.head().len();
    assert_eq!(
        *seen.lock().unwrap(),
        [head + 1000, head + 1000, head + 500]
    );
    assert_eq!(ours.drops().total(), 0);
}

fn plain_wire() -> (WireLink, WireLink) {
    WireLink::pair(WireOptions {
        offload: false,
        ..WireOptions::default()
    })
    .unwrap()
}

#[test]
fn every_corrupted_frame_is_detected() {
    let (a, b) = plain_wire();
    let a = Impaired::both(Box::new(a), "corrupt=100%".parse().unwrap());
    let (mut ours, mut peer) = nics(a, b);
    for i in 0..500 {
        // Headers, options and payload are about as likely to be hit.
        let tx = packet(&tcp(&pattern(i, 50)), 0);
        peer.transmit(tx, NOW).unwrap();
    }
    assert_eq!(receive_all(&mut ours, NOW), [], "{:?}", ours.drops());
    assert!(ours.poll_rx(NOW).is_none());
    let mut drops = ours.drops().total();
    while drops < 500 {
        assert_eq!(receive_all(&mut ours, NOW), []);
        assert!(ours.drops().total() > drops);
        drops = ours.drops().total();
    }
    assert!(ours.drops().get(DropReason::RxBadChecksum) > 300);
}

#[test]
fn delayed_frames_arrive_when_they_are_due_in_both_directions() {
    let (a, b) = plain_wire();
    let a = Impaired::both(Box::new(a), "delay=5ms".parse().unwrap());
    let (mut ours, mut peer) = nics(a, b);
    let segment = tcp(b"there");
    let tx = packet(&segment, 0);
    peer.transmit(tx, Instant::ZERO).unwrap();
    assert!(ours.poll_rx(Instant::ZERO).is_none());
    assert_eq!(ours.next_due(), Some(Instant::from_millis(5)));
    assert!(ours.poll_rx(Instant::from_millis(4)).is_none());
    assert_eq!(receive_all(&mut ours, Instant::from_millis(5)), b"there");
    assert_eq!(ours.next_due(), None);
    // Back: the delayed frame is in the sender's link, which must be polled.
    let mut back = Tcp {
        payload: b"back".to_vec(),
        ..segment
    };
    back.dst_port = 1;
    let mut tx = packet(&back, 0);
    let mut head = back.head();
    head[..6].copy_from_slice(&PEER_MAC.0);
    tx.head = HeadBuf::from_slice(&head).unwrap();
    ours.transmit(tx, Instant::from_millis(10)).unwrap();
    assert!(peer.poll_rx(Instant::from_millis(14)).is_none());
    assert_eq!(ours.next_due(), Some(Instant::from_millis(15)));
    assert!(ours.poll_rx(Instant::from_millis(15)).is_none());
    assert_eq!(receive_all(&mut peer, Instant::from_millis(15)), b"back");
}

#[test]
fn an_impaired_link_counts_both_directions() {
    let (a, b) = plain_wire();
    let mut a = Impaired::new(Box::new(a), "loss=100%".parse().unwrap(), Impairment::NONE);
    let (pool, port) = host_pool();
    let (frame, mut rig) = (tcp(b"x").frame(), Rig::new());
    for _ in 0..3 {
        assert_eq!(a.send(&raw(&frame, &port), NOW).unwrap(), LinkSent::Done);
        let mut b_end = rig.posted(&port);
        assert_eq!(a.receive(&mut b_end, NOW).unwrap(), LinkReceived::None);
    }
    let stats = a.impairment_stats().unwrap();
    assert_eq!(
        (stats.tx.delivered, stats.tx_refused, stats.rx.offered),
        (3, 0, 0)
    );
    drop(b);
    assert!(a.state() != LinkState::Up && a.send(&raw(&frame, &port), NOW).is_err());
    drop(pool);
}

/// Buffers for a link's receive, without a NIC.
struct Rig {
    head: HeaderBuf,
    spill: Vec<u8>,
    frame: Vec<u8>,
    borrowed: netmem::FragList,
}

impl Rig {
    fn new() -> Self {
        Self {
            head: HeaderBuf::new(0),
            spill: vec![0; MAX_FRAME_LEN + 1],
            frame: Vec::new(),
            borrowed: netmem::FragList::new(),
        }
    }

    fn posted<'a>(&'a mut self, port: &'a netmem::DmaPort) -> Posted<'a> {
        Posted {
            head: &mut self.head,
            predicted_header: 54,
            spans: &[],
            spill: &mut self.spill,
            frame: &mut self.frame,
            borrowed: &mut self.borrowed,
            port,
        }
    }
}

fn host_pool() -> (PagePool, netmem::DmaPort) {
    let provider = Arc::new(MemoryProvider::host(1 << 20, NiovSize::DEFAULT).unwrap());
    let pool = PagePool::new(provider);
    let port = pool.dma_port(mapped::DmaRight::of_a_nic());
    (pool, port)
}

fn raw<'a>(frame: &'a [u8], port: &'a netmem::DmaPort) -> TxFrame<'a> {
    static NOTHING: std::sync::LazyLock<Nothing> = std::sync::LazyLock::new(Nothing::default);
    TxFrame {
        head: frame,
        payload: &NOTHING.0,
        checksum: None,
        gso_size: 0,
        port,
    }
}

#[derive(Default)]
struct Nothing(netmem::FragList);

#[test]
fn a_partial_checksum_is_completed_before_a_frame_can_be_corrupted() {
    let (a, b) = WireLink::pair(WireOptions::default()).unwrap();
    let mut a = Impaired::both(Box::new(WithoutTso(a)), Impairment::NONE);
    let (mut peer, _) = {
        let (c, d) = plain_wire();
        drop(c);
        nics(b, d)
    };
    let segment = Tcp {
        v6: true,
        ..tcp(&pattern(3, 999))
    };
    let tx = packet(&segment, 0);
    peer.transmit(tx, NOW).unwrap();
    let (_pool, port) = host_pool();
    let mut rig = Rig::new();
    let mut posted = rig.posted(&port);
    let received = a.receive(&mut posted, NOW).unwrap();
    assert_eq!(
        received,
        LinkReceived::Frame {
            meta: VnetMeta::default()
        }
    );
    assert_eq!(rig.frame, segment.frame());
}

/// A wire with checksum offload and without segmentation offload.
struct WithoutTso(WireLink);

impl Link for WithoutTso {
    fn caps(&self) -> LinkCaps {
        LinkCaps {
            tso: false,
            ..self.0.caps()
        }
    }

    fn receive(&mut self, posted: &mut Posted<'_>, now: Instant) -> io::Result<LinkReceived> {
        self.0.receive(posted, now)
    }

    fn send(&mut self, frame: &TxFrame<'_>, now: Instant) -> io::Result<LinkSent> {
        self.0.send(frame, now)
    }

    fn poll_fd(&self) -> Option<std::os::fd::BorrowedFd<'_>> {
        self.0.poll_fd()
    }

    fn next_due(&self) -> Option<Instant> {
        self.0.next_due()
    }

    fn state(&self) -> LinkState {
        self.0.state()
    }
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

/// A TAP link over datagram sockets, which keep packet boundaries like a TAP; the test is the kernel.
fn fake_tap(queues: usize, options: TapOptions) -> (TapLink, Vec<OwnedFd>) {
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let pairs: Vec<_> = (0..queues)
        .map(|_| socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).unwrap())
        .collect();
    let (ours, theirs): (Vec<_>, Vec<_>) = pairs.into_iter().unzip();
    (TapLink::new(ours, options).unwrap(), theirs)
}

const NEEDS_CSUM_TCP4_1448: [u8; 10] = {
    let [a, b] = 66_u16.to_ne_bytes();
    let [c, d] = 1448_u16.to_ne_bytes();
    let [e, f] = 34_u16.to_ne_bytes();
    let [g, h] = 16_u16.to_ne_bytes();
    [1, 1, a, b, c, d, e, f, g, h]
};

fn write_frame(kernel: &OwnedFd, vnet: &[u8], frame: &[u8]) {
    let message = [vnet, frame].concat();
    assert_eq!(rustix::io::write(kernel, &message), Ok(message.len()));
}

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
fn jitter_and_loss_together_lose_and_reorder_whole_segments_only() {
    let (a, b) = plain_wire();
    let text =
        "loss=5%,reorder=5%,dup=5%,corrupt=5%,delay=1ms,jitter=1ms,rate=1gbit,limit=64,seed=11";
    let a = Impaired::both(Box::new(a), text.parse().unwrap());
    let (mut ours, mut peer) = nics(a, b);
    let mut seen = std::collections::BTreeSet::new();
    let mut now = Instant::ZERO;
    for i in 0..1000_u32 {
        let segment = Tcp {
            seq: i,
            ..tcp(&pattern(i as usize, 1000))
        };
        let tx = packet(&segment, 0);
        peer.transmit(tx, now).unwrap();
        now = now + Duration::from_micros(50);
        while let Some(packet) = ours.poll_rx(now) {
            let seq = packet.headers.tcp().unwrap().seq;
            assert_eq!(
                bytes(packet.payload.frags().unwrap()),
                pattern(seq as usize, 1000)
            );
            seen.insert(seq);
        }
    }
    assert!((800..1000).contains(&seen.len()), "{}", seen.len());
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
fn delayed_frames_arrive_after_the_link_has_failed() {
    let (tap, kernel) = fake_tap(
        1,
        TapOptions {
            offloads: false,
            ..TapOptions::default()
        },
    );
    let link = Impaired::both(Box::new(tap), "delay=5ms".parse().unwrap());
    let (mut nic, _) = nics(link, plain_wire().0);
    write_frame(&kernel[0], &[0; 10], &tcp(b"on its way").frame());
    assert!(nic.poll_rx(Instant::ZERO).is_none());
    drop(kernel);
    assert!(nic.poll_rx(Instant::from_millis(1)).is_none());
    assert!(!nic.is_up());
    assert_eq!(
        receive_all(&mut nic, Instant::from_millis(5)),
        b"on its way"
    );
}

#[test]
fn a_nic_can_be_moved_to_another_thread() {
    fn is_send<T: Send>() {}
    is_send::<Nic>();
}

/// The ends of a UNIX wire, each with or without offloads.
fn unix_wire(ours: bool, theirs: bool) -> (UnixLink, UnixLink) {
    unix_wire_of([ours, theirs], false)
}

const HELLO: WireHello = WireHello {
    offloads: true,
    mtu: 1500,
    shares_memory: false,
    needs_offloads: false,
};

/// Returns both ends of a UNIX wire, which have offloads or not, and share memory or not.
fn unix_wire_of(offloads: [bool; 2], shares_memory: bool) -> (UnixLink, UnixLink) {
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let (a, b) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).unwrap();
    let [ours, theirs] = offloads.map(|offloads| WireHello {
        offloads,
        shares_memory,
        ..HELLO
    });
    (
        UnixLink::new(a, ours, theirs).unwrap(),
        UnixLink::new(b, theirs, ours).unwrap(),
    )
}

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

/// Returns a function that tells whether a link's descriptor is readable.
fn watch(link: &dyn Link) -> impl Fn() -> bool + use<> {
    let fd = link.poll_fd().unwrap().try_clone_to_owned().unwrap();
    move || {
        let mut fds = [rustix::event::PollFd::new(
            &fd,
            rustix::event::PollFlags::IN,
        )];
        rustix::event::poll(&mut fds, Some(&rustix::event::Timespec::default())).unwrap() > 0
    }
}

/// Sends the same packet until one has to wait; returns the number of packets.
fn fill_up(nic: &mut Nic, segment: &Tcp) -> usize {
    let mut sent = 0;
    while nic.flush_tx(NOW) == 0 {
        let tx = packet(segment, 0);
        nic.transmit(tx, NOW).unwrap();
        sent += 1;
        assert!(sent < 100_000);
    }
    sent
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
fn a_delayed_frame_for_a_full_link_is_sent_when_there_is_room() {
    let delay: Impairment = "delay=1ms".parse().unwrap();
    // A TAP does not report room: sending has to be retried.
    let options = TapOptions {
        offloads: false,
        ..TapOptions::default()
    };
    let (tap, kernel) = fake_tap(1, options);
    let impaired = Impaired::both(Box::new(tap), delay);
    let (mut nic, _) = nics(impaired, plain_wire().0);
    let later = NOW + Duration::from_millis(1);
    let segment = tcp(&pattern(0, 1000));
    while nic.next_due() != Some(Instant::ZERO) {
        let tx = packet(&segment, 0);
        nic.transmit(tx, NOW).unwrap();
        assert!(nic.poll_rx(later).is_none());
    }
    drop(kernel);
    // A UNIX wire reports it.
    let (a, b) = unix_wire(false, false);
    let readable = watch(&a);
    let impaired = Impaired::both(Box::new(a), delay);
    let (mut ours, mut nic) = nics(b, impaired);
    let mut sent = 0;
    loop {
        let tx = packet(&segment, 0);
        nic.transmit(tx, NOW).unwrap();
        sent += 1;
        assert!(nic.poll_rx(later).is_none());
        let tx = packet(&segment, 0);
        nic.transmit(tx, NOW).unwrap();
        sent += 1;
        if nic.next_due().is_none() {
            break;
        }
        assert!(nic.poll_rx(later).is_none());
        assert!(sent < 100_000);
    }
    assert!(!readable(), "one frame waits, and one behind it");
    let mut got = receive_all(&mut ours, NOW).len();
    assert!(readable());
    assert!(nic.poll_rx(later).is_none());
    got += receive_all(&mut ours, NOW).len();
    assert_eq!(got, sent * 1000);
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
    assert_eq!(ours.transmit(tx, NOW), Err(TransmitError::LinkDown));
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
            assert_eq!(ours.transmit(tx, NOW), Err(TransmitError::LinkDown));
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
    assert_eq!(ours.transmit(tx, NOW), Err(TransmitError::LinkDown));
    assert_eq!(receive_all(&mut ours, NOW), words);
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
