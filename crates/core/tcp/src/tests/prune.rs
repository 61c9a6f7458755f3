//! Short memory: out-of-order payload is removed, and a window is withdrawn. RFC 2018 8, RFC 2883 4,
//! RFC 9293 3.8.6.

use proptest::prelude::*;

use super::harness::*;
use crate::*;

#[test]
fn dropped_data_is_not_reported_again() {
    let mut t = established();
    send!(t, seq: 101, len: 10);
    send!(t, seq: 201, len: 10);
    send!(t, seq: 301, len: 10);
    expect!(t, ack: 1, sack: &[(301, 311), (201, 211), (101, 111)]);
    assert_eq!(
        t.conn.prune().map(|payload| payload.runs()[0].len),
        Some(10)
    );
    send!(t, seq: 111, len: 10);
    expect!(t, ack: 1, sack: &[(101, 121), (201, 211)]);
    // The highest numbers go first, also within a range.
    assert!(t.conn.prune().is_some() && t.conn.prune().is_some());
    send!(t, seq: 401, len: 10);
    expect!(t, ack: 1, sack: &[(401, 411), (101, 111)]);
    assert!(t.conn.prune().is_some() && t.conn.prune().is_some());
    assert_eq!((t.conn.prune(), t.conn.out_of_order_len()), (None, 0));
    // The peer sends all of it again, and nothing is missing.
    send!(t, seq: 1, len: 410);
    t.conn.on_drained();
    expect!(t, ack: 411);
    assert_eq!(t.read(), 410);
}

#[test]
fn a_duplicate_of_dropped_data_is_not_reported() {
    let mut t = established();
    send!(t, seq: 101, len: 100);
    expect!(t, ack: 1, sack: &[(101, 201)]);
    send!(t, seq: 121, len: 20);
    expect_drops!(t, Duplicate);
    assert!(t.conn.prune().is_some());
    // As a first block without a second one around it, the duplicate would report data that is not held.
    expect!(t, ack: 1);
}

#[test]
fn a_duplicate_of_held_data_is_reported_after_pruning() {
    let mut t = established();
    send!(t, seq: 101, len: 100);
    send!(t, seq: 301, len: 100);
    expect!(t, ack: 1, sack: &[(301, 401), (101, 201)]);
    send!(t, seq: 121, len: 20);
    expect_drops!(t, Duplicate);
    assert!(t.conn.prune().is_some());
    expect!(t, ack: 1, sack: &[(121, 141), (101, 201)]);
}

#[test]
fn data_in_order_is_never_dropped() {
    let mut t = established();
    send!(t, seq: 1, len: 100);
    assert_eq!(t.conn.prune(), None);
    assert_eq!(t.read(), 100);
}

#[test]
fn an_in_order_receiver_drops_early_data_and_sends_an_ack() {
    let mut t = established();
    t.conn.set_kept_payload(KeptPayload::InOrder);
    send!(t, seq: 101, len: 100);
    expect_drops!(t, OfoNoMemory);
    expect!(t, ack: 1);
    send!(t, seq: 1, len: 100);
    t.conn.on_drained();
    expect!(t, ack: 101);
    t.conn.set_kept_payload(KeptPayload::All);
    send!(t, seq: 201, len: 100);
    expect!(t, ack: 101, sack: &[(201, 301)]);
    assert_eq!(t.read(), 100);
}

#[test]
fn a_window_without_memory_is_withdrawn_and_announced_again() {
    let mut t = established();
    t.unplaced(1);
    t.forget_edge();
    expect!(t, ack: 1, window: 0_u16);
    assert!(t.conn.is_rcv_window_shut());
    // Bytes before the promised edge are still accepted.
    send!(t, seq: 1, len: 100);
    t.conn.on_drained();
    expect!(t, ack: 101, window: 0_u16);
    t.conn.restore_rcv_window();
    expect!(t, ack: 101, window: (SPACE - 100) as u16);
    t.conn.restore_rcv_window();
    expect_nothing!(t);
    assert_eq!(t.read(), 100);
}

#[test]
fn early_data_without_memory_withdraws_no_window() {
    let mut t = established();
    t.unplaced(1001);
    expect!(t, ack: 1, window: SPACE as u16);
}

#[test]
fn an_acknowledgement_counts_although_the_payload_found_no_memory() {
    let mut t = established();
    t.write(1000);
    expect!(t, seq: 1, len: 1000);
    t.peer.ack = Some(1001);
    t.unplaced(1);
    assert_eq!(t.conn.acked_offset(), 1000);
    t.forget_edge();
    expect!(t, ack: 1, window: 0_u16);
}

/// Event of a receiver in a random trace.
#[derive(Debug, Clone)]
enum Step {
    /// A segment, in hundreds of bytes.
    Arrives(u32, usize),
    Prune(usize),
    Acknowledge,
    Read,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => (0_u32..90, 1_usize..12).prop_map(|(at, len)| Step::Arrives(at, len)),
        1 => (1_usize..6).prop_map(Step::Prune),
        2 => Just(Step::Acknowledge),
        1 => Just(Step::Read),
    ]
}

/// Checks that every block of our next ACK names bytes that are held, or were delivered.
fn check_report(t: &mut Trace) {
    t.conn.on_drained();
    let Some(ack) = t.poll() else { return };
    let nxt = t.conn.rcv_nxt().expect("it is synchronized");
    for (from, to) in ack.options.sack.iter() {
        let (mut from, to) = (SeqNum(from), SeqNum(to));
        if to.before_eq(nxt) {
            continue;
        }
        for payload in t.conn.out_of_order() {
            for run in payload.runs() {
                let (start, end) = (SeqNum(run.start), SeqNum(run.start) + run.len);
                if start.before_eq(from) && from.before(end) {
                    from = end;
                }
            }
        }
        assert!(from.after_eq(to), "{from:?} to {to:?} is not held");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 512, ..ProptestConfig::default() })]

    #[test]
    fn pruning_loses_no_acknowledged_byte_and_no_sack_names_dropped_data(
        steps in prop::collection::vec(step(), 1..80)
    ) {
        let mut t = established();
        let mut read = 0;
        for step in steps {
            match step {
                Step::Arrives(at, len) => send!(t, seq: 1 + at * 100, len: len * 100),
                Step::Prune(count) => (0..count).for_each(|_| drop(t.conn.prune())),
                Step::Acknowledge => check_report(&mut t),
                Step::Read => read += t.read(),
            }
            check_report(&mut t);
        }
        // The peer repeats everything; the harness checks each byte as it is read.
        for at in 0..10 {
            send!(t, seq: 1 + at * 1000, len: 1000);
            check_report(&mut t);
            read += t.read();
        }
        prop_assert_eq!(read, 10_000);
        t.take_drops();
    }
}
