//! Timestamps and PAWS: RFC 7323 3 to 5.

use super::harness::*;
use crate::*;

fn with_timestamps() -> Trace {
    established_with(&plain().with(|c| {
        c.shared_mut().timestamps = true;
    }))
}

#[test]
fn every_segment_echoes_the_peers_timestamp() {
    let mut t = with_timestamps();
    t.advance(5);
    send!(t, len: 10, ts: Some((510, 10)));
    t.conn.on_drained();
    expect!(t, ack: 11, ts: (15, 510));
    t.write(20);
    expect!(t, len: 20, ts: (15, 510));
}

#[test]
fn the_mss_leaves_room_for_the_option() {
    let t = with_timestamps();
    assert_eq!(t.conn.info().snd_mss, 988);
}

#[test]
fn an_old_timestamp_is_refused_and_answered() {
    let mut t = with_timestamps();
    send!(t, len: 10, ts: Some((510, 10)));
    t.conn.on_drained();
    expect!(t, ack: 11);
    send!(t, seq: 11, len: 10, ts: Some((509, 10)));
    expect!(t, ack: 11, ts: (10, 510));
    expect_drops!(t, Paws);
    assert_eq!((t.read(), t.conn.info().paws_rejected), (10, 1));
}

#[test]
fn timestamps_are_compared_on_their_circle() {
    let mut t = with_timestamps();
    send!(t, len: 10, ts: Some((500 + (1 << 31) - 1, 10)));
    assert_eq!(t.read(), 10);
    t.conn.on_drained();
    expect!(t, ack: 11, ts: (10, 500 + (1 << 31) - 1));
    send!(t, seq: 11, len: 10, ts: Some((500, 10)));
    expect!(t, ack: 11);
    expect_drops!(t, Paws);
}

#[test]
fn a_timestamp_older_than_24_days_drops_no_segment() {
    // RFC 7323 5.5.
    let mut t = with_timestamps();
    let day = 24 * 60 * 60 * 1000;
    t.advance(24 * day - 10);
    send!(t, len: 10, ts: Some((499, 10)));
    expect!(t, ack: 1);
    expect_drops!(t, Paws);
    t.advance(day);
    send!(t, len: 10, ts: Some((499, 10)));
    assert_eq!(t.read(), 10);
    t.conn.on_drained();
    expect!(t, ack: 11, ts: ((25 * day) as u32, 499));
}

#[test]
fn a_segment_ahead_of_a_gap_does_not_move_the_echo() {
    // RFC 7323 4.3 (2): only a segment that holds Last.ACK.sent does.
    let mut t = with_timestamps();
    send!(t, seq: 101, len: 10, ts: Some((520, 10)));
    expect!(t, ack: 1, sack: &[(101, 111)], ts: (10, 500));
    send!(t, seq: 1, len: 100, ts: Some((515, 10)));
    expect!(t, ack: 111, ts: (10, 515));
    assert_eq!(t.read(), 110);
}

#[test]
fn a_delayed_ack_echoes_its_first_segment() {
    // RFC 7323 4.3: the earlier timestamp, so that the measured time includes the delay.
    let mut t = with_timestamps();
    send!(t, len: 10, ts: Some((510, 10)));
    send!(t, len: 10, ts: Some((520, 10)));
    t.conn.on_drained();
    expect!(t, ack: 21, ts: (10, 510));
}

#[test]
fn a_segment_without_a_timestamp_is_taken_as_linux_does() {
    // RFC 7323 3.2 says to drop it.
    let mut t = with_timestamps();
    send!(t, len: 10, ts: None);
    assert_eq!(t.conn.info().readable, 10);
}

#[test]
fn a_rst_needs_no_timestamp_and_is_not_judged_by_it() {
    let mut t = with_timestamps();
    send!(t, control: Control::Rst, ts: None);
    assert_eq!(t.state(), StateKind::Closed);
    let mut t = with_timestamps();
    send!(t, control: Control::Rst, ts: Some((1, 1)));
    assert_eq!(t.state(), StateKind::Closed);
}

#[test]
fn a_reordered_old_ack_is_answered_only_now_and_then() {
    let mut t = with_timestamps();
    send!(t, ts: Some((510, 10)));
    send!(t, ts: Some((509, 10)));
    expect!(t, ack: 1);
    send!(t, ts: Some((509, 10)));
    expect_nothing!(t);
    expect_drops!(t, Paws, Paws);
}

#[test]
fn without_negotiation_timestamps_mean_nothing() {
    let mut t = established();
    send!(t, len: 10, ts: Some((510, 10)));
    send!(t, len: 10, ts: Some((1, 10)));
    send!(t, len: 10);
    t.conn.on_drained();
    let ack = t.poll().expect("an ACK");
    assert_eq!((ack.ack, ack.options.timestamps), (Some(THEIRS + 31), None));
    assert_eq!(t.read(), 30);
}

#[test]
fn a_repeated_segment_with_an_old_timestamp_still_yields_a_d_sack() {
    let mut t = with_timestamps();
    send!(t, len: 10, ts: Some((510, 10)));
    t.conn.on_drained();
    expect!(t, ack: 11);
    send!(t, seq: 1, len: 10, ts: Some((505, 10)));
    expect!(t, ack: 11, sack: &[(1, 11)]);
    expect_drops!(t, Paws);
    assert_eq!(t.read(), 10);
}
