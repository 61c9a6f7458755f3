//! Whole transfers over an impaired link, in virtual time: every seed must deliver every byte in a limited number of steps.

use core::time::Duration;

use netmem::Payload;
use wire::{Ecn, Instant, SackBlocks};

use super::harness::agreed;
use super::receiver::{Ack, EchoOf, Packet, Receiver};
use super::timeline::Timeline;
use crate::config::EcnMode;
use crate::info::Info;
use crate::options::{Negotiated, TimestampClock};
use crate::sender::{AckKind, Established, IncomingAck, Sender};
use crate::seqnum::SeqNum;
use crate::settings::CongestionKind;
use crate::test_config::TestConfig;
use crate::test_payload::Bytes;
use crate::test_random::Random;
use crate::tuning::Tuning;

/// Impairments of the link, in both directions; probabilities in thousandths.
#[derive(Debug, Clone)]
pub struct Path {
    pub delay: Duration,
    /// Up to this much more, without reordering.
    pub jitter: Duration,
    pub loss: u64,
    /// ECN-capable packets that are marked.
    pub ce: u64,
    pub ack_loss: u64,
    pub duplicate: u64,
    pub reorder: u64,
    /// How much later a reordered packet comes.
    pub reorder_by: Duration,
    /// Bits per second towards the receiver; 0 for any.
    pub rate: u64,
    /// Full packets that may wait before the link.
    pub queue: u32,
}

impl Path {
    /// A path of `delay` each way without impairments.
    pub fn clean(delay: Duration) -> Path {
        Path {
            delay,
            jitter: Duration::ZERO,
            loss: 0,
            ce: 0,
            ack_loss: 0,
            duplicate: 0,
            reorder: 0,
            reorder_by: Duration::ZERO,
            rate: 0,
            queue: 1 << 16,
        }
    }
}

/// One transfer.
#[derive(Debug, Clone)]
pub struct Transfer {
    pub path: Path,
    pub config: TestConfig,
    pub mss: u16,
    pub sack: bool,
    pub timestamps: bool,
    pub ecn: bool,
    pub bytes: u64,
    /// Largest single write.
    pub write: u64,
    /// The receiver's buffer.
    pub buffer: u64,
    /// How often the receiving application reads; zero: always.
    pub read_every: Duration,
    pub delayed_ack: Duration,
    /// The path's MTU shrinks to this MSS in mid-transfer.
    pub shrink_mss: Option<u16>,
}

/// Result of a transfer.
#[derive(Debug)]
pub struct Outcome {
    pub time: Duration,
    pub info: Info,
    pub most_records: usize,
}

#[derive(Debug, Clone)]
enum Event {
    Packet(Packet),
    Ack(Ack),
    Read,
    Shrink,
}

/// State of one simulated transfer.
pub struct Simulation {
    seed: u64,
    transfer: Transfer,
    random: Random,
    now: Instant,
    events: Timeline<Event>,
    sender: Sender<Bytes>,
    receiver: Receiver,
    clock: TimestampClock,
    first: SeqNum,
    /// When the link is free again, and when the last packet of each direction arrives.
    link_free: Instant,
    last_arrival: [Instant; 2],
    /// Offset behind the last byte sent.
    highest: SeqNum,
    most_records: usize,
    turns: Turns,
}

/// When the sender's thread gets a processor.
#[derive(Debug, Clone, Copy)]
enum Turns {
    /// Always.
    AtOnce,
    /// After one of these times, and only if there was something to do: another thread runs between them. `is_on`: it runs now.
    Every { tick: Duration, is_on: bool },
}

impl Turns {
    /// Returns when the thread gets to do what is due at `at`.
    fn next(self, at: Instant) -> Instant {
        match self {
            Self::AtOnce => at,
            Self::Every { tick, .. } => {
                let tick = u64::try_from(tick.as_nanos()).expect("a short time");
                let at = at.saturating_since(Instant::ZERO).as_nanos();
                let at = u64::try_from(at).expect("within the simulation");
                Instant::from_nanos(at.next_multiple_of(tick))
            }
        }
    }

    fn set_on(&mut self, on: bool) {
        if let Self::Every { is_on, .. } = self {
            *is_on = on;
        }
    }

    fn is_on(self) -> bool {
        match self {
            Self::AtOnce => true,
            Self::Every { is_on, .. } => is_on,
        }
    }
}

/// SEG.SEQ of the ACKs.
const PEER: SeqNum = SeqNum(1);

impl Simulation {
    pub fn new(seed: u64, transfer: Transfer) -> Simulation {
        let mut random = Random::new(seed);
        let iss = SeqNum(random.next() as u32);
        let now = Instant::from_millis(1_000_000);
        let clock = TimestampClock::new(random.next() as u32);
        let mut sender = Sender::new(&transfer.config, &transfer.config.settings, iss);
        let established = Established {
            negotiated: Negotiated {
                snd_mss: transfer.mss,
                window_scaling: false,
                snd_wscale: 0,
                rcv_wscale: 0,
                sack: transfer.sack,
                timestamps: transfer.timestamps,
                ecn: agreed(transfer.ecn, &transfer.config),
                accecn_option: false,
            },
            window: transfer.buffer as u32,
            seq: PEER,
            clock,
            handshake_rtt: random.chance(500).then_some(transfer.path.delay * 2),
            handshake_timed_out: random.chance(100),
        };
        sender.on_established(&established, &transfer.config.at(now));
        Simulation {
            seed,
            receiver: Receiver::new(
                iss + 1,
                transfer.buffer,
                transfer.sack,
                transfer.delayed_ack,
                match agreed(transfer.ecn, &transfer.config) {
                    EcnMode::Dctcp => EchoOf::NewestPacket,
                    _ => EchoOf::AllUntilCwr,
                },
            ),
            transfer,
            random,
            now,
            events: Timeline::new(),
            sender,
            clock,
            first: iss + 1,
            link_free: now,
            last_arrival: [now; 2],
            highest: iss + 1,
            most_records: 0,
            turns: Turns::AtOnce,
        }
    }

    /// Lets the sender run every `tick` only, as on a machine with too few processors.
    pub fn with_late_sender(mut self, tick: Duration) -> Simulation {
        self.turns = Turns::Every { tick, is_on: true };
        self
    }

    /// Runs to the end; panics with the seed if the transfer does not end.
    pub fn run(mut self) -> Outcome {
        let start = self.now;
        if self.transfer.shrink_mss.is_some() {
            self.events
                .schedule(start + self.transfer.path.delay * 5, Event::Shrink);
        }
        if !self.transfer.read_every.is_zero() {
            self.events
                .schedule(start + self.transfer.read_every, Event::Read);
        }
        let steps = 20_000 + self.transfer.bytes / 10;
        for _ in 0..steps {
            if self.turns.is_on() {
                self.write();
                self.transmit();
            }
            self.sender.flight.board.check();
            self.most_records = self.most_records.max(self.sender.flight.board.records());
            if self.sender.all_acked() && self.sender.fin_sent() {
                return self.finish(start);
            }
            self.step();
        }
        panic!(
            "seed {}: no end after {steps} steps: {:#?}",
            self.seed, self.sender
        );
    }

    fn finish(self, start: Instant) -> Outcome {
        assert!(self.receiver.finished(), "seed {}", self.seed);
        assert_eq!(
            self.receiver.arrived(),
            self.transfer.bytes,
            "seed {}",
            self.seed
        );
        assert_eq!(
            self.sender.acked_offset(),
            self.transfer.bytes,
            "seed {}",
            self.seed
        );
        assert_eq!(self.sender.next_timer(), None, "seed {}", self.seed);
        let mut info = Info::default();
        self.sender.info(&mut info);
        Outcome {
            time: self.now.saturating_since(start),
            info,
            most_records: self.most_records,
        }
    }

    fn write(&mut self) {
        while self.sender.queue.end() < self.transfer.bytes
            && self
                .sender
                .queue
                .room(self.transfer.config.settings.snd_buf_max)
                > 0
        {
            let left = self.transfer.bytes - self.sender.queue.end();
            let most = left.min(self.transfer.write).min(
                self.sender
                    .queue
                    .room(self.transfer.config.settings.snd_buf_max) as u64,
            );
            let len = 1 + self.random.below(most);
            let len = len.min(left);
            let start = self.first + self.sender.queue.end() as u32 as usize;
            let more = len < left && self.random.chance(100);
            if self.random.chance(20) {
                self.sender.queue.push_boundary();
            }
            self.sender
                .queue
                .push(Bytes::pattern(start, len as usize), more);
        }
        if self.sender.queue.end() == self.transfer.bytes {
            self.sender.queue.push_fin();
        }
    }

    fn transmit(&mut self) {
        let mut segments = 0;
        while let Some(segment) = self.sender.poll_data(&self.transfer.config.at(self.now)) {
            segments += 1;
            assert!(segments < 10_000, "seed {}: sends for ever", self.seed);
            let is_new = segment.seq.after_eq(self.highest) && !segment.payload.is_empty();
            let is_capable = match agreed(self.transfer.ecn, &self.transfer.config) {
                EcnMode::Dctcp => true,
                mode => mode != EcnMode::Off && is_new,
            };
            assert_eq!(
                segment.ecn.is_ect(),
                is_capable,
                "seed {}: {segment:?}",
                self.seed
            );
            assert!(is_new || !segment.cwr, "seed {}: {segment:?}", self.seed);
            self.highest = self.highest.latest(segment.seq + segment.payload.len());
            let mss = usize::from(self.sender.mss());
            let packets = segment.payload.len().div_ceil(mss).max(1);
            for index in 0..packets {
                let packet = Packet {
                    seq: segment.seq + index * mss,
                    payload: segment.payload.share(index * mss, mss),
                    fin: segment.fin && index + 1 == packets,
                    ts: self.clock.value(self.now),
                    ecn: segment.ecn,
                    cwr: segment.cwr && index == 0,
                };
                self.send(packet);
            }
        }
    }

    /// Puts a packet on the link towards the receiver.
    fn send(&mut self, mut packet: Packet) {
        let path = &self.transfer.path;
        let mut leaves = self.now;
        if path.rate > 0 {
            let on_wire = |payload: usize| {
                Duration::from_nanos((payload as u64 + 66) * 8 * 1_000_000_000 / path.rate)
            };
            let room = on_wire(self.transfer.mss.into()) * path.queue;
            if self.link_free.saturating_since(self.now) > room {
                return;
            }
            let time = on_wire(packet.payload.len());
            self.link_free = self.link_free.max(self.now) + time;
            leaves = self.link_free;
        }
        if self.random.chance(path.loss) {
            return;
        }
        if packet.ecn.is_ect() && self.random.chance(path.ce) {
            packet.ecn = Ecn::Ce;
        }
        let copies = 1 + u64::from(self.random.chance(self.transfer.path.duplicate));
        for _ in 0..copies {
            let at = self.arrival(leaves, 0);
            self.events.schedule(at, Event::Packet(packet.clone()));
        }
    }

    fn send_ack(&mut self, ack: Ack) {
        if !self.random.chance(self.transfer.path.ack_loss) {
            let at = self.arrival(self.now, 1);
            self.events.schedule(self.turns.next(at), Event::Ack(ack));
        }
    }

    fn arrival(&mut self, leaves: Instant, direction: usize) -> Instant {
        let path = self.transfer.path.clone();
        let jitter = self.random.below(path.jitter.as_nanos() as u64 + 1);
        let at = leaves + path.delay + Duration::from_nanos(jitter);
        if self.random.chance(path.reorder) {
            return at + path.reorder_by;
        }
        let at = at.max(self.last_arrival[direction]);
        self.last_arrival[direction] = at;
        at
    }

    /// Advances to the next event.
    fn step(&mut self) {
        let event = self.events.next_at();
        let timer = self.sender.next_timer().map(|at| self.turns.next(at));
        let ack = self.receiver.ack_at();
        let next = [event, timer, ack].into_iter().flatten().min();
        let next = next.unwrap_or_else(|| {
            panic!(
                "seed {}: nothing will ever happen: {:#?}",
                self.seed, self.sender
            )
        });
        assert!(
            next >= self.now || timer == Some(next),
            "seed {}: time runs back",
            self.seed
        );
        self.now = self.now.max(next);
        if event == Some(next) {
            let event = self.events.pop().expect("it has a time");
            self.turns.set_on(matches!(event, Event::Ack(_)));
            self.handle(event);
        } else if timer == Some(next) {
            self.turns.set_on(true);
            if let Err(error) = self.sender.on_timer(&self.transfer.config.at(self.now)) {
                panic!("seed {}: {error}: {:#?}", self.seed, self.sender);
            }
        } else {
            self.turns.set_on(false);
            let ack = self.receiver.ack();
            self.send_ack(ack);
        }
    }

    fn handle(&mut self, event: Event) {
        match event {
            Event::Packet(packet) => {
                let too_large = packet.payload.len() > usize::from(self.sender.mss());
                if self.transfer.shrink_mss.is_some()
                    && too_large
                    && self.sender.mss() < self.transfer.mss
                {
                    // The path no longer carries it.
                    return;
                }
                let earlier = self.receiver.before_packet(&packet);
                earlier.into_iter().for_each(|ack| self.send_ack(ack));
                let reply = self.receiver.on_packet(&packet, self.now);
                if self.transfer.read_every.is_zero() {
                    let unread = self.receiver.unread();
                    let _ = self.receiver.read(unread);
                }
                reply.into_iter().for_each(|ack| self.send_ack(ack));
            }
            Event::Ack(ack) => self.on_ack(&ack),
            Event::Read => {
                let bytes = 1 + self.random.below(self.transfer.buffer);
                let update = self.receiver.read(bytes);
                update.into_iter().for_each(|ack| self.send_ack(ack));
                let at = self.now + self.transfer.read_every;
                self.events.schedule(at, Event::Read);
            }
            Event::Shrink => {
                let mss = self.transfer.shrink_mss.expect("only then");
                self.sender.on_mtu(mss, &self.transfer.config.at(self.now));
            }
        }
    }

    fn on_ack(&mut self, ack: &Ack) {
        let none = SackBlocks::default();
        let incoming = IncomingAck {
            ack: ack.ack,
            seq: PEER,
            window: ack.window,
            sack: if self.transfer.sack { &ack.sack } else { &none },
            ts_echo: self.transfer.timestamps.then_some(ack.ts_echo),
            has_data: false,
            ece: ack.ece,
            ace: None,
            accecn: None,
            ts_progress: false,
        };
        let before = self.sender.acked_offset();
        let kind = self
            .sender
            .on_ack(&incoming, &self.transfer.config.at(self.now));
        if kind != AckKind::New {
            assert_eq!(before, self.sender.acked_offset(), "seed {}", self.seed);
        }
    }
}

/// Returns a transfer whose parameters all follow from the seed.
fn random_transfer(seed: u64) -> Transfer {
    let mut random = Random::new(seed ^ 0xC0FF_EE00);
    let millis = |random: &mut Random, most: u64| Duration::from_micros(random.below(most * 1000));
    let some = |random: &mut Random, most: u64| {
        if random.chance(500) {
            random.below(most)
        } else {
            0
        }
    };
    let mss = 100 + random.below(1400) as u16;
    let mut path = Path {
        delay: millis(&mut random, 60) + Duration::from_micros(20),
        jitter: millis(&mut random, 5),
        loss: some(&mut random, 150),
        ce: 0,
        ack_loss: some(&mut random, 150),
        duplicate: some(&mut random, 100),
        reorder: some(&mut random, 150),
        reorder_by: millis(&mut random, 40),
        rate: some(&mut random, 50) * 1_000_000,
        queue: 5 + random.below(200) as u32,
    };
    let config = TestConfig::default().with(|c| {
        c.settings.congestion = CongestionKind::ALL[random.below(4) as usize];
        c.settings.nodelay = random.chance(300);
        c.shared_mut().pacing = random.chance(200);
        c.settings.snd_buf_max = 4000 + random.below(300_000) as usize;
        c.link.super_payload.longest = [1, 3000, 65_160][random.below(3) as usize];
        c.shared_mut().tuning = Tuning::OWN;
        c.shared_mut().timers.data_retries = 200;
    });
    let (sack, timestamps) = (random.chance(700), random.chance(500));
    let mut marking = Random::new(seed ^ 0xECEC_ECEC);
    path.ce = some(&mut marking, 300);
    Transfer {
        path,
        config,
        mss,
        sack,
        timestamps,
        ecn: marking.chance(500),
        bytes: random.below(150_000),
        write: 1 + random.below(20_000),
        buffer: u64::from(mss) * 2 + random.below(200_000),
        read_every: if random.chance(300) {
            millis(&mut random, 100) + Duration::from_millis(1)
        } else {
            Duration::ZERO
        },
        delayed_ack: Duration::from_millis(random.below(60)),
        shrink_mss: random.chance(100).then(|| (mss / 2).max(88)),
    }
}

#[test]
fn every_byte_arrives_over_every_link() {
    for seed in 0..2500 {
        Simulation::new(seed, random_transfer(seed)).run();
    }
}
