//! Opening actively: RFC 9293 3.5 and 3.10.7.3.

use super::harness::*;
use crate::*;

#[test]
fn a_syn_offers_everything_and_its_window_is_not_scaled() {
    let config = plain().with(|c| {
        c.settings.rcv_buf_max = 6 << 20;
        c.settings.rcv_space_initial = 1 << 20;
        c.shared_mut().window_scaling = true;
        c.shared_mut().timestamps = true;
        c.timestamp_offset = 77;
    });
    let mut t = Trace::new(&config);
    expect!(t, control: Control::Syn, seq: 0, mss: 1000, scale: 7, sack_permitted: true,
        window: 65_535, ts: (77, 0));
    expect_nothing!(t);
    assert_eq!(t.state(), StateKind::SynSent);
}

#[test]
fn a_syn_ack_opens_and_is_acknowledged() {
    let mut t = syn_sent();
    t.advance(30);
    send!(t, seq: 0, control: Control::Syn, mss: Some(900), sack_permitted: true);
    assert!(t.last.established && t.last.reply && t.conn.readable_len() == 0);
    expect!(t, seq: 1, ack: 1, window: 10_000);
    expect_nothing!(t);
    let info = t.conn.info();
    assert_eq!(
        (info.state, info.snd_mss, info.sack),
        (StateKind::Established, 900, true)
    );
    assert_eq!(info.rtt.as_millis(), 30);
}

#[test]
fn windows_after_the_syn_are_scaled_both_ways() {
    let config = plain().with(|c| {
        c.settings.rcv_buf_max = 6 << 20;
        c.settings.rcv_space_initial = 1 << 20;
        c.shared_mut().window_scaling = true;
    });
    let mut t = syn_sent_with(&config);
    send!(t, seq: 0, control: Control::Syn, scale: Some(4), window: 1000);
    assert_eq!(
        t.conn.info().snd_wnd,
        1000,
        "the window of a SYN-ACK is not scaled"
    );
    expect!(t, ack: 1, window: ((1 << 20) >> 7) as u16);
    send!(t, window: 1000);
    assert_eq!(t.conn.info().snd_wnd, 16_000);
    assert_eq!((t.conn.info().snd_wscale, t.conn.info().rcv_wscale), (4, 7));
}

#[test]
fn without_the_peers_offer_nothing_is_scaled() {
    let config = plain().with(|c| {
        c.settings.rcv_buf_max = 6 << 20;
        c.settings.rcv_space_initial = 1 << 20;
        c.shared_mut().window_scaling = true;
    });
    let mut t = syn_sent_with(&config);
    send!(t, seq: 0, control: Control::Syn);
    expect!(t, ack: 1, window: 65_535);
    assert_eq!((t.conn.info().snd_wscale, t.conn.info().rcv_wscale), (0, 0));
}

#[test]
fn a_syn_is_repeated_with_equal_then_with_doubling_intervals_and_then_given_up() {
    let mut t = syn_sent();
    for interval in [
        1000, 1000, 1000, 1000, 1000, 2000, 4000, 8000, 16_000, 32_000,
    ] {
        expect_nothing!(t);
        assert_eq!(t.run_timer(), interval);
        expect!(t, control: Control::Syn, seq: 0);
    }
    assert_eq!(t.run_timer(), 64_000);
    assert!(t.last.closed);
    assert_eq!(
        (t.state(), t.conn.error()),
        (StateKind::Closed, Some(TcpError::TimedOut))
    );
    expect_nothing!(t);
    assert_eq!(t.conn.next_timer(), None);
}

#[test]
fn a_user_timeout_also_ends_an_attempt_to_connect() {
    let config = plain().with(|c| {
        c.settings.user_timeout = Some(core::time::Duration::from_secs(3));
    });
    let mut t = syn_sent_with(&config);
    for _ in 0..2 {
        assert_eq!(t.run_timer(), 1000);
        expect!(t, control: Control::Syn);
    }
    assert_eq!(t.run_timer(), 1000);
    assert_eq!(t.conn.error(), Some(TcpError::TimedOut));
}

#[test]
fn a_late_answer_to_a_repeated_syn_gives_no_round_trip_time() {
    let mut t = syn_sent();
    t.run_timer();
    expect!(t, control: Control::Syn);
    send!(t, seq: 0, control: Control::Syn);
    assert!(t.last.established);
    assert!(t.conn.info().rtt.is_zero());
    expect!(t, ack: 1);
}

#[test]
fn a_rst_that_acknowledges_the_syn_refuses() {
    let mut t = syn_sent();
    send!(t, seq: 0, control: Control::Rst);
    assert!(t.last.closed);
    assert_eq!(
        (t.state(), t.conn.error()),
        (StateKind::Closed, Some(TcpError::Refused))
    );
    expect_nothing!(t);
}

#[test]
fn a_blind_rst_does_not_refuse() {
    let mut t = syn_sent();
    send!(t, seq: 0, ack: None, control: Control::Rst);
    send!(t, seq: 0, ack: Some(0), control: Control::Rst);
    send!(t, seq: 0, ack: Some(2), control: Control::Rst);
    expect_drops!(t, BlindRst, BlindRst, BlindRst);
    expect_nothing!(t);
    assert_eq!(t.state(), StateKind::SynSent);
}

#[test]
fn a_wrong_ack_is_answered_by_a_rst_and_the_attempt_continues() {
    let mut t = syn_sent();
    send!(t, seq: 0, ack: Some(700), control: Control::Syn);
    expect!(t, seq: 700, control: Control::Rst);
    expect_drops!(t, FutureAck);
    send!(t, seq: 0, control: Control::Syn);
    assert!(t.last.established);
    expect!(t, ack: 1);
}

#[test]
fn a_segment_without_syn_waits_for_the_syn() {
    let mut t = syn_sent();
    send!(t, seq: 1, len: 10);
    send!(t, seq: 1, ack: None, control: Control::Fin);
    expect_drops!(t, NoSyn, NoSyn);
    expect_nothing!(t);
}

#[test]
fn payload_in_a_syn_ack_is_delivered() {
    let mut t = syn_sent();
    send!(t, seq: 0, control: Control::Syn, len: 10);
    assert!(t.last.established && t.conn.readable_len() > 0);
    expect!(t, seq: 1, ack: 11);
    assert_eq!(t.read(), 10);
    assert_eq!(t.conn.info().segs_in, 1);
}

#[test]
fn both_ends_may_open_at_once() {
    // RFC 9293 3.5, figure 7.
    let mut t = syn_sent();
    send!(t, seq: 0, ack: None, control: Control::Syn, mss: Some(1000), sack_permitted: true);
    assert!(!t.last.established && t.last.reply);
    assert_eq!(t.state(), StateKind::SynReceived);
    expect!(t, seq: 0, ack: 1, control: Control::Syn, mss: 1000, sack_permitted: true);
    send!(t, seq: 0, ack: Some(1), control: Control::Syn);
    assert!(t.last.established);
    assert_eq!(t.state(), StateKind::Established);
    expect!(t, seq: 1, ack: 1);
    expect_nothing!(t);
    send!(t, seq: 1, len: 10);
    assert_eq!(t.read(), 10);
}

#[test]
fn the_window_of_a_simultaneous_syn_ack_is_not_scaled_either() {
    let config = plain().with(|c| {
        c.shared_mut().window_scaling = true;
    });
    let mut t = syn_sent_with(&config);
    send!(t, seq: 0, ack: None, control: Control::Syn, scale: Some(4), window: 1000);
    expect!(t, control: Control::Syn, scale: 0);
    send!(t, seq: 0, control: Control::Syn, scale: Some(4), window: 2000);
    assert!(t.last.established);
    assert_eq!(t.conn.info().snd_wnd, 2000);
    expect!(t, seq: 1, ack: 1);
    send!(t, seq: 1, window: 2000);
    assert_eq!(t.conn.info().snd_wnd, 32_000);
}

#[test]
fn with_linux_policy_the_syn_ack_of_a_simultaneous_open_is_reported_as_a_duplicate() {
    for (tuning, sack) in [(Tuning::OWN, &[][..]), (Tuning::LINUX, &[(0, 1)])] {
        let config = plain().with(|c| c.shared_mut().tuning = tuning);
        let mut t = syn_sent_with(&config);
        send!(t, seq: 0, ack: None, control: Control::Syn, sack_permitted: true);
        expect!(t, control: Control::Syn, ack: 1);
        send!(t, seq: 0, control: Control::Syn, sack_permitted: true);
        expect!(t, seq: 1, ack: 1, sack: sack);
        expect_nothing!(t);
    }
}

#[test]
fn a_simultaneous_open_is_also_completed_by_a_bare_ack() {
    let mut t = syn_sent();
    send!(t, seq: 0, ack: None, control: Control::Syn);
    expect!(t, control: Control::Syn, seq: 0, ack: 1);
    send!(t, seq: 1, len: 5);
    assert!(t.last.established && t.conn.readable_len() > 0);
    assert_eq!(t.read(), 5);
}

/// A simultaneous open whose SYN-ACK has left.
fn syn_received() -> Trace {
    let mut t = syn_sent();
    send!(t, seq: 0, ack: None, control: Control::Syn);
    expect!(t, control: Control::Syn, seq: 0, ack: 1);
    t
}

#[test]
fn a_syn_ack_is_repeated_five_times_and_at_once_for_a_repeated_syn() {
    let mut t = syn_received();
    send!(t, seq: 0, ack: None, control: Control::Syn);
    expect!(t, control: Control::Syn, seq: 0, ack: 1);
    expect_drops!(t, Duplicate);
    for interval in [1000, 2000, 4000, 8000, 16_000] {
        assert_eq!(t.run_timer(), interval);
        expect!(t, control: Control::Syn, seq: 0, ack: 1);
    }
    assert_eq!(t.run_timer(), 32_000);
    assert_eq!(t.conn.error(), Some(TcpError::TimedOut));
}

#[test]
fn in_syn_received_an_exact_rst_refuses_and_others_do_not() {
    let mut t = syn_received();
    send!(t, seq: 20_000, control: Control::Rst);
    expect_nothing!(t);
    send!(t, seq: 2, control: Control::Rst);
    expect!(t, control: Control::None, seq: 1, ack: 1);
    expect_drops!(t, BlindRst, InexactRst);
    send!(t, seq: 1, control: Control::Rst);
    assert_eq!(
        (t.state(), t.conn.error()),
        (StateKind::Closed, Some(TcpError::Refused))
    );
}

#[test]
fn in_syn_received_a_wrong_ack_is_reset_and_a_wrong_sequence_number_is_acknowledged() {
    let mut t = syn_received();
    send!(t, seq: 1, ack: Some(2));
    expect!(t, control: Control::Rst, seq: 2);
    send!(t, seq: 20_000);
    expect!(t, control: Control::None, seq: 1, ack: 1);
    send!(t, seq: 5, ack: None, control: Control::Syn);
    expect!(t, control: Control::None, seq: 1, ack: 1);
    send!(t, seq: 1, ack: None);
    expect_nothing!(t);
    expect_drops!(t, FutureAck, OutOfWindow, UnexpectedSyn, NoAck);
    assert_eq!(t.state(), StateKind::SynReceived);
}

#[test]
fn closing_before_the_answer_ends_the_attempt_silently() {
    let mut t = syn_sent();
    t.conn.close();
    assert_eq!(t.state(), StateKind::Closed);
    expect_nothing!(t);
}

#[test]
fn a_half_closed_before_the_handshake_is_over_sends_its_fin_after_it() {
    let mut t = syn_received();
    t.conn.shutdown_write();
    send!(t, seq: 1);
    assert_eq!(t.state(), StateKind::FinWait1);
    expect!(t, seq: 1, control: Control::Fin);
}

#[test]
fn aborting_in_syn_received_resets_the_peer() {
    let mut t = syn_received();
    t.conn.abort();
    expect!(t, seq: 1, ack: 1, control: Control::Rst);
    expect_nothing!(t);
    assert_eq!(t.conn.error(), Some(TcpError::Aborted));
}

#[test]
fn a_repeated_syn_ack_is_acknowledged_again() {
    let mut t = established();
    send!(t, seq: 0, control: Control::Syn);
    expect!(t, seq: 1, ack: 1);
    expect_drops!(t, UnexpectedSyn);
}

#[test]
fn nothing_is_queued_before_the_connection_is_open() {
    let mut t = syn_sent();
    assert_eq!(t.conn.write_room(), 0);
    let payload = crate::test_payload::Bytes::pattern(OURS + 1, 3);
    let refused = t.conn.send(payload, Push::Now);
    assert!(
        matches!(refused, Err(SendError::NotEstablished(payload)) if netmem::Payload::len(&payload) == 3)
    );
}

#[test]
fn the_network_may_end_an_attempt_but_only_for_the_syn_that_was_sent() {
    let mut t = syn_sent();
    assert_eq!(
        t.conn.on_unreachable(Unreachable::Host, OURS + 1),
        Disposition::default()
    );
    assert_eq!(t.state(), StateKind::SynSent);
    assert!(t.conn.on_unreachable(Unreachable::Host, OURS).closed);
    assert_eq!(t.conn.error(), Some(TcpError::HostUnreachable));
    for (what, error) in [
        (Unreachable::Net, TcpError::NetUnreachable),
        (Unreachable::Port, TcpError::Refused),
        (Unreachable::Protocol, TcpError::ProtocolUnreachable),
    ] {
        let mut t = syn_sent();
        assert!(t.conn.on_unreachable(what, OURS).closed);
        assert_eq!(t.conn.error(), Some(error));
    }
}

#[test]
fn a_smaller_path_shrinks_the_mss_of_an_attempt() {
    let mut t = syn_sent();
    assert!(!t.conn.on_mtu(500, OURS + 9, t.now));
    assert!(t.conn.on_mtu(500, OURS, t.now));
    send!(t, seq: 0, control: Control::Syn, mss: Some(1000));
    assert_eq!(t.conn.info().snd_mss, 500);
    expect!(t, ack: 1);
}

#[test]
fn receive_space_granted_during_the_handshake_shows_in_the_first_ack() {
    let mut t = syn_sent();
    assert_eq!(t.conn.rcv_outstanding(), SPACE);
    t.conn.set_rcv_space(20_000);
    assert_eq!(
        t.conn.rcv_outstanding(),
        SPACE,
        "only what the SYN said is promised"
    );
    send!(t, seq: 0, control: Control::Syn);
    expect!(t, ack: 1, window: 20_000);
    assert_eq!(t.conn.rcv_outstanding(), 20_000);
    let mut t = Trace::new(&plain());
    t.conn.set_rcv_space(5000);
    expect!(t, control: Control::Syn, window: 5000);
}
