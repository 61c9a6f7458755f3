//! Round-trip time and retransmission timeout (RFC 6298).

use core::time::Duration;

use wire::Instant;

use crate::config::{RTO_MIN, TimerConfig};

/// Half of the time for which the smallest round-trip time is kept (linux `tcp_min_rtt_wlen`: 300 s).
const MIN_RTT_HALF_WINDOW: Duration = Duration::from_secs(150);

/// No round-trip time seen.
const NO_MIN: u32 = u32::MAX;

/// Largest exponent: 1 ms doubled so often is longer than any largest timeout.
const BACKOFF_MAX: u8 = 17;

/// First timeout of data if the SYN timed out, so that there is no sample (RFC 6298 5.7).
const RTO_AFTER_LOST_SYN: Duration = Duration::from_secs(3);

/// SRTT, RTTVAR, the backoff of the timeout, and the smallest round-trip time of the last minutes.
#[derive(Debug, Clone)]
pub(crate) struct RttEstimator {
    /// SRTT in nanoseconds; 0 before the first sample.
    srtt_ns: u64,
    rttvar_ns: u64,
    rto_max_us: u32,
    /// Timeout before the first sample.
    rto_initial_us: u32,
    /// Smallest samples of the current and of the previous half window.
    min_us: [u32; 2],
    /// Number of the current half window since the origin of the clock.
    half_window: u32,
    backoff: u8,
}

impl RttEstimator {
    /// Returns an estimator without samples.
    pub(crate) fn new(config: &TimerConfig) -> RttEstimator {
        RttEstimator {
            srtt_ns: 0,
            rttvar_ns: 0,
            rto_max_us: micros(config.rto_max),
            rto_initial_us: micros(config.rto_initial.min(config.rto_max)),
            min_us: [NO_MIN; 2],
            half_window: 0,
            backoff: 0,
        }
    }

    /// Adds a round-trip time that was measured on a segment sent once, or by a timestamp (RFC 6298 2, 3).
    ///
    /// A valid sample ends the backoff (Karn's algorithm, RFC 6298 5.7).
    pub(crate) fn on_sample(&mut self, rtt: Duration) {
        let rtt = nanos(rtt).max(1);
        if self.srtt_ns == 0 {
            self.srtt_ns = rtt;
            self.rttvar_ns = rtt / 2;
        } else {
            // RTTVAR <- 3/4 RTTVAR + 1/4 |SRTT - R'|, then SRTT <- 7/8 SRTT + 1/8 R'.
            let deviation = self.srtt_ns.abs_diff(rtt);
            self.rttvar_ns = self.rttvar_ns - self.rttvar_ns / 4 + deviation / 4;
            self.srtt_ns = (self.srtt_ns - self.srtt_ns / 8 + rtt / 8).max(1);
        }
        self.backoff = 0;
    }

    /// Notes a sample precise enough for [`RttEstimator::min_rtt`]; one from a millisecond clock is not.
    pub(crate) fn note_min(&mut self, rtt: Duration, now: Instant) {
        let half_window = (now.as_nanos() / MIN_RTT_HALF_WINDOW.as_nanos() as u64) as u32;
        self.min_us = match half_window.wrapping_sub(self.half_window) {
            0 => self.min_us,
            1 => [NO_MIN, self.min_us[0]],
            _ => [NO_MIN; 2],
        };
        self.half_window = half_window;
        self.min_us[0] = self.min_us[0].min(micros(rtt).max(1));
    }

    /// Starts with a longer timeout: the SYN was lost, so that its round trip could not be measured (RFC 6298 5.7).
    pub(crate) fn on_lost_syn(&mut self) {
        self.rto_initial_us = self.rto_initial_us.max(micros(RTO_AFTER_LOST_SYN));
    }

    /// Returns SRTT, `None` before the first sample.
    pub(crate) fn srtt(&self) -> Option<Duration> {
        (self.srtt_ns != 0).then(|| Duration::from_nanos(self.srtt_ns))
    }

    /// Returns RTTVAR, zero before the first sample.
    pub(crate) fn rttvar(&self) -> Duration {
        Duration::from_nanos(self.rttvar_ns)
    }

    /// Returns the smallest round-trip time of the last minutes.
    pub(crate) fn min_rtt(&self) -> Option<Duration> {
        let min = self.min_us[0].min(self.min_us[1]);
        (min != NO_MIN).then(|| Duration::from_micros(min.into()))
    }

    /// Returns the timeout before any backoff: SRTT + max(4 RTTVAR, minimum).
    ///
    /// The minimum applies to the variance and not, as in RFC 6298 2.4, to the sum: a peer may delay an
    /// ACK by up to 200 ms on any path (linux `__tcp_set_rto`).
    pub(crate) fn base_rto(&self) -> Duration {
        let rto = match self.srtt() {
            None => Duration::from_micros(self.rto_initial_us.into()),
            Some(srtt) => srtt.saturating_add(self.rttvar().saturating_mul(4).max(RTO_MIN)),
        };
        rto.min(self.rto_max())
    }

    fn rto_max(&self) -> Duration {
        Duration::from_micros(self.rto_max_us.into())
    }

    /// Returns the current timeout: doubled for every timeout since the last sample, up to the largest.
    pub(crate) fn rto(&self) -> Duration {
        self.backed_off(self.backoff)
    }

    /// Returns the timeout before any backoff, doubled `times` times, up to the largest.
    pub(crate) fn backed_off(&self, times: u8) -> Duration {
        let factor = 1u32 << times.min(BACKOFF_MAX);
        self.base_rto().saturating_mul(factor).min(self.rto_max())
    }

    /// Doubles the timeout (RFC 6298 5.5).
    pub(crate) fn back_off(&mut self) {
        self.backoff = (self.backoff + 1).min(BACKOFF_MAX);
    }

    /// Ends the backoff; returns whether the timeout was doubled.
    pub(crate) fn end_backoff(&mut self) -> bool {
        core::mem::take(&mut self.backoff) > 0
    }
}

fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

/// Returns whole microseconds, rounded up: 71 minutes at most.
fn micros(duration: Duration) -> u32 {
    u32::try_from(duration.as_nanos().div_ceil(1000)).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::RTO_MAX;

    fn ms(millis: u64) -> Duration {
        Duration::from_millis(millis)
    }

    fn estimator() -> RttEstimator {
        RttEstimator::new(&TimerConfig::default())
    }

    #[test]
    fn the_first_timeout_is_one_second() {
        assert_eq!(estimator().rto(), ms(1000));
        assert_eq!(estimator().srtt(), None);
        assert_eq!(estimator().min_rtt(), None);
    }

    #[test]
    fn the_first_sample_sets_srtt_and_half_of_it_as_variance() {
        let mut rtt = estimator();
        rtt.on_sample(ms(400));
        assert_eq!((rtt.srtt(), rtt.rttvar()), (Some(ms(400)), ms(200)));
        assert_eq!(rtt.rto(), ms(400 + 4 * 200));
    }

    #[test]
    fn later_samples_follow_the_formulas_of_rfc_6298() {
        let mut rtt = estimator();
        rtt.on_sample(ms(400));
        rtt.on_sample(ms(800));
        // RTTVAR = 3/4 * 200 + 1/4 * 400; SRTT = 7/8 * 400 + 1/8 * 800.
        assert_eq!((rtt.srtt(), rtt.rttvar()), (Some(ms(450)), ms(250)));
        assert_eq!(rtt.rto(), ms(450 + 4 * 250));
    }

    #[test]
    fn a_steady_path_keeps_the_minimum_above_srtt() {
        let mut rtt = estimator();
        for _ in 0..100 {
            rtt.on_sample(ms(20));
        }
        assert_eq!(rtt.srtt(), Some(ms(20)));
        assert_eq!(rtt.rto(), ms(220));
    }

    #[test]
    fn backoff_doubles_up_to_two_minutes_and_ends_with_a_sample() {
        let mut rtt = estimator();
        for expected in [2, 4, 8, 16, 32, 64, 120, 120] {
            rtt.back_off();
            assert_eq!(rtt.rto(), Duration::from_secs(expected));
        }
        for _ in 0..300 {
            rtt.back_off();
        }
        assert_eq!(rtt.rto(), RTO_MAX);
        rtt.on_sample(ms(10));
        assert_eq!(rtt.rto(), ms(210));
    }

    #[test]
    fn a_lost_syn_makes_the_first_timeout_three_seconds() {
        let mut rtt = estimator();
        rtt.on_lost_syn();
        assert_eq!(rtt.rto(), Duration::from_secs(3));
        rtt.on_sample(ms(10));
        assert_eq!(rtt.rto(), ms(210));
    }

    #[test]
    fn the_minimum_is_forgotten_after_five_minutes() {
        let mut rtt = estimator();
        let at = |seconds: u64| Instant::from_millis(5 + seconds * 1000);
        rtt.note_min(ms(10), at(0));
        rtt.note_min(ms(30), at(151));
        assert_eq!(rtt.min_rtt(), Some(ms(10)));
        rtt.note_min(ms(40), at(302));
        assert_eq!(rtt.min_rtt(), Some(ms(30)));
        rtt.note_min(ms(50), at(3000));
        assert_eq!(rtt.min_rtt(), Some(ms(50)));
    }

    #[test]
    fn extreme_samples_do_not_overflow() {
        let mut rtt = estimator();
        rtt.on_sample(Duration::MAX);
        rtt.on_sample(Duration::ZERO);
        assert_eq!(rtt.rto(), RTO_MAX);
        rtt.on_sample(Duration::MAX);
        rtt.note_min(Duration::MAX, Instant::from_nanos(u64::MAX));
        assert_eq!(rtt.rto(), RTO_MAX);
    }
}
