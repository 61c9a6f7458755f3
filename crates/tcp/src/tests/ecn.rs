//! ECN from the SYN to CWR: RFC 3168 6.1.

use wire::Ecn;

use super::harness::*;
use crate::*;

fn asking() -> Config {
    Config {
        ecn: EcnPolicy::Request,
        ..plain()
    }
}

#[test]
fn a_syn_asks_and_its_repetition_does_not() {
    let mut t = syn_sent_with(&asking());
    assert_eq!(t.run_timer(), 1000);
    expect!(t, control: Control::Syn, ecn: Ecn::NotEct);
    // The answer to the first SYN may still come.
    send!(t, seq: 0, control: Control::Syn, mss: Some(1000), ece: true);
    expect!(t, seq: 1, ack: 1, ecn: Ecn::NotEct);
    assert!(t.conn.info().ecn);
}

#[test]
fn without_fallback_every_syn_asks() {
    let mut t = syn_sent_with(&Config {
        ecn_fallback: false,
        ..asking()
    });
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
    // A pure ACK with CWR says nothing; CWR is for new data.
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
fn a_linux_receiver_hurries_for_a_mark_and_for_what_is_sent_again() {
    let mut t = established_with(&Config {
        ack_style: AckStyle::Linux,
        ..asking()
    });
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
