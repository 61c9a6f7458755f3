//! Attacks by a host that does not see the connection's packets: RFC 5961, and what no segment may cause.

use super::harness::*;
use crate::*;

#[test]
fn an_exact_rst_ends_the_connection() {
    let mut t = established();
    send!(t, len: 10);
    send!(t, seq: 11, control: Control::Rst);
    assert!(t.last.closed);
    assert_eq!(
        (t.state(), t.conn.error()),
        (StateKind::Closed, Some(TcpError::Reset))
    );
    expect_nothing!(t);
    assert_eq!(t.read(), 10, "what came before the RST stays readable");
    send!(t, seq: 11, len: 5);
    expect_drops!(t, Closed);
}

#[test]
fn a_rst_needs_no_ack() {
    let mut t = established();
    send!(t, seq: 1, ack: None, control: Control::Rst);
    assert_eq!(t.conn.error(), Some(TcpError::Reset));
}

#[test]
fn a_rst_elsewhere_in_the_window_is_challenged() {
    // RFC 5961 3.2.
    let mut t = established();
    send!(t, seq: 2, control: Control::Rst);
    expect!(t, seq: 1, ack: 1);
    send!(t, seq: 10_001, control: Control::Rst);
    expect!(t, seq: 1, ack: 1);
    expect_drops!(t, InexactRst, InexactRst);
    assert_eq!(
        (t.state(), t.conn.info().challenge_acks),
        (StateKind::Established, 2)
    );
}

#[test]
fn a_rst_outside_the_window_is_ignored() {
    let mut t = established();
    send!(t, seq: 10_002, control: Control::Rst);
    send!(t, seq: 0, control: Control::Rst);
    expect_nothing!(t);
    expect_drops!(t, BlindRst, BlindRst);
}

#[test]
fn a_rst_before_the_next_number_is_ignored_even_while_an_ack_is_put_off() {
    let mut t = established();
    send!(t, len: 100);
    send!(t, seq: 50, control: Control::Rst);
    expect_nothing!(t);
    expect_drops!(t, BlindRst);
}

#[test]
fn a_syn_is_challenged_wherever_it_stands() {
    // RFC 5961 4.2.
    let mut t = established();
    send!(t, seq: 1, ack: None, control: Control::Syn);
    expect!(t, seq: 1, ack: 1);
    send!(t, seq: 500, control: Control::Syn, len: 10);
    expect!(t, seq: 1, ack: 1);
    expect_drops!(t, UnexpectedSyn, UnexpectedSyn);
    send!(t, seq: 60_000, ack: None, control: Control::Syn);
    expect!(t, seq: 1, ack: 1);
    expect_drops!(t, OutOfWindow);
    assert_eq!(t.state(), StateKind::Established);
}

#[test]
fn an_ack_of_the_future_is_challenged_and_its_payload_dropped() {
    let mut t = established();
    send!(t, ack: Some(2), len: 10);
    expect!(t, seq: 1, ack: 1);
    expect_drops!(t, FutureAck);
    assert_eq!(t.read(), 0);
}

#[test]
fn an_ack_of_the_distant_past_is_challenged_and_its_payload_dropped() {
    // RFC 5961 5.2: older than the largest window, 60,000 in traces.
    let mut t = established();
    send!(t, ack: Some(1_u32.wrapping_sub(60_001)), len: 10);
    expect!(t, seq: 1, ack: 1);
    expect_drops!(t, OldAck);
    send!(t, ack: Some(1_u32.wrapping_sub(60_000)), len: 10);
    assert_eq!(t.read(), 10);
}

#[test]
fn challenges_are_limited() {
    let mut t = established();
    for _ in 0..10 {
        send!(t, seq: 2, control: Control::Rst);
        expect!(t, ack: 1);
    }
    send!(t, seq: 2, control: Control::Rst);
    expect_nothing!(t);
    assert_eq!(t.take_drops()[10], SegmentDrop::ChallengeAckLimited);
    t.advance(5000);
    send!(t, seq: 2, control: Control::Rst);
    expect!(t, ack: 1);
    expect_drops!(t, InexactRst);
}

#[test]
fn two_ends_that_disagree_do_not_answer_each_other_for_ever() {
    let mut t = established();
    send!(t, seq: 50_000);
    expect!(t, ack: 1);
    send!(t, seq: 50_000);
    expect_nothing!(t);
    t.advance(500);
    send!(t, seq: 50_000);
    expect!(t, ack: 1);
    expect_drops!(t, OutOfWindow, OutOfWindow, OutOfWindow);
}

#[test]
fn payload_outside_the_window_is_always_answered() {
    let mut t = established();
    for _ in 0..20 {
        send!(t, seq: 50_000, len: 1);
        expect!(t, ack: 1);
    }
    assert_eq!(t.take_drops(), [SegmentDrop::OutOfWindow; 20]);
}

#[test]
fn a_rst_in_the_states_of_closing_is_an_error_only_while_it_matters() {
    for (mut t, seq, error) in [
        (fin_wait_1(), 1, Some(TcpError::Reset)),
        (fin_wait_2(), 1, Some(TcpError::Reset)),
        (close_wait(), 2, Some(TcpError::BrokenPipe)),
        (closing(), 2, None),
        (last_ack(), 2, None),
    ] {
        let state = t.state();
        send!(t, seq: seq, control: Control::Rst);
        assert!(t.last.closed, "{state}");
        assert_eq!(
            (t.state(), t.conn.error()),
            (StateKind::Closed, error),
            "{state}"
        );
    }
}
