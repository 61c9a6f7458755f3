//! Direct placement: what is there already, what is copied, and what a wrong prediction does to others.
#![allow(
    clippy::single_range_in_vec_init,
    reason = "a payload may lie in one range"
)]

use netmem::{Dmabuf, DmabufId, FragList, FragSource};
use proptest::prelude::*;
use wire::{FourTuple, SackBlocks, TcpOptions};

use super::harness::*;
use crate::*;

/// The dma-buf id of the target.
const TARGET: DmabufId = DmabufId(100);

/// A NIC with one device queue, and a memory that flows may name places in.
struct Direct {
    bench: Bench,
    target: Dmabuf,
    memory: FragSource,
}

impl Direct {
    fn new(target_bytes: usize) -> Self {
        Self::on(Bench::with_device(NicConfig::default()), target_bytes)
    }

    fn on(bench: Bench, target_bytes: usize) -> Self {
        let target = Dmabuf::anonymous(target_bytes).unwrap();
        let memory = FragSource::new(&target, TARGET).unwrap();
        Self {
            bench,
            target,
            memory,
        }
    }

    fn add(&mut self, segment: &Tcp, range: std::ops::Range<usize>) {
        self.add_all(segment, vec![range]);
    }

    fn add_all(&mut self, segment: &Tcp, ranges: Vec<std::ops::Range<usize>>) {
        let (send, nic) = (self.memory.begin(), &mut self.bench.nic);
        nic.ddp()
            .add(flow(segment), segment.seq, send, ranges)
            .unwrap();
    }

    fn pass(&mut self, segment: &Tcp, delivery: Delivery) -> RxPacket {
        let meta = VnetMeta {
            gso_size: if segment.payload.len() > 1448 {
                1448
            } else {
                0
            },
            ..PARTIAL
        };
        self.bench.link.deliver(segment.frame(), meta, delivery);
        let packet = self.bench.receive().expect("the segment arrives");
        assert_eq!(self.read(packet.payload.frags().unwrap()), segment.payload);
        packet
    }

    fn read(&self, payload: &FragList) -> Vec<u8> {
        let mut out = Vec::new();
        for frag in payload {
            if frag.dmabuf_id() == Some(TARGET) {
                let at = frag.dmabuf_offset() as usize;
                out.extend(self.target.slice(at..at + frag.len()).to_vec());
            } else {
                out.extend(self.bench.read(&frag.share(0..frag.len()).into()));
            }
        }
        out
    }

    fn stats(&self) -> RxQueueStats {
        self.bench.nic.queue_stats(Q1).unwrap()
    }
}

fn flow(segment: &Tcp) -> FourTuple {
    let frame = segment.frame();
    let headers = wire::RxHeaders::parse(&frame, frame.len()).unwrap();
    headers.four_tuple().unwrap()
}

/// Returns the ranges of the target that a payload lies in, and its bytes elsewhere.
fn in_target(payload: &FragList) -> (Vec<std::ops::Range<u64>>, usize) {
    let (mut ranges, mut elsewhere) = (Vec::new(), 0);
    for frag in payload {
        let at = frag.dmabuf_offset();
        match frag.dmabuf_id() {
            Some(TARGET) => ranges.push(at..at + frag.len() as u64),
            _ => elsewhere += frag.len(),
        }
    }
    (ranges, elsewhere)
}

/// A segment of the first flow, or of another one.
fn segment(flow: u16, seq: u32, len: usize) -> Tcp {
    Tcp {
        src_port: 40_000 + flow,
        seq,
        ..tcp(&pattern(seq as usize + usize::from(flow), len))
    }
}

#[test]
fn a_predicted_flow_is_received_at_its_place_and_not_copied() {
    let mut direct = Direct::new(1 << 20);
    let first = segment(0, 7, 60_000);
    drop(direct.bench.pass(&segment(0, 1, 6)));
    direct.add(&first, 4097..4097 + 100_000);
    let one = direct.pass(&first, Delivery::Scatter);
    assert_eq!(
        in_target(one.payload.frags().unwrap()),
        (vec![4097..64_097], 0)
    );
    // The second packet goes on behind the end of the range.
    let two = direct.pass(&segment(0, 60_007, 60_000), Delivery::Scatter);
    assert_eq!(
        in_target(two.payload.frags().unwrap()),
        (vec![64_097..104_097], 20_000)
    );
    let stats = direct.stats();
    assert_eq!(
        (stats.direct_bytes, stats.direct_copied_bytes),
        (100_000, 0)
    );
    // Full: later packets lie in the memory of the queue.
    let three = direct.pass(&segment(0, 120_007, 1000), Delivery::Scatter);
    assert_eq!(in_target(three.payload.frags().unwrap()), (vec![], 1000));
    drop((one, two, three));
    direct.bench.finish();
}

#[test]
fn super_packets_longer_than_their_length_field_are_received_at_their_place() {
    let caps = LinkCaps {
        max_rx_packet: BIG_PACKET_LEN,
        ..OFFLOADED
    };
    let devices = vec![opaque(16 << 20, 1, 65_536)];
    let bench = Bench::new(caps, NicConfig::default(), devices);
    let mut direct = Direct::on(bench, 4 << 20);
    drop(direct.bench.pass(&segment(0, 1, 6)));
    // The first one comes unexpected: memory is posted for its first 65,535 bytes.
    direct.add(&segment(0, 7, 1), 0..700_000);
    let one = direct.pass(&segment(0, 7, 300_000), Delivery::Scatter);
    let (ranges, elsewhere) = in_target(one.payload.frags().unwrap());
    assert_eq!((ranges, elsewhere), (vec![0..65_535], 300_000 - 65_535));
    let spilled = direct.stats().spilled_bytes;
    assert_eq!(spilled, elsewhere as u64);
    // The connection says where the next byte belongs.
    direct.bench.nic.ddp().remove(&flow(&segment(0, 7, 1)));
    direct.add(&segment(0, 300_007, 1), 300_000..1_000_000);
    let two = direct.pass(&segment(0, 300_007, 500_000), Delivery::Scatter);
    assert_eq!(
        in_target(two.payload.frags().unwrap()),
        (vec![300_000..800_000], 0)
    );
    // Its end is behind that of the range.
    let three = direct.pass(&segment(0, 800_007, 500_000), Delivery::Scatter);
    assert_eq!(
        in_target(three.payload.frags().unwrap()),
        (vec![800_000..1_000_000], 300_000)
    );
    let stats = direct.stats();
    assert_eq!(stats.spilled_bytes, spilled);
    assert_eq!(stats.direct_copied_bytes, 0);
    drop((one, two, three));
    direct.bench.finish();
}

#[test]
fn no_memory_of_the_queue_is_needed_for_payload_that_has_its_place() {
    let mut direct = Direct::new(2 << 20);
    direct.add(&segment(0, 0, 1), 0..2 << 20);
    let mut held = Vec::new();
    for at in (0..2 << 20).step_by(1 << 16) {
        held.push(direct.pass(&segment(0, at, 1 << 15), Delivery::Scatter));
        held.push(direct.pass(&segment(0, at + (1 << 15), 1 << 15), Delivery::Scatter));
    }
    let pool = direct.bench.nic.pool_stats(Q1).unwrap();
    assert!(pool.outstanding <= 3, "{pool:?}");
    drop(held);
    direct.bench.finish();
}

#[test]
fn a_wrong_predicted_flow_costs_one_copy_to_the_place_of_the_right_one() {
    let mut direct = Direct::new(1 << 20);
    direct.add(&segment(0, 0, 1), 0..200_000);
    direct.add(&segment(1, 0, 1), 300_000..500_000);
    // `add` predicts flow 1.
    let one = direct.pass(&segment(0, 0, 50_000), Delivery::Scatter);
    assert_eq!(
        in_target(one.payload.frags().unwrap()),
        (vec![0..50_000], 0)
    );
    assert_eq!(direct.stats().direct_copied_bytes, 50_000);
    let two = direct.pass(&segment(1, 0, 50_000), Delivery::Scatter);
    assert_eq!(
        in_target(two.payload.frags().unwrap()),
        (vec![300_000..350_000], 0)
    );
    // What was placed first is still there, although the second packet was read behind it.
    assert_eq!(
        direct.read(one.payload.frags().unwrap()),
        segment(0, 0, 50_000).payload
    );
    assert_eq!(direct.stats().direct_copied_bytes, 100_000);
    drop((one, two));
    direct.bench.finish();
}

#[test]
fn the_rest_of_a_packet_that_was_not_predicted_stays_where_it_is() {
    let mut direct = Direct::new(1 << 20);
    drop(direct.bench.pass(&segment(1, 9, 9)));
    // Flow 1, without a place, is predicted again by its packet.
    direct.add(&segment(0, 0, 1), 0..700);
    drop(direct.pass(&segment(1, 18, 5000), Delivery::Scatter));
    let before = direct.stats();
    let packet = direct.pass(&segment(0, 0, 5000), Delivery::Scatter);
    assert_eq!(
        in_target(packet.payload.frags().unwrap()),
        (vec![0..700], 4300)
    );
    let after = direct.stats();
    let copied = after.direct_copied_bytes - before.direct_copied_bytes;
    assert_eq!(
        (copied, after.misdirected_bytes),
        (700, before.misdirected_bytes)
    );
    assert_eq!((after.header_longer, after.header_shorter), (0, 0));
    drop(packet);
    direct.bench.finish();
}

#[test]
fn a_packet_of_a_flow_without_a_place_is_copied_to_the_memory_of_the_queue() {
    let mut direct = Direct::new(1 << 20);
    drop(direct.bench.pass(&segment(1, 9, 9)));
    // The range ends within the packet, whose rest lies in the memory of the queue already.
    direct.add(&segment(0, 0, 1), 0..10_000);
    let packet = direct.pass(&segment(1, 0, 50_000), Delivery::Scatter);
    assert_eq!(in_target(packet.payload.frags().unwrap()), (vec![], 50_000));
    assert_eq!(direct.stats().misdirected_bytes, 10_000);
    // A packet out of order has no place either.
    let late = direct.pass(&segment(0, 60_000, 5000), Delivery::Scatter);
    assert_eq!(in_target(late.payload.frags().unwrap()), (vec![], 5000));
    let right = direct.pass(&segment(0, 0, 5000), Delivery::Scatter);
    assert_eq!(
        in_target(right.payload.frags().unwrap()),
        (vec![0..5000], 0)
    );
    drop((packet, late, right));
    direct.bench.finish();
}

#[test]
fn the_connection_decides_where_the_next_byte_belongs() {
    let mut direct = Direct::new(1 << 20);
    let first = segment(0, u32::MAX - 99, 1000);
    direct.add(&first, 0..4000);
    let flow = flow(&first);
    drop(direct.pass(&first, Delivery::Scatter));
    // TCP has dropped it.
    direct.bench.nic.ddp().resync(&flow, first.seq, 4000);
    let again = direct.pass(&first, Delivery::Scatter);
    assert_eq!(
        in_target(again.payload.frags().unwrap()),
        (vec![0..1000], 0)
    );
    // TCP has received 500 bytes more, out of order.
    direct.bench.nic.ddp().resync(&flow, 1400, 2500);
    let next = direct.pass(&segment(0, 1400, 1000), Delivery::Scatter);
    assert_eq!(
        in_target(next.payload.frags().unwrap()),
        (vec![1500..2500], 0)
    );
    direct.bench.nic.ddp().remove(&flow);
    let rest = direct.pass(&segment(0, 2400, 1000), Delivery::Scatter);
    assert_eq!(in_target(rest.payload.frags().unwrap()), (vec![], 1000));
    drop((again, next, rest));
    direct.bench.finish();
}

#[test]
fn ranges_are_filled_one_after_another_also_again() {
    let mut direct = Direct::new(1 << 20);
    drop(direct.bench.pass(&segment(0, 0, 1)));
    let ranges = [900_000..900_003, 0..10_000, 20_000..20_000, 50_000..60_000];
    direct.add_all(&segment(0, 1, 1), ranges.to_vec());
    let placed = |packet: &RxPacket| in_target(packet.payload.frags().unwrap());
    let one = direct.pass(&segment(0, 1, 5003), Delivery::Scatter);
    assert_eq!(placed(&one), (vec![900_000..900_003, 0..5000], 0));
    // TCP goes back into the first range.
    let flow = flow(&segment(0, 0, 1));
    direct.bench.nic.ddp().resync(&flow, 2, 20_002);
    let again = direct.pass(&segment(0, 2, 9002), Delivery::Scatter);
    assert_eq!(placed(&again), (vec![900_001..900_003, 0..9000], 0));
    let last = direct.pass(&segment(0, 9004, 30_000), Delivery::Scatter);
    let rest = vec![9000..10_000, 50_000..60_000];
    assert_eq!(placed(&last), (rest, 30_000 - 11_000));
    assert_eq!(direct.stats().direct_copied_bytes, 0);
    drop((one, again, last));
    direct.bench.finish();
}

#[test]
fn tiny_ranges_are_posted_a_few_at_a_time_and_nothing_is_lost() {
    let mut direct = Direct::new(1 << 20);
    drop(direct.bench.pass(&segment(0, 0, 1)));
    let ranges = (0..1000).map(|number| 100 * number..100 * number + 10);
    direct.add_all(&segment(0, 1, 1), ranges.collect());
    let packet = direct.pass(&segment(0, 1, 9000), Delivery::Scatter);
    let (ranges, elsewhere) = in_target(packet.payload.frags().unwrap());
    assert_eq!((ranges.len(), elsewhere), (32, 9000 - 320));
    assert_eq!(direct.bench.link.lock().posted_spans.len(), 32 + 2);
    let whole = direct.pass(&segment(0, 321, 9000), Delivery::Whole);
    assert_eq!(
        in_target(whole.payload.frags().unwrap()).1,
        0,
        "a copy has no such limit"
    );
    drop((packet, whole));
    direct.bench.finish();
}

#[test]
fn a_range_outside_of_the_memory_is_refused() {
    let mut direct = Direct::new(8192);
    let segment = segment(0, 0, 100);
    for range in [0..8193, 8193..8193, usize::MAX..usize::MAX] {
        let send = direct.memory.begin();
        let nic = &mut direct.bench.nic;
        assert!(
            nic.ddp()
                .add(flow(&segment), 0, send, vec![0..1, range])
                .is_err()
        );
    }
    let packet = direct.pass(&segment, Delivery::Scatter);
    assert_eq!(in_target(packet.payload.frags().unwrap()), (vec![], 100));
    drop(packet);
    direct.bench.finish();
}

#[derive(Clone, Debug)]
enum Step {
    Add {
        flow: u16,
        at: usize,
        len: usize,
    },
    Del {
        flow: u16,
    },
    /// The next segment of a flow, or one that leaves a gap.
    Segment {
        flow: u16,
        len: usize,
        gap: u32,
        sacks: u32,
        scatters: bool,
    },
}

fn step() -> impl Strategy<Value = Step> {
    let flow = 0..3_u16;
    let len = prop_oneof![1..2000_usize, 1..65_000_usize, Just(65_000_usize)];
    let gap = prop_oneof![4 => Just(0), 1 => 1..3000_u32];
    let add = (flow.clone(), 0..500_000_usize, 0..300_000_usize);
    prop_oneof![
        2 => add.prop_map(|(flow, at, len)| Step::Add { flow, at, len }),
        1 => flow.clone().prop_map(|flow| Step::Del { flow }),
        8 => (flow, len, gap, 0..4_u32, any::<bool>()).prop_map(
            |(flow, len, gap, sacks, scatters)| Step::Segment { flow, len, gap, sacks, scatters }
        ),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: if cfg!(miri) { 2 } else { 96 }, ..ProptestConfig::default() })]

    /// Whatever is predicted, a packet is what was sent, bytes in order lie at their place, and bytes that were delivered
    /// there stay what they were until the program names the place again.
    #[test]
    fn payload_is_right_and_what_was_placed_stays(steps in prop::collection::vec(step(), 1..60)) {
        let mut direct = Direct::new(1 << 20);
        let mut next = [0_u32; 3];
        // Where the next byte of each flow belongs.
        let mut places: [Option<std::ops::Range<usize>>; 3] = [None, None, None];
        let mut held: Vec<(RxPacket, Vec<u8>)> = Vec::new();
        for step in steps {
            match step {
                Step::Add { flow, at, len } => {
                    let at = at + 8 * usize::from(flow);
                    // Programs name disjoint ranges; what was placed before may be written again.
                    let range = at..at + len;
                    let others = places.iter().enumerate().filter(|(other, _)| *other != usize::from(flow));
                    let mut others = others.filter_map(|(_, place)| place.as_ref());
                    if others.any(|other| range.start < other.end && other.start < range.end) {
                        continue;
                    }
                    held.clear();
                    direct.add(&segment(flow, next[usize::from(flow)], 1), range.clone());
                    places[usize::from(flow)] = Some(range);
                }
                Step::Del { flow } => {
                    let tuple = self::flow(&segment(flow, 0, 1));
                    direct.bench.nic.ddp().remove(&tuple);
                    places[usize::from(flow)] = None;
                }
                Step::Segment { flow, len, gap, sacks, scatters } => {
                    let number = usize::from(flow);
                    let mut sent = segment(flow, next[number].wrapping_add(gap), len);
                    let mut sack = SackBlocks::new();
                    for i in 0..sacks {
                        sack.push(i * 10, i * 10 + 5);
                    }
                    sent.options = TcpOptions { sack, ..timestamps() };
                    let delivery = if scatters { Delivery::Scatter } else { Delivery::Whole };
                    let packet = direct.pass(&sent, delivery);
                    let (ranges, elsewhere) = in_target(packet.payload.frags().unwrap());
                    let place = places[number].as_mut().filter(|_| gap == 0);
                    let direct_len = place.as_ref().map_or(0, |place| place.len().min(len));
                    prop_assert_eq!(elsewhere, len - direct_len);
                    if let Some(place) = place {
                        let bytes: u64 = ranges.iter().map(|range| range.end - range.start).sum();
                        prop_assert_eq!(bytes as usize, direct_len);
                        if let Some(first) = ranges.first() {
                            prop_assert_eq!(first.start as usize, place.start);
                        }
                        place.start += direct_len;
                    }
                    if gap == 0 {
                        next[number] = next[number].wrapping_add(len as u32);
                    }
                    held.push((packet, sent.payload));
                    if held.len() > 6 {
                        held.remove(0);
                    }
                }
            }
            for (packet, sent) in &held {
                prop_assert_eq!(&direct.read(packet.payload.frags().unwrap()), sent);
            }
        }
        drop(held);
        direct.bench.finish();
    }
}
