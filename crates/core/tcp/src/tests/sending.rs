//! Both halves together: segments with data of the sender and acknowledgements of the receiver. The sender's
//! rules are tested in `sender/tests`.

use super::harness::*;
use crate::test_payload::Bytes;
use crate::*;

#[test]
fn data_carries_ack_and_window() {
    let mut t = established();
    send!(t, len: 100);
    t.write(300);
    expect!(t, seq: 1, len: 300, ack: 101, window: 9900, push: true);
    send!(t, ack: Some(301));
    assert_eq!(
        (t.conn.info().bytes_acked, t.conn.acked_offset()),
        (300, 300)
    );
    expect_nothing!(t);
    assert_eq!(t.read(), 100);
}

#[test]
fn a_long_write_leaves_as_one_segment_to_be_cut() {
    let mut t = established();
    t.write(5500);
    let mut sent = 0;
    while let Some(segment) = t.poll() {
        sent += netmem::Payload::len(&segment.payload);
        assert!(segment.gso_size == 1000 || netmem::Payload::len(&segment.payload) <= 1000);
    }
    assert_eq!(sent, 5500);
    assert_eq!(t.conn.info().segs_out, 8, "SYN, ACK and six packets");
    assert_eq!(t.conn.info().data_segs_out, 6);
}

#[test]
fn a_full_queue_admits_nothing_more_until_its_payload_is_acknowledged() {
    let config = plain().with(|c| {
        c.settings.snd_buf_max = 3000;
    });
    let mut t = established_with(&config);
    t.write(3000);
    assert_eq!((t.conn.write_room(), t.conn.admit(1)), (0, 0));
    while t.poll().is_some() {}
    send!(t, ack: Some(3001));
    assert_eq!((t.conn.write_room(), t.conn.admit(5000)), (3000, 3000));
}

#[test]
fn acknowledged_payload_is_let_go() {
    let mut t = established();
    t.write(3000);
    while t.poll().is_some() {}
    send!(t, ack: Some(3001));
    assert_eq!(crate::test_payload::live_runs(), 0);
}

#[test]
fn a_smaller_path_mtu_segments_queued_data_again() {
    let mut t = established();
    t.write(1000);
    expect!(t, seq: 1, len: 1000);
    assert!(
        !t.conn.on_mtu(500, OURS + 1001, t.now),
        "never sent: forged"
    );
    assert!(
        !t.conn.on_mtu(500, OURS, t.now),
        "acknowledged long ago: late or forged"
    );
    assert!(t.conn.on_mtu(500, OURS + 1, t.now));
    assert_eq!(t.conn.info().snd_mss, 500);
    let mut resent = 0;
    while let Some(segment) = t.poll() {
        assert!(netmem::Payload::len(&segment.payload) <= 500 || segment.gso_size == 500);
        resent += netmem::Payload::len(&segment.payload);
    }
    assert_eq!(resent, 1000);
    assert!(t.conn.on_mtu(9000, OURS + 1, t.now));
    assert_eq!(
        t.conn.info().snd_mss,
        500,
        "the network's word makes packets smaller, never larger"
    );
}

#[test]
fn a_peer_that_sends_and_reads_nothing_is_probed() {
    let mut t = established();
    send!(t, window: 0);
    t.write(100);
    expect_nothing!(t);
    assert!(t.run_timer() >= 200);
    let probe = t.poll().expect("a window probe");
    assert_eq!(probe.ack, Some(THEIRS + 1));
    send!(t, window: 1000);
    expect!(t, seq: 1, len: 100);
}

#[test]
fn nodelay_can_be_switched_on() {
    let mut t = established();
    t.write(10);
    expect!(t, seq: 1, len: 10);
    t.write(10);
    expect_nothing!(t);
    t.conn.set(|s| s.nodelay = true);
    expect!(t, seq: 11, len: 10);
}

#[test]
fn more_to_come_keeps_a_small_segment_back() {
    let mut t = established();
    t.conn
        .send(Bytes::pattern(OURS + 1, 10), Push::Later)
        .unwrap();
    expect_nothing!(t);
    t.conn
        .send(Bytes::pattern(OURS + 11, 10), Push::Now)
        .unwrap();
    expect!(t, seq: 1, len: 20, push: true);
}

#[test]
fn a_boundary_keeps_payloads_in_packets_of_their_own() {
    let config = plain().with(|c| {
        c.settings.nodelay = true;
    });
    let mut t = established_with(&config);
    t.conn
        .send(Bytes::pattern(OURS + 1, 10), Push::Now)
        .unwrap();
    t.conn.push_boundary();
    t.conn
        .send(Bytes::pattern(OURS + 11, 10), Push::Now)
        .unwrap();
    expect!(t, seq: 1, len: 10);
    expect!(t, seq: 11, len: 10);
}

/// A connection whose super-segments have 4000 bytes, with one of them in flight.
fn busy() -> Trace {
    let config = plain().with(|c| c.shared_mut().max_gso_payload = Some(4000));
    let mut t = established_with(&config);
    t.write(4000);
    expect!(t, seq: 1, len: 4000);
    t
}

#[test]
fn short_writes_may_gather_until_they_fill_a_super_segment() {
    let mut t = busy();
    assert!(!t.conn.may_gather(t.now), "nothing is unsent");
    t.write(1500);
    assert!(t.conn.may_gather(t.now));
    t.write(2499);
    assert!(t.conn.may_gather(t.now));
    t.write(1);
    assert!(!t.conn.may_gather(t.now));
    expect!(t, seq: 4001, len: 4000);
    t.write(700);
    assert!(t.conn.may_gather(t.now), "the rest of more than one");
    send!(t, ack: Some(8001));
    assert!(!t.conn.may_gather(t.now), "the peer is idle");
    expect!(t, seq: 8001, len: 700);
}

#[test]
fn nothing_gathers_that_the_writer_or_the_peer_waits_for() {
    let mut t = busy();
    t.write(4500);
    expect!(t, seq: 4001, len: 4000);
    assert!(!t.conn.may_gather(t.now), "the end of a long write");
    drop(t);
    let mut t = busy();
    t.write(500);
    t.conn.set(|s| s.nodelay = true);
    assert!(!t.conn.may_gather(t.now));
    t.conn.set(|s| s.nodelay = false);
    assert!(t.conn.may_gather(t.now));
    send!(t, len: 100);
    t.conn.on_drained();
    assert!(!t.conn.may_gather(t.now), "an ACK is due");
    expect!(t, seq: 4001, len: 500, ack: 101);
    drop(t);
    let mut t = busy();
    t.write(500);
    t.conn.push_boundary();
    t.write(10);
    assert!(
        !t.conn.may_gather(t.now),
        "a packet ends before the queue does"
    );
    drop(t);
    let mut t = busy();
    t.write(500);
    t.conn.shutdown_write();
    assert!(!t.conn.may_gather(t.now), "a FIN follows");
}
