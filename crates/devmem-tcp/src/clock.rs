//! The clock of a driver and its stacks: real time, or virtual time.

use wire::Instant;

/// Where `now` comes from.
#[derive(Clone, Debug)]
pub(crate) enum Clock {
    /// Monotonic time since the driver was made.
    Real(std::time::Instant),
    /// Virtual time: stands still while there is work, then advances to the next deadline at once.
    Virtual(Instant),
}

impl Clock {
    pub(crate) fn real() -> Self {
        Self::Real(std::time::Instant::now())
    }

    pub(crate) fn now(&self) -> Instant {
        match self {
            // 2^64 ns are 584 years: the conversion only saturates past that.
            Self::Real(base) => {
                Instant::from_nanos(u64::try_from(base.elapsed().as_nanos()).unwrap_or(u64::MAX))
            }
            Self::Virtual(now) => *now,
        }
    }

    pub(crate) fn is_virtual(&self) -> bool {
        matches!(self, Self::Virtual(_))
    }

    /// Moves virtual time forward to `at`; real time moves by itself.
    pub(crate) fn jump_to(&mut self, at: Instant) {
        if let Self::Virtual(now) = self {
            *now = (*now).max(at);
        }
    }
}
