//! Segments of one byte: each occupies a whole net_iov.

use netsim::{Keep, Side};

use super::{Honest, Siege, assert_bearable};

/// Bytes of the honest stream in each part of a run.
const PART: u64 = 8 << 20;

/// Connections of the attacker.
const ATTACKERS: u16 = 5;

/// Makes five connections send one byte each out of order, after a gap, per net_iov of the honest stream.
fn gapped_bytes(honest: Honest) {
    let mut siege = Siege::new(honest);
    siege.open(ATTACKERS);
    let calm = siege.run(PART, |_, _| {});
    let mut offset = 1;
    let attacked = siege.run(PART, |intruder, attackers| {
        for attacker in attackers {
            intruder.send_bytes(attacker, offset, &[0]);
        }
        offset += 2;
    });
    let after = siege.run(PART, |_, _| {});
    assert_bearable(calm, attacked, after);
    siege.finish();
}

#[test]
fn one_byte_segments_with_gaps_do_not_stop_an_honest_stream() {
    gapped_bytes(Honest::new());
}

#[test]
fn one_byte_segments_with_gaps_do_not_stop_an_honest_stream_over_ipv6() {
    gapped_bytes(Honest {
        ip: Side::B.ipv6(),
        ..Honest::new()
    });
}

#[test]
fn one_byte_segments_with_gaps_do_not_stop_a_reader_that_holds_tokens() {
    gapped_bytes(Honest {
        keep: Keep::Tokens(1000),
        ..Honest::new()
    });
}

#[test]
fn one_byte_segments_with_gaps_do_not_stop_packets_with_linear_bytes() {
    gapped_bytes(Honest {
        linear: 1024,
        ..Honest::new()
    });
}

#[test]
fn unread_one_byte_segments_do_not_stop_an_honest_stream() {
    let mut siege = Siege::new(Honest::new());
    siege.open(ATTACKERS);
    let calm = siege.run(PART, |_, _| {});
    let mut offset = 0;
    let attacked = siege.run(PART, |intruder, attackers| {
        for attacker in attackers {
            intruder.send_bytes(attacker, offset, &[0]);
        }
        offset += 1;
    });
    let after = siege.run(PART, |_, _| {});
    assert_bearable(calm, attacked, after);
    siege.finish();
}

/// Makes `count` connections send one byte each out of order during an honest stream; returns the rate before, during
/// and after.
fn one_byte_each(count: u16) -> (f64, f64, f64) {
    let mut siege = Siege::new(Honest {
        memory: 16 << 20,
        ..Honest::new()
    });
    siege.open(count);
    let calm = siege.run(2 * PART, |_, _| {});
    let (mut number, step) = (0, usize::from(count).div_ceil(100));
    let attacked = siege.run(2 * PART, |intruder, attackers| {
        for attacker in attackers.iter().skip(number).take(step) {
            intruder.send_bytes(attacker, 1, &[0]);
        }
        number += step;
    });
    let after = siege.run(2 * PART, |_, _| {});
    siege.finish();
    (calm, attacked, after)
}

#[test]
fn a_hundred_connections_with_one_byte_each_do_not_stop_an_honest_stream() {
    let (calm, attacked, after) = one_byte_each(100);
    assert_bearable(calm, attacked, after);
}

/// A thousand new connections that have sent nothing take no memory from the honest stream. With its first byte the whole window
/// of one is set aside, and soon the honest stream has only the reserve, until they are idle.
#[test]
fn a_thousand_connections_with_one_byte_each_stop_an_honest_stream_for_a_moment_at_most() {
    let (calm, attacked, after) = one_byte_each(1000);
    assert!(
        attacked >= 0.1 * calm && after >= 0.98 * calm,
        "{calm} {attacked} {after}"
    );
    let (alone, ..) = one_byte_each(1);
    assert!(
        calm >= 0.98 * alone,
        "{calm} beside silent connections, {alone} alone"
    );
}

#[test]
fn segments_that_overlap_and_come_twice_do_not_stop_an_honest_stream() {
    let mut siege = Siege::new(Honest::new());
    siege.open(ATTACKERS);
    let calm = siege.run(PART, |_, _| {});
    let mut offset = 1;
    let attacked = siege.run(PART, |intruder, attackers| {
        for attacker in attackers {
            intruder.send_bytes(attacker, offset, &[0; 3]);
            intruder.send_bytes(attacker, offset, &[0; 3]);
            intruder.send_bytes(attacker, offset + 2, &[0; 4]);
        }
        offset += 8;
    });
    let after = siege.run(PART, |_, _| {});
    assert_bearable(calm, attacked, after);
    siege.finish();
}

#[test]
fn handshakes_that_are_never_finished_do_not_stop_an_honest_stream() {
    let mut siege = Siege::new(Honest::new());
    let calm = siege.run(PART, |_, _| {});
    let to = std::net::SocketAddr::new(siege.ip, super::OPEN_PORT);
    let mut port = 20_000;
    let attacked = siege.run(PART, |intruder, _| {
        for _ in 0..5 {
            intruder.send_syn(port, to);
            port += 1;
        }
    });
    let after = siege.run(PART, |_, _| {});
    assert_bearable(calm, attacked, after);
    siege.finish();
}
