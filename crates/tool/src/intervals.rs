//! The lines of `recv --interval`: how much was received in each interval, and at which rate.

use std::time::Duration;

use crate::progress::gbit_per_s;
use crate::size::Size;

use crate::receive::Sofar;

/// Divides the time of receiving into intervals. Like that time, they do not include the time between connections.
#[derive(Debug)]
pub struct Intervals {
    every: Duration,
    /// Start of the current interval, and the bytes received before it.
    start: Duration,
    bytes: u64,
}

impl Intervals {
    /// Starts with an interval at the first byte.
    pub fn new(every: Duration) -> Self {
        Self {
            every,
            start: Duration::ZERO,
            bytes: 0,
        }
    }

    /// Returns the line of the current interval if it has ended: after its time, or because no connection is open any more.
    pub fn line(&mut self, sofar: &Sofar) -> Option<String> {
        let idle = sofar.open == 0;
        let end = if idle { sofar.elapsed } else { sofar.running };
        let bytes = sofar.bytes - self.bytes;
        let length = end.saturating_sub(self.start);
        if length < self.every && !(idle && bytes > 0) {
            return None;
        }
        let times = format!("{:.1}-{:.1} s", self.start.as_secs_f64(), end.as_secs_f64());
        let rate = gbit_per_s(bytes, length);
        self.start = end;
        self.bytes = sofar.bytes;
        let size = Size(bytes).to_string();
        Some(format!("{times:>13}  {size:>10}  {rate:.1} Gbit/s"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sofar(open: usize, mib: u64, elapsed_ms: u64, running_ms: u64) -> Sofar {
        Sofar {
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
        assert_eq!(intervals.line(&sofar(1, 100, 500, 500)), None);
        assert_eq!(
            intervals.line(&sofar(1, 125, 1000, 1000)).unwrap(),
            "    0.0-1.0 s     125 MiB  1.0 Gbit/s"
        );
        // A connection that sends nothing has a line, too.
        assert_eq!(
            intervals.line(&sofar(1, 125, 1000, 2000)).unwrap(),
            "    1.0-2.0 s         0 B  0.0 Gbit/s"
        );
    }

    #[test]
    fn the_last_interval_ends_with_the_last_connection() {
        let mut intervals = Intervals::new(Duration::from_secs(1));
        assert_eq!(
            intervals.line(&sofar(0, 50, 200, 200)).unwrap(),
            "    0.0-0.2 s      50 MiB  2.1 Gbit/s"
        );
        // Idle: no lines until the next byte.
        assert_eq!(intervals.line(&sofar(0, 50, 200, 200)), None);
        assert_eq!(intervals.line(&sofar(1, 60, 300, 300)), None);
        assert!(intervals.line(&sofar(1, 99, 1200, 1200)).is_some());
    }
}
