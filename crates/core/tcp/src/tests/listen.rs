//! The passive side: RFC 9293 3.10.7.2, RFC 4987.

use std::sync::Arc;

use wire::{Instant, TcpOptions, Timestamps};

use super::harness::{OURS, THEIRS, plain};
use crate::test_config::{TestConfig, endpoints, test_link};
use crate::test_payload::{Bytes, live_runs};
use crate::test_socket::TestSocket;
use crate::*;

const MSS: u16 = 1000;

struct Stage {
    backlog: SynBacklog<Bytes>,
    settings: Settings,
    now: Instant,
    accept_queue: AcceptQueue,
}

fn listening(capacity: usize, config: &TestConfig) -> Stage {
    let isns = IsnGenerator::new([3; 16]);
    Stage {
        backlog: SynBacklog::new(
            Arc::clone(&config.shared),
            config.settings.rcv_space_initial,
            capacity,
            isns,
            [4; 16],
        ),
        settings: config.settings,
        now: Instant::from_millis(1_000_000),
        accept_queue: AcceptQueue::HasRoom,
    }
}

fn syn() -> Segment<Bytes> {
    Segment {
        seq: THEIRS,
        control: Control::Syn,
        window: 60_000,
        options: TcpOptions {
            mss: Some(900),
            window_scale: Some(3),
            sack_permitted: true,
            timestamps: Some(Timestamps { value: 50, echo: 0 }),
            ..TcpOptions::default()
        },
        ..Segment::default()
    }
}

fn syn_with_ecn() -> Segment<Bytes> {
    Segment {
        ece: true,
        cwr: true,
        ..syn()
    }
}

/// The ACK that completes the handshake of `syn_ack`, with `len` bytes.
fn ack_of(syn_ack: &Segment<Bytes>, len: usize) -> Segment<Bytes> {
    let echo = syn_ack.options.timestamps.map(|ts| ts.value);
    Segment {
        seq: THEIRS + 1,
        ack: Some(syn_ack.seq + 1),
        window: 10_000,
        options: TcpOptions {
            timestamps: echo.map(|echo| Timestamps { value: 60, echo }),
            ..TcpOptions::default()
        },
        payload: Bytes::pattern(THEIRS + 1, len),
        ..Segment::default()
    }
}

impl Stage {
    fn send(&mut self, port: u16, segment: Segment<Bytes>) -> ListenOutcome<Bytes> {
        let incoming = Incoming {
            settings: &self.settings,
            link: test_link(MSS),
            path_mss: None,
            accept_queue: self.accept_queue,
            iss_floor: None,
        };
        self.backlog
            .on_segment(&endpoints(port), segment, incoming, self.now)
    }

    fn reply(
        &mut self,
        port: u16,
        segment: Segment<Bytes>,
    ) -> (Segment<Bytes>, Option<SegmentDrop>) {
        match self.send(port, segment) {
            ListenOutcome::Reply(reply, drop) => (reply, drop),
            other => panic!("expected a reply, got {other:?}"),
        }
    }

    fn syn_ack(&mut self, port: u16, segment: Segment<Bytes>) -> Segment<Bytes> {
        let (reply, drop) = self.reply(port, segment);
        assert_eq!((reply.control, drop), (Control::Syn, None));
        assert_eq!(reply.ack, Some(THEIRS + 1));
        reply
    }

    fn accepted(&mut self, port: u16, segment: Segment<Bytes>) -> TestSocket {
        match self.send(port, segment) {
            ListenOutcome::Accepted(connection, disposition) => {
                assert!(
                    disposition.established && disposition.drop.is_none(),
                    "{disposition:?}"
                );
                TestSocket::new(*connection, self.settings)
            }
            other => panic!("expected a connection, got {other:?}"),
        }
    }

    fn dropped(&mut self, port: u16, segment: Segment<Bytes>) -> SegmentDrop {
        match self.send(port, segment) {
            ListenOutcome::Dropped(reason) => reason,
            other => panic!("expected silence, got {other:?}"),
        }
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            assert_eq!(live_runs(), 0, "payload left behind");
        }
    }
}

fn options() -> TestConfig {
    plain().with(|c| {
        c.shared_mut().window_scaling = true;
        c.shared_mut().timestamps = true;
        c.settings.rcv_buf_max = 6 << 20;
    })
}

#[test]
fn a_handshake_makes_a_connection_with_the_options_of_both_sides() {
    let mut t = listening(10, &options());
    let syn_ack = t.syn_ack(1, syn());
    assert_eq!(syn_ack.window, 10_000);
    assert_eq!(
        (syn_ack.options.mss, syn_ack.options.window_scale),
        (Some(MSS), Some(7))
    );
    assert!(syn_ack.options.sack_permitted);
    assert_eq!(syn_ack.options.timestamps.map(|ts| ts.echo), Some(50));
    assert_eq!(t.backlog.len(), 1);
    let mut connection = t.accepted(1, ack_of(&syn_ack, 100));
    assert!(t.backlog.is_empty() && t.backlog.next_timer().is_none());
    let info = connection.info();
    assert_eq!(
        (info.state, info.snd_mss, info.sack, info.timestamps),
        (StateKind::Established, 888, true, true)
    );
    assert_eq!(
        (info.snd_wnd, info.snd_wscale, info.rcv_wscale),
        (80_000, 3, 7)
    );
    assert!(
        connection
            .recv_queue()
            .pop(100)
            .is_some_and(|bytes| bytes.is_pattern(THEIRS + 1))
    );
}

#[test]
fn each_peer_has_its_own_isn() {
    let mut t = listening(10, &plain());
    let (first, second) = (t.syn_ack(1, syn()), t.syn_ack(2, syn()));
    assert_ne!(first.seq, second.seq);
}

#[test]
fn an_isn_starts_above_the_floor_of_time_wait() {
    let mut t = listening(10, &plain());
    let isn = t.syn_ack(1, syn()).seq;
    for (floor, iss) in [(isn + 5, isn + 5), (isn - 5_usize, isn)] {
        let mut t = listening(10, &plain());
        let incoming = Incoming {
            settings: &t.settings.clone(),
            link: test_link(MSS),
            path_mss: None,
            accept_queue: AcceptQueue::HasRoom,
            iss_floor: Some(floor),
        };
        let outcome = t.backlog.on_segment(&endpoints(1), syn(), incoming, t.now);
        assert!(matches!(outcome, ListenOutcome::Reply(reply, None) if reply.seq == iss));
    }
}

#[test]
fn payload_in_a_syn_is_not_taken() {
    let mut t = listening(10, &plain());
    let with_data = Segment {
        payload: Bytes::pattern(THEIRS + 1, 10),
        ..syn()
    };
    let syn_ack = t.syn_ack(1, with_data);
    assert_eq!(live_runs(), 0);
    assert_eq!(t.accepted(1, ack_of(&syn_ack, 10)).readable_len(), 10);
}

#[test]
fn a_repeated_syn_draws_the_same_syn_ack() {
    let mut t = listening(10, &plain());
    let first = t.syn_ack(1, syn());
    let (second, drop) = t.reply(1, syn());
    assert_eq!(
        (second.seq, second.control, drop),
        (first.seq, Control::Syn, Some(SegmentDrop::Duplicate))
    );
    assert_eq!(t.backlog.len(), 1);
}

#[test]
fn a_syn_ack_is_repeated_five_times_and_forgotten() {
    let mut t = listening(10, &plain());
    let start = t.now;
    let first = t.syn_ack(1, syn());
    let mut sent = Vec::new();
    while let Some(due) = t.backlog.next_timer() {
        t.now = due;
        while let Some((to, again)) = t.backlog.poll_send(test_link(MSS), &t.settings, t.now) {
            assert_eq!(
                (to, again.seq, again.control),
                (endpoints(1), first.seq, Control::Syn)
            );
            sent.push(t.now.saturating_since(start).as_secs());
        }
    }
    assert_eq!(sent, [1, 3, 7, 15, 31]);
    assert_eq!(t.now.saturating_since(start).as_secs(), 63);
    assert!(t.backlog.is_empty());
}

#[test]
fn a_peer_that_keeps_repeating_its_syn_does_not_stay_half_open_for_ever() {
    let mut t = listening(10, &plain());
    t.syn_ack(1, syn());
    for _ in 0..630 {
        t.now = t.now + core::time::Duration::from_millis(100);
        while t
            .backlog
            .poll_send(test_link(MSS), &t.settings, t.now)
            .is_some()
        {}
        if t.backlog.is_empty() {
            break;
        }
        let _ = t.reply(1, syn());
    }
    assert!(t.backlog.is_empty() && t.backlog.next_timer().is_none());
}

#[test]
fn timers_of_many_peers_do_not_mix() {
    let mut t = listening(10, &plain());
    t.syn_ack(1, syn());
    t.now = t.now + core::time::Duration::from_millis(300);
    let second = t.syn_ack(2, syn());
    t.accepted(2, ack_of(&second, 0));
    let due = t.backlog.next_timer().expect("the first one waits");
    assert_eq!(due.saturating_since(t.now).as_millis(), 700);
    t.now = due;
    assert_eq!(
        t.backlog
            .poll_send(test_link(MSS), &t.settings, t.now)
            .map(|(to, _)| to),
        Some(endpoints(1))
    );
    assert!(
        t.backlog
            .poll_send(test_link(MSS), &t.settings, t.now)
            .is_none()
    );
}

#[test]
fn an_exact_rst_ends_a_half_open_connection_and_a_blind_one_does_not() {
    let mut t = listening(10, &plain());
    t.syn_ack(1, syn());
    let rst = Segment {
        control: Control::Rst,
        seq: THEIRS + 30_000,
        ..Segment::default()
    };
    assert_eq!(t.dropped(1, rst.clone()), SegmentDrop::BlindRst);
    assert_eq!(t.backlog.len(), 1);
    assert_eq!(
        t.dropped(
            1,
            Segment {
                seq: THEIRS + 1,
                ..rst
            }
        ),
        SegmentDrop::Withdrawn
    );
    assert!(t.backlog.is_empty() && t.backlog.next_timer().is_none());
}

#[test]
fn a_wrong_ack_is_reset_and_the_right_one_still_counts() {
    let mut t = listening(10, &plain());
    let syn_ack = t.syn_ack(1, syn());
    let wrong = Segment {
        ack: Some(syn_ack.seq + 2),
        ..ack_of(&syn_ack, 0)
    };
    let (reset, drop) = t.reply(1, wrong);
    assert_eq!(
        (reset.control, reset.seq, drop),
        (Control::Rst, syn_ack.seq + 2, Some(SegmentDrop::FutureAck))
    );
    let bare = Segment {
        options: TcpOptions::default(),
        ..ack_of(&syn_ack, 0)
    };
    t.accepted(1, bare);
}

#[test]
fn a_stray_ack_is_reset_and_strays_of_other_kinds_are_ignored() {
    let mut t = listening(10, &plain());
    let stray = Segment {
        seq: THEIRS,
        ack: Some(OURS),
        ..Segment::default()
    };
    let (reset, drop) = t.reply(1, stray.clone());
    assert_eq!(
        (reset.control, reset.seq, drop),
        (Control::Rst, OURS, Some(SegmentDrop::NoConnection))
    );
    let (reset, _) = t.reply(
        1,
        Segment {
            control: Control::Syn,
            ..stray.clone()
        },
    );
    assert_eq!((reset.control, reset.seq), (Control::Rst, OURS));
    assert_eq!(
        t.dropped(
            1,
            Segment {
                control: Control::Rst,
                ..stray.clone()
            }
        ),
        SegmentDrop::NoConnection
    );
    assert_eq!(
        t.dropped(1, Segment { ack: None, ..stray }),
        SegmentDrop::NoAck
    );
    assert!(t.backlog.is_empty());
}

#[test]
fn a_full_accept_queue_answers_no_syn_and_forgets_no_handshake() {
    let mut t = listening(10, &plain());
    let syn_ack = t.syn_ack(1, syn());
    t.accept_queue = AcceptQueue::Full;
    assert_eq!(t.dropped(2, syn()), SegmentDrop::AcceptQueueFull);
    assert_eq!(
        t.dropped(1, ack_of(&syn_ack, 0)),
        SegmentDrop::AcceptQueueFull
    );
    t.accept_queue = AcceptQueue::HasRoom;
    let bare = Segment {
        options: TcpOptions::default(),
        ..ack_of(&syn_ack, 0)
    };
    t.accepted(1, bare);
}

#[test]
fn a_full_backlog_answers_by_cookies_and_remembers_nothing() {
    let mut t = listening(2, &options());
    t.syn_ack(1, syn());
    t.syn_ack(2, syn());
    let cookie = t.syn_ack(3, syn());
    assert_eq!(t.backlog.len(), 2);
    let connection = t.accepted(3, ack_of(&cookie, 10));
    let info = connection.info();
    // The MSS is the nearest in the table, 536; scale and SACK came back in the timestamp.
    assert_eq!(
        (info.snd_mss, info.sack, info.timestamps),
        (524, true, true)
    );
    assert_eq!(
        (info.snd_wscale, info.rcv_wscale, info.snd_wnd),
        (3, 7, 80_000)
    );
    assert_eq!(connection.readable_len(), 10);
    assert_eq!(t.backlog.len(), 2);
}

#[test]
fn a_cookie_without_timestamps_carries_no_other_option() {
    let mut t = listening(0, &options());
    let bare = TcpOptions {
        timestamps: None,
        ..syn().options
    };
    let cookie = t.syn_ack(
        1,
        Segment {
            options: bare,
            ..syn()
        },
    );
    assert_eq!(
        cookie.options,
        TcpOptions {
            mss: Some(MSS),
            ..TcpOptions::default()
        }
    );
    let info = t.accepted(1, ack_of(&cookie, 0)).info();
    assert_eq!(
        (info.snd_mss, info.sack, info.timestamps, info.snd_wscale),
        (536, false, false, 0)
    );
    assert_eq!(info.snd_wnd, 10_000);
}

#[test]
fn a_forged_or_late_cookie_is_reset() {
    let mut t = listening(0, &options());
    let cookie = t.syn_ack(1, syn());
    let forged = Segment {
        ack: Some(cookie.seq + 100),
        ..ack_of(&cookie, 0)
    };
    assert_eq!(t.reply(1, forged).1, Some(SegmentDrop::BadCookie));
    assert_eq!(
        t.reply(2, ack_of(&cookie, 0)).1,
        Some(SegmentDrop::BadCookie)
    );
    t.now = t.now + core::time::Duration::from_secs(119);
    let late = t.reply(1, ack_of(&cookie, 0));
    assert_eq!(
        (late.0.control, late.1),
        (Control::Rst, Some(SegmentDrop::BadCookie))
    );
}

#[test]
fn cookies_are_only_believed_when_some_were_given() {
    let mut giver = listening(0, &options());
    let cookie = giver.syn_ack(1, syn());
    let mut t = listening(10, &options());
    assert_eq!(
        t.reply(1, ack_of(&cookie, 0)).1,
        Some(SegmentDrop::NoConnection)
    );
}

#[test]
fn a_final_ack_with_an_old_timestamp_completes_no_handshake_and_one_without_does() {
    let mut t = listening(10, &options());
    let syn_ack = t.syn_ack(1, syn());
    let old = TcpOptions {
        timestamps: Some(Timestamps { value: 49, echo: 0 }),
        ..TcpOptions::default()
    };
    assert_eq!(
        t.reply(
            1,
            Segment {
                options: old,
                ..ack_of(&syn_ack, 0)
            }
        )
        .1,
        Some(SegmentDrop::Paws)
    );
    let bare = Segment {
        options: TcpOptions::default(),
        ..ack_of(&syn_ack, 0)
    };
    t.accepted(1, bare);
}

#[test]
fn the_space_of_new_connections_can_be_set() {
    let mut t = listening(10, &plain());
    t.backlog.set_rcv_space(1234);
    let syn_ack = t.syn_ack(1, syn());
    assert_eq!(syn_ack.window, 1234);
    assert_eq!(t.accepted(1, ack_of(&syn_ack, 0)).rcv_outstanding(), 1234);
}

#[test]
fn a_fin_with_the_last_ack_is_taken() {
    let mut t = listening(10, &plain());
    let syn_ack = t.syn_ack(1, syn());
    let mut connection = t.accepted(
        1,
        Segment {
            control: Control::Fin,
            ..ack_of(&syn_ack, 5)
        },
    );
    assert_eq!(
        (connection.state(), connection.readable_len()),
        (StateKind::CloseWait, 5)
    );
    connection.recv_queue().clear();
}

#[test]
fn a_listener_accepts_requests_for_ecn() {
    let mut stage = listening(4, &options());
    let syn_ack = stage.syn_ack(1, syn_with_ecn());
    assert!(syn_ack.ece && !syn_ack.cwr && !syn_ack.ecn.is_ect());
    // A repeated SYN without the request gets the same answer: the first SYN may have been late.
    let (again, _) = stage.reply(1, syn());
    assert!(again.ece);
    assert!(stage.accepted(1, ack_of(&syn_ack, 0)).info().ecn);

    let syn_ack = stage.syn_ack(2, syn());
    assert!(!syn_ack.ece && !syn_ack.cwr);
    assert!(!stage.accepted(2, ack_of(&syn_ack, 0)).info().ecn);

    let off = options().with(|c| {
        c.shared_mut().ecn.policy = EcnPolicy::Off;
    });
    let mut stage = listening(4, &off);
    assert!(!stage.syn_ack(1, syn_with_ecn()).ece);
}

#[test]
fn a_cookie_remembers_that_ecn_was_granted_if_there_are_timestamps() {
    let mut stage = listening(0, &options());
    for (port, asked, ecn) in [(1, syn_with_ecn(), true), (2, syn(), false)] {
        let syn_ack = stage.syn_ack(port, asked);
        assert_eq!(syn_ack.ece, ecn);
        let connection = stage.accepted(port, ack_of(&syn_ack, 0));
        assert_eq!(connection.info().ecn, ecn);
    }
    let mut plain = syn_with_ecn();
    plain.options.timestamps = None;
    assert!(!stage.syn_ack(3, plain).ece);
}

#[test]
fn a_listener_grants_accecn_and_learns_from_the_last_ack_how_its_syn_ack_came() {
    let config = options().with(|c| {
        c.shared_mut().ecn.policy = EcnPolicy::AcceptAccurate;
    });
    for (ace, counts, distrusted) in [(0b010, 0, false), (0b110, 0, true), (0b000, 0, true)] {
        let mut stage = listening(4, &config);
        let mut asking = syn();
        asking.set_ace(0b111);
        let syn_ack = stage.syn_ack(1, asking);
        assert_eq!(syn_ack.ace(), 0b010);
        assert!(syn_ack.options.accecn.is_some());
        let mut ack = ack_of(&syn_ack, 0);
        ack.set_ace(ace);
        let mut connection = stage.accepted(1, ack);
        let info = connection.info();
        assert!(info.accecn);
        assert_eq!(info.delivered_ce, counts);
        let payload = Bytes::pattern(syn_ack.seq + 1, 10);
        connection.send(payload, Push::Now).expect("room");
        let segment = connection.poll_send(stage.now).expect("the window is open");
        assert_eq!(segment.ecn.is_ect(), !distrusted, "{ace:03b}");
        connection.abort();
    }
}

#[test]
fn a_repeated_syn_without_accecn_gets_accecn_feedback_and_no_option() {
    let config = options().with(|c| {
        c.shared_mut().ecn.policy = EcnPolicy::Accurate;
    });
    let mut stage = listening(4, &config);
    let mut asking = syn();
    asking.set_ace(0b111);
    asking.ecn = wire::Ecn::Ect0;
    assert_eq!(stage.syn_ack(1, asking).ace(), 0b100);
    let (again, _) = stage.reply(1, syn());
    assert_eq!((again.ace(), again.options.accecn), (0b010, None));
}

#[test]
fn a_cookie_has_no_room_for_accecn() {
    let config = options().with(|c| {
        c.shared_mut().ecn.policy = EcnPolicy::Accurate;
    });
    let mut stage = listening(0, &config);
    let mut asking = syn();
    asking.set_ace(0b111);
    assert_eq!(stage.syn_ack(1, asking).ace(), 0);
}

#[test]
fn a_syn_with_fin_is_dropped_and_counted() {
    let mut stage = listening(4, &plain());
    let both = || Segment {
        fin_after_syn: true,
        ..syn()
    };
    let outcome = stage.send(1, both());
    assert!(
        matches!(outcome, ListenOutcome::Dropped(SegmentDrop::SynFin)),
        "{outcome:?}"
    );
    assert!(stage.backlog.is_empty());
    // Nor does it draw a cookie from a listener that is full.
    let mut full = listening(0, &plain());
    let outcome = full.send(1, both());
    assert!(
        matches!(outcome, ListenOutcome::Dropped(SegmentDrop::SynFin)),
        "{outcome:?}"
    );
    stage.syn_ack(1, syn());
}

#[test]
fn an_unreachable_host_or_network_ends_a_half_open_connection() {
    for what in [Unreachable::Host, Unreachable::Net] {
        let mut stage = listening(4, &plain());
        let syn_ack = stage.syn_ack(1, syn());
        let other = stage.syn_ack(2, syn());
        let forged = stage
            .backlog
            .on_unreachable(&endpoints(1), what, syn_ack.seq + 1);
        assert!(!forged, "no such packet was sent");
        assert!(
            !stage
                .backlog
                .on_unreachable(&endpoints(3), what, syn_ack.seq)
        );
        assert_eq!(stage.backlog.len(), 2);
        assert!(
            stage
                .backlog
                .on_unreachable(&endpoints(1), what, syn_ack.seq)
        );
        assert_eq!(stage.backlog.len(), 1);
        let outcome = stage.send(1, ack_of(&syn_ack, 0));
        assert!(
            !matches!(outcome, ListenOutcome::Accepted(..)),
            "{outcome:?}"
        );
        // Only the other one is repeated.
        stage.now = stage.backlog.next_timer().unwrap();
        let (ends, again) = stage
            .backlog
            .poll_send(test_link(MSS), &stage.settings, stage.now)
            .unwrap();
        assert_eq!((ends, again.seq), (endpoints(2), other.seq));
        assert!(
            stage
                .backlog
                .poll_send(test_link(MSS), &stage.settings, stage.now)
                .is_none()
        );
    }
}

#[test]
fn a_port_or_protocol_that_is_unreachable_leaves_a_half_open_connection_alone() {
    for what in [Unreachable::Port, Unreachable::Protocol] {
        let mut stage = listening(4, &plain());
        let syn_ack = stage.syn_ack(1, syn());
        assert!(
            stage
                .backlog
                .on_unreachable(&endpoints(1), what, syn_ack.seq)
        );
        stage.accepted(1, ack_of(&syn_ack, 0));
    }
}
