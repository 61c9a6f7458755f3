//! The limit of connections that were opened by a SYN and wait for the ACK of their SYN-ACK (RFC 7413 5.1).

use core::time::Duration;
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};

use wire::Instant;

/// How long an open that the peer has reset counts (linux `reqsk_fastopen_remove`).
pub(super) const RESET_HOLD: Duration = Duration::from_secs(60);

/// Pending opens of a listener. Their connections live elsewhere, and each has a [`PendingSlot`].
#[derive(Debug, Clone, Default)]
pub(super) struct PendingOpens {
    counts: Arc<Mutex<Counts>>,
}

#[derive(Debug, Default)]
struct Counts {
    open: usize,
    /// When the opens that were reset do not count any more, in order.
    resets: VecDeque<Instant>,
}

/// The place of one pending open. Dropping it frees the place.
#[derive(Debug)]
pub(crate) struct PendingSlot {
    opens: PendingOpens,
}

impl PendingOpens {
    fn with<T>(&self, change: impl FnOnce(&mut Counts) -> T) -> T {
        // The counts are consistent after every statement.
        change(&mut self.counts.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Takes a place, if fewer than `most` are taken.
    pub(super) fn admit(&self, most: usize, now: Instant) -> Option<PendingSlot> {
        let admitted = self.with(|counts| {
            while counts.resets.front().is_some_and(|until| *until <= now) {
                counts.resets.pop_front();
            }
            let admitted = counts.open + counts.resets.len() < most;
            counts.open += usize::from(admitted);
            admitted
        });
        admitted.then(|| PendingSlot {
            opens: self.clone(),
        })
    }
}

impl PendingSlot {
    /// Frees the place after [`RESET_HOLD`]: the peer has reset the connection.
    pub(crate) fn reset(self, now: Instant) {
        self.opens
            .with(|counts| counts.resets.push_back(now + RESET_HOLD));
    }
}

impl Drop for PendingSlot {
    fn drop(&mut self) {
        self.opens.with(|counts| counts.open -= 1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_limited_and_those_of_resets_stay_taken_for_a_minute() {
        let (opens, now) = (PendingOpens::default(), Instant::ZERO);
        let first = opens.admit(2, now).unwrap();
        let second = opens.admit(2, now).unwrap();
        assert!(opens.admit(2, now).is_none());
        drop(first);
        second.reset(now);
        let third = opens.admit(2, now).unwrap();
        assert!(opens.admit(2, now + RESET_HOLD / 2).is_none());
        assert!(opens.admit(2, now + RESET_HOLD).is_some());
        drop(third);
    }
}
