//! Open connections that receive nothing any more: a stream shares the memory of a queue with them.

use std::time::Duration;

use netsim::Side;

use super::{Honest, Siege};

/// Bytes of the honest stream in each part of a run.
const PART: u64 = 8 << 20;

/// Time after which the connections are idle.
const SETTLED: Duration = Duration::from_millis(2500);

/// A wire on which a stream needs more than the reserve of the memory.
const WIRE: &str = "rate=200mbit,delay=5ms";

/// Idle connections, whose first windows add up to more than the memory.
const COUNT: u16 = 300;

/// Measures an honest stream alone, and then beside connections that were opened 2.5 seconds ago and have received a byte since.
#[test]
fn three_hundred_idle_connections_over_ipv6_do_not_slow_a_stream_down() {
    let mut siege = Siege::new(Honest {
        ip: Side::B.ipv6(),
        wire: WIRE,
        ..Honest::new()
    });
    let alone = siege.run(PART, |_, _| {});
    siege.open(COUNT);
    // One that never sends is promised less.
    for attacker in siege.attackers.clone() {
        siege.intruder.send_bytes(&attacker, 0, &[0]);
    }
    siege.run_for(SETTLED, |_, _| {});
    let beside = siege.run(PART, |_, _| {});
    assert!(
        beside >= 0.95 * alone,
        "{:.1} MB/s alone, {:.1} beside {COUNT} idle connections",
        alone / 1e6,
        beside / 1e6
    );
    siege.finish();
}
