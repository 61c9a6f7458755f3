//! Effect of an echoed mark on the window (RFC 3168 6.1.2), and CWR.

use core::time::Duration;

use super::harness::{Bench, sent};
use super::simulation::{Path, Simulation, Transfer};
use crate::sender::recovery::Phase;
use crate::settings::CongestionKind;
use crate::test_config::TestConfig;

/// Ten ECN-capable segments in flight at cwnd 10, many more waiting, 100 ms later.
fn ten_in_flight() -> Bench {
    let mut bench = Bench::with(|setup| setup.ecn = true);
    bench.write(100_000);
    assert_eq!(bench.drain(), [sent(0, 10_000, "e")]);
    bench.pass(100);
    bench
}

/// Takes ACKs for one segment each up to `end`; returns what they let out.
fn ack_each(bench: &mut Bench, end: u64) -> Vec<super::harness::Sent> {
    let mut out = Vec::new();
    while bench.sender.acked_offset() < end {
        let _ = bench.ack(bench.sender.acked_offset() + 1000);
        out.extend(bench.drain());
    }
    out
}

#[test]
fn an_echo_halves_the_window_once_and_proportionally() {
    let mut bench = ten_in_flight();
    bench.ece = true;
    let out = ack_each(&mut bench, 10_000);
    assert_eq!(bench.sender.recovery.phase(), Phase::Cwr);
    assert_eq!(bench.cwnd().1, Some(5000));
    // Half of what was delivered is sent, and its first packet has CWR.
    assert_eq!(out[0], sent(10_000, 11_000, "ec"));
    assert!(out[1..].iter().all(|sent| sent.flags == "e"), "{out:?}");
    assert_eq!(out.last().map(|sent| sent.end), Some(15_000), "{out:?}");
    assert_eq!(
        (bench.info().ecn_reductions, bench.info().delivered_ce),
        (1, 10)
    );
    // CWR has reached the peer.
    bench.ece = false;
    bench.pass(100);
    let _ = bench.ack(11_000);
    assert_eq!(bench.sender.recovery.phase(), Phase::Open);
    assert_eq!(bench.cwnd(), (5000, Some(5000)));
}

#[test]
fn an_echo_after_cwr_was_acknowledged_is_of_another_mark() {
    let mut bench = ten_in_flight();
    bench.ece = true;
    ack_each(&mut bench, 10_000);
    bench.pass(100);
    let _ = bench.ack(11_000);
    assert_eq!(bench.sender.recovery.phase(), Phase::Cwr);
    assert_eq!(bench.cwnd().1, Some(2500));
    assert_eq!(bench.info().ecn_reductions, 2);
}

#[test]
fn an_echo_means_nothing_where_ecn_was_not_agreed_on_or_nothing_is_in_flight() {
    let mut bench = Bench::with(|_| ());
    bench.write(100_000);
    assert_eq!(bench.drain(), [sent(0, 10_000, "")]);
    bench.ece = true;
    ack_each(&mut bench, 10_000);
    assert_eq!((bench.cwnd().1, bench.info().delivered_ce), (None, 0));

    let mut bench = Bench::with(|setup| setup.ecn = true);
    bench.ece = true;
    bench.window = 5000;
    let _ = bench.ack(0);
    assert_eq!((bench.cwnd().1, bench.info().ecn_reductions), (None, 0));
}

#[test]
fn a_loss_in_the_same_window_does_not_reduce_it_again() {
    let mut bench = ten_in_flight();
    bench.ece = true;
    let _ = bench.ack(1000);
    bench.drain();
    let _ = bench.sacked(1000, &[(2000, 6000)]);
    assert_eq!(bench.sender.recovery.phase(), Phase::Recovery);
    assert_eq!(bench.cwnd().1, Some(5000));
    let repeated = ack_each_sacked(&mut bench);
    assert!(
        repeated.contains(&sent(1000, 2000, "")),
        "not ECN-capable: {repeated:?}"
    );
    // A D-SACK that proves the retransmission needless does not undo the reduction for a mark.
    bench.ece = false;
    let _ = bench.sacked(11_000, &[(1000, 2000)]);
    assert_eq!(bench.cwnd().1, Some(5000));
    assert_eq!(bench.info().ecn_reductions, 1);
}

fn ack_each_sacked(bench: &mut Bench) -> Vec<super::harness::Sent> {
    let mut out = bench.drain();
    for right in [7000, 8000, 9000, 10_000] {
        let _ = bench.sacked(1000, &[(2000, right)]);
        out.extend(bench.drain());
    }
    out
}

#[test]
fn a_loss_is_answered_with_cwr_too_unless_it_is_taken_back() {
    let repaired = || {
        let mut bench = ten_in_flight();
        bench.window = 10_000;
        let _ = bench.sacked(0, &[(1000, 10_000)]);
        assert_eq!(bench.drain(), [sent(0, 1000, "")]);
        bench.window = 1 << 20;
        bench
    };
    let mut bench = repaired();
    let _ = bench.ack(10_000);
    let out = bench.drain();
    assert_eq!(bench.cwnd().1, Some(5000));
    assert_eq!(out[0].flags, "ec", "{out:?}");

    let mut bench = repaired();
    let _ = bench.sacked(10_000, &[(0, 1000)]);
    let out = bench.drain();
    assert_eq!(bench.cwnd().1, None);
    assert!(out.iter().all(|sent| sent.flags == "e"), "{out:?}");
}

#[test]
fn an_echo_forbids_taking_back_a_reduction() {
    let mut bench = ten_in_flight();
    let _ = bench.sacked(0, &[(1000, 10_000)]);
    bench.drain();
    bench.ece = true;
    let _ = bench.sacked(10_000, &[(0, 1000)]);
    assert_eq!(bench.cwnd().1.map(|ssthresh| ssthresh <= 5000), Some(true));
}

#[test]
fn a_timeout_in_the_same_window_keeps_the_threshold() {
    let mut bench = ten_in_flight();
    bench.ece = true;
    let _ = bench.ack(1000);
    bench.drain();
    // A tail loss probe, and then the timeout.
    while bench.sender.recovery.phase() == Phase::Cwr {
        assert_eq!(bench.fire(), Ok(()));
        bench.drain();
    }
    assert_eq!(bench.sender.recovery.phase(), Phase::Loss);
    assert_eq!(bench.cwnd().1, Some(5000));
}

#[test]
fn without_sack_duplicates_of_a_marked_window_find_the_loss() {
    let mut bench = Bench::with(|setup| {
        setup.ecn = true;
        setup.sack = false;
    });
    bench.write(100_000);
    bench.drain();
    bench.pass(100);
    bench.ece = true;
    let _ = bench.ack(1000);
    bench.drain();
    for _ in 0..3 {
        let _ = bench.ack(1000);
    }
    assert_eq!(bench.sender.recovery.phase(), Phase::Recovery);
    assert_eq!(bench.cwnd().1, Some(5000));
    assert_eq!(bench.drain()[0], sent(1000, 2000, ""));
}

/// Marks reduce the window of a transfer, and cause no retransmissions.
#[test]
fn a_marked_transfer_repeats_nothing() {
    for seed in 0..20 {
        let transfer = Transfer {
            path: Path {
                ce: 20,
                ..Path::clean(Duration::from_millis(10))
            },
            config: TestConfig::default(),
            mss: 1448,
            sack: true,
            timestamps: true,
            ecn: true,
            bytes: 500_000,
            write: 1 << 20,
            buffer: 8 << 20,
            read_every: Duration::ZERO,
            delayed_ack: Duration::from_millis(40),
            shrink_mss: None,
        };
        let info = Simulation::new(seed, transfer).run().info;
        assert_eq!(info.total_retrans, 0, "seed {seed}: {info:?}");
        assert!(info.ecn_reductions > 0, "seed {seed}: {info:?}");
    }
}

#[test]
fn with_dctcp_a_loss_in_a_marked_window_reduces_it_as_any_loss() {
    let mut bench = Bench::with(|setup| {
        setup.ecn = true;
        setup.config.settings.congestion = CongestionKind::Dctcp;
    });
    // Windows without marks: the share of marked bytes falls.
    for _ in 0..60 {
        bench.write(10_000);
        bench.drain();
        bench.pass(100);
        let _ = bench.ack(bench.sender.acked_offset() + 10_000);
    }
    let start = bench.sender.acked_offset();
    bench.write(10_000);
    bench.drain();
    bench.pass(100);
    let before = bench.cwnd().0;
    bench.ece = true;
    let _ = bench.ack(start + 1000);
    bench.drain();
    let marked = bench.cwnd().1.expect("a mark sets the threshold");
    assert!(marked > before * 9 / 10, "{marked} of {before}");
    let _ = bench.sacked(start + 1000, &[(start + 2000, start + 6000)]);
    assert_eq!(bench.sender.recovery.phase(), Phase::Recovery);
    let lost = bench.cwnd().1.expect("a loss sets it, too");
    assert!(lost < before * 6 / 10, "{lost} of {before}");
    let hole = start.cast_signed() + 1000;
    let repeated = sent(hole, hole + 1000, "e");
    assert!(bench.drain().contains(&repeated), "ECN-capable");
}

#[test]
fn with_dctcp_a_few_marks_cost_a_part_of_what_they_cost_others() {
    let time_with = |congestion| {
        let transfer = Transfer {
            path: Path {
                ce: 20,
                ..Path::clean(Duration::from_millis(10))
            },
            config: TestConfig::default().with(|c| c.settings.congestion = congestion),
            mss: 1448,
            sack: true,
            timestamps: true,
            ecn: true,
            bytes: 3_000_000,
            write: 1 << 20,
            buffer: 8 << 20,
            read_every: Duration::ZERO,
            delayed_ack: Duration::from_millis(40),
            shrink_mss: None,
        };
        let outcome = Simulation::new(1, transfer).run();
        assert_eq!(outcome.info.total_retrans, 0, "{outcome:?}");
        outcome.time
    };
    let (dctcp, reno) = (
        time_with(CongestionKind::Dctcp),
        time_with(CongestionKind::NewReno),
    );
    assert!(dctcp < reno * 2 / 3, "{dctcp:?} against {reno:?}");
}
