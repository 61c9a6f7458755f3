//! Keepalive and user timeout: RFC 9293 3.8.4, RFC 5482.

use core::time::Duration;

use super::harness::*;
use crate::*;

fn kept_alive() -> Trace {
    let keepalive = Keepalive {
        idle: Duration::from_secs(10),
        interval: Duration::from_secs(2),
        count: 3,
    };
    established_with(&plain().with(|c| {
        c.settings.keepalive = Some(keepalive);
    }))
}

#[test]
fn without_keepalive_an_idle_connection_has_no_timer() {
    let t = established();
    assert_eq!(t.conn.next_timer(), None);
}

#[test]
fn a_silent_peer_is_probed_with_an_old_number_and_then_reset() {
    let mut t = kept_alive();
    assert_eq!(t.run_timer(), 10_000);
    expect!(t, seq: 0, ack: 1);
    expect_nothing!(t);
    for _ in 0..2 {
        assert_eq!(t.run_timer(), 2000);
        expect!(t, seq: 0, ack: 1);
    }
    assert_eq!(t.conn.info().probes, 3);
    assert_eq!(t.run_timer(), 2000);
    assert!(t.last.closed && t.last.reply);
    expect!(t, seq: 1, control: Control::Rst);
    assert_eq!(t.conn.error(), Some(TcpError::TimedOut));
}

#[test]
fn any_answer_begins_the_wait_anew() {
    let mut t = kept_alive();
    t.run_timer();
    expect!(t, seq: 0);
    t.advance(100);
    send!(t);
    assert_eq!(t.run_timer(), 10_000);
    expect!(t, seq: 0);
    t.conn.set(|s| s.keepalive = None);
    assert_eq!(t.conn.next_timer(), None);
}

#[test]
fn keepalive_can_be_switched_on_later_and_counts_from_the_last_segment() {
    let mut t = established();
    t.advance(5000);
    t.conn.set(|s| {
        s.keepalive = Some(Keepalive {
            idle: Duration::from_secs(10),
            ..Keepalive::default()
        })
    });
    assert_eq!(t.run_timer(), 5000);
    expect!(t, seq: 0, ack: 1);
}

#[test]
fn a_user_timeout_replaces_the_count_of_probes() {
    let mut t = kept_alive();
    t.conn
        .set(|s| s.user_timeout = Some(Duration::from_secs(13)));
    assert_eq!(t.run_timer(), 10_000);
    expect!(t, seq: 0);
    assert_eq!(t.run_timer(), 2000);
    expect!(t, seq: 0);
    assert_eq!(t.run_timer(), 2000);
    assert_eq!(t.conn.error(), Some(TcpError::TimedOut));
    expect!(t, control: Control::Rst);
}

#[test]
fn a_keepalive_probe_of_the_peer_is_answered() {
    let mut t = established();
    send!(t, seq: 0);
    expect!(t, seq: 1, ack: 1);
    expect_drops!(t, Duplicate);
    t.advance(600);
    // Old stacks send one byte of arbitrary data with it (RFC 1122 4.2.3.6).
    send!(t, seq: 0, len: 1, stream: 9);
    expect!(t, seq: 1, ack: 1, sack: &[(0, 1)]);
    expect_drops!(t, Duplicate);
}

#[test]
fn unacknowledged_data_ends_the_connection_at_the_user_timeout() {
    let config = plain().with(|c| {
        c.settings.user_timeout = Some(Duration::from_secs(10));
    });
    let mut t = established_with(&config);
    t.write(100);
    expect!(t, len: 100);
    let start = t.now;
    while t.state() != StateKind::Closed {
        t.run_timer();
        while t.poll().is_some() {}
        assert!(t.now < start + Duration::from_secs(60));
    }
    assert_eq!(t.conn.error(), Some(TcpError::TimedOut));
    assert!(t.now >= start + Duration::from_secs(10));
}

#[test]
fn the_last_icmp_error_is_the_reason_of_a_timeout() {
    let config = plain().with(|c| {
        c.settings.user_timeout = Some(Duration::from_secs(10));
    });
    let mut t = established_with(&config);
    t.write(100);
    expect!(t, len: 100);
    assert_eq!(
        t.conn.on_unreachable(Unreachable::Host, OURS + 1),
        Disposition::default()
    );
    assert_eq!(t.state(), StateKind::Established, "routes come back");
    while t.state() != StateKind::Closed {
        t.run_timer();
        while t.poll().is_some() {}
    }
    assert_eq!(t.conn.error(), Some(TcpError::HostUnreachable));
}
