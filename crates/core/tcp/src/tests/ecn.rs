//! ECN from the SYN to CWR: RFC 3168 6.1.

use wire::Ecn;

use super::harness::*;
use crate::test_config::TestConfig;
use crate::*;

#[test]
fn a_syn_requests_ecn_and_its_repetition_does_not() {
    let mut t = syn_sent_with(&asking());
    assert_eq!(t.run_timer(), 1000);
    expect!(t, control: Control::Syn, ecn: Ecn::NotEct);
    // The answer to the first SYN may still arrive.
    send!(t, seq: 0, control: Control::Syn, mss: Some(1000), ece: true);
    expect!(t, seq: 1, ack: 1, ecn: Ecn::NotEct);
    assert!(t.conn.info().ecn);
}

#[test]
fn without_fallback_every_syn_requests_ecn() {
    let mut t = syn_sent_with(&asking().with(|c| {
        c.shared_mut().ecn.fallback = false;
    }));
    t.run_timer();
    expect!(t, control: Control::Syn, ece: true, cwr: true);
}

#[test]
fn a_syn_ack_without_ece_or_with_both_flags_means_no() {
    for (ece, cwr) in [(false, false), (true, true), (false, true)] {
        let mut t = syn_sent_with(&asking());
        send!(t, seq: 0, control: Control::Syn, mss: Some(1000), ece: ece, cwr: cwr);
        expect!(t, seq: 1, ack: 1);
        assert!(!t.conn.info().ecn);
        t.write(1000);
        expect!(t, len: 1000, ecn: Ecn::NotEct);
    }
}

#[test]
fn syns_that_cross_agree_if_both_ask() {
    for ece in [true, false] {
        let mut t = syn_sent_with(&asking());
        send!(t, seq: 0, ack: None, control: Control::Syn, mss: Some(1000), ece: ece, cwr: ece);
        expect!(t, seq: 0, ack: 1, control: Control::Syn, ece: ece);
        send!(t, seq: 0, control: Control::Syn, mss: Some(1000), ece: ece);
        expect!(t, seq: 1, ack: 1);
        assert_eq!(t.conn.info().ecn, ece);
    }
}

#[test]
fn new_data_is_ecn_capable_and_nothing_else_is() {
    let mut t = established_with(&asking());
    t.write(1000);
    expect!(t, seq: 1, len: 1000, ecn: Ecn::Ect0);
    // The tail loss probe is old data.
    t.run_timer();
    expect!(t, seq: 1, len: 1000, ecn: Ecn::NotEct);
    t.peer.ack = Some(1001);
    send!(t, len: 100, ecn: Ecn::Ect0);
    t.conn.on_drained();
    expect!(t, seq: 1001, ack: 101, ecn: Ecn::NotEct);
    t.conn.shutdown_write();
    expect!(t, seq: 1001, control: Control::Fin, ecn: Ecn::NotEct);
    t.read();
}

#[test]
fn a_mark_is_acknowledged_at_once_and_echoed_until_cwr() {
    let mut t = established_with(&asking());
    send!(t, len: 100, ecn: Ecn::Ce);
    expect!(t, ack: 101, ece: true);
    send!(t, len: 100, ecn: Ecn::Ect0);
    expect_nothing!(t);
    // On data, too.
    t.write(10);
    expect!(t, ack: 201, len: 10, ece: true, ecn: Ecn::Ect0);
    t.peer.ack = Some(11);
    // CWR on an ACK without data has no effect; CWR belongs to new data.
    send!(t, cwr: true);
    send!(t, len: 100, cwr: true, ecn: Ecn::Ect0);
    expect!(t, ack: 301);
    send!(t, len: 100, ecn: Ecn::Ect0);
    t.conn.on_drained();
    expect!(t, ack: 401);
    t.read();
    let info = t.conn.info();
    assert_eq!((info.ecn_seen, info.ce_received), (true, 1));
}

#[test]
fn a_segment_with_cwr_and_a_mark_begins_the_next_echo() {
    let mut t = established_with(&asking());
    send!(t, len: 100, ecn: Ecn::Ce);
    expect!(t, ack: 101, ece: true);
    send!(t, len: 100, cwr: true, ecn: Ecn::Ce);
    expect!(t, ack: 201, ece: true);
    t.read();
}

#[test]
fn a_mark_out_of_order_is_echoed_and_one_on_old_data_is_not() {
    let mut t = established_with(&asking());
    send!(t, len: 100, ecn: Ecn::Ect0);
    t.conn.on_drained();
    expect!(t, ack: 101);
    send!(t, seq: 1, len: 100, ecn: Ecn::Ce);
    expect_drops!(t, Duplicate);
    expect!(t, ack: 101, sack: &[(1, 101)]);
    send!(t, seq: 201, len: 100, ecn: Ecn::Ce);
    expect!(t, ack: 101, sack: &[(201, 301)], ece: true);
    t.read();
}

#[test]
fn marks_mean_nothing_where_ecn_was_not_agreed_on() {
    let mut t = established();
    send!(t, len: 100, ecn: Ecn::Ce);
    expect_nothing!(t);
    t.conn.on_drained();
    expect!(t, ack: 101);
    let info = t.conn.info();
    assert!(!info.ecn && !info.ecn_seen);
    t.read();
}

#[test]
fn a_linux_receiver_acknowledges_marks_and_retransmissions_at_once() {
    let mut t = established_with(&asking().with(|c| {
        c.shared_mut().tuning = Tuning::LINUX;
    }));
    for ecn in [Ecn::Ce, Ecn::NotEct] {
        // Quick ACKs are used up.
        t.conn.set_quick_acks(false);
        let ece = t.conn.info().ce_received > 0;
        send!(t, len: 100, ecn: Ecn::Ect0);
        while t.poll().is_some() {}
        t.conn.set_quick_acks(false);
        send!(t, len: 100, ecn: ecn);
        let got = t.poll().expect("an ACK at once");
        assert!(got.ece && (ece || ecn == Ecn::Ce));
    }
    t.read();
}

#[test]
fn a_syn_requests_accecn_twice_and_then_no_ecn() {
    let mut t = syn_sent_with(&accurate());
    t.run_timer();
    expect!(t, control: Control::Syn, ace: 0b111);
    t.run_timer();
    expect!(t, control: Control::Syn);
}

#[test]
fn every_packet_is_ecn_capable_and_counts_the_marked_ones() {
    let mut t = established_with(&accurate());
    assert!(t.conn.info().accecn);
    t.write(900);
    expect!(t, seq: 1, len: 900, ace: 5, ecn: Ecn::Ect0);
    // Also in retransmissions.
    t.run_timer();
    expect!(t, seq: 1, len: 900, ace: 5, ecn: Ecn::Ect0);
    t.peer.ack = Some(901);
    // A change of codepoints is reported at once, and so is the change back.
    send!(t, len: 100, ae: true, ece: true, ecn: Ecn::Ce);
    expect!(t, ack: 101, ace: 6, ecn: Ecn::Ect0);
    send!(t, len: 100, ae: true, ece: true, ecn: Ecn::Ect0);
    expect!(t, ack: 201, ace: 6);
    send!(t, len: 100, ae: true, ece: true, ecn: Ecn::Ect0);
    expect_nothing!(t);
    // A marked ACK without data counts, and is not answered.
    send!(t, ae: true, ece: true, ecn: Ecn::Ce);
    expect_nothing!(t);
    t.conn.on_drained();
    expect!(t, ack: 301, ace: 7);
    t.read();
    let info = t.conn.info();
    assert_eq!((info.ce_received, info.received_ce_bytes), (2, 100));
    assert_eq!(info.received_e0_bytes, 200);
}

#[test]
fn a_report_of_marks_reduces_the_window_once() {
    let mut t = established_with(&accurate().with(|c| {
        c.settings.snd_buf_max = 1 << 20;
        c.shared_mut().ecn.accecn_option = false;
    }));
    t.write(40_000);
    while t.poll().is_some() {}
    let before = t.conn.info().snd_cwnd;
    t.advance(50);
    // Two of the first three packets were marked: 5 + 2.
    send!(t, ack: Some(3001), ae: true, cwr: true, ece: true);
    while let Some(segment) = t.poll() {
        assert!(!segment.cwr || segment.gso_size == 0, "{segment:?}");
    }
    let info = t.conn.info();
    assert_eq!((info.ecn_reductions, info.delivered_ce), (1, 2));
    // A third of the same window.
    send!(t, ack: Some(5001));
    while t.poll().is_some() {}
    let info = t.conn.info();
    assert_eq!((info.ecn_reductions, info.delivered_ce), (1, 3), "{before}");
}

#[test]
fn a_path_that_changes_the_codepoint_of_a_syn_is_not_trusted() {
    let mut t = syn_sent_with(&accurate());
    // Our SYN was not ECN-capable, and arrived as ECT(0).
    send!(t, seq: 0, control: Control::Syn, mss: Some(1000), sack_permitted: true, ae: true);
    expect!(t, seq: 1, ack: 1, ace: 0b010, ecn: Ecn::NotEct);
    t.write(100);
    expect!(t, len: 100, ace: 5, ecn: Ecn::NotEct);
}

#[test]
fn with_a_count_that_looks_like_cwr_packets_leave_one_by_one() {
    let mut t = established_with(&accurate());
    send!(t, len: 100, ae: true, ece: true, ecn: Ecn::Ce);
    expect!(t, ack: 101, ace: 6);
    t.write(4000);
    for _ in 0..4 {
        let segment = t.poll().expect("the window is open");
        assert_eq!((segment.gso_size, segment.ace()), (0, 6), "{segment:?}");
    }
    t.read();
}

fn dctcp() -> TestConfig {
    plain().with(|c| c.settings.congestion = CongestionKind::Dctcp)
}

#[test]
fn with_dctcp_every_packet_is_ecn_capable() {
    let mut t = established_with(&dctcp());
    assert!(t.conn.info().ecn);
    t.write(1000);
    expect!(t, seq: 1, len: 1000, ecn: Ecn::Ect0);
    // The tail loss probe, too.
    t.run_timer();
    expect!(t, seq: 1, len: 1000, ecn: Ecn::Ect0);
    t.peer.ack = Some(1001);
    send!(t, len: 100, ecn: Ecn::Ect0);
    t.conn.on_drained();
    expect!(t, seq: 1001, ack: 101, ecn: Ecn::Ect0);
    t.conn.shutdown_write();
    expect!(t, seq: 1001, control: Control::Fin, ecn: Ecn::Ect0);
    t.read();
}

#[test]
fn with_dctcp_two_acks_tell_marked_bytes_from_others() {
    let mut t = established_with(&dctcp());
    send!(t, len: 100, ecn: Ecn::Ect0);
    expect_nothing!(t);
    send!(t, len: 100, ecn: Ecn::Ce);
    expect!(t, ack: 101, ece: false, ecn: Ecn::Ect0);
    expect!(t, ack: 201, ece: true, ecn: Ecn::Ect0);
    send!(t, len: 100, ecn: Ecn::Ce);
    // CWR ends nothing; it is acknowledged at once.
    send!(t, len: 100, cwr: true, ecn: Ecn::Ce);
    expect!(t, ack: 401, ece: true);
    send!(t, len: 100, ecn: Ecn::Ce);
    expect_nothing!(t);
    send!(t, len: 100, ecn: Ecn::Ect0);
    expect!(t, ack: 501, ece: true);
    expect!(t, ack: 601, ece: false);
    expect_nothing!(t);
    // All before it is acknowledged: one ACK is enough.
    send!(t, len: 100, ecn: Ecn::Ce);
    expect!(t, ack: 701, ece: true);
    expect_nothing!(t);
    t.read();
    assert_eq!(t.conn.info().ce_received, 5);
}
