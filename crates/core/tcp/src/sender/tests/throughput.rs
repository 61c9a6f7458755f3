//! Throughput in virtual time, as a share of the theoretical rate.

use core::time::Duration;

use super::simulation::{Outcome, Path, Simulation, Transfer};
use crate::settings::CongestionKind;
use crate::test_config::TestConfig;
use crate::tuning::Tuning;

/// 20 ms there and back, 100 Mbit/s, and a queue of about one bandwidth-delay product.
fn path() -> Path {
    Path {
        rate: 100_000_000,
        queue: 170,
        ..Path::clean(Duration::from_millis(10))
    }
}

fn transfer(path: Path, congestion: CongestionKind, bytes: u64) -> Transfer {
    Transfer {
        path,
        config: TestConfig::default().with(|c| {
            c.settings.congestion = congestion;
            c.shared_mut().tuning = Tuning::OWN;
        }),
        mss: 1448,
        sack: true,
        timestamps: true,
        ecn: false,
        bytes,
        write: 1 << 20,
        buffer: 8 << 20,
        read_every: Duration::ZERO,
        delayed_ack: Duration::from_millis(40),
        shrink_mss: None,
    }
}

fn mbit_per_s(bytes: u64, outcome: &Outcome) -> f64 {
    bytes as f64 * 8.0 / outcome.time.as_secs_f64() / 1e6
}

/// Runs a few seeds and returns the mean rate.
fn mean_rate(transfer: &Transfer) -> f64 {
    let seeds = 4;
    let rates = (0..seeds).map(|seed| {
        mbit_per_s(
            transfer.bytes,
            &Simulation::new(seed, transfer.clone()).run(),
        )
    });
    rates.sum::<f64>() / seeds as f64
}

/// Segments per round trip that an additive increase of `alpha` and a decrease to `beta` hold at a loss rate of `p`:
/// sqrt(alpha (1 + beta) / (2 (1 - beta) p)), RFC 9438 4.3. The same for Reno and for CUBIC's Reno-friendly region.
fn aimd_window(p: f64) -> f64 {
    let (alpha, beta) = (1.0, 0.5);
    (alpha * (1.0 + beta) / (2.0 * (1.0 - beta) * p)).sqrt()
}

fn aimd_rate(p: f64) -> f64 {
    aimd_window(p) * 1448.0 * 8.0 / 0.02 / 1e6
}

/// Returns the share of [`aimd_rate`] that transfers of 8 MB reach.
fn share(congestion: CongestionKind, loss_per_mille: u64) -> f64 {
    let path = Path {
        loss: loss_per_mille,
        ..path()
    };
    mean_rate(&transfer(path, congestion, 8_000_000)) / aimd_rate(loss_per_mille as f64 / 1000.0)
}

#[test]
fn one_percent_loss_has_the_throughput_of_the_formula() {
    for kind in [CongestionKind::Cubic, CongestionKind::NewReno] {
        let share = share(kind, 10);
        assert!((0.85..1.3).contains(&share), "{kind:?}: {share}");
    }
}

#[test]
fn five_percent_loss_keeps_most_of_it() {
    // The formula knows no timeouts, of which there are many at five segments per round trip.
    for kind in [CongestionKind::Cubic, CongestionKind::NewReno] {
        let share = share(kind, 50);
        assert!((0.65..1.3).contains(&share), "{kind:?}: {share}");
    }
}

#[test]
fn a_link_without_errors_is_filled() {
    for kind in [CongestionKind::Cubic, CongestionKind::NewReno] {
        let rate = mean_rate(&transfer(path(), kind, 60_000_000));
        // 95.6 Mbit/s of 100 are payload.
        assert!(rate > 90.0, "{kind:?}: {rate} Mbit/s");
    }
}

#[test]
fn bbr_fills_a_link_without_errors_and_one_that_loses_a_hundredth() {
    let clean = mean_rate(&transfer(path(), CongestionKind::Bbr, 60_000_000));
    assert!(clean > 85.0, "{clean} Mbit/s");
    let lossy = Path { loss: 10, ..path() };
    let rate = mean_rate(&transfer(lossy, CongestionKind::Bbr, 60_000_000));
    // The others get 17 Mbit/s.
    assert!(rate > 75.0, "{rate} Mbit/s");
}

#[test]
fn bbr_keeps_its_rate_where_its_thread_waits_for_a_processor() {
    for (ms, loss) in [(1, 0), (1, 10), (4, 0), (4, 10), (8, 0), (8, 10)] {
        let path = Path { loss, ..path() };
        let transfer = transfer(path, CongestionKind::Bbr, 30_000_000);
        let late = Simulation::new(1, transfer).with_late_sender(Duration::from_millis(ms));
        let rate = mbit_per_s(30_000_000, &late.run());
        assert!(rate > 80.0, "{ms} ms, {loss} lost of 1,000: {rate} Mbit/s");
    }
}

#[test]
fn pacing_fills_it_too() {
    let mut paced = transfer(path(), CongestionKind::Cubic, 30_000_000);
    paced.config.shared_mut().pacing = true;
    let outcome = Simulation::new(1, paced).run();
    let rate = mbit_per_s(30_000_000, &outcome);
    assert!(rate > 90.0, "{rate} Mbit/s");
}

#[test]
fn reordering_is_not_taken_for_loss() {
    let bad = Path {
        reorder: 20,
        reorder_by: Duration::from_millis(4),
        ..path()
    };
    let outcome = Simulation::new(1, transfer(bad, CongestionKind::Cubic, 60_000_000)).run();
    let rate = mbit_per_s(60_000_000, &outcome);
    assert!(rate > 80.0, "{rate} Mbit/s");
    assert!(outcome.info.reord_seen > 100);
    // 41,000 packets, 800 of them late: without the reordering window each would go out twice.
    assert!(
        outcome.info.total_retrans < 600,
        "{}",
        outcome.info.total_retrans
    );
}

#[test]
fn the_records_stay_few_when_every_hundredth_packet_is_lost() {
    let path = Path {
        loss: 10,
        rate: 0,
        ..path()
    };
    let mut transfer = transfer(path, CongestionKind::Cubic, 8_000_000);
    transfer.config.shared_mut().initial_cwnd = 3000;
    let outcome = Simulation::new(3, transfer).run();
    // 3,000 packets in flight.
    assert!(outcome.most_records < 150, "{}", outcome.most_records);
}

#[test]
fn what_arrived_is_not_sent_again_over_a_path_that_keeps_the_order() {
    for kind in [CongestionKind::NewReno, CongestionKind::Cubic] {
        for seed in 0..8 {
            let path = Path {
                loss: 10,
                ..Path::clean(Duration::from_millis(20))
            };
            let outcome = Simulation::new(seed, transfer(path, kind, 8_000_000)).run();
            assert_eq!(outcome.info.dsack_dups, 0, "{kind:?}, seed {seed}");
        }
    }
}
