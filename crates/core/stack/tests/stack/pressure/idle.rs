//! Connections that are open and idle: an honest stream shares the memory of a queue with them.

use std::time::Duration;

use netsim::Side;

use super::{Honest, Siege};

/// Bytes of the honest stream in each part of a run.
const PART: u64 = 8 << 20;

/// Idle connections; their windows add up to more than a queue's memory.
const IDLE: u16 = 1000;

/// Time in which a connection that receives nothing becomes idle.
const SETTLED: Duration = Duration::from_millis(2500);

/// Measures an honest stream alone, and beside 1,000 connections that were opened 2.5 seconds ago and have received
/// nothing.
fn beside_idle_connections(honest: Honest) {
    let mut siege = Siege::new(honest);
    let alone = siege.run(PART, |_, _| {});
    siege.open(IDLE);
    siege.run_for(SETTLED, |_, _| {});
    let beside = siege.run(PART, |_, _| {});
    assert!(
        beside >= 0.95 * alone,
        "{:.1} MB/s alone, {:.1} beside {IDLE} idle connections",
        alone / 1e6,
        beside / 1e6
    );
    siege.finish();
}

#[test]
fn a_thousand_idle_connections_on_small_memory_do_not_slow_a_stream_down() {
    beside_idle_connections(Honest::new());
}

#[test]
fn a_thousand_idle_connections_over_ipv6_do_not_slow_a_stream_down() {
    beside_idle_connections(Honest {
        ip: Side::B.ipv6(),
        ..Honest::new()
    });
}
