//! When an address in use is given up because another station has it.
//!
//! The stack judges the same frames by the same rule (RFC 5227 2.4 b), and defends the address: the first conflict is answered by an
//! announcement, a second one within ten seconds ends the use.

use std::time::Duration;

use stack::DEFEND_INTERVAL;

/// What another station says about an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AddressUse {
    /// It has it.
    Claim,
    /// It asks whether somebody has it, because it is about to use it.
    Probe,
}

/// The conflicts about an address in use.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Defence {
    defended_at: Option<Duration>,
}

impl Defence {
    /// Notes a conflict; returns whether it ends the use of the address.
    pub(crate) fn is_lost(&mut self, now: Duration) -> bool {
        let is_recent = |at: Duration| now.saturating_sub(at) < DEFEND_INTERVAL;
        let is_lost = self.defended_at.is_some_and(is_recent);
        self.defended_at = (!is_lost).then_some(now);
        is_lost
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_second_conflict_within_ten_seconds_ends_the_use() {
        let secs = Duration::from_secs;
        let mut defence = Defence::default();
        let lost = [1, 11, 20, 21].map(|at| defence.is_lost(secs(at)));
        assert_eq!(lost, [false, false, true, false]);
    }
}
