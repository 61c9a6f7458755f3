//! Closing: RFC 9293 3.6, 3.10.4, RFC 2525 2.17, and TIME-WAIT with RFC 1337 and RFC 6191.

use super::harness::*;
use crate::*;

#[test]
fn we_close_first() {
    let mut t = established();
    t.conn.shutdown_write();
    expect!(t, seq: 1, control: Control::Fin);
    send!(t, ack: Some(2));
    assert_eq!(t.state(), StateKind::FinWait2);
    t.peer.ack = Some(2);
    send!(t, len: 10);
    assert_eq!(t.read(), 10, "half closed: the peer still sends");
    send!(t, control: Control::Fin);
    assert!(t.conn.is_at_end() && t.last.reply);
    assert_eq!(t.state(), StateKind::TimeWait);
    expect!(t, seq: 2, ack: 12);
    assert_eq!(t.run_timer(), 60_000);
    assert!(t.last.closed);
    assert_eq!((t.state(), t.conn.error()), (StateKind::Closed, None));
}

#[test]
fn the_peer_closes_first() {
    let mut t = close_wait();
    t.write(10);
    expect!(t, seq: 1, len: 10, ack: 2);
    send!(t, ack: Some(11));
    t.conn.shutdown_write();
    expect!(t, seq: 11, ack: 2, control: Control::Fin);
    assert_eq!(t.state(), StateKind::LastAck);
    send!(t, ack: Some(12));
    assert!(t.last.closed);
    assert_eq!((t.state(), t.conn.error()), (StateKind::Closed, None));
    expect_nothing!(t);
}

#[test]
fn both_close_at_once() {
    let mut t = closing();
    send!(t, ack: Some(2));
    assert_eq!(t.state(), StateKind::TimeWait);
    expect_nothing!(t);
}

#[test]
fn a_fin_that_acknowledges_ours_goes_straight_to_time_wait() {
    let mut t = fin_wait_1();
    send!(t, ack: Some(2), control: Control::Fin);
    assert_eq!(t.state(), StateKind::TimeWait);
    expect!(t, seq: 2, ack: 2);
}

#[test]
fn a_fin_waits_for_data_queued_before_it() {
    let mut t = established();
    t.write(2500);
    t.conn.shutdown_write();
    assert_eq!(t.state(), StateKind::FinWait1);
    assert_eq!(t.conn.write_room(), 0);
    expect!(t, seq: 1, len: 2500, gso_size: 1000, control: Control::Fin);
    expect_nothing!(t);
    send!(t, ack: Some(2501));
    assert_eq!(
        t.state(),
        StateKind::FinWait1,
        "the FIN itself is not acknowledged"
    );
    send!(t, ack: Some(2502));
    assert_eq!(t.state(), StateKind::FinWait2);
}

#[test]
fn a_fin_that_waits_for_window_leaves_with_the_update() {
    let mut t = established();
    send!(t, window: 0);
    t.conn.shutdown_write();
    expect_nothing!(t);
    send!(t, window: 1000);
    assert!(t.last.reply);
    expect!(t, seq: 1, control: Control::Fin);
}

#[test]
fn after_shutdown_nothing_more_is_queued() {
    let mut t = fin_wait_1();
    let payload = crate::test_payload::Bytes::pattern(OURS + 1, 3);
    assert!(matches!(
        t.conn.send(payload, Push::Now),
        Err(SendError::Closed(_))
    ));
    t.conn.shutdown_write();
    assert_eq!(t.state(), StateKind::FinWait1);
}

#[test]
fn a_lost_fin_is_repeated() {
    let mut t = fin_wait_1();
    while t.poll().is_none() {
        t.run_timer();
        assert!(
            t.now < wire::Instant::from_millis(5000),
            "the FIN is repeated in time"
        );
    }
    assert_eq!(t.state(), StateKind::FinWait1);
}

#[test]
fn closing_with_unread_payload_resets() {
    // RFC 9293 3.6.1, RFC 2525 2.17: a RST tells the peer that its payload is lost.
    let mut t = established();
    send!(t, len: 10);
    t.conn.close();
    expect!(t, seq: 1, ack: 11, control: Control::Rst);
    expect_nothing!(t);
    assert_eq!((t.state(), t.conn.error()), (StateKind::Closed, None));
    assert_eq!(t.conn.readable_len(), 0);
}

#[test]
fn closing_with_payload_out_of_order_resets() {
    let mut t = established();
    send!(t, seq: 11, len: 10);
    t.conn.close();
    expect!(t, control: Control::Rst);
}

#[test]
fn an_unread_end_of_stream_is_not_lost_payload() {
    let mut t = close_wait();
    t.conn.close();
    expect!(t, seq: 1, ack: 2, control: Control::Fin);
    assert_eq!(t.state(), StateKind::LastAck);
}

#[test]
fn payload_for_a_reader_that_is_gone_resets() {
    let mut t = established();
    t.conn.close();
    expect!(t, seq: 1, control: Control::Fin);
    send!(t, ack: Some(2));
    send!(t, ack: Some(2), len: 10);
    assert!(t.last.reply && t.last.closed);
    expect!(t, seq: 2, control: Control::Rst);
    expect_drops!(t, ReaderGone);
    assert_eq!(t.state(), StateKind::Closed);
}

#[test]
fn payload_after_both_directions_were_shut_down_resets() {
    let mut t = established();
    t.conn.shutdown_read();
    send!(t, len: 10);
    assert_eq!(t.conn.readable_len(), 10, "only reading is shut down");
    t.conn.shutdown_write();
    expect!(t, seq: 1, ack: 11, control: Control::Fin);
    send!(t, seq: 1, ack: Some(2), len: 10);
    assert_eq!(t.state(), StateKind::FinWait2, "old payload is no reason");
    send!(t, seq: 11, ack: Some(2), len: 10);
    assert!(t.last.reply && t.last.closed);
    expect_drops!(t, Duplicate, ReaderGone);
    assert_eq!(t.state(), StateKind::Closed);
    assert_eq!(t.conn.error(), Some(TcpError::Reset));
}

#[test]
fn an_ack_ahead_of_lost_payload_does_not_reset_a_closed_connection() {
    let mut t = established();
    t.conn.close();
    expect!(t, seq: 1, control: Control::Fin);
    send!(t, seq: 50, ack: Some(2));
    assert_eq!(t.state(), StateKind::FinWait2);
    expect_nothing!(t);
}

#[test]
fn a_repeated_old_segment_does_not_reset_a_closed_connection() {
    let mut t = established();
    send!(t, len: 10);
    assert_eq!(t.read(), 10);
    t.conn.close();
    expect!(t, seq: 1, ack: 11, control: Control::Fin);
    send!(t, seq: 1, len: 10);
    expect!(t, seq: 2, ack: 11, sack: &[(1, 11)]);
    expect_drops!(t, Duplicate);
    assert_eq!(t.state(), StateKind::FinWait1);
}

#[test]
fn data_queued_before_a_close_still_arrives() {
    let mut t = established();
    t.write(1500);
    t.conn.close();
    expect!(t, seq: 1, len: 1500, control: Control::Fin);
    send!(t, ack: Some(1502), control: Control::Fin);
    assert_eq!(t.state(), StateKind::TimeWait);
    expect!(t, seq: 1502, ack: 2);
}

#[test]
fn a_closed_connection_waits_60_seconds_for_the_peers_fin() {
    let mut t = established();
    t.conn.close();
    expect!(t, control: Control::Fin);
    send!(t, ack: Some(2));
    expect_nothing!(t);
    assert_eq!(t.run_timer(), 60_000);
    assert_eq!((t.state(), t.conn.error()), (StateKind::Closed, None));
}

#[test]
fn a_half_closed_connection_waits_for_ever() {
    let t = fin_wait_2();
    assert_eq!(t.conn.next_timer(), None);
}

#[test]
fn aborting_resets_in_every_synchronized_state() {
    for (mut t, seq, ack) in [
        (established(), 1, 1),
        (fin_wait_1(), 2, 1),
        (fin_wait_2(), 2, 1),
        (close_wait(), 1, 2),
        (closing(), 2, 2),
        (last_ack(), 2, 2),
    ] {
        t.conn.abort();
        expect!(t, seq: seq, ack: ack, control: Control::Rst);
        expect_nothing!(t);
        assert_eq!(
            (t.state(), t.conn.error()),
            (StateKind::Closed, Some(TcpError::Aborted))
        );
    }
}

#[test]
fn aborting_drops_queued_data() {
    let mut t = established();
    t.write(5000);
    expect!(t, len: 5000);
    send!(t, len: 10);
    t.conn.abort();
    assert_eq!(crate::test_payload::live_runs(), 0);
    expect!(t, control: Control::Rst, seq: 5001);
}

#[test]
fn time_wait_acknowledges_a_repeated_fin_and_starts_over() {
    let mut t = time_wait();
    t.advance(30_000);
    send!(t, seq: 1, control: Control::Fin);
    expect!(t, seq: 2, ack: 2);
    expect_drops!(t, TimeWait);
    assert_eq!(t.run_timer(), 60_000);
    assert_eq!(t.state(), StateKind::Closed);
}

#[test]
fn time_wait_is_silent_about_the_last_ack() {
    let mut t = time_wait();
    send!(t, seq: 2);
    expect_nothing!(t);
    send!(t, seq: 1);
    expect!(t, seq: 2, ack: 2);
    send!(t, seq: 1);
    expect_nothing!(t);
    expect_drops!(t, TimeWait, TimeWait, TimeWait);
}

#[test]
fn a_rst_does_not_assassinate_time_wait() {
    // RFC 1337.
    let mut t = time_wait();
    send!(t, seq: 2, control: Control::Rst);
    expect_nothing!(t);
    expect_drops!(t, TimeWaitRst);
    assert_eq!(t.state(), StateKind::TimeWait);
}

#[test]
fn a_newer_syn_may_follow_time_wait_and_an_older_one_not() {
    let mut t = time_wait();
    send!(t, seq: 3, ack: None, control: Control::Syn);
    let floor = t.last.reopen.expect("a new connection may begin");
    assert!(floor.after(OURS + 2 + 65_535));
    assert_eq!(t.last.drop, None);
    send!(t, seq: 2, ack: None, control: Control::Syn);
    assert_eq!(t.last.reopen, None);
    expect!(t, seq: 2, ack: 2);
    expect_drops!(t, TimeWait);
}

#[test]
fn a_newer_timestamp_lets_any_syn_follow_time_wait() {
    // RFC 6191 2.
    let config = plain().with(|c| {
        c.shared_mut().timestamps = true;
    });
    let mut t = established_with(&config);
    t.conn.shutdown_write();
    expect!(t, control: Control::Fin);
    send!(t, ack: Some(2), control: Control::Fin, ts: Some((600, 10)));
    expect!(t, seq: 2, ack: 2, ts: (10, 600));
    assert_eq!(t.state(), StateKind::TimeWait);
    send!(t, seq: 1, ack: None, control: Control::Syn, ts: Some((601, 0)));
    assert!(t.last.reopen.is_some());
    send!(t, seq: 3, ack: None, control: Control::Syn, ts: Some((599, 0)));
    assert_eq!(t.last.reopen, None);
    expect!(t, seq: 2, ack: 2);
    expect_drops!(t, Paws);
}

#[test]
fn the_state_of_time_wait_can_be_kept_without_the_connection() {
    let mut t = time_wait();
    let mut left = t.conn.time_wait().expect("it is in TIME-WAIT");
    let fin = FromPeer {
        control: Control::Fin,
        seq: 1,
        ..t.peer.clone()
    }
    .into_segment();
    assert!(left.on_segment(&fin, t.now).reply);
    let ack = left
        .poll_send::<crate::test_payload::Bytes>(t.now)
        .expect("an ACK");
    assert_eq!((ack.seq, ack.ack), (OURS + 2, Some(THEIRS + 2)));
    assert_eq!(left.deadline(), t.now + core::time::Duration::from_secs(60));
    assert!(established().conn.time_wait().is_none());
    t.take_drops();
}

#[test]
fn unread_payload_outlives_both_fins() {
    let mut t = fin_wait_2();
    send!(t, len: 10, control: Control::Fin);
    assert_eq!(t.state(), StateKind::TimeWait);
    expect!(t, ack: 12);
    assert_eq!(t.run_timer(), 60_000);
    assert_eq!(t.read(), 10);
    assert!(t.conn.is_at_end());
}

#[test]
fn a_peer_that_keeps_its_window_closed_does_not_keep_a_closed_connection() {
    let mut t = established();
    send!(t, window: 0);
    t.write(10);
    t.conn.close();
    expect_nothing!(t);
    let mut probes = 0;
    while t.state() != StateKind::Closed {
        t.run_timer();
        while t.poll().is_some() {
            probes += 1;
            send!(t, window: 0);
        }
        assert!(
            t.now < wire::Instant::from_millis(1_000_000),
            "an orphan must not be probed for ever"
        );
    }
    assert!(probes > 3);
    assert_eq!(t.conn.error(), Some(TcpError::TimedOut));
    t.take_drops();
}
