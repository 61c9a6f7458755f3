//! How much loss has shown to be too much: bounds of the bandwidth and of the data in flight (draft-ietf-ccwg-bbr 5.5.10).
//!
//! The long-term bound is the most in flight that a probe for more bandwidth found to be safe. The short-term bounds fall in each round
//! trip with losses between two probes, by 0.7 at most and not below what was carried, and a probe forgets them.
//!
//! Losses within the tolerance ([`super::chance`]) lower nothing in a round trip without a queue, and count as carried in any other. The
//! draft's bounds fall by the losses of each round trip even if nothing else has changed: after the 63 round trips between two probes, a
//! path that loses 1 % by chance would be used to a half.

use crate::congestion::delivery::DeliverySample;

/// Factor of the short-term bounds in a round trip with losses (Beta).
const BETA: f64 = 0.7;

/// Share of the long-term bound that is left to others (Headroom).
const HEADROOM: f64 = 0.15;

/// Rounds of probing after which the long-term bound grows no faster: by 2^30 segments in a round.
const GROWTH_ROUNDS_MAX: u32 = 30;

/// The bounds, `None` where there is none.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub(super) struct Bounds {
    /// Bytes per second.
    pub(super) bandwidth: Option<f64>,
    /// Bytes in flight, until the next probe.
    pub(super) short_term: Option<u64>,
    /// Bytes in flight.
    pub(super) long_term: Option<u64>,
}

impl Bounds {
    /// Forgets the short-term bounds: a probe begins.
    pub(super) fn forget_short_term(&mut self) {
        self.bandwidth = None;
        self.short_term = None;
    }

    /// Lowers the short-term bounds after a round trip with losses, in which at most `carried` was in flight, at which rate.
    pub(super) fn on_lossy_round(&mut self, max_bandwidth: f64, cwnd: u64, carried: &Latest) {
        let bandwidth = self.bandwidth.unwrap_or(max_bandwidth);
        self.bandwidth = Some(carried.rate.max(BETA * bandwidth).min(bandwidth));
        let in_flight = self.short_term.unwrap_or(cwnd);
        let least = (BETA * in_flight as f64) as u64;
        self.short_term = Some(carried.delivered.max(least).min(in_flight));
    }

    /// Returns the long-term bound less what is left to others; never less than `least`.
    pub(super) fn with_headroom(&self, mss: u64, least: u64) -> Option<u64> {
        let bound = self.long_term?;
        let headroom = mss.max((HEADROOM * bound as f64) as u64);
        Some(bound.saturating_sub(headroom).max(least))
    }
}

/// Returns the long-term bound that a sample with too many losses gives, where `target` bytes fill the path.
pub(super) fn bound_after_losses(sample: &DeliverySample, target: u64) -> u64 {
    sample.in_flight_then.max((BETA * target as f64) as u64)
}

/// Returns whether more was lost than this share of what was in flight.
pub(super) fn is_too_much(sample: &DeliverySample, tolerated: f64) -> bool {
    sample.lost as f64 > tolerated * sample.in_flight_then as f64
}

/// The most that was delivered in the running round of losses, and the highest rate (draft 5.5.10.3).
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Latest {
    pub(super) rate: f64,
    pub(super) delivered: u64,
}

impl Latest {
    /// Returns what the path has carried: with the losses of the round trip of `sample` that are tolerated.
    pub(super) fn with_tolerated(&self, sample: &DeliverySample, tolerated: f64) -> Latest {
        let most = tolerated * sample.in_flight_then as f64;
        let tolerated = (sample.lost as f64).min(most);
        let share = 1.0 + tolerated / sample.delivered.max(1) as f64;
        Latest {
            rate: self.rate * share,
            delivered: (self.delivered as f64 * share) as u64,
        }
    }

    pub(super) fn on_sample(&mut self, sample: &DeliverySample) {
        self.rate = self.rate.max(sample.rate);
        self.delivered = self.delivered.max(sample.delivered);
    }

    pub(super) fn of(sample: &DeliverySample) -> Latest {
        Latest {
            rate: sample.rate,
            delivered: sample.delivered,
        }
    }
}

/// How fast a probe raises the long-term bound: by one segment in its first round trip, by twice as many in each further one
/// (draft 5.3.3.6).
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Growth {
    rounds: u32,
    /// Bytes acknowledged that have not raised the bound yet.
    acked: u64,
    /// Bytes that raise it by one segment.
    per_segment: u64,
}

impl Growth {
    /// Begins a probe with a window of `cwnd` bytes.
    pub(super) fn begin(cwnd: u64, mss: u64) -> Growth {
        let mut growth = Growth::default();
        growth.accelerate(cwnd, mss);
        growth
    }

    /// Takes `acked` bytes; returns by how many bytes the bound grows.
    pub(super) fn on_ack(&mut self, acked: u64, round_begins: bool, cwnd: u64, mss: u64) -> u64 {
        self.acked += acked;
        let per_segment = self.per_segment.max(1);
        let segments = self.acked / per_segment;
        self.acked %= per_segment;
        if round_begins {
            self.accelerate(cwnd, mss);
        }
        segments * mss
    }

    fn accelerate(&mut self, cwnd: u64, mss: u64) {
        let segments = 1_u64 << self.rounds;
        self.rounds = (self.rounds + 1).min(GROWTH_ROUNDS_MAX);
        self.per_segment = (cwnd / segments).max(mss);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(delivered: u64, lost: u64, in_flight_then: u64) -> DeliverySample {
        DeliverySample {
            rate: 1000.0,
            delivered,
            prior_delivered: 0,
            lost,
            in_flight_then,
            limited: false,
        }
    }

    #[test]
    fn two_percent_are_tolerated() {
        assert!(!is_too_much(&sample(98_000, 2_000, 100_000), 0.02));
        assert!(is_too_much(&sample(97_999, 2_001, 100_000), 0.02));
        assert_eq!(bound_after_losses(&sample(0, 9, 100), 1000), 700);
        assert_eq!(bound_after_losses(&sample(0, 9, 800), 1000), 800);
    }

    #[test]
    fn tolerated_losses_count_as_carried() {
        let latest = Latest {
            rate: 990.0,
            delivered: 99_000,
        };
        let carried = |lost| latest.with_tolerated(&sample(99_000, lost, 100_000), 0.02);
        assert_eq!(carried(1000).delivered, 100_000);
        let most = carried(10_000).delivered;
        assert!((100_999..=101_000).contains(&most), "two percent at most");
        assert!((carried(1000).rate - 1000.0).abs() < 1e-6);
        assert_eq!(carried(0).delivered, 99_000);
    }

    #[test]
    fn lossy_rounds_lower_the_short_term_bounds_down_to_what_arrives() {
        let mut bounds = Bounds::default();
        let latest = Latest {
            rate: 40.0,
            delivered: 400,
        };
        bounds.on_lossy_round(100.0, 1000, &latest);
        assert_eq!(
            (bounds.bandwidth, bounds.short_term),
            (Some(70.0), Some(700))
        );
        bounds.on_lossy_round(100.0, 1000, &latest);
        bounds.on_lossy_round(100.0, 1000, &latest);
        assert_eq!(
            (bounds.bandwidth, bounds.short_term),
            (Some(40.0), Some(400))
        );
        bounds.forget_short_term();
        assert_eq!(bounds, Bounds::default());
    }

    #[test]
    fn headroom_is_left_to_others() {
        let mut bounds = Bounds::default();
        assert_eq!(bounds.with_headroom(10, 40), None);
        bounds.long_term = Some(1000);
        assert_eq!(bounds.with_headroom(10, 40), Some(850));
        bounds.long_term = Some(45);
        assert_eq!(bounds.with_headroom(10, 40), Some(40));
    }

    #[test]
    fn a_probe_grows_by_one_segment_then_two_then_four() {
        let (mss, cwnd) = (1000, 64_000);
        let mut growth = Growth::begin(cwnd, mss);
        let mut round = |begins| {
            let halves = [
                growth.on_ack(32_000, begins, cwnd, mss),
                growth.on_ack(32_000, false, cwnd, mss),
            ];
            halves.iter().sum::<u64>()
        };
        assert_eq!(round(false), 1000);
        assert_eq!(round(true), 2000);
        assert_eq!(round(true), 3000);
        assert_eq!(round(true), 6000);
    }
}
