//! Real time.

use wire::Instant;

/// Monotonic time since it was made. The drivers of the shards of a NIC share one: their stacks have times of path MTUs in common.
#[derive(Clone, Copy, Debug)]
pub struct Clock(std::time::Instant);

impl Clock {
    /// Returns a clock that begins now.
    pub fn start() -> Self {
        Self(std::time::Instant::now())
    }

    /// Returns how long it has run.
    pub fn elapsed(&self) -> std::time::Duration {
        self.0.elapsed()
    }

    /// Returns the time.
    pub fn now(&self) -> Instant {
        // 2^64 ns are 584 years: the conversion only saturates past that.
        Instant::from_nanos(u64::try_from(self.0.elapsed().as_nanos()).unwrap_or(u64::MAX))
    }
}
