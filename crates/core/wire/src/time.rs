//! The one clock type of the workspace.

use std::ops::{Add, Sub};
use std::time::Duration;

/// A point on a monotonic clock, in nanoseconds since an arbitrary origin.
///
/// Every layer takes the time as an argument, so a simulation runs hours in seconds and a test never
/// sleeps. Arithmetic saturates: [`u64::MAX`] ns is 584 years and means "never".
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Instant(u64);

impl Instant {
    /// The clock's origin.
    pub const ZERO: Self = Self(0);

    /// Returns the instant `nanos` nanoseconds after the origin.
    pub const fn from_nanos(nanos: u64) -> Self {
        Self(nanos)
    }

    /// Returns the instant `millis` milliseconds after the origin (saturating).
    pub const fn from_millis(millis: u64) -> Self {
        Self(millis.saturating_mul(1_000_000))
    }

    /// Returns the nanoseconds since the origin.
    pub const fn as_nanos(self) -> u64 {
        self.0
    }

    /// Returns the whole milliseconds since the origin.
    pub const fn as_millis(self) -> u64 {
        self.0 / 1_000_000
    }

    /// Returns the time since `earlier`, zero if `earlier` is later.
    pub const fn saturating_since(self, earlier: Self) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }

    /// Returns this instant plus `by`, `None` on overflow.
    pub fn checked_add(self, by: Duration) -> Option<Self> {
        let by = u64::try_from(by.as_nanos()).ok()?;
        self.0.checked_add(by).map(Self)
    }
}

/// Saturates at the end of the clock.
impl Add<Duration> for Instant {
    type Output = Self;

    fn add(self, by: Duration) -> Self {
        self.checked_add(by).unwrap_or(Self(u64::MAX))
    }
}

/// Saturates at [`Instant::ZERO`].
impl Sub<Duration> for Instant {
    type Output = Self;

    fn sub(self, by: Duration) -> Self {
        Self(u64::try_from(by.as_nanos()).map_or(0, |by| self.0.saturating_sub(by)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arithmetic_saturates_at_both_ends() {
        let late = Instant::from_nanos(u64::MAX - 1);
        assert_eq!(
            late + Duration::from_nanos(1),
            Instant::from_nanos(u64::MAX)
        );
        assert_eq!(late + Duration::from_secs(9), Instant::from_nanos(u64::MAX));
        assert_eq!(late + Duration::MAX, Instant::from_nanos(u64::MAX));
        assert_eq!(late.checked_add(Duration::from_nanos(2)), None);
        assert_eq!(Instant::from_millis(1) - Duration::MAX, Instant::ZERO);
        assert_eq!(
            Instant::from_millis(3) - Duration::from_millis(1),
            Instant::from_millis(2)
        );
        assert_eq!(Instant::from_millis(u64::MAX).as_nanos(), u64::MAX);
    }

    #[test]
    fn since_never_goes_below_zero() {
        let (a, b) = (Instant::from_millis(5), Instant::from_millis(7));
        assert_eq!(b.saturating_since(a), Duration::from_millis(2));
        assert_eq!(a.saturating_since(b), Duration::ZERO);
        assert_eq!(b.as_millis(), 7);
    }
}
