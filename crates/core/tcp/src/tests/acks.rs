//! When an ACK leaves: RFC 9293 3.8.6.3, RFC 5681 4.2, and the bulk policy of `AckPolicy`.

use core::time::Duration;
use netmem::Payload;

use super::harness::*;
use crate::*;

#[test]
fn a_delayed_ack_leaves_after_40_ms() {
    let mut t = established();
    send!(t, len: 100);
    expect_nothing!(t);
    t.advance(39);
    t.timers();
    expect_nothing!(t);
    assert_eq!(t.run_timer(), 1);
    expect!(t, ack: 101);
    assert_eq!(t.conn.next_timer(), None);
}

#[test]
fn the_first_arrival_starts_the_delay() {
    let mut t = established();
    send!(t, len: 100);
    t.advance(30);
    send!(t, len: 100);
    assert_eq!(t.run_timer(), 10);
    expect!(t, ack: 201);
}

#[test]
fn two_full_segments_are_acknowledged_at_once_in_a_small_window() {
    let mut t = established();
    send!(t, len: 1000);
    expect_nothing!(t);
    send!(t, len: 1000);
    // A quarter of the window would be 2,000 bytes here as well.
    expect!(t, ack: 2001);
    expect_nothing!(t);
}

/// A connection that has acknowledged a super-packet, at the time 0.
fn super_packet() -> Trace {
    let mut t = established();
    t.conn.set_rcv_space(60_000);
    send!(t, len: 1000);
    t.conn.on_drained();
    expect!(t, ack: 1001);
    send!(t, len: 40_000);
    expect!(t, ack: 41_001);
    t
}

/// The same, which has received a segment since. The link is empty.
fn after_bulk() -> Trace {
    let mut t = super_packet();
    send!(t, len: 1000);
    t.conn.on_drained();
    t
}

/// Returns when the pending ACK leaves, in microseconds after `from`.
fn ack_due_us(t: &Trace, from: wire::Instant) -> Option<u128> {
    let due = t.conn.next_timer()?;
    Some(due.saturating_since(from).as_micros())
}

#[test]
fn soon_after_a_bulk_ack_the_next_one_waits_although_the_link_is_empty() {
    let mut t = after_bulk();
    let acked = t.now;
    expect_nothing!(t);
    assert_eq!(ack_due_us(&t, acked), Some(100));
    // More data does not move it, and neither does another empty link.
    t.now = t.now + Duration::from_micros(60);
    send!(t, len: 100);
    t.conn.on_drained();
    expect_nothing!(t);
    assert_eq!(ack_due_us(&t, acked), Some(100));
    t.now = t.now + Duration::from_micros(40);
    t.timers();
    expect!(t, ack: 42_101);
    // That one covered few bytes: the next does not wait.
    send!(t, len: 100);
    t.conn.on_drained();
    expect!(t, ack: 42_201);
}

#[test]
fn an_ack_that_was_held_back_leaves_when_the_link_stays_empty() {
    let mut t = after_bulk();
    expect_nothing!(t);
    t.conn.on_idle();
    expect!(t, ack: 42_001);
    assert!(!t.conn.has_ack_for_link());
}

#[test]
fn later_than_that_an_empty_link_is_acknowledged_at_once() {
    let mut t = super_packet();
    t.now = t.now + Duration::from_micros(100);
    send!(t, len: 1000);
    t.conn.on_drained();
    expect!(t, ack: 42_001);
}

#[test]
fn a_bulk_transfer_is_acknowledged_per_quarter_of_the_window() {
    let mut t = established();
    t.conn.set_rcv_space(60_000);
    send!(t, len: 1000);
    t.conn.on_drained();
    expect!(t, ack: 1001, window: 59_000);
    for _ in 0..11 {
        send!(t, len: 1000);
        expect_nothing!(t);
    }
    // 12,000 bytes came, and less than four times as many may still come.
    send!(t, len: 1000);
    expect!(t, ack: 13_001);
    expect_nothing!(t);
    assert_eq!(t.read(), 13_000);
}

#[test]
fn a_bulk_ack_waits_for_the_segments_that_were_received_with_it() {
    let mut t = established();
    t.conn.set_rcv_space(60_000);
    send!(t, len: 1000);
    t.conn.on_drained();
    expect!(t, ack: 1001);
    send!(t, len: 30_000);
    assert!(!t.last.reply, "more may follow");
    send!(t, len: 10_000);
    assert!(!t.last.reply);
    expect!(t, ack: 41_001);
    expect_nothing!(t);
    // A gap is reported without delay, also while a bulk ACK waits.
    send!(t, len: 15_000);
    assert!(!t.last.reply);
    send!(t, seq: 58_001, len: 1000);
    assert!(t.last.reply);
    expect!(t, ack: 56_001, sack: &[(58_001, 59_001)]);
}

#[test]
fn ack_bytes_of_the_configuration_win() {
    let config = plain().with(|c| {
        c.shared_mut().acks.bytes = Some(5000);
    });
    let mut t = established_with(&config);
    for _ in 0..4 {
        send!(t, len: 1000);
        expect_nothing!(t);
    }
    send!(t, len: 1000);
    expect!(t, ack: 5001);
}

#[test]
fn a_super_packet_past_the_threshold_is_acknowledged_at_once() {
    let config = plain().with(|c| {
        c.settings.rcv_space_initial = 60_000;
    });
    let mut t = established_with(&config);
    send!(t, len: 30_000);
    expect!(t, ack: 30_001);
    assert_eq!(
        t.conn.info().rcv_mss,
        1000,
        "one packet never holds more than our MSS"
    );
    assert_eq!(t.read(), 30_000);
}

#[test]
fn the_first_segments_are_acknowledged_one_by_one() {
    let config = plain().with(|c| {
        c.shared_mut().acks.quick = 3;
    });
    let mut t = established_with(&config);
    for i in 1..=3 {
        send!(t, len: 100);
        expect!(t, ack: 1 + 100 * i);
    }
    send!(t, len: 100);
    expect_nothing!(t);
}

#[test]
fn a_pushed_segment_is_no_bulk_and_uses_no_quick_ack() {
    let config = plain().with(|c| {
        c.shared_mut().acks.quick = 1;
    });
    let mut t = established_with(&config);
    send!(t, len: 100, push: true);
    expect_nothing!(t);
    send!(t, len: 100);
    expect!(t, ack: 201);
}

#[test]
fn an_ack_rides_on_data_and_then_does_not_leave_alone() {
    let mut t = established();
    send!(t, len: 100);
    t.write(50);
    expect!(t, seq: 1, len: 50, ack: 101);
    t.conn.on_drained();
    expect_nothing!(t);
    assert!(
        t.conn.next_timer().is_some(),
        "our own data waits for its ACK"
    );
}

#[test]
fn an_empty_link_without_arrivals_says_nothing() {
    let mut t = established();
    t.conn.on_drained();
    expect_nothing!(t);
    send!(t);
    t.conn.on_drained();
    expect_nothing!(t);
}

#[test]
fn every_out_of_order_segment_draws_a_duplicate_ack() {
    let mut t = established();
    for i in 1..=3 {
        send!(t, seq: 1 + 1000 * i, len: 1000);
        expect!(t, ack: 1, sack: [&[(1001, 2001)], &[(1001, 3001)], &[(1001, 4001)]][i as usize - 1]);
    }
    assert_eq!(t.read(), 0);
}

/// An active open with Linux's policy, for which a write waits: the SYN-ACK has arrived.
fn linux_with_a_waiting_write() -> Trace {
    let config = plain().with(|c| {
        c.shared_mut().tuning = Tuning::LINUX;
    });
    let mut t = syn_sent_with(&config);
    t.conn.await_open();
    t.advance(10);
    send!(t, seq: 0, control: Control::Syn, mss: Some(1000));
    assert!(t.last.established);
    t
}

#[test]
fn with_linux_policy_the_data_of_a_waiting_write_carries_the_ack_of_the_handshake() {
    let mut t = linux_with_a_waiting_write();
    expect_nothing!(t);
    t.conn.on_drained();
    t.write(1000);
    expect!(t, seq: 1, ack: 1, len: 1000);
    expect_nothing!(t);
    // That was an answer: the next ACK waits for another one, also after the program has read everything.
    t.peer.ack = Some(1001);
    send!(t, len: 500);
    t.read();
    t.conn.on_read();
    expect_nothing!(t);
    t.conn.shutdown_write();
    expect!(t, seq: 1001, ack: 501, control: Control::Fin);
}

#[test]
fn with_linux_policy_the_ack_of_the_handshake_waits_200_ms_for_data_at_most() {
    let mut t = linux_with_a_waiting_write();
    expect_nothing!(t);
    assert_eq!(t.run_timer(), 200);
    expect!(t, seq: 1, ack: 1);
    expect_nothing!(t);
}

#[test]
fn the_ack_of_the_handshake_does_not_wait_for_a_write_otherwise() {
    let mut t = syn_sent();
    t.conn.await_open();
    send!(t, seq: 0, control: Control::Syn, mss: Some(1000));
    expect!(t, seq: 1, ack: 1);
    expect_nothing!(t);
}

/// The peer sends a request of 8 bytes, and the stack empties the link. Returns whether that drew an ACK.
fn request(t: &mut Trace, seq: &mut u32) -> bool {
    t.conn.set_rcv_space(10_000);
    send!(t, seq: *seq, len: 8, push: true);
    *seq += 8;
    t.read();
    t.conn.on_read();
    t.conn.on_drained();
    t.conn.on_idle();
    let acked = t.poll();
    acked.is_some_and(|ack| ack.payload.is_empty() && ack.ack.is_some())
}

/// The program answers with 8 bytes, which acknowledge everything and arrive.
fn answer(t: &mut Trace, seq: u32) {
    let from = t.peer.ack.unwrap();
    t.write(8);
    expect!(t, seq: from, len: 8, ack: seq);
    t.peer.ack = Some(from + 8);
}

/// Requests, each answered within `delay_ms`; returns how many of them drew an ACK of their own.
fn exchange(t: &mut Trace, seq: &mut u32, count: u32, delay_ms: u64) -> u32 {
    let mut acks = 0;
    for _ in 0..count {
        acks += u32::from(request(t, seq));
        t.advance(delay_ms);
        answer(t, *seq);
        t.advance(1);
    }
    acks
}

#[test]
fn small_requests_that_are_answered_draw_no_ack_of_their_own() {
    for delay_ms in [0, 1, 39] {
        let (mut t, mut seq) = (established(), 1);
        assert_eq!(exchange(&mut t, &mut seq, 5200, delay_ms), 1, "{delay_ms}");
    }
    let (mut t, mut seq) = (established(), 1);
    assert_eq!(
        exchange(&mut t, &mut seq, 100, 40),
        100,
        "later than a delayed ACK"
    );
}

#[test]
fn a_held_ack_leaves_after_the_delay_and_the_next_ones_at_once() {
    let (mut t, mut seq) = (established(), 1);
    exchange(&mut t, &mut seq, 10, 1);
    assert!(!request(&mut t, &mut seq));
    assert_eq!(t.run_timer(), 40);
    expect!(t, ack: seq);
    expect_nothing!(t);
    // Pushes that nobody answers.
    for _ in 0..10 {
        t.advance(100);
        assert!(request(&mut t, &mut seq));
    }
    // Answers make it interactive again.
    t.advance(1);
    answer(&mut t, seq);
    assert_eq!(exchange(&mut t, &mut seq, 100, 1), 2);
}

#[test]
fn a_second_push_without_an_answer_to_the_first_is_acknowledged_at_once() {
    let (mut t, mut seq) = (established(), 1);
    exchange(&mut t, &mut seq, 10, 1);
    assert!(!request(&mut t, &mut seq));
    t.advance(1);
    for _ in 0..10 {
        assert!(request(&mut t, &mut seq));
        t.advance(1);
    }
}

#[test]
fn a_request_in_two_writes_of_a_sender_with_nagles_algorithm_never_waits_for_the_delay() {
    let (mut t, mut seq) = (established(), 1);
    for _ in 0..100 {
        assert!(request(&mut t, &mut seq), "its second part waits for this");
        t.advance(1);
        request(&mut t, &mut seq);
        answer(&mut t, seq);
        t.advance(1);
    }
}

#[test]
fn after_requests_in_one_write_such_a_sender_waits_a_few_times_at_most() {
    let (mut t, mut seq) = (established(), 1);
    let mut waits = 0;
    for _ in 0..100 {
        exchange(&mut t, &mut seq, 1, 1);
        if !request(&mut t, &mut seq) {
            waits += 1;
            assert_eq!(t.run_timer(), 40);
            expect!(t, ack: seq);
        }
        t.advance(1);
        request(&mut t, &mut seq);
        answer(&mut t, seq);
    }
    assert!(waits <= 1, "{waits} of 100");
}

#[test]
fn full_segments_without_psh_and_gaps_are_not_held() {
    let (mut t, mut seq) = (established(), 1);
    exchange(&mut t, &mut seq, 10, 1);
    send!(t, seq: seq, len: 8);
    t.conn.on_drained();
    expect!(t, ack: seq + 8);
    answer(&mut t, seq + 8);
    seq += 8;
    exchange(&mut t, &mut seq, 10, 1);
    send!(t, seq: seq, len: 1000);
    t.conn.on_drained();
    expect!(t, ack: seq + 1000);
    seq += 1000;
    answer(&mut t, seq);
    exchange(&mut t, &mut seq, 10, 1);
    send!(t, seq: seq + 8, len: 8, push: true);
    assert!(t.poll().is_some(), "a gap");
}

/// A connection whose program has answered ten small requests, the last one when it had room for `window` bytes.
fn after_answers(window: u32) -> (Trace, u32) {
    let (mut t, mut seq) = (established(), 1);
    exchange(&mut t, &mut seq, 10, 1);
    request(&mut t, &mut seq);
    t.conn.set_rcv_space(window);
    answer(&mut t, seq);
    (t, seq)
}

/// A connection that has received a request of 3,000 bytes after that. The link is empty.
fn long_request() -> (Trace, u32) {
    let (mut t, seq) = after_answers(60_000);
    send!(t, seq: seq, len: 3000, push: true);
    t.conn.on_drained();
    expect_nothing!(t);
    assert!(t.conn.has_ack_for_link(), "the next poll may send it");
    t.read();
    (t, seq + 3000)
}

#[test]
fn the_answer_to_a_request_of_several_segments_takes_its_ack_along() {
    let (mut t, seq) = long_request();
    answer(&mut t, seq);
    t.conn.on_idle();
    expect_nothing!(t);
    assert!(!t.conn.has_ack_for_link());
}

#[test]
fn without_an_answer_that_ack_leaves_with_the_next_poll() {
    let (mut t, seq) = long_request();
    t.conn.on_idle();
    expect!(t, ack: seq);
    let (mut t, seq) = long_request();
    t.conn.on_drained();
    expect!(t, ack: seq);
}

/// A connection that has received a request, the first data on it, and the peer's FIN. The link is empty.
fn short_connection() -> Trace {
    let mut t = established();
    send!(t, len: 100, push: true);
    t.conn.on_drained();
    send!(t, control: Control::Fin);
    assert!(!t.last.reply, "the packets that came together go first");
    t.conn.on_drained();
    expect_nothing!(t);
    assert!(t.conn.has_ack_for_link());
    assert_eq!(t.read(), 100);
    t
}

#[test]
fn a_program_that_closes_before_the_next_poll_sends_one_segment() {
    let mut t = short_connection();
    t.conn.close();
    expect!(t, seq: 1, ack: 102, control: Control::Fin);
    t.conn.on_idle();
    expect_nothing!(t);
}

#[test]
fn if_it_does_not_the_next_poll_acknowledges_the_fin() {
    let mut t = short_connection();
    t.conn.on_drained();
    expect!(t, ack: 102);
    let mut t = short_connection();
    t.conn.on_idle();
    expect!(t, ack: 102);
    expect_nothing!(t);
}

#[test]
fn a_request_that_fills_a_quarter_of_the_window_is_acknowledged_at_once() {
    let (mut t, seq) = after_answers(12_000);
    send!(t, seq: seq, len: 3000, push: true);
    t.conn.on_drained();
    expect!(t, ack: seq + 3000);
    t.read();
}

#[test]
fn tcp_quickack_shows_and_ends_the_interactive_mode() {
    let (mut t, mut seq) = (established(), 1);
    assert!(t.conn.has_quick_acks());
    exchange(&mut t, &mut seq, 10, 1);
    assert!(!t.conn.has_quick_acks());
    assert!(!request(&mut t, &mut seq));
    t.conn.set_quick_acks(true);
    expect!(t, ack: seq);
    assert!(t.conn.has_quick_acks());
    t.conn.set_quick_acks(false);
    t.advance(100);
    assert!(!request(&mut t, &mut seq));
    assert_eq!(t.run_timer(), 40);
    expect!(t, ack: seq);
}
