//! How long a sender sends.

use std::time::{Duration, Instant};

/// The time of a sender. It sends until the time has passed, but once at least: a processor that it gets late, on a busy machine,
/// makes its row slow, not empty.
#[derive(Clone, Copy, Debug)]
pub struct SendTime {
    end: Instant,
}

impl SendTime {
    /// Begins now.
    pub fn of(time: Duration) -> Self {
        let end = Instant::now() + time;
        Self { end }
    }

    /// Returns whether a sender that has sent `bytes` continues.
    pub fn continues(self, bytes: u64) -> bool {
        bytes == 0 || Instant::now() < self.end
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sender_whose_time_has_passed_sends_once() {
        let passed = SendTime::of(Duration::ZERO);
        assert!(passed.continues(0) && !passed.continues(1));
        let left = SendTime::of(Duration::from_secs(3600));
        assert!(left.continues(0) && left.continues(1));
    }
}
