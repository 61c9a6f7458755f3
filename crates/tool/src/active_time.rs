//! The time of receiving: only while a connection is open, from its first byte on.

use std::time::{Duration, Instant};

/// Time during which at least one connection is open and has sent bytes. The time between connections is not part of it.
#[derive(Clone, Copy, Debug, Default)]
pub struct ActiveTime {
    /// Time of earlier connections.
    earlier: Duration,
    /// First and last byte of the connections that are open now.
    now: Option<(Instant, Instant)>,
}

impl ActiveTime {
    /// Records that bytes were received at `now`.
    pub fn received(&mut self, now: Instant) {
        let (_, last) = self.now.get_or_insert((now, now));
        *last = now;
    }

    /// Records that no connection is open any more.
    pub fn idle(&mut self) {
        self.earlier = self.to_last_byte();
        self.now = None;
    }

    /// Returns the time up to the last byte.
    pub fn to_last_byte(self) -> Duration {
        self.earlier
            + self
                .now
                .map_or(Duration::ZERO, |(first, last)| last - first)
    }

    /// Returns the time up to `now`, with that since the last byte if a connection is open.
    pub fn until(self, now: Instant) -> Duration {
        let open = self
            .now
            .map(|(first, _)| now.saturating_duration_since(first));
        self.earlier + open.unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_without_a_connection_does_not_count() {
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let mut time = ActiveTime::default();
        assert_eq!(time.until(at(9)), Duration::ZERO, "no byte yet");
        time.received(at(10));
        time.received(at(12));
        assert_eq!(time.until(at(15)), Duration::from_secs(5), "still open");
        time.idle();
        assert_eq!(time.until(at(90)), Duration::from_secs(2));
        time.received(at(100));
        time.received(at(103));
        assert_eq!(time.to_last_byte(), Duration::from_secs(5));
    }
}
