//! Two connections through one bottleneck: this stack's sender beside one with Linux's choices.

use std::collections::VecDeque;

use core::time::Duration;

use netmem::Payload;
use wire::{Ecn, Instant};

use super::receiver::{Ack, EchoOf, Packet, Receiver};
use super::timeline::Timeline;
use crate::config::EcnMode;
use crate::options::{Negotiated, TimestampClock};
use crate::sender::{Established, IncomingAck, Sender};
use crate::seqnum::SeqNum;
use crate::settings::CongestionKind;
use crate::test_config::TestConfig;
use crate::test_payload::Bytes;
use crate::tuning::Tuning;

const MSS: u16 = 1448;
/// Payload and headers of a full packet.
const ON_WIRE: u64 = 1514;
const PEER: SeqNum = SeqNum(1);
const BUFFER: u64 = 4 << 20;
const START: Instant = Instant::from_millis(1_000_000);

/// The bottleneck.
#[derive(Debug, Clone, Copy)]
struct Path {
    /// In each direction.
    delay: Duration,
    /// Bits per second.
    rate: u64,
    /// Packets that may be in the queue and on the way to the receiver.
    limit: usize,
}

/// One sender and its receiver.
struct Flow {
    config: TestConfig,
    sender: Sender<Bytes>,
    receiver: Receiver,
    clock: TimestampClock,
    first: SeqNum,
}

impl Flow {
    fn new(iss: u32, config: TestConfig) -> Flow {
        let iss = SeqNum(iss);
        let clock = TimestampClock::new(iss.0);
        let mut sender = Sender::new(&config, &config.settings, iss);
        let established = Established {
            negotiated: Negotiated {
                snd_mss: MSS,
                window_scaling: true,
                snd_wscale: 0,
                rcv_wscale: 0,
                sack: true,
                timestamps: true,
                ecn: EcnMode::Off,
                accecn_option: false,
            },
            window: BUFFER as u32,
            seq: PEER,
            clock,
            handshake_rtt: Some(Duration::from_millis(20)),
            handshake_timed_out: false,
        };
        sender.on_established(&established, &config.at(START));
        Flow {
            config,
            sender,
            receiver: Receiver::new(
                iss + 1,
                BUFFER,
                true,
                Duration::from_millis(40),
                EchoOf::AllUntilCwr,
            ),
            clock,
            first: iss + 1,
        }
    }

    /// Keeps the send queue full.
    fn write(&mut self) {
        let queue = &mut self.sender.queue;
        while queue.unsent(self.sender.space.nxt()) < 1 << 20 {
            let start = self.first + queue.end() as u32 as usize;
            queue.push(Bytes::pattern(start, 256 << 10), false);
        }
    }

    fn on_ack(&mut self, ack: &Ack, now: Instant) {
        let incoming = IncomingAck {
            ack: ack.ack,
            seq: PEER,
            window: ack.window,
            sack: &ack.sack,
            ts_echo: Some(ack.ts_echo),
            has_data: false,
            ece: false,
            ace: None,
            accecn: None,
            ts_progress: false,
        };
        let _ = self.sender.on_ack(&incoming, &self.config.at(now));
    }
}

#[derive(Debug)]
enum Event {
    Packet(Packet),
    Ack(Ack),
    /// The sender begins.
    Begin,
}

struct World {
    path: Path,
    now: Instant,
    flows: [Flow; 2],
    /// With the number of the flow.
    events: Timeline<(usize, Event)>,
    link_free: Instant,
    /// When the packets inside arrive.
    inside: VecDeque<Instant>,
}

impl World {
    fn schedule(&mut self, at: Instant, flow: usize, event: Event) {
        self.events.schedule(at, (flow, event));
    }

    fn run_until(&mut self, end: Instant) {
        while self.now < end {
            let event = self.events.next_at();
            let mut next = event.map(|at| (at, None));
            for (index, flow) in self.flows.iter().enumerate() {
                let timer = flow.sender.next_timer();
                let delayed = flow.receiver.ack_at();
                for (at, what) in [
                    (timer, Some((index, true))),
                    (delayed, Some((index, false))),
                ] {
                    if let Some(at) = at
                        && next.is_none_or(|(first, _)| at < first)
                    {
                        next = Some((at, what));
                    }
                }
            }
            let (at, what) = next.expect("something happens");
            self.now = self.now.max(at);
            match what {
                None => {
                    let (index, event) = self.events.pop().expect("it has a time");
                    self.handle(index, event);
                }
                Some((index, true)) => {
                    let flow = &mut self.flows[index];
                    let outcome = flow.sender.on_timer(&flow.config.at(self.now));
                    assert!(outcome.is_ok());
                    self.transmit(index);
                }
                Some((index, false)) => {
                    let ack = self.flows[index].receiver.ack();
                    let at = self.now + self.path.delay;
                    self.schedule(at, index, Event::Ack(ack));
                }
            }
        }
    }

    fn handle(&mut self, index: usize, event: Event) {
        let now = self.now;
        let flow = &mut self.flows[index];
        match event {
            Event::Packet(packet) => {
                let reply = flow.receiver.on_packet(&packet, now);
                let unread = flow.receiver.unread();
                let _ = flow.receiver.read(unread);
                if let Some(ack) = reply {
                    let at = now + self.path.delay;
                    self.schedule(at, index, Event::Ack(ack));
                }
            }
            Event::Ack(ack) => {
                flow.on_ack(&ack, now);
                self.transmit(index);
            }
            Event::Begin => self.transmit(index),
        }
    }

    fn transmit(&mut self, index: usize) {
        let now = self.now;
        let on_wire = Duration::from_nanos(ON_WIRE * 8 * 1_000_000_000 / self.path.rate);
        while self.inside.front().is_some_and(|&at| at <= now) {
            self.inside.pop_front();
        }
        self.flows[index].write();
        loop {
            let flow = &mut self.flows[index];
            let Some(segment) = flow.sender.poll_data(&flow.config.at(now)) else {
                return;
            };
            let ts = flow.clock.value(now);
            let mss = usize::from(MSS);
            for start in (0..segment.payload.len()).step_by(mss) {
                if self.inside.len() >= self.path.limit {
                    continue;
                }
                self.link_free = self.link_free.max(now) + on_wire;
                let packet = Packet {
                    seq: segment.seq + start,
                    payload: segment.payload.share(start, mss),
                    fin: false,
                    ts,
                    ecn: Ecn::NotEct,
                    cwr: false,
                };
                let at = self.link_free + self.path.delay;
                self.inside.push_back(at);
                self.schedule(at, index, Event::Packet(packet));
            }
        }
    }
}

/// Returns how many bytes of each are acknowledged within `seconds`, from two seconds on; the flow `first` begins `lead` earlier.
fn shares(path: Path, flows: [Flow; 2], first: usize, lead: Duration, seconds: u64) -> [u64; 2] {
    let start = START;
    let mut world = World {
        path,
        now: start,
        flows,
        events: Timeline::new(),
        link_free: start,
        inside: VecDeque::new(),
    };
    world.transmit(first);
    world.schedule(start + lead, 1 - first, Event::Begin);
    let acked = |world: &World| {
        world
            .flows
            .each_ref()
            .map(|flow| flow.sender.acked_offset())
    };
    world.run_until(start + Duration::from_secs(2));
    let before = acked(&world);
    world.run_until(start + Duration::from_secs(2 + seconds));
    let after = acked(&world);
    [after[0] - before[0], after[1] - before[1]]
}

/// The choices of Linux, with the program that it always has: a write to a full send buffer, as often as there is room, sends what waits.
const LINUX: Tuning = Tuning {
    defers_in_time: true,
    ..Tuning::LINUX
};

/// Returns the share of a sender divided by that of one with Linux' choices, over a few beginnings, in which either is the first.
fn ratio(tuning: Tuning, path: Path, kind: CongestionKind, seconds: u64) -> f64 {
    let mut sums = [0, 0];
    for (first, lead) in [(0, 413), (1, 413), (0, 777), (1, 777)] {
        let flows = [(tuning, 7), (LINUX, 1007)].map(|(tuning, iss)| {
            let config = TestConfig::default().with(|c| {
                c.settings.congestion = kind;
                c.link.super_payload.longest = 65_160;
                c.shared_mut().tuning = tuning;
            });
            Flow::new(iss, config)
        });
        let lead = Duration::from_millis(lead);
        let shares = shares(path, flows, first, lead, seconds);
        sums = [sums[0] + shares[0], sums[1] + shares[1]];
    }
    sums[0] as f64 / sums[1] as f64
}

#[test]
fn a_path_that_holds_few_packets_is_shared_with_a_sender_of_linux() {
    let path = Path {
        delay: Duration::from_millis(10),
        rate: 200_000_000,
        limit: 50,
    };
    for kind in [CongestionKind::Cubic, CongestionKind::NewReno] {
        // Super-segments as long as the link allows get 0.79 and 0.72 here.
        let ratio = ratio(Tuning::OWN, path, kind, 20);
        assert!((0.8..1.25).contains(&ratio), "{kind:?}: {ratio}");
    }
}

/// 165 packets are on their way, and 55 have room in the queue.
const SHORT_QUEUE: Path = Path {
    delay: Duration::from_millis(2),
    rate: 1_000_000_000,
    limit: 220,
};

#[test]
fn a_short_queue_is_shared_with_a_sender_of_linux() {
    for kind in [CongestionKind::Cubic, CongestionKind::NewReno] {
        let ratio = ratio(Tuning::OWN, SHORT_QUEUE, kind, 3);
        assert!((0.8..1.25).contains(&ratio), "{kind:?}: {ratio}");
    }
}

#[test]
fn a_sender_that_waits_for_acks_however_late_leaves_its_part_of_a_queue_to_others() {
    let waits = Tuning {
        defers_in_time: false,
        ..Tuning::OWN
    };
    for kind in [CongestionKind::Cubic, CongestionKind::NewReno] {
        let ratio = ratio(waits, SHORT_QUEUE, kind, 3);
        assert!(ratio < 0.8, "{kind:?}: {ratio}");
    }
}
