//! What SACK and D-SACK report: RFC 2018 4, RFC 2883 4.

use super::harness::*;
use crate::*;

#[test]
fn the_block_that_changed_last_comes_first_and_four_fit() {
    let mut t = established();
    send!(t, seq: 101, len: 10);
    expect!(t, ack: 1, sack: &[(101, 111)]);
    send!(t, seq: 201, len: 10);
    expect!(t, ack: 1, sack: &[(201, 211), (101, 111)]);
    send!(t, seq: 301, len: 10);
    expect!(t, ack: 1, sack: &[(301, 311), (201, 211), (101, 111)]);
    send!(t, seq: 401, len: 10);
    expect!(t, ack: 1, sack: &[(401, 411), (301, 311), (201, 211), (101, 111)]);
    send!(t, seq: 501, len: 10);
    expect!(t, ack: 1, sack: &[(501, 511), (401, 411), (301, 311), (201, 211)]);
    send!(t, seq: 111, len: 10);
    expect!(t, ack: 1, sack: &[(101, 121), (501, 511), (401, 411), (301, 311)]);
}

#[test]
fn three_blocks_fit_beside_timestamps() {
    let config = plain().with(|c| {
        c.shared_mut().timestamps = true;
    });
    let mut t = established_with(&config);
    send!(t, seq: 101, len: 10);
    send!(t, seq: 201, len: 10);
    send!(t, seq: 301, len: 10);
    send!(t, seq: 401, len: 10);
    expect!(t, ack: 1, sack: &[(401, 411), (301, 311), (201, 211)]);
}

#[test]
fn without_the_peers_offer_there_is_no_sack() {
    let mut t = syn_sent();
    send!(t, seq: 0, control: Control::Syn, mss: Some(1000));
    expect!(t, ack: 1);
    send!(t, seq: 101, len: 10);
    expect!(t, ack: 1);
    send!(t, seq: 101, len: 10);
    expect!(t, ack: 1);
    expect_drops!(t, Duplicate);
}

#[test]
fn a_segment_received_before_is_reported_once() {
    let mut t = established();
    send!(t, seq: 1, len: 100);
    t.conn.on_drained();
    expect!(t, ack: 101);
    send!(t, seq: 1, len: 100);
    expect!(t, ack: 101, sack: &[(1, 101)]);
    send!(t, seq: 301, len: 100);
    expect!(t, ack: 101, sack: &[(301, 401)]);
    expect_drops!(t, Duplicate);
    assert_eq!(t.conn.info().dsacks_out, 1);
    assert_eq!(t.read(), 100);
}

#[test]
fn a_duplicate_within_a_block_is_followed_by_the_block() {
    let mut t = established();
    send!(t, seq: 101, len: 100);
    expect!(t, ack: 1, sack: &[(101, 201)]);
    send!(t, seq: 301, len: 100);
    expect!(t, ack: 1, sack: &[(301, 401), (101, 201)]);
    send!(t, seq: 121, len: 20);
    expect!(t, ack: 1, sack: &[(121, 141), (101, 201), (301, 401)]);
    expect_drops!(t, Duplicate);
}

#[test]
fn a_partial_duplicate_reports_only_the_repeated_part() {
    let mut t = established();
    send!(t, seq: 101, len: 100);
    expect!(t, ack: 1, sack: &[(101, 201)]);
    send!(t, seq: 151, len: 100);
    expect!(t, ack: 1, sack: &[(151, 201), (101, 251)]);
    send!(t, seq: 1, len: 120);
    expect!(t, ack: 251, sack: &[(101, 121)]);
    assert_eq!(t.read(), 250);
}

#[test]
fn sack_blocks_never_share_a_packet_with_payload() {
    let mut t = established();
    send!(t, seq: 101, len: 100);
    t.write(1000);
    expect!(t, seq: 1, len: 0, ack: 1, sack: &[(101, 201)]);
    expect!(t, seq: 1, len: 1000, ack: 1);
    expect_nothing!(t);
}
