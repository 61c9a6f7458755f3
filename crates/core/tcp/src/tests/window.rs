//! The window that we advertise: RFC 9293 3.8.6, RFC 1122 4.2.2.17 and 4.2.3.3, RFC 7323 2.

use super::harness::*;
use crate::*;

/// An open connection whose window is used up, 10,000 bytes unread.
fn full() -> Trace {
    let mut t = established();
    send!(t, seq: 1, len: 10_000);
    t.conn.set_rcv_space(0);
    expect!(t, ack: 10_001, window: 0);
    expect_nothing!(t);
    t
}

#[test]
fn a_window_without_space_closes_and_never_moves_back() {
    let mut t = established();
    t.conn.set_rcv_space(0);
    expect_nothing!(t);
    for i in 1..=4_u32 {
        send!(t, len: 2500);
        expect!(t, ack: 1 + 2500 * i, window: (10_000 - 2500 * i) as u16);
    }
    assert_eq!(t.conn.rcv_outstanding(), 0);
    assert_eq!(t.read(), 10_000);
}

#[test]
fn data_beyond_a_closed_window_is_dropped_and_acknowledged() {
    let mut t = full();
    send!(t, len: 100);
    expect!(t, ack: 10_001, window: 0);
    expect_drops!(t, NoSpace);
    assert_eq!(t.conn.readable_len(), 10_000);
}

#[test]
fn window_probes_are_answered() {
    // RFC 9293 3.8.6.1: a byte beyond the window, or (linux) a number before it.
    let mut t = full();
    send!(t, seq: 10_001, len: 1);
    expect!(t, ack: 10_001, window: 0);
    expect_drops!(t, NoSpace);
    send!(t, seq: 10_000);
    expect!(t, ack: 10_001, window: 0);
    expect_drops!(t, Duplicate);
}

#[test]
fn acks_count_while_the_window_is_closed() {
    let mut t = full();
    t.write(100);
    expect!(t, seq: 1, len: 100);
    send!(t, seq: 10_001, ack: Some(101));
    assert_eq!(t.conn.info().bytes_acked, 100);
}

#[test]
fn a_window_opens_with_an_update_once_it_is_worth_it() {
    // Receiver silly window avoidance, RFC 1122 4.2.3.3: two segments here, half of the buffer at
    // least.
    let mut t = full();
    t.conn.set_rcv_space(1999);
    expect_nothing!(t);
    t.conn.set_rcv_space(2000);
    expect!(t, seq: 1, ack: 10_001, window: 2000);
    expect_nothing!(t);
    assert_eq!(t.conn.rcv_outstanding(), 2000);
}

#[test]
fn half_of_a_small_buffer_is_worth_an_update() {
    let config = plain().with(|c| {
        c.settings.rcv_space_initial = 1000;
    });
    let mut t = established_with(&config);
    send!(t, len: 1000);
    t.conn.on_drained();
    expect!(t, ack: 1001, window: 0);
    t.conn.set_rcv_space(499);
    expect_nothing!(t);
    t.conn.set_rcv_space(500);
    expect!(t, ack: 1001, window: 500);
    assert_eq!(t.read(), 1000);
}

#[test]
fn a_buffer_smaller_than_a_segment_opens_its_window_again() {
    // Found by a seed of crates/core/stack/tests/seeds: the first window was larger than the buffer, so that no later
    // gain was large enough for an update.
    let config = plain().with(|c| {
        c.link.mss = 8960;
        c.settings.rcv_space_initial = 64 << 10;
        c.settings.rcv_buf_max = 8192;
    });
    let mut t = established_with(&config);
    assert_eq!(t.conn.rcv_outstanding(), 8192, "never more than the buffer");
    send!(t, len: 8192);
    t.conn.set_rcv_space(0);
    t.conn.on_drained();
    expect!(t, ack: 8193, window: 0);
    assert_eq!(t.read(), 8192);
    t.conn.set_rcv_space(8192);
    expect!(t, ack: 8193, window: 8192);
}

#[test]
fn a_fast_reader_sends_no_update_per_read() {
    let mut t = established();
    send!(t, len: 1000);
    assert_eq!(t.read(), 1000);
    t.conn.set_rcv_space(SPACE);
    expect_nothing!(t);
    send!(t, len: 1000);
    expect!(t, ack: 2001, window: 9000);
    assert_eq!(t.read(), 1000);
}

#[test]
fn held_bytes_reduce_the_window() {
    let mut t = established();
    assert_eq!(t.conn.rcv_outstanding(), 10_000);
    send!(t, seq: 5001, len: 1000);
    expect!(t, ack: 1, window: 10_000, sack: &[(5001, 6001)]);
    assert_eq!(
        (t.conn.rcv_outstanding(), t.conn.out_of_order_len()),
        (9000, 1000)
    );
    send!(t, seq: 1, len: 5000);
    t.conn.set_rcv_space(4000);
    expect!(t, ack: 6001, window: 4000);
    assert_eq!(t.conn.rcv_outstanding(), 4000);
    assert_eq!(t.read(), 6000);
}

#[test]
fn a_scaled_window_rounds_down_and_promises_no_more() {
    let config = plain().with(|c| {
        c.settings.rcv_buf_max = 6 << 20;
        c.settings.rcv_space_initial = 60_000;
        c.shared_mut().window_scaling = true;
    });
    let mut t = established_with(&config);
    // The SYN promised 60,000; in units of 128 that is 468.75.
    assert_eq!(t.conn.rcv_outstanding(), 60_000);
    t.conn.set_rcv_space(0);
    send!(t, len: 1);
    t.conn.on_drained();
    expect!(t, ack: 2, window: 59_999 / 128);
    send!(t, len: 59_999);
    expect!(t, ack: 60_001, window: 0);
    send!(t, seq: 60_001, len: 1);
    expect!(t, ack: 60_001, window: 0);
    expect_drops!(t, NoSpace);
    assert_eq!(t.read(), 60_000);
}

#[test]
fn after_the_peers_fin_no_update_leaves() {
    let mut t = full();
    send!(t, control: Control::Fin);
    expect!(t, ack: 10_002, window: 0);
    assert_eq!(t.read(), 10_000);
    t.conn.set_rcv_space(SPACE);
    expect_nothing!(t);
}

#[test]
fn a_reader_far_behind_in_segments_stops_the_edge() {
    let mut t = established();
    for i in 0..1024 {
        t.conn.set_rcv_space(SPACE);
        send!(t, seq: 1 + i, len: 1);
    }
    t.conn.set_rcv_space(30_000);
    expect_nothing!(t);
    t.conn.on_drained();
    expect!(t, ack: 1025, window: 10_000 - 1024);
    assert_eq!(t.read(), 1024);
}
