//! When to accept virtual machines again after an attempt that failed: a listener that stays ready would keep the loop busy.

use std::time::{Duration, Instant as Clock};

/// Time between two attempts.
const RETRY: Duration = Duration::from_millis(200);

/// Whether virtual machines are accepted.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) enum Accepting {
    /// They are.
    #[default]
    Yes,
    /// From this time on.
    After(Clock),
    /// They are again since this time. A failure soon after it is the same one.
    Since(Clock),
}

impl Accepting {
    /// Notes that an attempt has failed. Returns whether that is new.
    pub(super) fn failed(&mut self, now: Clock) -> bool {
        std::mem::replace(self, Self::After(now + RETRY)) == Self::Yes
    }

    /// Returns whether to accept again.
    pub(super) fn is_due(&mut self, now: Clock) -> bool {
        match *self {
            Self::After(at) if at <= now => {
                *self = Self::Since(now);
                true
            }
            Self::Since(since) if now.duration_since(since) > RETRY => {
                *self = Self::Yes;
                false
            }
            _ => false,
        }
    }

    /// Returns the time until the next attempt: none if it is overdue.
    pub(super) fn left(self, now: Clock) -> Option<Duration> {
        match self {
            Self::After(at) => Some(at.saturating_duration_since(now)),
            Self::Yes | Self::Since(_) => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_attempt_is_waited_for_until_it_is_made_however_late() {
        let (start, mut accepting) = (Clock::now(), Accepting::default());
        assert_eq!(accepting.left(start), None);
        assert!(accepting.failed(start));
        assert_eq!(accepting.left(start), Some(RETRY));
        assert!(!accepting.is_due(start));
        // The loop was busy from then on until the attempt was overdue.
        let late = start + 10 * RETRY;
        assert_eq!(accepting.left(late), Some(Duration::ZERO));
        assert!(accepting.is_due(late));
        assert_eq!(accepting.left(late), None, "the listener is waited for");
        assert!(!accepting.is_due(late), "once");
    }

    #[test]
    fn a_failure_is_new_only_after_a_time_without_one() {
        let (start, mut accepting) = (Clock::now(), Accepting::default());
        assert!(accepting.failed(start));
        assert!(accepting.is_due(start + RETRY));
        assert!(!accepting.failed(start + RETRY), "the same one");
        assert!(accepting.is_due(start + 2 * RETRY));
        assert!(!accepting.is_due(start + 4 * RETRY), "it accepts");
        assert!(accepting.failed(start + 4 * RETRY));
    }
}
