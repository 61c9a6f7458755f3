//! Test bench of a sender: sent segments are listed by stream offset, ACKs are written by the test.

use core::time::Duration;

use netmem::Payload;
use wire::{Ecn, Instant, SackBlocks};

use crate::config::EcnMode;
use crate::error::TcpError;
use crate::info::Info;
use crate::options::{Negotiated, TimestampClock};
use crate::sender::{AckKind, DataSegment, Established, IncomingAck, Sender};
use crate::seqnum::SeqNum;
use crate::settings::CongestionKind;
use crate::test_config::TestConfig;
use crate::test_payload::Bytes;

/// Payload of a full packet in these tests.
pub const MSS: u16 = 1000;

/// Close to the wrap, so that every longer test crosses it.
pub const ISS: SeqNum = SeqNum(u32::MAX - 20_000);

/// SEG.SEQ of the peer, which sends no data.
pub const PEER: SeqNum = SeqNum(77);

/// A segment as the tests write it: `[start, end)` by stream offset, `F` and `P` flags, `p` for a probe, `e` for
/// ECN-capable packets, `c` for CWR.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sent {
    pub start: i64,
    pub end: i64,
    pub flags: String,
}

/// Shorthand for a [`Sent`].
pub fn sent(start: i64, end: i64, flags: &str) -> Sent {
    Sent {
        start,
        end,
        flags: flags.to_string(),
    }
}

/// Returns what the SYNs agreed on, if that was ECN at all.
pub fn agreed(ecn: bool, config: &TestConfig) -> EcnMode {
    match (ecn, config.settings.congestion) {
        (false, _) => EcnMode::Off,
        (true, CongestionKind::Dctcp) => EcnMode::Dctcp,
        (true, _) => EcnMode::Classic,
    }
}

/// Options of the bench; the defaults are a path of 100 ms with SACK, without timestamps.
#[derive(Debug, Clone)]
pub struct Setup {
    pub config: TestConfig,
    pub mss: u16,
    pub sack: bool,
    pub timestamps: bool,
    pub ecn: bool,
    pub window: u32,
    pub handshake_rtt: Option<Duration>,
    pub handshake_timed_out: bool,
}

impl Default for Setup {
    fn default() -> Setup {
        Setup {
            config: TestConfig::default().with(|c| {
                c.settings.congestion = CongestionKind::NewReno;
            }),
            mss: MSS,
            sack: true,
            timestamps: false,
            ecn: false,
            window: 1 << 20,
            handshake_rtt: Some(Duration::from_millis(100)),
            handshake_timed_out: false,
        }
    }
}

/// The sender, its clock, and the peer's window.
pub struct Bench {
    pub sender: Sender<Bytes>,
    pub config: TestConfig,
    pub now: Instant,
    pub window: u32,
    /// The next ACKs echo a mark.
    pub ece: bool,
    timestamps: bool,
    clock: TimestampClock,
    echo: Option<u32>,
}

impl Bench {
    pub fn new(setup: Setup) -> Bench {
        let now = Instant::from_millis(10_000);
        let clock = TimestampClock::new(u32::MAX - 11_000);
        let mut sender = Sender::new(&setup.config, &setup.config.settings, ISS);
        let established = Established {
            negotiated: Negotiated {
                snd_mss: setup.mss,
                window_scaling: false,
                snd_wscale: 0,
                rcv_wscale: 0,
                sack: setup.sack,
                timestamps: setup.timestamps,
                ecn: agreed(setup.ecn, &setup.config),
                accecn_option: false,
            },
            window: setup.window,
            seq: PEER,
            clock,
            handshake_rtt: setup.handshake_rtt,
            handshake_timed_out: setup.handshake_timed_out,
        };
        sender.on_established(&established, &setup.config.at(now));
        Bench {
            sender,
            config: setup.config,
            now,
            window: setup.window,
            ece: false,
            timestamps: setup.timestamps,
            clock,
            echo: None,
        }
    }

    /// Like [`Bench::new`] with a change to the defaults.
    pub fn with(change: impl FnOnce(&mut Setup)) -> Bench {
        let mut setup = Setup::default();
        change(&mut setup);
        Bench::new(setup)
    }

    pub fn at(&self, offset: u64) -> SeqNum {
        ISS + 1 + (offset as u32) as usize
    }

    /// Writes `len` bytes and pushes them.
    pub fn write(&mut self, len: usize) {
        self.write_more(len, false);
    }

    pub fn write_more(&mut self, len: usize, more: bool) {
        let start = self.at(self.sender.queue.end());
        self.sender.queue.push(Bytes::pattern(start, len), more);
    }

    /// Advances the clock without running timers.
    pub fn pass(&mut self, millis: u64) {
        self.now = self.now + Duration::from_millis(millis);
    }

    /// Advances the clock to the next timer and runs it.
    pub fn fire(&mut self) -> Result<(), TcpError> {
        let at = self.sender.next_timer().expect("a timer is armed");
        assert!(
            at >= self.now,
            "a timer in the past: {at:?} at {:?}",
            self.now
        );
        self.now = at;
        self.sender.on_timer(&self.config.at(at))
    }

    /// Runs the next timer; returns the milliseconds until it, and what is sent.
    pub fn fire_and_drain(&mut self) -> (u64, Vec<Sent>) {
        let before = self.now;
        assert_eq!(self.fire(), Ok(()));
        (
            self.now.saturating_since(before).as_millis() as u64,
            self.drain(),
        )
    }

    /// Returns the segments that are sent now.
    pub fn drain_raw(&mut self) -> Vec<DataSegment<Bytes>> {
        let mut segments = Vec::new();
        while let Some(segment) = self.sender.poll_data(&self.config.at(self.now)) {
            assert!(
                segment.payload.is_pattern(segment.seq),
                "wrong bytes at {:?}",
                segment.seq
            );
            segments.push(segment);
            assert!(segments.len() < 10_000, "never runs dry");
        }
        segments
    }

    /// Returns the same as a list of offsets and flags.
    pub fn drain(&mut self) -> Vec<Sent> {
        self.drain_raw()
            .iter()
            .map(|segment| self.listed(segment))
            .collect()
    }

    fn listed(&self, segment: &DataSegment<Bytes>) -> Sent {
        let start = self.sender.snd_una().0.wrapping_sub(self.at(0).0);
        let start = i64::from(start) + i64::from(segment.seq - self.sender.snd_una());
        let flags = [
            (segment.fin, 'F'),
            (segment.push, 'P'),
            (segment.probe, 'p'),
            (segment.ecn == Ecn::Ect0, 'e'),
            (segment.cwr, 'c'),
        ];
        Sent {
            start,
            end: start + segment.payload.len() as i64,
            flags: flags
                .iter()
                .filter(|(set, _)| *set)
                .map(|(_, flag)| flag)
                .collect(),
        }
    }

    /// Lets the next ACKs echo the timestamp of a segment sent at `at`.
    pub fn echo_sent_at(&mut self, at: Instant) {
        self.echo = Some(self.clock.value(at));
    }

    pub fn ack(&mut self, offset: u64) -> AckKind {
        self.sacked(offset, &[])
    }

    /// An ACK with SACK blocks, the first one a D-SACK if it lies below.
    pub fn sacked(&mut self, offset: u64, blocks: &[(u64, u64)]) -> AckKind {
        let mut sack = SackBlocks::default();
        for &(left, right) in blocks {
            assert!(sack.push(self.at(left).0, self.at(right).0));
        }
        let ack = IncomingAck {
            ack: self.at(offset),
            seq: PEER,
            window: self.window,
            sack: &sack,
            ts_echo: self.echo.filter(|_| self.timestamps),
            has_data: false,
            ece: self.ece,
            ace: None,
            accecn: None,
            ts_progress: false,
        };
        self.sender.on_ack(&ack, &self.config.at(self.now))
    }

    /// Acknowledges everything up to `offset` after `millis`; returns what is sent then.
    pub fn ack_after(&mut self, millis: u64, offset: u64) -> Vec<Sent> {
        self.pass(millis);
        let _ = self.ack(offset);
        self.drain()
    }

    pub fn info(&self) -> Info {
        let mut info = Info::default();
        self.sender.info(&mut info);
        info
    }

    /// Returns cwnd and ssthresh in bytes.
    pub fn cwnd(&self) -> (u64, Option<u64>) {
        (
            self.sender.rate.congestion.cwnd(),
            self.sender.rate.congestion.ssthresh(),
        )
    }
}
