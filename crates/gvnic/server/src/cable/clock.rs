//! The time on a cable.

use std::time::{Duration, Instant as Clock};

use wire::Instant;

use crate::plan::Lateness;

/// How late a cable may be that keeps frames apart.
const LATE_MAX: Duration = Duration::from_micros(200);

/// The time on a cable: that of the machine, or less.
#[derive(Debug)]
pub struct CableClock {
    start: Clock,
    lateness: Lateness,
    /// Time of the machine in which it was not this cable's turn, and which did not pass on it.
    stood_still: Duration,
}

impl CableClock {
    /// Returns a clock that starts now.
    pub fn new(lateness: Lateness) -> Self {
        Self {
            start: Clock::now(),
            lateness,
            stood_still: Duration::ZERO,
        }
    }

    /// Returns the time of the machine since the start.
    pub fn elapsed(&self) -> Duration {
        self.start.elapsed()
    }

    /// Returns the time on the cable.
    pub fn now(&self) -> Instant {
        self.at(self.elapsed())
    }

    /// Notes that the cable works on, where a frame was `due`.
    pub fn work_on(&mut self, due: Option<Instant>) {
        self.work_on_at(self.elapsed(), due);
    }

    fn at(&self, elapsed: Duration) -> Instant {
        let passed = elapsed.saturating_sub(self.stood_still);
        // 2^64 ns are 584 years.
        Instant::from_nanos(u64::try_from(passed.as_nanos()).unwrap_or(u64::MAX))
    }

    fn work_on_at(&mut self, elapsed: Duration, due: Option<Instant>) {
        if self.lateness == Lateness::CatchesUp {
            return;
        }
        let late = due.map(|due| self.at(elapsed).saturating_since(due));
        self.stood_still += late.filter(|&late| late > LATE_MAX).unwrap_or_default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    /// Returns the time on a cable that works on after 20 ms although a frame was due after 10, and 5 ms later.
    fn after_a_stall(lateness: Lateness) -> [Instant; 2] {
        let mut clock = CableClock::new(lateness);
        clock.work_on_at(20 * MS, Some(Instant::from_millis(10)));
        [clock.at(20 * MS), clock.at(25 * MS)]
    }

    #[test]
    fn time_does_not_pass_on_a_cable_that_keeps_frames_apart_while_it_is_late() {
        let keeps = after_a_stall(Lateness::KeepsApart);
        assert_eq!(keeps, [10, 15].map(Instant::from_millis));
        let catches_up = after_a_stall(Lateness::CatchesUp);
        assert_eq!(catches_up, [20, 25].map(Instant::from_millis));
    }

    #[test]
    fn a_cable_that_is_in_time_or_has_nothing_to_pass_on_is_not_late() {
        let mut clock = CableClock::new(Lateness::KeepsApart);
        clock.work_on_at(10 * MS + LATE_MAX, Some(Instant::from_millis(10)));
        clock.work_on_at(20 * MS, Some(Instant::from_millis(30)));
        clock.work_on_at(30 * MS, None);
        assert_eq!(clock.at(30 * MS), Instant::from_millis(30));
    }
}
