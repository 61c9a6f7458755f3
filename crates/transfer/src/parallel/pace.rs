//! Whether a connection makes progress: payload counts, and what a server sends around it does not.

use std::time::{Duration, Instant};

/// Payload bytes that are progress in each period of the limit. A server that sends one byte now and then would hold a load for
/// years otherwise; 4 KiB in 30 s are less than a modem of 1984 carried.
pub(crate) const LEAST_BYTES: u64 = 4 << 10;

/// The progress of one connection.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pace {
    /// Start of the period.
    since: Instant,
    /// Payload bytes in the period.
    bytes: u64,
}

impl Pace {
    /// Starts a period.
    pub(crate) fn new(now: Instant) -> Self {
        Self {
            since: now,
            bytes: 0,
        }
    }

    /// Starts another period: a request is complete, or none is awaited.
    pub(crate) fn restart(&mut self, now: Instant) {
        *self = Self::new(now);
    }

    /// Counts payload bytes.
    pub(crate) fn add(&mut self, bytes: u64, now: Instant) {
        self.bytes = self.bytes.saturating_add(bytes);
        if self.bytes >= LEAST_BYTES {
            self.restart(now);
        }
    }

    /// Checks that the period is not longer than `limit`.
    ///
    /// # Errors
    /// How little payload was moved in it.
    pub(crate) fn check(&self, now: Instant, limit: Duration) -> Result<(), TooSlow> {
        match now.saturating_duration_since(self.since) > limit {
            true => Err(TooSlow {
                bytes: self.bytes,
                limit,
            }),
            false => Ok(()),
        }
    }
}

/// A connection has made too little progress.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{bytes} bytes of payload in {limit:?}, where {LEAST_BYTES} are the least")]
pub(crate) struct TooSlow {
    /// Payload bytes in the period.
    pub(crate) bytes: u64,
    limit: Duration,
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: Duration = Duration::from_secs(30);

    fn second(seconds: u64, start: Instant) -> Instant {
        start + Duration::from_secs(seconds)
    }

    #[test]
    fn a_byte_now_and_then_is_no_progress() {
        let start = Instant::now();
        let mut pace = Pace::new(start);
        for at in 1..=30 {
            pace.add(1, second(at, start));
            assert_eq!(pace.check(second(at, start), LIMIT), Ok(()), "{at}");
        }
        let slow = pace.check(second(31, start), LIMIT).unwrap_err();
        assert_eq!(slow.bytes, 30);
    }

    #[test]
    fn a_slow_server_that_brings_the_least_goes_on_for_ever() {
        let start = Instant::now();
        let mut pace = Pace::new(start);
        for at in 1..=10_000 {
            pace.add(LEAST_BYTES / 30 + 1, second(at, start));
            assert_eq!(pace.check(second(at, start), LIMIT), Ok(()), "{at}");
        }
    }

    #[test]
    fn a_whole_piece_is_progress_however_short_it_is() {
        let start = Instant::now();
        let mut pace = Pace::new(start);
        for at in (20..1000).step_by(20) {
            pace.add(1, second(at, start));
            assert_eq!(pace.check(second(at, start), LIMIT), Ok(()), "{at}");
            pace.restart(second(at, start));
        }
    }
}
