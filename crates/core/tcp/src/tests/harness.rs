//! Harness of the traces: a connection, its clock, and the peer's segments.

use core::time::Duration;

use netmem::Payload;
use wire::{Ecn, Instant, TcpOptions, Timestamps};

use crate::test_config::TestConfig;
use crate::test_payload::{Bytes, live_runs};
use crate::test_socket::TestSocket;
use crate::*;

/// Our ISN. Both are close to the wrap, so that every longer trace crosses it.
pub(super) const OURS: SeqNum = SeqNum(u32::MAX - 100);
/// The peer's ISN.
pub(super) const THEIRS: SeqNum = SeqNum(u32::MAX - 1000);
/// The receive space of a test connection, and so its first window.
pub(super) const SPACE: u32 = 10_000;

/// A segment from the peer. `Default` is an ACK of nothing with an open window.
#[derive(Debug, Clone)]
pub(super) struct FromPeer {
    pub seq: u32,
    pub ack: Option<u32>,
    pub control: Control,
    pub push: bool,
    pub ae: bool,
    pub ece: bool,
    pub cwr: bool,
    pub ecn: Ecn,
    pub window: u16,
    pub len: usize,
    /// Stream of the bytes; 0 is the right one.
    pub stream: u8,
    /// TSval and TSecr.
    pub ts: Option<(u32, u32)>,
    pub sack: &'static [(u32, u32)],
    /// MSS, window scale and SACK, for SYNs.
    pub mss: Option<u16>,
    pub scale: Option<u8>,
    pub sack_permitted: bool,
}

/// Expected fields of a segment of ours; `None` is not compared.
#[derive(Debug, Clone, Default)]
pub(super) struct Expected {
    pub seq: Option<u32>,
    pub ack: Option<u32>,
    pub control: Control,
    pub push: Option<bool>,
    /// AE, CWR and ECE as a number; `ece` and `cwr` count where it is `None`.
    pub ace: Option<u8>,
    pub ece: bool,
    pub cwr: bool,
    pub ecn: Option<Ecn>,
    pub window: Option<u16>,
    pub len: usize,
    pub ts: Option<(u32, u32)>,
    pub sack: &'static [(u32, u32)],
    pub mss: Option<u16>,
    pub scale: Option<u8>,
    pub sack_permitted: Option<bool>,
    pub gso_size: Option<u16>,
}

/// A connection in a trace.
pub(super) struct Trace {
    pub conn: TestSocket,
    pub now: Instant,
    /// The disposition of the last event.
    pub last: Disposition,
    drops: Vec<SegmentDrop>,
    /// The peer's next ordinary ACK.
    pub peer: FromPeer,
    /// Shift of our windows.
    scale: u8,
    told_ack: Option<SeqNum>,
    told_edge: Option<SeqNum>,
    read: usize,
    queued: usize,
}

impl Trace {
    pub fn new(config: &TestConfig) -> Trace {
        let conn = TestSocket::connect(config, OURS, Instant::ZERO);
        Trace {
            conn,
            now: Instant::ZERO,
            last: Disposition::default(),
            drops: Vec::new(),
            peer: FromPeer {
                seq: 1,
                ack: Some(1),
                control: Control::None,
                push: false,
                ae: false,
                ece: false,
                cwr: false,
                ecn: Ecn::NotEct,
                window: 60_000,
                len: 0,
                stream: 0,
                ts: None,
                sack: &[],
                mss: None,
                scale: None,
                sack_permitted: false,
            },
            scale: 0,
            told_ack: None,
            told_edge: None,
            read: 0,
            queued: 0,
        }
    }

    /// Delivers a segment of the peer. If it continues the peer's stream and is not dropped, the peer's next sequence number
    /// follows it.
    pub fn send(&mut self, from: FromPeer) {
        let goes_on = from.seq == self.peer.seq && from.stream == 0 && from.control != Control::Rst;
        let next = from.seq + (from.len + from.control.len()) as u32;
        let disposition = self.conn.on_segment(from.into_segment(), self.now);
        if goes_on && disposition.drop.is_none() {
            self.peer.seq = next;
        }
        self.note(disposition);
    }

    /// Delivers a segment of the peer whose payload, from `seq` on, was dropped for want of memory.
    pub fn unplaced(&mut self, seq: u32) {
        let from = FromPeer {
            seq,
            len: 0,
            ..self.peer.clone()
        };
        let disposition = self.conn.on_unplaced(from.into_segment(), self.now);
        self.note(disposition);
    }

    /// Allows the right edge to move back with the next segment.
    pub fn forget_edge(&mut self) {
        self.told_edge = None;
    }

    fn note(&mut self, disposition: Disposition) {
        self.drops.extend(disposition.drop);
        self.last = disposition;
    }

    /// Lets time pass, without timers.
    pub fn advance(&mut self, millis: u64) {
        self.now = self.now + Duration::from_millis(millis);
    }

    /// Moves to the next timer and lets it run; returns the time passed in milliseconds.
    pub fn run_timer(&mut self) -> u64 {
        let next = self.conn.next_timer().expect("a timer is armed");
        let passed = next.saturating_since(self.now);
        self.now = self.now.max(next);
        self.timers();
        passed.as_millis() as u64
    }

    /// Runs the timers at the present time.
    pub fn timers(&mut self) {
        let disposition = self.conn.on_timer(self.now);
        self.note(disposition);
    }

    /// Queues the next `len` bytes of our stream.
    pub fn write(&mut self, len: usize) {
        assert_eq!(self.conn.admit(len), len, "room in the send queue");
        let payload = Bytes::pattern(OURS + 1 + self.queued, len);
        self.queued += len;
        self.conn
            .send(payload, Push::Now)
            .expect("the connection is open");
    }

    /// Reads everything and returns how many bytes that were.
    pub fn read(&mut self) -> usize {
        let mut len = 0;
        while let Some(payload) = self.conn.recv_queue().pop(usize::MAX) {
            let start = THEIRS + 1 + self.read;
            assert!(payload.is_pattern(start), "read {payload:?} at {start:?}");
            self.read += payload.len();
            len += payload.len();
        }
        len
    }

    /// Takes our next segment and checks what must hold for any.
    pub fn poll(&mut self) -> Option<Segment<Bytes>> {
        let segment = self.conn.poll_send(self.now)?;
        if segment.control != Control::Rst {
            self.check_promises(&segment);
        }
        if segment.control != Control::Syn {
            assert!(
                segment.payload.is_pattern(segment.seq),
                "sent the wrong bytes: {segment:?}"
            );
        }
        Some(segment)
    }

    fn check_promises(&mut self, segment: &Segment<Bytes>) {
        let Some(ack) = segment.ack else { return };
        // TIME-WAIT has no `Info`; the scale stays.
        self.scale = self.scale.max(self.conn.info().rcv_wscale);
        let scale = if segment.control == Control::Syn {
            0
        } else {
            self.scale
        };
        let edge = ack + (usize::from(segment.window) << scale);
        if let Some(told) = self.told_ack {
            assert!(ack.after_eq(told), "ACK went back from {told:?} to {ack:?}");
        }
        if let Some(told) = self.told_edge {
            // The field is rounded down by less than a unit (RFC 7323 2.4).
            let seen = edge + ((1 << scale) - 1);
            assert!(
                seen.after_eq(told),
                "right edge went back from {told:?} to {edge:?}"
            );
        }
        self.told_ack = Some(ack);
        self.told_edge = Some(self.told_edge.map_or(edge, |told| told.latest(edge)));
    }

    /// Returns and clears the reasons of drops.
    pub fn take_drops(&mut self) -> Vec<SegmentDrop> {
        core::mem::take(&mut self.drops)
    }

    pub fn state(&self) -> StateKind {
        self.conn.state()
    }
}

impl Drop for Trace {
    /// Checks at the end of a trace that all payload is released, and all drops were expected.
    fn drop(&mut self) {
        if std::thread::panicking() {
            return;
        }
        assert_eq!(self.drops, [], "drops that the trace did not ask for");
        self.conn.abort();
        assert_eq!(live_runs(), 0, "payload left behind");
    }
}

impl FromPeer {
    pub fn into_segment(self) -> Segment<Bytes> {
        let mut sack = wire::SackBlocks::default();
        for &(from, to) in self.sack {
            assert!(sack.push((OURS + from as usize).0, (OURS + to as usize).0));
        }
        let seq = THEIRS + self.seq as usize;
        let first = if self.control == Control::Syn {
            seq + 1
        } else {
            seq
        };
        Segment {
            seq,
            ack: self.ack.map(|ack| OURS + ack as usize),
            control: self.control,
            fin_after_syn: false,
            push: self.push,
            ece: self.ece,
            cwr: self.cwr,
            ecn: self.ecn,
            window: self.window,
            options: TcpOptions {
                mss: self.mss,
                window_scale: self.scale,
                sack_permitted: self.sack_permitted,
                timestamps: self.ts.map(|(value, echo)| Timestamps { value, echo }),
                sack,
                accecn: None,
                fast_open: None,
            },
            payload: Bytes::stream(self.stream, first, self.len),
            gso_size: 0,
            ae: self.ae,
            packets: 0,
        }
    }
}

impl Expected {
    /// Compares with what we sent, in relative numbers.
    #[track_caller]
    pub fn check(&self, got: &Segment<Bytes>) {
        let context = || format!("got {}", describe(got));
        assert_eq!(got.control, self.control, "control, {}", context());
        assert_eq!(got.payload.len(), self.len, "len, {}", context());
        let seq = (got.seq - OURS) as u32;
        assert_eq!(self.seq.unwrap_or(seq), seq, "seq, {}", context());
        let ack = got.ack.map(|ack| (ack - THEIRS) as u32);
        assert_eq!(self.ack.or(ack), ack, "ack, {}", context());
        assert_eq!(
            self.push.unwrap_or(got.push),
            got.push,
            "push, {}",
            context()
        );
        let flags = u8::from(self.cwr) << 1 | u8::from(self.ece);
        let ace = self.ace.unwrap_or(flags);
        assert_eq!(got.ace(), ace, "AE, CWR and ECE, {}", context());
        assert_eq!(self.ecn.unwrap_or(got.ecn), got.ecn, "ECN, {}", context());
        assert_eq!(
            self.window.unwrap_or(got.window),
            got.window,
            "window, {}",
            context()
        );
        let ts = got.options.timestamps.map(|ts| (ts.value, ts.echo));
        assert_eq!(self.ts.or(ts), ts, "timestamps, {}", context());
        assert_eq!(relative_sack(got), self.sack, "sack, {}", context());
        assert_eq!(
            self.mss.or(got.options.mss),
            got.options.mss,
            "mss, {}",
            context()
        );
        let scale = got.options.window_scale;
        assert_eq!(self.scale.or(scale), scale, "scale, {}", context());
        let permitted = got.options.sack_permitted;
        assert_eq!(
            self.sack_permitted.unwrap_or(permitted),
            permitted,
            "sackOK, {}",
            context()
        );
        assert_eq!(
            self.gso_size.unwrap_or(got.gso_size),
            got.gso_size,
            "gso, {}",
            context()
        );
    }
}

fn relative_sack(segment: &Segment<Bytes>) -> Vec<(u32, u32)> {
    let relative = |seq: u32| (SeqNum(seq) - THEIRS) as u32;
    segment
        .options
        .sack
        .iter()
        .map(|(from, to)| (relative(from), relative(to)))
        .collect()
}

fn describe(segment: &Segment<Bytes>) -> String {
    format!(
        "{:?} seq {} ack {:?} len {} window {} sack {:?} options {:?}",
        segment.control,
        segment.seq - OURS,
        segment.ack.map(|ack| ack - THEIRS),
        segment.payload.len(),
        segment.window,
        relative_sack(segment),
        segment.options,
    )
}

/// A segment from the peer; unnamed fields are those of its next ordinary ACK.
macro_rules! send {
    ($t:expr $(, $field:ident: $value:expr)* $(,)?) => {{
        let from = $crate::tests::harness::FromPeer { $($field: $value,)* ..$t.peer.clone() };
        $t.send(from)
    }};
}

/// Our next segment, compared in the named fields; without `control`, `len` and `sack` it is a bare
/// ACK.
macro_rules! expect {
    ($t:expr $(, $field:ident: $value:expr)* $(,)?) => {{
        let got = $t.poll().expect("we have something to say");
        #[allow(clippy::needless_update)]
        let expected = $crate::tests::harness::Expected {
            $($field: $crate::tests::harness::IntoField::into_field($value),)*
            ..Default::default()
        };
        expected.check(&got);
    }};
}

/// Checks that no segment is sent.
macro_rules! expect_nothing {
    ($t:expr) => {{
        let got = $t.poll();
        assert!(got.is_none(), "we should be silent, but said {got:?}");
    }};
}

/// Checks the reasons of drops since the last check.
macro_rules! expect_drops {
    ($t:expr $(, $reason:ident)* $(,)?) => {{
        let expected: &[SegmentDrop] = &[$(SegmentDrop::$reason),*];
        assert_eq!($t.take_drops(), expected);
    }};
}

/// Lets a trace name the value of an optional field without `Some`.
pub(super) trait IntoField<T> {
    fn into_field(self) -> T;
}

impl<T> IntoField<T> for T {
    fn into_field(self) -> T {
        self
    }
}

macro_rules! into_some {
    ($($ty:ty),*) => {$(
        impl IntoField<Option<$ty>> for $ty {
            fn into_field(self) -> Option<$ty> {
                Some(self)
            }
        }
    )*};
}

into_some!(u16, u8, bool, (u32, u32), u32, Ecn);

/// The configuration of traces: plain numbers, no options but SACK, no quick ACKs.
pub(super) fn plain() -> TestConfig {
    TestConfig::default().with(|c| {
        c.link.mss = 1000;
        c.settings.rcv_buf_max = 65_535;
        c.settings.rcv_space_initial = SPACE;
        c.settings.snd_buf_max = 100_000;
        c.shared_mut().window_scaling = false;
        c.shared_mut().timestamps = false;
        c.shared_mut().acks.quick = 0;
    })
}

/// As [`plain`], with a request for ECN.
pub(super) fn asking() -> TestConfig {
    plain().with(|c| {
        c.shared_mut().ecn.policy = EcnPolicy::Request;
    })
}

/// As [`plain`], with a request for accurate ECN.
pub(super) fn accurate() -> TestConfig {
    plain().with(|c| {
        c.shared_mut().ecn.policy = EcnPolicy::Accurate;
    })
}

/// What a SYN requests.
fn asked(config: &TestConfig) -> EcnMode {
    match config.settings.congestion {
        CongestionKind::Dctcp => EcnMode::Dctcp,
        _ => config.shared.ecn.policy.asks(),
    }
}

/// A connection that has sent its SYN.
pub(super) fn syn_sent() -> Trace {
    syn_sent_with(&plain())
}

pub(super) fn syn_sent_with(config: &TestConfig) -> Trace {
    let mut t = Trace::new(config);
    let window = config
        .settings
        .rcv_space_initial
        .min(config.settings.rcv_buf_max)
        .min(65_535);
    let (ace, ecn) = match asked(config) {
        EcnMode::Off => (0b000, Ecn::NotEct),
        EcnMode::Classic => (0b011, Ecn::NotEct),
        EcnMode::Dctcp => (0b011, Ecn::Ect0),
        EcnMode::Accurate => (0b111, Ecn::NotEct),
    };
    expect!(t, control: Control::Syn, seq: 0, window: window as u16, ace: ace, ecn: ecn);
    t
}

/// An open connection, actively opened, with nothing pending.
pub(super) fn established() -> Trace {
    established_with(&plain())
}

pub(super) fn established_with(config: &TestConfig) -> Trace {
    let mut t = syn_sent_with(config);
    t.advance(10);
    if config.shared.timestamps {
        t.peer.ts = Some((500, 0));
    }
    let scale = config.shared.window_scaling.then_some(0);
    let sack = config.shared.sack;
    let (ece, cwr) = match asked(config) {
        EcnMode::Off => (false, false),
        EcnMode::Classic | EcnMode::Dctcp => (true, false),
        EcnMode::Accurate => (false, true),
    };
    send!(t, seq: 0, control: Control::Syn, mss: Some(1000), scale: scale, sack_permitted: sack, ece: ece, cwr: cwr);
    assert!(t.last.established);
    expect!(t, seq: 1, ack: 1, cwr: cwr);
    expect_nothing!(t);
    assert_eq!(t.state(), StateKind::Established);
    t
}

/// FIN-WAIT-1: our FIN is not acknowledged.
pub(super) fn fin_wait_1() -> Trace {
    let mut t = established();
    t.conn.shutdown_write();
    expect!(t, seq: 1, ack: 1, control: Control::Fin);
    expect_nothing!(t);
    assert_eq!(t.state(), StateKind::FinWait1);
    t
}

/// FIN-WAIT-2: our FIN is acknowledged.
pub(super) fn fin_wait_2() -> Trace {
    let mut t = fin_wait_1();
    t.peer.ack = Some(2);
    send!(t);
    assert_eq!(t.state(), StateKind::FinWait2);
    expect_nothing!(t);
    t
}

/// CLOSE-WAIT: the peer has sent its FIN.
pub(super) fn close_wait() -> Trace {
    let mut t = established();
    send!(t, control: Control::Fin);
    assert!(t.conn.is_at_end());
    t.conn.on_idle();
    expect!(t, seq: 1, ack: 2);
    assert_eq!(t.state(), StateKind::CloseWait);
    t
}

/// LAST-ACK: the peer closed first, then we did.
pub(super) fn last_ack() -> Trace {
    let mut t = close_wait();
    t.conn.shutdown_write();
    expect!(t, seq: 1, ack: 2, control: Control::Fin);
    assert_eq!(t.state(), StateKind::LastAck);
    t
}

/// CLOSING: both sides closed at the same time.
pub(super) fn closing() -> Trace {
    let mut t = fin_wait_1();
    send!(t, control: Control::Fin);
    expect!(t, seq: 2, ack: 2);
    assert_eq!(t.state(), StateKind::Closing);
    t
}

/// TIME-WAIT: both sides closed, we first.
pub(super) fn time_wait() -> Trace {
    let mut t = fin_wait_2();
    send!(t, control: Control::Fin);
    expect!(t, seq: 2, ack: 2);
    expect_nothing!(t);
    assert_eq!(t.state(), StateKind::TimeWait);
    t
}
