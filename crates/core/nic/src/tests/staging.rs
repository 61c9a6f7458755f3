//! Queues and sends with memory that the CPU cannot access.

use std::sync::Arc;

use netmem::{
    Dmabuf, DmabufId, FAKE_LOST, FakeDevice, FakePace, FragList, FragSource, MemoryProvider,
    NiovSize, Payload,
};
use wire::TcpFlags;

use super::harness::*;
use crate::*;

/// Id of the memory of queue 1.
const REMOTE: DmabufId = DmabufId(7);

/// Id of the memory that is sent from.
const SENT: DmabufId = DmabufId(8);

/// A NIC whose queue 1, with the flows to [`DEVICE_PORT`], has memory of a device.
struct Staged {
    bench: Bench,
    device: FakeDevice,
    memory: Dmabuf,
    provider: Arc<MemoryProvider>,
}

impl Staged {
    fn new(pace: FakePace, niov_size: usize) -> Self {
        Self::with(OFFLOADED, pace, niov_size)
    }

    fn with(caps: LinkCaps, pace: FakePace, niov_size: usize) -> Self {
        let mut bench = Bench::new(caps, NicConfig::default(), vec![opaque(4 << 20, 1, 65_536)]);
        let device = FakeDevice::new(pace);
        let memory = device.alloc(32 << 20).unwrap();
        let niov_size = NiovSize::new(niov_size).unwrap();
        let provider = Arc::new(MemoryProvider::of_dmabuf(&memory, REMOTE, niov_size).unwrap());
        let choice = ProviderChoice::Provider(Arc::clone(&provider));
        bench.nic.restart_queue(Q1, choice).unwrap();
        Self {
            bench,
            device,
            memory,
            provider,
        }
    }

    fn scatter(&self, segment: &Tcp) {
        self.bench.link.scatter(segment.frame(), PARTIAL);
    }

    /// Receives what has arrived, with a device that copies when it is asked.
    fn receive(&mut self) -> Option<RxPacket> {
        (0..10_000).find_map(|_| self.bench.receive())
    }

    /// Reads payload in the memory of queue 1.
    fn read(&self, payload: &FragList) -> Vec<u8> {
        let mut out = Vec::new();
        for frag in payload {
            assert_eq!(frag.dmabuf_id(), Some(REMOTE));
            let at = out.len();
            out.resize(at + frag.len(), 0);
            let from = frag.dmabuf_offset() as usize;
            self.memory.copy_out(from, &mut out[at..]).unwrap();
        }
        out
    }

    /// Memory to send from, with a pattern from offset 100.
    fn sending(&mut self) -> FragSource {
        let memory = self.device.alloc(1 << 20).unwrap();
        memory.copy_in(100, &pattern(3, 65_000)).unwrap();
        let engine = memory.copy_engine().unwrap();
        self.bench.nic.prepare_tx(engine).unwrap();
        FragSource::new(&memory, SENT).unwrap()
    }

    fn sent(&self) -> Vec<Vec<u8>> {
        let mut script = self.bench.link.lock();
        script.sent.drain(..).map(|frame| frame.bytes).collect()
    }

    fn finish(self) {
        self.bench.finish();
        let niovs = self.provider.area().count();
        assert_eq!(self.provider.free_niovs(), niovs, "all net_iovs are home");
    }
}

/// A packet with `len` bytes of `memory` from offset 100.
fn packet(memory: &FragSource, segment: &Tcp, len: usize) -> TxPacket {
    TxPacket {
        head: HeadBuf::from_slice(&segment.head()).unwrap(),
        payload: memory.begin().frags(100, len).unwrap(),
        checksum: Some(segment.tx_checksum()),
        gso_size: 0,
    }
}

#[test]
fn payload_is_delivered_when_its_copy_is_done_and_not_before() {
    let mut staged = Staged::new(FakePace::OnDemand, 65_536);
    let sent = pattern(1, 5000);
    staged.scatter(&tcp(&sent));
    assert_eq!(staged.bench.nic.next_due(), None);
    for _ in 0..3 {
        assert!(staged.bench.receive().is_none(), "the device is copying");
    }
    let due = staged
        .bench
        .nic
        .next_due()
        .expect("the device is asked again");
    assert!(due > NOW);
    staged.device.run();
    let packet = staged.bench.receive().expect("the copy is done");
    assert_eq!(staged.read(packet.payload.frags().unwrap()), sent);
    assert_eq!(staged.bench.nic.next_due(), None);
    staged.bench.nic.recycle(packet.payload.into_frags());
    staged.finish();
}

#[test]
fn a_link_is_gone_after_the_packets_that_a_device_is_copying() {
    let mut staged = Staged::new(FakePace::OnDemand, 65_536);
    let sent = pattern(1, 5000);
    staged.scatter(&tcp(&sent));
    assert!(staged.bench.receive().is_none(), "the device is copying");
    staged.bench.link.lock().gone = true;
    assert_eq!(staged.bench.nic.link_state(), LinkState::Down);
    staged.device.run();
    let packet = staged.bench.receive().expect("the copy is done");
    assert_eq!(staged.bench.nic.link_state(), LinkState::Gone);
    assert_eq!(staged.read(packet.payload.frags().unwrap()), sent);
    staged.bench.nic.recycle(packet.payload.into_frags());
    staged.finish();
}

#[test]
fn the_packets_of_a_poll_are_one_batch_and_neighbours_one_copy() {
    let mut staged = Staged::new(FakePace::OnDemand, 65_536);
    for seed in 0..44 {
        staged.scatter(&tcp(&pattern(seed, 1448)));
    }
    assert!(staged.bench.receive().is_none());
    let submissions = staged.device.submissions();
    assert_eq!(submissions.len(), 1, "{submissions:?}");
    assert!(
        submissions[0] <= 2,
        "44 packets in two net_iovs: {submissions:?}"
    );
    staged.device.run();
    for seed in 0..44 {
        let packet = staged.bench.receive().unwrap();
        assert_eq!(
            staged.read(packet.payload.frags().unwrap()),
            pattern(seed, 1448)
        );
    }
    assert_eq!(staged.device.submissions().len(), 1);
    staged.finish();
}

#[test]
fn a_device_that_copies_is_asked_once_for_each_batch_that_arrives() {
    let mut staged = Staged::new(FakePace::OnDemand, 65_536);
    let sent: Vec<_> = (0..24).map(|seed| pattern(seed, 60_000)).collect();
    for payload in &sent {
        staged.scatter(&tcp(payload));
    }
    assert!(staged.bench.receive().is_none());
    let batches = staged.device.submissions().len();
    assert_eq!((batches, staged.device.asked()), (5, 5));
    staged.device.run();
    for payload in sent {
        let packet = staged.receive().unwrap();
        assert_eq!(staged.read(packet.payload.frags().unwrap()), payload);
    }
    staged.finish();
}

#[test]
fn packets_without_staged_payload_stay_behind_those_with_it() {
    let mut staged = Staged::new(FakePace::OnDemand, 65_536);
    staged.scatter(&tcp(b"first"));
    staged.scatter(&Tcp { seq: 6, ..tcp(b"") });
    let host = Tcp {
        dst_port: 80,
        seq: 9,
        ..tcp(b"other flow")
    };
    staged.scatter(&host);
    assert!(staged.bench.receive().is_none(), "all wait for the first");
    staged.device.run();
    let seqs: Vec<_> = std::iter::from_fn(|| staged.bench.receive())
        .map(|packet| packet.headers.tcp().unwrap().seq)
        .collect();
    assert_eq!(seqs, [1, 6, 9]);
    staged.finish();
}

#[test]
fn every_length_header_and_delivery_arrives_byte_for_byte() {
    for niov_size in [4096, 65_536, 2 << 20] {
        for pace in [FakePace::AtOnce, FakePace::AfterPolls(2)] {
            let mut staged = Staged::new(pace, niov_size);
            let lengths = [1, 2, 63, 64, 65, 536, 1448, 4096, 9000, 20_000, 65_000];
            for (seed, len) in lengths.into_iter().chain(1..70).enumerate() {
                let sent = Tcp {
                    v6: seed % 3 == 0,
                    options: if seed % 4 == 0 {
                        Default::default()
                    } else {
                        timestamps()
                    },
                    ..tcp(&pattern(seed, len))
                };
                let how = [Delivery::Scatter, Delivery::Whole][seed % 2];
                staged.bench.link.deliver(sent.frame(), UNVERIFIED, how);
                let packet = staged.receive().expect("the segment arrives");
                assert_eq!(
                    staged.read(packet.payload.frags().unwrap()),
                    sent.payload,
                    "{seed}, {len} bytes"
                );
                staged.bench.nic.recycle(packet.payload.into_frags());
            }
            assert_eq!(staged.bench.nic.drops().total(), 0);
            staged.finish();
        }
    }
}

#[test]
fn a_slow_device_stops_the_reading_and_nothing_is_lost() {
    let mut staged = Staged::new(FakePace::OnDemand, 65_536);
    const FRAMES: usize = 300;
    for seed in 0..FRAMES {
        staged.scatter(&Tcp {
            seq: seed as u32,
            ..tcp(&pattern(seed, 60_000))
        });
    }
    assert!(staged.receive().is_none());
    let left = staged.bench.link.lock().incoming.len();
    assert!(
        left > FRAMES / 2,
        "the link keeps {left} of {FRAMES} frames"
    );
    for seed in 0..FRAMES {
        let packet = loop {
            match staged.bench.receive() {
                Some(packet) => break packet,
                None => staged.device.run(),
            }
        };
        assert_eq!(packet.headers.tcp().unwrap().seq, seed as u32, "in order");
        assert_eq!(
            staged.read(packet.payload.frags().unwrap()),
            pattern(seed, 60_000)
        );
        staged.bench.nic.recycle(packet.payload.into_frags());
    }
    assert_eq!(staged.bench.nic.drops().total(), 0);
    staged.finish();
}

#[test]
fn short_device_memory_leaves_the_packet_without_payload() {
    let mut staged = Staged::new(FakePace::AtOnce, 65_536);
    let mut kept = Vec::new();
    loop {
        staged.scatter(&tcp(&pattern(1, 60_000)));
        let packet = (0..10).find_map(|_| staged.bench.nic.poll_rx(NOW)).unwrap();
        if packet.payload.frags().is_none() {
            assert!(matches!(packet.payload, Placed::Unplaced));
            break;
        }
        kept.push(packet.payload);
    }
    assert!(kept.len() > 400, "32 MiB hold {} payloads", kept.len());
    assert_eq!(staged.bench.dropped(DropReason::RxNoBuffers), 1);
    drop(kept);
    staged.finish();
}

fn failure(packet: &RxPacket) -> Option<&netmem::DeviceError> {
    match &packet.payload {
        Placed::Failed(error) => Some(error),
        Placed::Whole(_) | Placed::Unplaced => None,
    }
}

#[test]
fn a_lost_device_fails_packets_of_its_memory_only() {
    let mut staged = Staged::new(FakePace::OnDemand, 65_536);
    staged.scatter(&tcp(b"lost"));
    staged.scatter(&Tcp {
        dst_port: 80,
        ..tcp(b"host memory")
    });
    assert!(staged.bench.nic.poll_rx(NOW).is_none());
    staged.device.lose();
    let lost = staged.bench.nic.poll_rx(NOW).expect("its headers");
    assert_eq!(failure(&lost), Some(&FAKE_LOST));
    assert_eq!(lost.headers.payload_len, 4);
    let kept = staged
        .bench
        .nic
        .poll_rx(NOW)
        .expect("the other queue's packet");
    assert_eq!(kept.payload.frags().unwrap().len(), 11);
    // A later packet fails when its copy is submitted.
    staged.scatter(&tcp(b"late"));
    let late = staged.bench.nic.poll_rx(NOW).expect("its headers");
    assert_eq!(failure(&late), Some(&FAKE_LOST));
    assert_eq!(staged.bench.dropped(DropReason::RxDeviceFailed), 2);
    drop((lost, kept, late));
    staged.finish();
}

#[test]
fn a_queue_is_restarted_and_a_nic_dropped_while_the_device_copies() {
    let mut staged = Staged::new(FakePace::OnDemand, 65_536);
    staged.scatter(&tcp(&pattern(1, 3000)));
    assert!(staged.bench.receive().is_none());
    staged
        .bench
        .nic
        .restart_queue(Q1, ProviderChoice::Host)
        .unwrap();
    staged.device.run();
    let packet = staged.bench.receive().expect("it was received before");
    assert_eq!(
        staged.read(packet.payload.frags().unwrap()),
        pattern(1, 3000)
    );
    drop(packet);
    staged.finish();

    let staged = Staged::new(FakePace::OnDemand, 65_536);
    let mut staged = staged;
    staged.scatter(&tcp(&pattern(2, 3000)));
    assert!(staged.bench.receive().is_none());
    // Dropping the NIC waits for the copies.
    staged.finish();
}

#[test]
fn payload_is_sent_when_it_has_been_copied_and_others_stay_behind_it() {
    let mut staged = Staged::new(FakePace::OnDemand, 65_536);
    let memory = staged.sending();
    let segment = tcp(&pattern(3, 65_000)[..1448]);
    let ack = Tcp {
        seq: 77,
        ..tcp(b"")
    };
    staged
        .bench
        .nic
        .transmit(packet(&memory, &segment, 1448), NOW)
        .unwrap();
    let bare = TxPacket {
        payload: FragList::default(),
        ..packet(&memory, &ack, 1)
    };
    staged.bench.nic.transmit(bare, NOW).unwrap();
    staged.bench.nic.flush_tx(NOW);
    assert_eq!(staged.sent().len(), 0);
    assert_eq!(memory.in_flight(), 1);
    assert!(staged.bench.nic.next_due().is_some());
    staged.device.run();
    staged.bench.nic.flush_tx(NOW);
    let sent = staged.sent();
    assert_eq!(sent.len(), 2);
    assert_eq!(sent[0][sent[0].len() - 1448..], segment.payload);
    assert_eq!(sent[1].len(), ack.head().len());
    assert_eq!(memory.in_flight(), 0, "the device's memory is free");
    staged.finish();
}

#[test]
fn a_link_without_offloads_gets_checksums_and_segments_of_staged_payload() {
    let mut staged = Staged::with(PLAIN, FakePace::AfterPolls(1), 65_536);
    let memory = staged.sending();
    let segment = tcp(&pattern(3, 65_000)[..4000]);
    let short = tcp(&pattern(3, 65_000)[..1400]);
    let whole = packet(&memory, &short, 1400);
    let cut = TxPacket {
        gso_size: 1448,
        ..packet(&memory, &segment, 4000)
    };
    staged.bench.nic.transmit(whole, NOW).unwrap();
    staged.bench.nic.transmit(cut, NOW).unwrap();
    for _ in 0..10 {
        staged.bench.nic.flush_tx(NOW);
    }
    let sent = staged.sent();
    assert_eq!(sent[0], short.frame());
    let segments: Vec<_> = sent[1..]
        .iter()
        .flat_map(|frame| &frame[66..])
        .copied()
        .collect();
    assert_eq!((sent.len(), segments), (4, segment.payload));
    staged.finish();
}

#[test]
fn a_full_ring_holds_packets_back_and_sends_all_of_them() {
    let mut staged = Staged::new(FakePace::OnDemand, 65_536);
    let memory = staged.sending();
    let segment = tcp(&pattern(3, 65_000));
    const PACKETS: usize = 200;
    for seq in 0..PACKETS {
        let segment = Tcp {
            seq: seq as u32,
            ..segment.clone()
        };
        let packet = TxPacket {
            gso_size: 1448,
            ..packet(&memory, &segment, 65_000)
        };
        staged.bench.nic.transmit(packet, NOW).unwrap();
    }
    let mut sent = Vec::new();
    for _ in 0..PACKETS {
        staged.device.run();
        staged.bench.nic.flush_tx(NOW);
        sent.extend(staged.sent());
    }
    assert_eq!(sent.len(), PACKETS);
    for (seq, frame) in sent.iter().enumerate() {
        assert_eq!(frame[38..42], (seq as u32).to_be_bytes());
        assert_eq!(frame[66..], segment.payload);
    }
    staged.finish();
}

#[test]
fn a_packet_that_the_device_did_not_copy_names_its_connection() {
    let mut staged = Staged::new(FakePace::OnDemand, 65_536);
    let memory = staged.sending();
    let segment = tcp(&pattern(3, 100));
    staged
        .bench
        .nic
        .transmit(packet(&memory, &segment, 100), NOW)
        .unwrap();
    staged.device.lose();
    staged.bench.nic.flush_tx(NOW);
    let failed = staged.bench.nic.take_failed_tx().expect("the packet");
    assert_eq!(failed.error, FAKE_LOST);
    let tuple = failed.four_tuple().unwrap();
    assert_eq!((tuple.src_port, tuple.dst_port), (40_000, DEVICE_PORT));
    assert!(staged.bench.nic.take_failed_tx().is_none());
    assert_eq!(staged.bench.dropped(DropReason::TxDeviceFailed), 1);
    assert_eq!(staged.sent().len(), 0);
    drop(failed);
    assert_eq!(memory.in_flight(), 0);
    staged.finish();
}

#[test]
fn a_packet_to_ourselves_goes_from_device_to_device() {
    let mut staged = Staged::new(FakePace::AfterPolls(1), 65_536);
    let memory = staged.sending();
    let segment = tcp(&pattern(3, 65_000));
    let mut packet = packet(&memory, &segment, 65_000);
    let mut head = segment.head();
    // From our own address: destination and source are the first twelve bytes.
    head.copy_within(0..6, 6);
    packet.head = HeadBuf::from_slice(&head).unwrap();
    packet.gso_size = 1448;
    staged.bench.nic.transmit(packet, NOW).unwrap();
    let packet = staged.receive().expect("the packet is received");
    assert_eq!(packet.origin, Origin::Loop);
    assert_eq!(
        staged.read(packet.payload.frags().unwrap()),
        segment.payload
    );
    assert_eq!(memory.in_flight(), 0);
    drop(packet);
    staged.finish();
}

#[test]
fn small_payloads_are_moved_together_by_the_device() {
    let mut staged = Staged::new(FakePace::AtOnce, 65_536);
    let mut waiting = FragList::default();
    // Alternating with long packets, so that each short one keeps a net_iov.
    for seed in 0..20 {
        staged.scatter(&tcp(&pattern(seed, 100)));
        waiting.append(staged.receive().unwrap().payload.into_frags());
        staged.scatter(&Tcp {
            flags: TcpFlags::ACK,
            ..tcp(&pattern(seed, 64_000))
        });
        let long = staged.receive().unwrap().payload.into_frags();
        staged.bench.nic.recycle(long);
    }
    let before = staged.read(&waiting);
    let memory = RxMemory::Queue(Q1);
    let mut usage = NiovUsage::default();
    staged.bench.nic.measure(memory, &waiting, &mut usage);
    assert!(usage.niovs() > 10);
    staged.bench.nic.collapse(memory, &mut waiting, &usage);
    usage.clear();
    staged.bench.nic.measure(memory, &waiting, &mut usage);
    assert_eq!(usage.niovs(), 1);
    assert_eq!(staged.read(&waiting), before);
    drop(waiting);
    staged.finish();
}
