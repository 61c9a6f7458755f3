//! What the sender costs per super-segment: `cargo bench -p devmem-tcp-core --bench sender`.
//!
//! Each figure is the median of many short runs. It is the sender alone: payload is a counter, no packet is built.

use std::hint::black_box;
use std::sync::Arc;
use std::time::{Duration, Instant as Clock};

use netmem::Payload;
use tcp::{
    AckKind, Config, ConnectionConfig, Context, DataSegment, Established, IncomingAck, LinkLimits,
    Negotiated, Sender, SeqNum, Settings, TimestampClock,
};
use wire::{Instant, SackBlocks};

const MSS: u16 = 1448;
/// 45 packets, as a kernel sender makes them at MTU 1500.
const SUPER_SEGMENT: usize = 45 * MSS as usize;
/// Longest payload of a super-segment: what a TAP with BIG TCP takes, a multiple of 64 KiB.
const LONGEST_SUPER_PAYLOAD: u32 = 8 * 65_535 - 80;
/// Super-segments in flight.
const IN_FLIGHT: usize = 64;
const RUNS: usize = 201;

/// Payload that is only its length.
#[derive(Debug, Default)]
struct Length(usize);

impl Payload for Length {
    fn len(&self) -> usize {
        self.0
    }
    fn split_off_front(&mut self, n: usize) -> Length {
        let front = self.0.min(n);
        self.0 -= front;
        Length(front)
    }
    fn trim_front(&mut self, n: usize) {
        self.0 = self.0.saturating_sub(n);
    }
    fn truncate(&mut self, n: usize) {
        self.0 = self.0.min(n);
    }
    fn append(&mut self, other: Length) {
        self.0 += other.0;
    }
    fn share(&self, offset: usize, len: usize) -> Length {
        Length(self.0.saturating_sub(offset).min(len))
    }
}

/// A sender in the middle of a bulk transfer, and the clock and peer around it.
struct Flow {
    sender: Sender<Length>,
    config: ConnectionConfig,
    settings: Settings,
    now: Instant,
    first: SeqNum,
    sack: SackBlocks,
}

impl Flow {
    fn new() -> Flow {
        let settings = Settings {
            snd_buf_max: 64 << 20,
            ..Settings::default()
        };
        let shared = Config {
            initial_cwnd: u16::MAX,
            ..Config::default()
        };
        let link = LinkLimits::new(MSS, LONGEST_SUPER_PAYLOAD);
        let config = ConnectionConfig::new(&Arc::new(shared), link);
        let now = Instant::from_millis(1000);
        let mut sender = Sender::new(&config, &settings, SeqNum(0));
        let established = Established {
            negotiated: Negotiated {
                snd_mss: MSS,
                window_scaling: true,
                snd_wscale: 10,
                rcv_wscale: 10,
                sack: true,
                ecn: tcp::EcnMode::Off,
                accecn_option: false,
                timestamps: true,
            },
            window: 60 << 20,
            seq: SeqNum(7),
            clock: TimestampClock::default(),
            handshake_rtt: Some(Duration::from_millis(1)),
            handshake_timed_out: false,
        };
        sender.on_established(&established, &Context::new(&settings, &config, now));
        let mut flow = Flow {
            sender,
            config,
            settings,
            now,
            first: SeqNum(1),
            sack: SackBlocks::default(),
        };
        for _ in 0..IN_FLIGHT {
            flow.send();
        }
        flow
    }

    /// One write of a super-segment and its way out.
    fn send(&mut self) {
        self.now = self.now + Duration::from_micros(5);
        self.sender.push(Length(SUPER_SEGMENT), false);
        while let Some(segment) = self.poll_data() {
            black_box(segment);
        }
    }

    fn poll_data(&mut self) -> Option<DataSegment<Length>> {
        let cx = Context::new(&self.settings, &self.config, self.now);
        self.sender.poll_data(&cx)
    }

    fn ack(&mut self, offset: u64) -> AckKind {
        let ack = IncomingAck {
            ack: self.first + (offset as u32) as usize,
            seq: SeqNum(7),
            window: 60 << 20,
            sack: &self.sack,
            ts_echo: Some((self.now.as_nanos() / 1_000_000) as u32),
            has_data: false,
            ece: false,
            ace: None,
            accecn: None,
            ts_progress: false,
        };
        let cx = Context::new(&self.settings, &self.config, self.now);
        self.sender.on_ack(black_box(&ack), &cx)
    }
}

/// Prints the median of the nanoseconds that `run` takes for each of `units`.
fn report(name: &str, units: usize, mut run: impl FnMut() -> Duration) {
    let mut times: Vec<Duration> = (0..RUNS).map(|_| run()).collect();
    times.sort();
    let per_unit = |time: Duration| time.as_nanos() as f64 / units as f64;
    let (low, high) = (per_unit(times[RUNS / 20]), per_unit(times[RUNS * 19 / 20]));
    println!(
        "{name:<48} {:>8.1} ns  [{low:.1}-{high:.1}]",
        per_unit(times[RUNS / 2])
    );
}

fn main() {
    let units = 2000;
    let mut flow = Flow::new();
    report("push, send and acknowledge a super-segment", units, || {
        let start = Clock::now();
        for _ in 0..units {
            flow.send();
            let acked = flow.sender.acked_offset() + SUPER_SEGMENT as u64;
            assert_eq!(flow.ack(acked), AckKind::New);
        }
        start.elapsed()
    });

    let mut flow = Flow::new();
    report("the same with one ACK for every four", units, || {
        let start = Clock::now();
        for _ in 0..units / 4 {
            (0..4).for_each(|_| flow.send());
            let acked = flow.sender.acked_offset() + 4 * SUPER_SEGMENT as u64;
            assert_eq!(flow.ack(acked), AckKind::New);
        }
        start.elapsed()
    });

    let packets = IN_FLIGHT * 45;
    report(
        "every other packet lost: per packet reported",
        packets / 2,
        || {
            let mut flow = Flow::new();
            flow.now = flow.now + Duration::from_millis(1);
            let start = Clock::now();
            for packet in (1..packets as u32).step_by(2) {
                flow.sack = SackBlocks::default();
                let left = flow.first + packet as usize * usize::from(MSS);
                flow.sack.push(left.0, (left + usize::from(MSS)).0);
                let _ = flow.ack(0);
                while let Some(segment) = flow.poll_data() {
                    black_box(segment);
                }
            }
            start.elapsed()
        },
    );
}
