//! Additive increase and halving (RFC 5681 3.1, counting bytes as RFC 3465 does).

use super::input::Growth;

/// Divisor of the window after a loss (RFC 5681 equation 4).
const DECREASE_DIVISOR: u64 = 2;

/// State of NewReno's congestion avoidance.
#[derive(Debug, Clone, Default)]
pub(super) struct NewReno {
    /// Bytes acknowledged since the window last grew.
    acked: u64,
}

impl NewReno {
    /// Returns by how much the window grows: one segment for each round trip, which delivers the whole segments of a window.
    pub(super) fn on_ack(&mut self, cwnd: u64, growth: &Growth) -> u64 {
        let mss = u64::from(growth.mss.max(1));
        let round = (cwnd / mss).max(1) * mss;
        self.acked += growth.acked;
        let rounds = self.acked / round;
        self.acked -= rounds * round;
        rounds * mss
    }

    /// Returns the window after a loss.
    pub(super) fn on_loss(&mut self, cwnd: u64) -> u64 {
        self.acked = 0;
        cwnd / DECREASE_DIVISOR
    }
}

#[cfg(test)]
mod tests {
    use wire::Instant;

    use super::*;

    #[test]
    fn half_a_segment_that_cannot_be_sent_does_not_slow_the_growth() {
        let mut reno = NewReno::default();
        let mut cwnd = reno.on_loss(11_000);
        let segment = Growth {
            acked: 1000,
            mss: 1000,
            srtt: None,
            now: Instant::ZERO,
        };
        let mut windows = Vec::new();
        for round in [5, 6, 7] {
            for _ in 0..round {
                cwnd += reno.on_ack(cwnd, &segment);
            }
            windows.push(cwnd);
        }
        assert_eq!(windows, [6500, 7500, 8500]);
    }
}
