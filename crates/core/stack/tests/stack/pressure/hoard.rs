//! Full-size segments that stay out of order: they take as much memory as windows allow.

use netsim::Keep;

use super::{Honest, Siege};

/// Bytes of one of the attacker's segments.
const LEN: usize = 1448;

/// Connections of the attacker.
const HOARDERS: u16 = 64;

/// Makes 64 connections fill their windows behind a hole that is never filled, or filled by a byte from time to time.
fn hoard(keep: Keep, is_dripping: impl Fn(u64) -> bool) {
    let mut siege = Siege::new(Honest {
        keep,
        // Slow, as the attack takes seconds.
        wire: "rate=200mbit,delay=500us",
        ..Honest::new()
    });
    siege.open(HOARDERS);
    let calm = siege.run(4 << 20, |_, _| {});
    for part in 0..40 {
        for attacker in siege.attackers.clone() {
            siege
                .intruder
                .send_bytes(&attacker, 100 + part * LEN as u32, &[0; LEN]);
        }
        siege.run(1000, |_, _| {});
    }
    // Payload that was held out of order for two seconds is given up.
    let mut round = 0;
    let drip = |intruder: &netsim::Intruder, attackers: &[netsim::IntruderConnection]| {
        round += 1;
        if is_dripping(round) {
            for attacker in attackers {
                intruder.send_bytes(attacker, round as u32 / 16, &[0]);
            }
        }
    };
    siege.run_for(std::time::Duration::from_millis(2500), drip);
    let dropped = siege.dropped("tcp_ofo_queue_prune");
    assert!(dropped > 0, "{:?}", siege.drops());
    let after = siege.run(8 << 20, |_, _| {});
    assert!(
        after >= 0.8 * calm,
        "{:.1} MB/s before, {:.1} after it",
        calm / 1e6,
        after / 1e6
    );
    siege.finish();
}

#[test]
fn full_segments_behind_a_hole_stop_an_honest_stream_for_two_seconds_at_most() {
    hoard(Keep::Nothing, |_| false);
}

#[test]
fn full_segments_behind_a_hole_that_is_filled_a_byte_at_a_time_count_as_hoarded() {
    for keep in [Keep::Nothing, Keep::Tokens(20)] {
        hoard(keep, |round| round % 16 == 0);
    }
}
