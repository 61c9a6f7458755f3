//! The current rate of a byte counter, and its history.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// Time over which the current rate is averaged.
const WINDOW: Duration = Duration::from_secs(1);
/// Time between two values of the history, and their maximum number.
const STEP: Duration = Duration::from_millis(500);
const VALUES: usize = 400;

/// Measures the rate of a byte counter.
#[derive(Debug, Default)]
pub struct Meter {
    /// Readings of the counter within the window, oldest first.
    readings: VecDeque<(Instant, u64)>,
    /// Rates in Mbit/s, oldest first.
    history: VecDeque<u64>,
    stepped: Option<Instant>,
}

impl Meter {
    /// Adds a reading of the counter; returns the current rate in bits per second.
    pub fn rate(&mut self, now: Instant, bytes: u64) -> f64 {
        self.readings.push_back((now, bytes));
        // The oldest reading is at least one window old, once there are so many.
        while let Some(&(second, _)) = self.readings.get(1)
            && now.duration_since(second) >= WINDOW
        {
            self.readings.pop_front();
        }
        let rate = match self.readings.front() {
            Some(&(then, before)) if now > then => {
                bytes.saturating_sub(before) as f64 * 8.0 / now.duration_since(then).as_secs_f64()
            }
            _ => 0.0,
        };
        if self.stepped.is_none_or(|at| now.duration_since(at) >= STEP) {
            self.stepped = Some(now);
            self.history.push_back((rate / 1e6) as u64);
            if self.history.len() > VALUES {
                self.history.pop_front();
            }
        }
        rate
    }

    /// Returns whether the last reading is from this time.
    pub fn was_read_at(&self, now: Instant) -> bool {
        self.readings.back().is_some_and(|(at, _)| *at == now)
    }

    /// Returns the rates in Mbit/s, oldest first.
    pub fn history(&self) -> Vec<u64> {
        self.history.iter().copied().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rate_is_that_of_the_last_second() {
        let start = Instant::now();
        let at = |ms| start + Duration::from_millis(ms);
        let mut meter = Meter::default();
        assert_eq!(meter.rate(at(0), 0), 0.0);
        assert_eq!(meter.rate(at(500), 1_000_000), 16e6);
        assert_eq!(meter.rate(at(1000), 2_000_000), 16e6);
        // Nothing more arrives.
        assert_eq!(meter.rate(at(1500), 2_000_000), 8e6);
        assert_eq!(meter.rate(at(2000), 2_000_000), 0.0);
        assert_eq!(meter.history(), [0, 16, 16, 8, 0]);
        assert!(meter.was_read_at(at(2000)));
        assert!(!meter.was_read_at(at(2001)));
    }
}
