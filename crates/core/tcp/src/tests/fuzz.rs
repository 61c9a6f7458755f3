//! Random events in every state: no panic, no endless loop, no broken promise, no wrong byte.

use std::sync::Arc;

use proptest::prelude::*;

use netmem::Payload;
use wire::{Ecn, TcpOptions, Timestamps};

use super::harness::*;
use crate::reassembly::Reassembly;
use crate::receiver::cut_to_window;
use crate::test_config::test_link;
use crate::test_payload::Bytes;
use crate::*;

/// One event in the life of a connection.
#[derive(Debug, Clone)]
enum Event {
    Segment(Forged),
    Write(usize),
    Read,
    Space(u32),
    Wait(u64),
    Timer,
    Poll,
    Drained,
    Mtu(u16),
    Shutdown,
    Close,
    Abort,
}

/// A segment with sequence numbers close to the right ones.
#[derive(Debug, Clone)]
struct Forged {
    seq: i32,
    ack: Option<i32>,
    control: Control,
    push: bool,
    ae: bool,
    ece: bool,
    cwr: bool,
    ecn: Ecn,
    window: u16,
    len: usize,
    options: TcpOptions,
}

fn near(range: i32) -> impl Strategy<Value = i32> {
    prop_oneof![3 => Just(0), 1 => Just(-1), 1 => Just(1), 8 => -range..range, 1 => any::<i32>()]
}

fn control() -> impl Strategy<Value = Control> {
    prop_oneof![
        12 => Just(Control::None),
        2 => Just(Control::Fin),
        1 => Just(Control::Syn),
        1 => Just(Control::Rst),
    ]
}

fn options() -> impl Strategy<Value = TcpOptions> {
    let timestamps = prop::option::weighted(0.8, (0_u32..2000, any::<u32>()));
    let sack = prop::collection::vec((any::<bool>(), -3000_i32..12_000, -10_i32..3000), 0..4);
    (
        timestamps,
        sack,
        any::<Option<u16>>(),
        any::<Option<u8>>(),
        any::<bool>(),
    )
        .prop_map(|(timestamps, sack, mss, window_scale, sack_permitted)| {
            let mut blocks = wire::SackBlocks::default();
            for (_, from, len) in sack {
                let from = OURS.0.wrapping_add_signed(from);
                let _ = blocks.push(from, from.wrapping_add_signed(len));
            }
            let timestamps = timestamps.map(|(value, echo)| Timestamps { value, echo });
            TcpOptions {
                mss,
                window_scale,
                sack_permitted,
                timestamps,
                sack: blocks,
                accecn: None,
                fast_open: None,
            }
        })
}

fn forged() -> impl Strategy<Value = Forged> {
    let len =
        prop_oneof![3 => Just(0_usize), 3 => 1_usize..20, 3 => 1_usize..3000, 1 => 0_usize..70_000];
    let ack = prop::option::weighted(0.95, near(5000));
    let window = prop_oneof![Just(0_u16), Just(60_000), any::<u16>()];
    (
        near(12_000),
        ack,
        control(),
        any::<[bool; 4]>(),
        any::<u8>(),
        window,
        len,
        options(),
    )
        .prop_map(
            |(seq, ack, control, [push, ae, ece, cwr], tos, window, len, options)| Forged {
                seq,
                ack,
                control,
                push,
                ae,
                ece,
                cwr,
                ecn: Ecn::from_tos(tos),
                window,
                len,
                options,
            },
        )
}

fn event() -> impl Strategy<Value = Event> {
    prop_oneof![
        20 => forged().prop_map(Event::Segment),
        3 => (1_usize..5000).prop_map(Event::Write),
        3 => Just(Event::Read),
        2 => prop_oneof![Just(0_u32), 0_u32..30_000, any::<u32>()].prop_map(Event::Space),
        2 => (0_u64..100_000).prop_map(Event::Wait),
        3 => Just(Event::Timer),
        6 => Just(Event::Poll),
        1 => Just(Event::Drained),
        1 => any::<u16>().prop_map(Event::Mtu),
        1 => prop_oneof![4 => Just(Event::Shutdown), 2 => Just(Event::Close), 1 => Just(Event::Abort)],
    ]
}

fn start(which: usize) -> Trace {
    let timestamps = plain().with(|c| {
        c.shared_mut().timestamps = true;
        c.shared_mut().window_scaling = true;
    });
    match which {
        0 => syn_sent(),
        1 => established(),
        2 => fin_wait_1(),
        3 => fin_wait_2(),
        4 => close_wait(),
        5 => closing(),
        6 => last_ack(),
        7 => time_wait(),
        8 => established_with(&timestamps),
        9 => syn_sent_with(&timestamps),
        10 => syn_sent_with(&asking()),
        11 => established_with(&asking()),
        12 => syn_sent_with(&accurate()),
        13 => established_with(&accurate()),
        _ => established_with(&plain().with(|c| {
            c.settings.rcv_buf_max = 6 << 20;
            c.shared_mut().window_scaling = true;
        })),
    }
}

/// Plays a life and checks after each event what must always hold.
struct Life {
    t: Trace,
    rcv_nxt: SeqNum,
}

impl Life {
    fn apply(&mut self, event: Event) {
        let was_over = self.t.state() == StateKind::Closed;
        let by_caller = matches!(event, Event::Close | Event::Abort | Event::Shutdown);
        self.t.last = Disposition::default();
        self.play(event);
        let is_over = self.t.state() == StateKind::Closed;
        let told = was_over || by_caller || !is_over || self.t.last.closed;
        assert!(told, "closed without a word");
        self.check();
    }

    fn play(&mut self, event: Event) {
        let t = &mut self.t;
        match event {
            Event::Segment(forged) => self.arrive(forged),
            Event::Write(len) => {
                if t.conn.write_room() >= len {
                    t.write(len);
                }
            }
            Event::Read => {
                t.read();
            }
            Event::Space(bytes) => t.conn.set_rcv_space(bytes),
            Event::Wait(millis) => t.advance(millis),
            Event::Timer => self.check_timer(),
            Event::Poll => self.poll_all(),
            Event::Drained => t.conn.on_drained(),
            Event::Mtu(mss) => {
                let quoted = SeqNum(OURS.0.wrapping_add(u32::from(mss)));
                t.conn.on_mtu(mss, quoted, t.now);
            }
            Event::Shutdown => t.conn.shutdown_write(),
            Event::Close => {
                t.read();
                t.conn.close();
            }
            Event::Abort => t.conn.abort(),
        }
    }

    fn arrive(&mut self, forged: Forged) {
        let t = &mut self.t;
        let Forged {
            seq,
            ack,
            control,
            push,
            ae,
            ece,
            cwr,
            ecn,
            window,
            len,
            options,
        } = forged;
        let in_handshake = matches!(t.state(), StateKind::SynSent | StateKind::SynReceived);
        // The peer has one ISN, also before this side knows it.
        let seq = match (control, in_handshake) {
            (Control::Syn, true) => THEIRS,
            _ => SeqNum(self.rcv_nxt.0.wrapping_add_signed(seq)),
        };
        let first = if control == Control::Syn {
            seq + 1
        } else {
            seq
        };
        let snd_nxt = OURS + 1 + t.conn.info().bytes_sent as usize;
        let segment = Segment {
            seq,
            ack: ack.map(|ack| SeqNum(snd_nxt.0.wrapping_add_signed(ack))),
            control,
            fin_after_syn: push,
            push,
            ece,
            cwr,
            ecn,
            window,
            options,
            payload: Bytes::pattern(first, len),
            gso_size: 0,
            ae,
            packets: 0,
        };
        t.last = t.conn.on_segment(segment, t.now);
    }

    /// Calls `poll_send` until it returns `None`, which must happen.
    fn poll_all(&mut self) {
        for _ in 0..1000 {
            let Some(segment) = self.t.poll() else { return };
            if let Some(ack) = segment.ack {
                assert!(ack.after_eq(self.rcv_nxt), "RCV.NXT went back");
                self.rcv_nxt = ack;
            }
        }
        panic!("there is always something to say");
    }

    /// A timer that was run is not due any more, or the caller would loop. After a late call one more may be due: the
    /// retransmission timer behind the one for reordered packets.
    fn check_timer(&mut self) {
        if let Some(next) = self.t.conn.next_timer() {
            self.t.now = self.t.now.max(next);
        }
        for _ in 0..2 {
            self.t.timers();
            self.poll_all();
            if self
                .t
                .conn
                .next_timer()
                .is_none_or(|next| next > self.t.now)
            {
                return;
            }
        }
        let next = self.t.conn.next_timer();
        panic!("due for ever: {next:?} at {:?}", self.t.now);
    }

    fn check(&mut self) {
        let t = &mut self.t;
        let info = t.conn.info();
        assert!(
            info.out_of_order as u64 <= u64::from(info.rcv_wnd),
            "{info:?}"
        );
        assert!(t.conn.rcv_outstanding() <= 65_535 << 14);
        let over = t.state() == StateKind::Closed;
        assert!(!over || t.conn.next_timer().is_none());
        assert!(over || t.conn.error().is_none());
        t.take_drops();
    }
}

/// Found by `no_life_breaks_a_promise`: at the same time packets are old enough to be lost, F-RTO has sent new data, and the
/// next timeout is due.
#[test]
fn two_timers_that_come_late_are_run_one_after_the_other() {
    let mut t = close_wait();
    t.write(1583);
    while t.poll().is_some() {}
    // A probe and two timeouts, and one more with new data waiting.
    for extra in [0, 0, 0, 1] {
        t.write(extra);
        t.run_timer();
        while t.poll().is_some() {}
    }
    t.advance(10);
    send!(t, ack: Some(1583));
    t.advance(1680);
    t.write(999);
    let timeouts = t.conn.info().total_rto;
    t.timers();
    while t.poll().is_some() {}
    assert_eq!(t.conn.info().total_rto, timeouts);
    assert_eq!(t.conn.next_timer(), Some(t.now));
    t.timers();
    while t.poll().is_some() {}
    assert_eq!(t.conn.info().total_rto, timeouts + 1);
    assert!(t.conn.next_timer().is_some_and(|next| next > t.now));
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 1500,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn no_life_breaks_a_promise(
        which in 0_usize..15,
        events in prop::collection::vec(event(), 1..60),
    ) {
        let mut life = Life { t: start(which), rcv_nxt: THEIRS + 1 };
        for event in events {
            life.apply(event);
        }
        life.t.read();
        life.poll_all();
    }

    #[test]
    fn a_listener_survives_anything(
        segments in prop::collection::vec((0_u16..6, forged(), 0_u64..3000), 1..60),
    ) {
        let config = plain().with(|c| { c.shared_mut().timestamps = true; c.shared_mut().window_scaling = true; });
        let isns = IsnGenerator::new([3; 16]);
        let mut backlog = SynBacklog::<Bytes>::new(Arc::clone(&config.shared), config.settings.rcv_space_initial, 3, isns, [4; 16]);
        let mut now = wire::Instant::from_millis(10);
        let mut last_iss = OURS;
        for (port, forged, millis) in segments {
            let Forged { seq, ack, control, push, ae, ece, cwr, ecn, window, len, options } = forged;
            now = now + core::time::Duration::from_millis(millis);
            while let Some((_, again)) = backlog.poll_send(test_link(1000), &config.settings, now) {
                prop_assert_eq!(again.control, Control::Syn);
            }
            let endpoints = Endpoints {
                local: ([10, 0, 0, 1], 80).into(),
                remote: ([10, 0, 0, 2], port).into(),
            };
            let seq = SeqNum(THEIRS.0.wrapping_add_signed(seq));
            let segment = Segment {
                seq,
                ack: ack.map(|ack| SeqNum((last_iss + 1).0.wrapping_add_signed(ack))),
                control,
                fin_after_syn: push,
                push,
                ece,
                cwr,
                ecn,
                window,
                options,
                payload: Bytes::pattern(seq, len),
                gso_size: 0,
            ae,
            packets: 0,
            };
            let is_rst = control == Control::Rst;
            let incoming = Incoming {
                settings: &config.settings,
                link: test_link(1000),
                path_mss: None,
                accept_queue: AcceptQueue::HasRoom,
                iss_floor: None,
            };
            match backlog.on_segment(&endpoints, segment, incoming, now) {
                ListenOutcome::Reply(reply, _) => {
                    prop_assert!(!is_rst || reply.control != Control::Rst, "a RST drew a RST");
                    if reply.control == Control::Syn {
                        last_iss = reply.seq;
                    }
                }
                ListenOutcome::Accepted(connection, disposition) => {
                    prop_assert!(disposition.established);
                    drop(connection);
                }
                ListenOutcome::Dropped(_) => {}
            }
            prop_assert!(backlog.len() <= 3);
            prop_assert!(backlog.next_timer().is_none_or(|next| next > now) || !backlog.is_empty());
        }
    }

    /// The reassembly against the simplest model there is: one cell per byte, first come.
    #[test]
    fn reassembly_agrees_with_a_model(
        pieces in prop::collection::vec((0_usize..200, 1_usize..60), 1..40),
    ) {
        let base = SeqNum(u32::MAX - 100);
        let mut model = vec![None; 300];
        let mut reassembly = Reassembly::new(10_000);
        for (stream, (from, len)) in pieces.into_iter().enumerate() {
            let stream = stream as u8;
            let held_before: Vec<bool> = model.iter().map(Option::is_some).collect();
            for cell in &mut model[from..from + len] {
                *cell = cell.or(Some(stream));
            }
            let inserted = reassembly.insert(base + from, Bytes::stream(stream, base + from, len));
            let inserted = inserted.expect("far from the bounds");
            let news = held_before[from..from + len].iter().any(|held| !held);
            prop_assert_eq!(inserted.stored, news);
            let again = (from..from + len).find(|&at| held_before[at]).map(|at| base + at);
            prop_assert_eq!(inserted.duplicate.map(|(from, _)| from), again);
            prop_assert_eq!(reassembly.len(), model.iter().flatten().count());
            let latest = reassembly.sack_ranges().next().expect("something is held");
            prop_assert!(latest.0.before_eq(base + from) && latest.1.after_eq(base + from + len));
        }
        // Then read it out gap by gap.
        let mut at = 0;
        while at < model.len() {
            let ready = reassembly.pop_ready(base + at);
            let mut len = 0;
            for payload in ready {
                for run in payload.runs() {
                    prop_assert_eq!(SeqNum(run.start), base + at + len);
                    let expected = vec![Some(run.stream); run.len];
                    prop_assert_eq!(&model[at + len..at + len + run.len], expected.as_slice());
                    len += run.len;
                }
            }
            prop_assert!(len > 0 || model[at].is_none());
            at += len.max(1);
        }
        let left = reassembly.len();
        prop_assert!(reassembly.is_empty());
        prop_assert_eq!(left, 0);
    }

    #[test]
    fn a_cut_keeps_exactly_the_part_inside_the_window(
        seq in any::<u32>(),
        len in 0_usize..100,
        start in -60_i32..60,
        width in 0_usize..100,
    ) {
        let seq = SeqNum(seq);
        let payload = Bytes::pattern(seq, len);
        let mut segment = Segment { seq, payload, push: true, ..Segment::default() };
        let rcv_nxt = SeqNum(seq.0.wrapping_add_signed(start));
        let edge = rcv_nxt + width;
        let kept = cut_to_window(&mut segment, rcv_nxt, edge);
        let is_inside = |at: SeqNum| at.after_eq(rcv_nxt) && at.before(edge);
        let inside = (0..len).filter(|&i| is_inside(seq + i)).count();
        prop_assert_eq!(kept, inside > 0);
        if kept {
            prop_assert_eq!(segment.payload.len(), inside);
            prop_assert!(segment.seq.after_eq(rcv_nxt) && segment.end().before_eq(edge));
            prop_assert!(segment.payload.is_pattern(segment.seq));
            prop_assert_eq!(segment.push, is_inside(seq + (len - 1)));
        }
    }
}
