//! Impaired links: loss, corruption, delay and order.

use super::*;

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
