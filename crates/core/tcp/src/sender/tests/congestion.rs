//! How the window grows, and when it must not.

use core::time::Duration;

use super::harness::{Bench, sent};
use crate::settings::CongestionKind;

/// Acknowledges everything in flight, segment by segment, a round trip later.
fn round_trip(bench: &mut Bench) {
    bench.pass(100);
    let end = bench.sender.sent_offset();
    while bench.sender.acked_offset() < end {
        let next = (bench.sender.acked_offset() + 1000).min(end);
        let _ = bench.ack(next);
        bench.drain();
    }
}

#[test]
fn slow_start_doubles_the_window_per_round_trip() {
    for kind in [CongestionKind::NewReno, CongestionKind::Cubic] {
        let mut bench = Bench::with(|setup| setup.config.settings.congestion = kind);
        bench.write(1_000_000);
        bench.drain();
        for expected in [20_000, 40_000, 80_000] {
            round_trip(&mut bench);
            assert_eq!(bench.cwnd(), (expected, None), "{kind:?}");
        }
    }
}

#[test]
fn one_ack_for_many_packets_grows_as_much_as_many() {
    let mut bench = Bench::with(|_| ());
    bench.write(100_000);
    bench.drain();
    assert_eq!(bench.ack_after(100, 10_000), [sent(10_000, 30_000, "")]);
}

#[test]
fn newreno_grows_by_a_segment_per_round_trip_past_the_threshold() {
    let mut bench = Bench::with(|_| ());
    bench.write(1_000_000);
    bench.drain();
    bench.pass(100);
    let _ = bench.sacked(0, &[(1000, 4000)]);
    bench.drain();
    let _ = bench.ack(bench.sender.sent_offset());
    bench.drain();
    // The ACK that ends the recovery delivers eight segments: a window, and three of the next.
    assert_eq!(bench.cwnd(), (6000, Some(5000)));
    for expected in [7000, 8000, 9000, 10_000] {
        round_trip(&mut bench);
        assert_eq!(bench.cwnd().0, expected);
    }
}

#[test]
fn cubic_falls_to_seven_tenths() {
    let mut bench = Bench::with(|setup| {
        setup.config.settings.congestion = CongestionKind::Cubic;
        setup.config.shared_mut().initial_cwnd = 100;
    });
    bench.write(1_000_000);
    bench.drain();
    bench.pass(100);
    let _ = bench.sacked(0, &[(1000, 4000)]);
    bench.drain();
    let _ = bench.ack(100_000);
    let (cwnd, ssthresh) = bench.cwnd();
    assert_eq!(ssthresh, Some(70_000));
    // It grows by that ACK already.
    assert!((70_001..71_000).contains(&cwnd), "{cwnd}");
}

#[test]
fn a_window_that_is_not_used_does_not_grow() {
    let mut bench = Bench::with(|_| ());
    for _ in 0..50 {
        bench.write(2000);
        bench.drain();
        round_trip(&mut bench);
    }
    assert_eq!(bench.cwnd(), (10_000, None));
}

#[test]
fn slow_start_may_reach_twice_the_used_window() {
    // Linux `tcp_is_cwnd_limited`: growth to twice the flight is allowed in slow start.
    let mut bench = Bench::with(|_| ());
    for _ in 0..50 {
        bench.write(8000);
        bench.drain();
        round_trip(&mut bench);
    }
    assert_eq!(bench.cwnd(), (16_000, None));
}

#[test]
fn a_pause_halves_the_window_per_timeout_down_to_the_initial_one() {
    let mut bench = Bench::with(|_| ());
    bench.write(150_000);
    bench.drain();
    for _ in 0..4 {
        round_trip(&mut bench);
    }
    assert_eq!(bench.cwnd(), (160_000, None));
    assert!(bench.sender.all_acked());
    let rto = bench.sender.flight.rtt.base_rto();
    bench.now = bench.now + 2 * rto + Duration::from_millis(1);
    bench.write(100);
    bench.drain();
    // 1 * RTO passes before the first halving.
    assert_eq!(bench.cwnd(), (40_000, None));
    round_trip(&mut bench);
    bench.pass(1_000_000);
    bench.write(100);
    bench.drain();
    assert_eq!(bench.cwnd(), (10_000, None));
}

#[test]
fn a_short_pause_keeps_the_window() {
    let mut bench = Bench::with(|_| ());
    bench.write(20_000);
    bench.drain();
    round_trip(&mut bench);
    round_trip(&mut bench);
    let cwnd = bench.cwnd();
    bench.pass(150);
    bench.write(100);
    bench.drain();
    assert_eq!(bench.cwnd(), cwnd);
}

#[test]
fn a_growing_queue_ends_the_slow_start_of_cubic() {
    let mut bench = Bench::with(|setup| setup.config.settings.congestion = CongestionKind::Cubic);
    bench.write(100_000_000);
    bench.drain();
    let mut rtt = 100;
    for _ in 0..12 {
        bench.pass(rtt);
        let end = bench.sender.sent_offset();
        while bench.sender.acked_offset() < end {
            let next = (bench.sender.acked_offset() + 1000).min(end);
            let _ = bench.ack(next);
            bench.drain();
        }
        rtt += 20;
    }
    let (_, ssthresh) = bench.cwnd();
    assert!(ssthresh.is_some(), "left without a loss");
}

#[test]
fn a_small_super_segment_waits_for_an_ack_that_is_close() {
    let mut bench = Bench::with(|setup| setup.config.shared_mut().initial_cwnd = 30);
    bench.write(1_000_000);
    assert_eq!(bench.drain(), [sent(0, 30_000, "")]);
    bench.pass(100);
    // In slow start an ACK for one packet allows two, less than a third of the window; but nothing was sent for so
    // long that they do not wait.
    let _ = bench.ack(1000);
    assert_eq!(bench.drain(), [sent(30_000, 32_000, "")]);
    // The next ACK comes at once, and more ACKs will follow it.
    let _ = bench.ack(2000);
    assert_eq!(bench.drain(), []);
    let _ = bench.ack(8000);
    assert_eq!(bench.drain(), [sent(32_000, 46_000, "")]);
}
