//! Round-trip time, and the retransmission timeout that follows from it (RFC 6298).

use core::time::Duration;

use wire::Instant;

use crate::config::RTO_MAX;

/// Half of the time over which the smallest round-trip time is remembered (linux `tcp_min_rtt_wlen`: 300 s).
const MIN_RTT_HALF_WINDOW: Duration = Duration::from_secs(150);

/// The largest useful exponent: 1 ms doubled so often is past [`RTO_MAX`].
const BACKOFF_MAX: u8 = 17;

/// Timeout of the first data when the handshake itself timed out and gave no sample (RFC 6298 5.7).
const RTO_AFTER_LOST_SYN: Duration = Duration::from_secs(3);

/// SRTT, RTTVAR, the backed off timeout and the smallest round-trip time of the last minutes.
#[derive(Debug, Clone)]
pub(crate) struct RttEstimator {
    /// SRTT in nanoseconds; 0 before the first sample.
    srtt_ns: u64,
    rttvar_ns: u64,
    rto_min_ns: u64,
    /// Timeout before the first sample.
    rto_initial_ns: u64,
    /// Smallest samples of the running and of the previous half window; `u64::MAX` for none.
    min_ns: [u64; 2],
    half_window_ends: Instant,
    backoff: u8,
}

impl RttEstimator {
    /// Returns an estimator without samples.
    pub(crate) fn new(rto_initial: Duration, rto_min: Duration) -> RttEstimator {
        RttEstimator {
            srtt_ns: 0,
            rttvar_ns: 0,
            rto_min_ns: nanos(rto_min),
            rto_initial_ns: nanos(rto_initial),
            min_ns: [u64::MAX; 2],
            half_window_ends: Instant::ZERO,
            backoff: 0,
        }
    }

    /// Takes a round-trip time measured on a segment that was sent once, or by a timestamp (RFC 6298 2, 3).
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
        let rtt = nanos(rtt).max(1);
        if now >= self.half_window_ends {
            let stale = now >= self.half_window_ends + MIN_RTT_HALF_WINDOW;
            self.min_ns = [u64::MAX, if stale { u64::MAX } else { self.min_ns[0] }];
            self.half_window_ends = now + MIN_RTT_HALF_WINDOW;
        }
        self.min_ns[0] = self.min_ns[0].min(rtt);
    }

    /// Starts with a longer timeout, because the SYN was lost and could not be timed (RFC 6298 5.7).
    pub(crate) fn on_lost_syn(&mut self) {
        self.rto_initial_ns = self.rto_initial_ns.max(nanos(RTO_AFTER_LOST_SYN));
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
        let min = self.min_ns[0].min(self.min_ns[1]);
        (min != u64::MAX).then(|| Duration::from_nanos(min))
    }

    /// Returns the timeout before any backoff: SRTT + max(4 RTTVAR, minimum).
    ///
    /// The minimum stands in for the variance and not, as in RFC 6298 2.4, for the whole: a peer may hold back its
    /// ACK for up to 200 ms on any path (linux `__tcp_set_rto`).
    pub(crate) fn base_rto(&self) -> Duration {
        let rto = match self.srtt_ns {
            0 => self.rto_initial_ns,
            srtt => srtt.saturating_add(self.rttvar_ns.saturating_mul(4).max(self.rto_min_ns)),
        };
        Duration::from_nanos(rto).min(RTO_MAX)
    }

    /// Returns the timeout as it stands, doubled for every timeout since the last sample, at most 120 s.
    pub(crate) fn rto(&self) -> Duration {
        backed_off(self.base_rto(), self.backoff)
    }

    /// Doubles the timeout (RFC 6298 5.5).
    pub(crate) fn back_off(&mut self) {
        self.backoff = (self.backoff + 1).min(BACKOFF_MAX);
    }
}

/// Returns `timeout` doubled `times` times, at most [`RTO_MAX`].
pub(crate) fn backed_off(timeout: Duration, times: u8) -> Duration {
    let factor = 1u32 << times.min(BACKOFF_MAX);
    timeout.saturating_mul(factor).min(RTO_MAX)
}

fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{RTO_INITIAL, RTO_MIN};

    fn ms(millis: u64) -> Duration {
        Duration::from_millis(millis)
    }

    fn estimator() -> RttEstimator {
        RttEstimator::new(RTO_INITIAL, RTO_MIN)
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
        let start = Instant::from_millis(5);
        rtt.note_min(ms(10), start);
        rtt.note_min(ms(30), start + Duration::from_secs(151));
        assert_eq!(rtt.min_rtt(), Some(ms(10)));
        rtt.note_min(ms(40), start + Duration::from_secs(302));
        assert_eq!(rtt.min_rtt(), Some(ms(30)));
        rtt.note_min(ms(50), start + Duration::from_secs(3000));
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
