//! A rate limit: a token bucket, counted in nanoseconds.

use wire::Instant;

/// A token bucket. An action costs `1 / rate` seconds; the bucket refills as time passes.
#[derive(Debug)]
pub struct RateLimit {
    /// Cost of one action.
    cost_ns: u64,
    /// Capacity of the bucket.
    burst_ns: u64,
    /// Time at which the bucket was, or will be, empty.
    spent_until: u64,
}

impl RateLimit {
    /// Returns a full bucket that allows `per_second` actions a second, and `burst` at once.
    pub const fn new(per_second: u64, burst: u64) -> Self {
        let cost_ns = 1_000_000_000 / per_second;
        Self {
            cost_ns,
            burst_ns: burst * cost_ns,
            spent_until: 0,
        }
    }

    /// Returns whether one more action is allowed, and counts it.
    pub fn allow(&mut self, now: Instant) -> bool {
        // Shifted by a burst, so that the bucket is full when the clock starts.
        let now = now.as_nanos().saturating_add(self.burst_ns);
        let next = self.spent_until.max(now - self.burst_ns) + self.cost_ns;
        if next > now {
            return false;
        }
        self.spent_until = next;
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_burst_passes_and_then_a_thousand_a_second() {
        for start_ms in [0, 10, 5_000] {
            let mut limit = RateLimit::new(1000, 50);
            let at = |ms: u64| Instant::from_millis(start_ms + ms);
            let burst = (0..500).filter(|_| limit.allow(at(0))).count();
            assert_eq!(burst, 50, "from {start_ms} ms");
            let later = (0..500).filter(|_| limit.allow(at(20))).count();
            assert!((19..=21).contains(&later), "{later} from {start_ms} ms");
        }
    }
}
