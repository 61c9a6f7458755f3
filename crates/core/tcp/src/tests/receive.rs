//! Payload: order, overlap, FIN, and segments outside the window (RFC 9293 3.10.7.4).

use super::harness::*;
use crate::*;

#[test]
fn payload_in_order_is_readable_at_once_and_acknowledged_when_the_link_is_empty() {
    let mut t = established();
    send!(t, seq: 1, len: 100);
    assert!(t.conn.readable_len() > 0 && !t.last.reply);
    send!(t, seq: 101, len: 100);
    expect_nothing!(t);
    t.conn.on_drained();
    expect!(t, seq: 1, ack: 201, window: 9800);
    expect_nothing!(t);
    assert_eq!(
        (t.conn.readable_len(), t.conn.recv_queue().segments()),
        (200, 2)
    );
    assert_eq!(t.read(), 200);
}

#[test]
fn a_gap_is_acknowledged_at_once_and_filling_it_delivers_everything() {
    let mut t = established();
    send!(t, seq: 101, len: 100);
    assert!(t.conn.readable_len() == 0 && t.last.reply);
    expect!(t, ack: 1, sack: &[(101, 201)]);
    send!(t, seq: 1, len: 100);
    assert!(t.conn.readable_len() > 0);
    expect!(t, ack: 201);
    assert_eq!(t.read(), 200);
    assert_eq!(t.conn.info().rcv_ooopack, 1);
}

#[test]
fn filling_a_part_of_a_gap_is_acknowledged_at_once() {
    let mut t = established();
    send!(t, seq: 301, len: 100);
    expect!(t, ack: 1, sack: &[(301, 401)]);
    send!(t, seq: 1, len: 100);
    expect!(t, ack: 101, sack: &[(301, 401)]);
    assert_eq!(t.read(), 100);
}

#[test]
fn the_bytes_received_first_win_wherever_segments_overlap() {
    let mut t = established();
    send!(t, seq: 101, len: 100);
    expect!(t, ack: 1, sack: &[(101, 201)]);
    // Forged bytes over the held ones, new bytes at both ends.
    send!(t, seq: 51, len: 200, stream: 9);
    assert_eq!(t.conn.out_of_order_len(), 200);
    expect!(t, ack: 1, sack: &[(101, 201), (51, 251)]);
    send!(t, seq: 1, len: 50);
    expect!(t, ack: 251);
    let mut streams = Vec::new();
    while let Some(payload) = t.conn.recv_queue().pop(usize::MAX) {
        for run in payload.runs() {
            streams.push((run.stream, (SeqNum(run.start) - THEIRS) as u32, run.len));
        }
    }
    assert_eq!(
        streams,
        [(0, 1, 50), (9, 51, 50), (0, 101, 100), (9, 201, 50)]
    );
}

#[test]
fn bytes_in_order_over_held_ones_do_not_replace_them() {
    let mut t = established();
    send!(t, seq: 11, len: 10);
    expect!(t, ack: 1, sack: &[(11, 21)]);
    send!(t, seq: 31, len: 10);
    expect!(t, ack: 1, sack: &[(31, 41), (11, 21)]);
    send!(t, seq: 1, len: 50, stream: 9);
    expect!(t, ack: 51, sack: &[(11, 21)]);
    let mut streams = Vec::new();
    while let Some(payload) = t.conn.recv_queue().pop(usize::MAX) {
        streams.extend(payload.runs().iter().map(|run| (run.stream, run.len)));
    }
    assert_eq!(streams, [(9, 10), (0, 10), (9, 10), (0, 10), (9, 10)]);
    assert_eq!(t.conn.out_of_order_len(), 0);
}

#[test]
fn a_repeated_segment_with_news_delivers_only_the_news() {
    let mut t = established();
    send!(t, seq: 1, len: 100);
    send!(t, seq: 51, len: 100);
    expect!(t, ack: 151, sack: &[(51, 101)]);
    assert_eq!(t.read(), 150);
}

#[test]
fn payload_beyond_the_window_is_cut_off() {
    let mut t = established();
    send!(t, seq: 1, len: 10_500);
    assert!(t.conn.readable_len() > 0);
    assert_eq!(t.read(), 10_000);
    t.conn.set_rcv_space(0);
    expect!(t, ack: 10_001, window: 0);
}

#[test]
fn a_segment_beyond_the_window_is_refused_and_answered() {
    let mut t = established();
    send!(t, seq: 10_002, len: 1);
    expect!(t, ack: 1);
    send!(t, seq: 10_001, len: 1);
    expect!(t, ack: 1);
    expect_drops!(t, OutOfWindow, NoSpace);
    assert_eq!(t.conn.out_of_order_len(), 0);
}

#[test]
fn the_ack_of_a_segment_that_fits_nowhere_still_counts() {
    // The peer has used the window up: the sequence number of its ACKs is the edge (linux tcp_sequence).
    let mut t = established();
    t.write(100);
    expect!(t, seq: 1, len: 100);
    send!(t, seq: 10_001, ack: Some(101));
    assert_eq!(t.conn.info().bytes_acked, 100);
    expect_nothing!(t);
}

#[test]
fn a_segment_without_ack_is_ignored() {
    let mut t = established();
    send!(t, ack: None, len: 10);
    expect_drops!(t, NoAck);
    expect_nothing!(t);
    assert_eq!(t.read(), 0);
}

#[test]
fn a_fin_ends_the_stream_behind_its_payload() {
    let mut t = established();
    send!(t, seq: 1, len: 10, control: Control::Fin);
    assert!(t.conn.readable_len() > 0);
    t.conn.on_idle();
    expect!(t, ack: 12);
    assert_eq!(t.state(), StateKind::CloseWait);
    assert!(t.conn.recv_queue().has_fin() && !t.conn.is_at_end());
    assert_eq!(t.read(), 10);
    assert!(t.conn.is_at_end());
}

#[test]
fn a_fin_out_of_order_waits_for_its_turn() {
    let mut t = established();
    send!(t, seq: 101, len: 100, control: Control::Fin);
    expect!(t, ack: 1, sack: &[(101, 202)]);
    assert_eq!(t.state(), StateKind::Established);
    send!(t, seq: 1, len: 100);
    expect!(t, ack: 202);
    assert_eq!(t.state(), StateKind::CloseWait);
    assert_eq!(t.read(), 200);
    assert!(t.conn.is_at_end());
}

#[test]
fn a_bare_fin_out_of_order_waits_too() {
    let mut t = established();
    send!(t, seq: 101, control: Control::Fin);
    expect!(t, ack: 1);
    send!(t, seq: 1, len: 100);
    t.conn.on_idle();
    expect!(t, ack: 102);
    assert_eq!(t.state(), StateKind::CloseWait);
    assert_eq!(t.read(), 100);
}

#[test]
fn bytes_behind_a_fin_do_not_exist() {
    let mut t = established();
    send!(t, seq: 101, control: Control::Fin);
    expect!(t, ack: 1);
    send!(t, seq: 91, len: 30);
    expect!(t, ack: 1, sack: &[(91, 102)]);
    send!(t, seq: 111, len: 30);
    expect!(t, ack: 1, sack: &[(91, 102)]);
    expect_drops!(t, AfterFin);
    send!(t, seq: 1, len: 90);
    expect!(t, ack: 102);
    assert_eq!(t.read(), 100);
    send!(t, seq: 102, len: 5);
    expect!(t, ack: 102);
    expect_drops!(t, AfterFin);
    assert_eq!(t.read(), 0);
}

#[test]
fn a_fin_before_bytes_already_held_is_a_lie() {
    let mut t = established();
    send!(t, seq: 101, len: 100);
    expect!(t, ack: 1, sack: &[(101, 201)]);
    send!(t, seq: 150, control: Control::Fin);
    expect!(t, ack: 1, sack: &[(101, 201)]);
    send!(t, seq: 1, len: 100);
    expect!(t, ack: 201);
    assert_eq!((t.state(), t.read()), (StateKind::Established, 200));
    send!(t, seq: 201, len: 10);
    assert_eq!(t.read(), 10);
}

#[test]
fn a_fin_fits_a_closed_window() {
    let mut t = established();
    send!(t, seq: 1, len: 10_000);
    t.conn.set_rcv_space(0);
    t.conn.on_drained();
    expect!(t, ack: 10_001, window: 0);
    send!(t, control: Control::Fin);
    expect!(t, ack: 10_002, window: 0);
    assert_eq!(t.state(), StateKind::CloseWait);
    assert_eq!(t.read(), 10_000);
}

#[test]
fn a_repeated_fin_is_acknowledged_again() {
    let mut t = close_wait();
    send!(t, seq: 1, control: Control::Fin);
    expect!(t, ack: 2, sack: &[(1, 2)]);
    expect_drops!(t, Duplicate);
    assert_eq!(t.state(), StateKind::CloseWait);
}

#[test]
fn many_tiny_segments_are_bounded_like_few_large_ones() {
    let mut t = established();
    t.conn.set_rcv_space(60_000);
    // 1024 segments is the least that every connection may hold, see Receiver.
    for i in 0..1024 {
        send!(t, seq: 1 + i, len: 1);
    }
    t.conn.on_drained();
    expect!(t, ack: 1025, window: 10_000 - 1024);
    send!(t, seq: 1025, len: 1);
    expect!(t, ack: 1025);
    expect_drops!(t, TooManySegments);
    assert_eq!(t.read(), 1024);
    t.conn.set_rcv_space(60_000);
    expect!(t, ack: 1025, window: 60_000);
    send!(t, seq: 1025, len: 1);
    assert_eq!(t.read(), 1);
}

#[test]
fn gaps_are_bounded_and_the_connection_survives_it() {
    let mut t = established();
    for i in 0..1024 {
        send!(t, seq: 3 + 2 * i, len: 1);
        assert!(t.poll().is_some());
    }
    send!(t, seq: 3 + 2 * 1024, len: 1);
    assert!(t.poll().is_some());
    expect_drops!(t, ReassemblyFull);
    send!(t, seq: 1, len: 3000);
    expect!(t, ack: 3001, sack: &[(3, 4)]);
    assert_eq!(t.read(), 3000);
}

#[test]
fn a_connection_is_small() {
    // 4 KiB of host memory per idle connection is the budget for all layers together.
    let size = core::mem::size_of::<Connection<crate::test_payload::Bytes>>();
    assert!(size <= 1536, "Connection is {size} bytes");
}

#[test]
fn info_counts_received_segments() {
    let mut t = established();
    send!(t, seq: 1, len: 100);
    send!(t, seq: 201, len: 50);
    expect!(t, ack: 101, sack: &[(201, 251)]);
    let info = t.conn.info();
    assert_eq!(
        (info.segs_in, info.data_segs_in, info.bytes_received),
        (3, 2, 100)
    );
    assert_eq!(
        (
            info.segs_out,
            info.rcv_ooopack,
            info.out_of_order,
            info.readable
        ),
        (3, 1, 50, 100)
    );
    assert_eq!(info.rcv_mss, 536);
}
