//! The lines of `recv --interval`: how much was received in each interval, and at which rate.

use std::time::Duration;

use crate::rate::{Rate, RateUnit};
use crate::receive::Counts;
use crate::size::{Size, SizeUnit};

/// Divides the time of receiving into intervals. Like that time, they do not include the time between connections.
#[derive(Debug)]
pub struct Intervals {
    every: Duration,
    /// Start of the current interval, and the bytes received before it.
    start: Duration,
    bytes: u64,
    /// Units of the columns: those that fit the first interval with bytes.
    units: Option<(SizeUnit, RateUnit)>,
}

impl Intervals {
    /// Starts with an interval at the first byte.
    pub fn new(every: Duration) -> Self {
        Self {
            every,
            start: Duration::ZERO,
            bytes: 0,
            units: None,
        }
    }

    /// Returns the line of the current interval if it has ended: after its time, or because no connection is open any more.
    pub fn line(&mut self, counts: &Counts) -> Option<String> {
        let idle = counts.open == 0;
        let end = if idle { counts.elapsed } else { counts.running };
        let bytes = counts.bytes - self.bytes;
        let length = end.saturating_sub(self.start);
        if length < self.every && !(idle && bytes > 0) {
            return None;
        }
        let times = format!("{:.1}-{:.1} s", self.start.as_secs_f64(), end.as_secs_f64());
        let (size, rate) = (Size(bytes), Rate::of(bytes, length));
        self.start = end;
        self.bytes = counts.bytes;
        if bytes > 0 {
            self.units.get_or_insert((size.unit(), rate.unit()));
        }
        let (of_size, of_rate) = self.units.unwrap_or((size.unit(), rate.unit()));
        let (size, rate) = (size.in_unit(of_size), rate.in_unit(of_rate));
        Some(format!("{times:>13}  {size:>10}  {rate}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counts(open: usize, mib: u64, elapsed_ms: u64, running_ms: u64) -> Counts {
        Counts {
            accepted: 1,
            open,
            bytes: mib << 20,
            elapsed: Duration::from_millis(elapsed_ms),
            running: Duration::from_millis(running_ms),
        }
    }

    #[test]
    fn every_interval_has_its_own_bytes_and_rate() {
        let mut intervals = Intervals::new(Duration::from_secs(1));
        assert_eq!(intervals.line(&counts(1, 100, 500, 500)), None);
        assert_eq!(
            intervals.line(&counts(1, 125, 1000, 1000)).unwrap(),
            "    0.0-1.0 s     125 MiB  1.0 Gbit/s"
        );
        // A connection that sends nothing has a line, too.
        assert_eq!(
            intervals.line(&counts(1, 125, 1000, 2000)).unwrap(),
            "    1.0-2.0 s       0 MiB  0.0 Gbit/s"
        );
    }

    #[test]
    fn the_last_interval_ends_with_the_last_connection() {
        let mut intervals = Intervals::new(Duration::from_secs(1));
        assert_eq!(
            intervals.line(&counts(0, 50, 200, 200)).unwrap(),
            "    0.0-0.2 s      50 MiB  2.1 Gbit/s"
        );
        // Idle: no lines until the next byte.
        assert_eq!(intervals.line(&counts(0, 50, 200, 200)), None);
        assert_eq!(intervals.line(&counts(1, 60, 300, 300)), None);
        assert!(intervals.line(&counts(1, 99, 1200, 1200)).is_some());
    }
}
