//! What the path loses by chance: measured where the sender does not probe, and nobody's queue delays its packets.
//!
//! The draft tolerates 2 % (LossThresh), whatever the path loses anyway: each probe of a radio link that loses 5 % ends at once, and the
//! long-term bound falls with each. Here a probe may lose that much beyond what the path loses without it. Losses of a full queue do
//! not count as the path's: packets that come through it are late.

use core::time::Duration;

use crate::congestion::delivery::DeliverySample;

/// Share of the bytes in flight whose loss is tolerated while the path is probed, beyond those by chance (LossThresh).
const LOSS_THRESHOLD: f64 = 0.02;

/// How many losses a round trip may have for each that the path has on average: their number varies.
const SPREAD: f64 = 1.5;

/// Largest share that is taken for chance: what drops more is rather a policer, which has no queue either.
const SHARE_MAX: f64 = 0.10;

/// Weight of a round trip in the average.
const WEIGHT: f64 = 0.25;

/// How much longer than the shortest round trip one without a queue takes, at most: the larger of an eighth and this.
const JITTER: Duration = Duration::from_micros(300);

/// The share of the bytes that the path loses by chance.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct ChanceLosses {
    share: Option<f64>,
}

impl ChanceLosses {
    /// Takes a round trip without a queue that did not probe.
    pub(super) fn on_round(&mut self, sample: &DeliverySample) {
        let all = sample.lost as f64 + sample.delivered as f64;
        let lost = sample.lost as f64 / all.max(1.0);
        let share = self.share.unwrap_or(lost);
        self.share = Some((share + WEIGHT * (lost - share)).min(SHARE_MAX));
    }

    /// Returns the share of the bytes in flight whose loss is tolerated.
    pub(super) fn tolerated(&self) -> f64 {
        LOSS_THRESHOLD + SPREAD * self.share.unwrap_or(0.0)
    }
}

/// Returns whether a packet that took `rtt` met no queue, on a path whose shortest round trip this is.
pub(super) fn met_no_queue(rtt: Option<Duration>, shortest: Option<Duration>) -> bool {
    rtt.zip(shortest)
        .is_some_and(|(rtt, shortest)| rtt <= shortest + JITTER.max(shortest / 8))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn round(lost: u64) -> DeliverySample {
        DeliverySample {
            rate: 1000.0,
            delivered: 100_000 - lost,
            prior_delivered: 0,
            lost,
            in_flight_then: 100_000,
            limited: false,
        }
    }

    #[test]
    fn a_path_without_losses_tolerates_two_percent_of_a_probe() {
        let mut chance = ChanceLosses::default();
        assert!((chance.tolerated() - 0.02).abs() < 1e-9);
        chance.on_round(&round(0));
        assert!((chance.tolerated() - 0.02).abs() < 1e-9);
    }

    #[test]
    fn the_first_round_counts_fully_and_each_further_one_by_a_quarter() {
        let mut chance = ChanceLosses::default();
        chance.on_round(&round(4000));
        assert!((chance.tolerated() - 0.08).abs() < 1e-9);
        chance.on_round(&round(0));
        assert!((chance.tolerated() - 0.065).abs() < 1e-9);
    }

    #[test]
    fn no_path_counts_for_more_than_a_tenth() {
        let mut chance = ChanceLosses::default();
        chance.on_round(&round(100_000));
        assert!((chance.tolerated() - 0.17).abs() < 1e-9);
        let nothing = DeliverySample {
            delivered: 0,
            ..round(0)
        };
        chance.on_round(&nothing);
        assert!(chance.tolerated() < 0.17);
    }

    #[test]
    fn a_late_packet_has_met_a_queue() {
        let micros = |us| Some(Duration::from_micros(us));
        assert!(met_no_queue(micros(400), micros(100)));
        assert!(!met_no_queue(micros(401), micros(100)));
        assert!(met_no_queue(micros(45_000), micros(40_000)));
        assert!(!met_no_queue(micros(45_001), micros(40_000)));
        assert!(!met_no_queue(None, micros(100)) && !met_no_queue(micros(100), None));
    }
}
