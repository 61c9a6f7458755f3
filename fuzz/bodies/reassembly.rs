//! An established TCP connection with a peer that sends any segments in any order: overlapping, repeated, old,
//! beyond the window, with invalid flags.
//!
//! The payload consists of stream positions instead of bytes, so that the check is exact: the reader must get all
//! positions in order.
//!
//! Input: 8 bytes of set-up, then steps of 8 bytes.

use std::ops::Range;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use netmem::Payload;
use tcp::{
    Config, Connection, ConnectionConfig, Control, LinkLimits, Segment, SeqNum, Settings, StateKind,
};
use wire::{Ecn, Instant, TcpOptions, Timestamps};

/// Set-up: neither timestamps, nor SACK, nor window scaling.
const NO_TIMESTAMPS: u8 = 1;
const NO_SACK: u8 = 2;
const NO_SCALING: u8 = 4;

/// Limit on the segments in answer to one event of a connection without data to send.
const ANSWERS_MAX: usize = 64;

/// Checks a connection with a stream of positions.
pub fn run(data: &[u8]) {
    let Some((setup, steps)) = data.split_first_chunk::<8>() else {
        return;
    };
    let alive = Rc::new(());
    if let Some(mut session) = Session::establish(setup, &alive) {
        for step in steps.as_chunks::<8>().0 {
            session.step(*step);
        }
        session.read(usize::MAX);
    }
    assert_eq!(Rc::strong_count(&alive), 1, "some payload was not dropped");
}

/// Payload as stream positions; those before the first byte are negative.
#[derive(Clone, Debug, Default)]
struct Positions {
    runs: Vec<(Range<i64>, Rc<()>)>,
}

impl Positions {
    fn new(start: i64, len: usize, alive: &Rc<()>) -> Self {
        let run = start..start + i64::try_from(len).expect("a packet is short");
        Self {
            runs: if len > 0 {
                vec![(run, Rc::clone(alive))]
            } else {
                Vec::new()
            },
        }
    }
}

impl Payload for Positions {
    fn len(&self) -> usize {
        self.runs
            .iter()
            .map(|(run, _)| (run.end - run.start) as usize)
            .sum()
    }

    fn split_off_front(&mut self, n: usize) -> Self {
        let front = self.share(0, n);
        self.trim_front(n);
        front
    }

    fn trim_front(&mut self, n: usize) {
        *self = self.share(n, usize::MAX);
    }

    fn truncate(&mut self, n: usize) {
        *self = self.share(0, n);
    }

    fn append(&mut self, other: Self) {
        self.runs.extend(other.runs);
    }

    fn share(&self, offset: usize, len: usize) -> Self {
        let (mut skip, mut left) = (offset, len);
        let mut runs = Vec::new();
        for (run, alive) in &self.runs {
            let skipped = skip.min((run.end - run.start) as usize);
            let start = run.start + skipped as i64;
            let taken = left.min((run.end - start) as usize);
            if taken > 0 {
                runs.push((start..start + taken as i64, Rc::clone(alive)));
            }
            skip -= skipped;
            left -= taken;
        }
        Self { runs }
    }
}

/// A connection, and the state of its peer.
struct Session<'a> {
    connection: Connection<Positions>,
    settings: Settings,
    alive: &'a Rc<()>,
    now: Instant,
    /// Sequence number of stream position 0.
    first: SeqNum,
    /// Next sequence number of our sender.
    snd_nxt: SeqNum,
    /// Window scale of the connection.
    scale: u8,
    timestamps: bool,
    /// Stream position of the last acknowledgement, and of the right edge of the window.
    acknowledged: i64,
    right_edge: i64,
    /// The highest position that was sent, including the FIN.
    sent: i64,
    /// Stream position of the next read.
    read: i64,
}

/// Returns the settings by the set-up.
fn config_of(switches: u8, space: u32) -> Config {
    Config {
        settings: Settings {
            rcv_space_initial: space,
            ..Settings::default()
        },
        timestamps: switches & NO_TIMESTAMPS == 0,
        sack: switches & NO_SACK == 0,
        window_scaling: switches & NO_SCALING == 0,
        ..Config::default()
    }
}

impl<'a> Session<'a> {
    /// Opens the connection as its initiator.
    fn establish(setup: &[u8; 8], alive: &'a Rc<()>) -> Option<Self> {
        let [switches, a, b, c, d, space_high, space_low, _] = *setup;
        let space = u32::from(u16::from_be_bytes([space_high, space_low])) << 8;
        let shared = Arc::new(config_of(switches, space));
        let config = ConnectionConfig::new(&shared, LinkLimits::new(1460, 65_160));
        let settings = shared.settings;
        let now = Instant::from_millis(1000);
        let peer_iss = SeqNum(u32::from_be_bytes([a, b, c, d]));
        let mut connection = Connection::connect(&config, &settings, SeqNum(7), None, now);
        let syn = connection
            .poll_send(&settings, now)
            .expect("a connection starts with a SYN");
        assert_eq!(syn.control, Control::Syn);
        let scale = syn.options.window_scale.unwrap_or(0);
        let value = syn
            .options
            .timestamps
            .map_or(0, |timestamps| timestamps.value);
        let options = TcpOptions {
            mss: Some(1460),
            window_scale: shared.window_scaling.then_some(7),
            sack_permitted: shared.sack,
            timestamps: shared.timestamps.then_some(Timestamps {
                value: 1,
                echo: value,
            }),
            ..TcpOptions::default()
        };
        let answer = Segment {
            seq: peer_iss,
            ack: Some(syn.seq + 1),
            control: Control::Syn,
            window: u16::MAX,
            options,
            ..Segment::default()
        };
        let disposition = connection.on_segment(answer, &settings, now);
        if !disposition.established {
            return None;
        }
        let mut session = Self {
            connection,
            settings,
            alive,
            now,
            first: peer_iss + 1,
            snd_nxt: syn.seq + 1,
            scale,
            timestamps: shared.timestamps,
            acknowledged: 0,
            right_edge: 0,
            sent: 0,
            read: 0,
        };
        session.poll();
        Some(session)
    }

    fn step(&mut self, step: [u8; 8]) {
        let [what, a, b, c, d, flags, _, _] = step;
        let first = u16::from_be_bytes([a, b]);
        let second = u16::from_be_bytes([c, d]);
        match what % 8 {
            0..=3 => self.segment(first, second, step),
            4 => self.read(usize::from(first)),
            5 => self
                .connection
                .set_rcv_space(u32::from(first) << (flags % 16), &self.settings),
            6 => self.pass(Duration::from_millis(first.into())),
            _ => self.connection.on_drained(),
        }
        self.poll();
    }

    /// Sends a segment that starts at the signed `offset` from the last acknowledgement.
    fn segment(&mut self, offset: u16, len: u16, [what, .., flags, ack, age]: [u8; 8]) {
        // The second kind has coarse offsets, which exceed any window.
        let coarse = if what % 8 == 1 { 1 << 10 } else { 1 };
        let start = self.acknowledged + i64::from(offset.cast_signed()) * coarse;
        let control = match flags % 32 {
            0 => Control::Fin,
            1 => Control::Syn,
            2 => Control::Rst,
            _ => Control::None,
        };
        let payload = Positions::new(start, len.into(), self.alive);
        let end = start + i64::from(len) + control.len() as i64;
        self.sent = self.sent.max(end);
        let stamp = Timestamps {
            value: self.milliseconds().wrapping_sub(age.into()),
            echo: 0,
        };
        let segment = Segment {
            // Positions are far below 2^32, so their low 32 bits are sufficient.
            seq: SeqNum(self.first.0.wrapping_add(start as u32)),
            ack: (flags & 128 == 0).then(|| self.snd_nxt + usize::from(ack % 4)),
            control,
            fin_after_syn: false,
            push: flags & 64 != 0,
            ece: false,
            cwr: flags & 32 != 0,
            ecn: Ecn::from_tos(ack),
            window: u16::MAX,
            options: TcpOptions {
                timestamps: self.timestamps.then_some(stamp),
                ..TcpOptions::default()
            },
            payload,
            ae: flags & 16 != 0,
            gso_size: 0,
            packets: 1,
        };
        let disposition = self
            .connection
            .on_segment(segment, &self.settings, self.now);
        if disposition.closed {
            assert_eq!(self.connection.state(), StateKind::Closed);
        }
    }

    fn milliseconds(&self) -> u32 {
        (self.now.as_nanos() / 1_000_000) as u32
    }

    /// Reads up to `max` bytes, and checks that they are the next ones.
    fn read(&mut self, max: usize) {
        let mut left = max;
        while let Some(payload) = self.connection.recv_queue().pop(left) {
            assert!(payload.len() <= left, "more bytes than requested");
            left -= payload.len();
            for (run, _) in &payload.runs {
                assert_eq!(
                    run.start, self.read,
                    "the reader got another part of the stream"
                );
                self.read = run.end;
            }
        }
    }

    fn pass(&mut self, time: Duration) {
        self.now = self.now + time;
        if self
            .connection
            .next_timer()
            .is_some_and(|timer| timer <= self.now)
        {
            let _ = self.connection.on_timer(&self.settings, self.now);
        }
    }

    /// Takes all segments that the connection sends, and checks their numbers.
    fn poll(&mut self) {
        for _ in 0..ANSWERS_MAX {
            let Some(segment) = self.connection.poll_send(&self.settings, self.now) else {
                return;
            };
            assert!(
                segment.payload.is_empty(),
                "it sends data that was not queued"
            );
            if let Some(ack) = segment.ack
                && segment.control != Control::Rst
            {
                self.check_ack(ack, segment.window, &segment.options);
            }
        }
        panic!("it does not stop sending");
    }

    fn check_ack(&mut self, ack: SeqNum, window: u16, options: &TcpOptions) {
        let position =
            self.acknowledged + i64::from(ack - (self.first + self.acknowledged as usize));
        assert!(
            position >= self.acknowledged,
            "an acknowledgement moved back"
        );
        assert!(
            position <= self.sent.max(0),
            "position {position} is acknowledged, but only {} was sent",
            self.sent
        );
        assert!(
            position >= self.read,
            "bytes that were read are not acknowledged"
        );
        // The window field is rounded down, so that the edge may move back by less than its unit (RFC 7323 2.4).
        let right_edge = position + (i64::from(window) << self.scale);
        assert!(
            right_edge + (1 << self.scale) > self.right_edge,
            "the right edge of the window moved back from {} to {right_edge}",
            self.right_edge
        );
        self.acknowledged = position;
        self.right_edge = self.right_edge.max(right_edge);
        for (left, right) in options.sack.iter() {
            assert!(SeqNum(left).before(SeqNum(right)), "an empty SACK block");
            assert!(options.sack.len() <= 4);
        }
    }
}
