//! When a wait for the connections of closed sockets is over.

use std::time::Duration;

use stack::Stack;
use wire::Instant;

/// A wait until such connections are closed in both directions. Once all data and FINs are acknowledged, it waits only for the FINs of
/// the peers, which may take for ever.
#[derive(Debug)]
pub(crate) struct Linger {
    last: Instant,
    grace: Duration,
    until: Instant,
    was_acknowledged: bool,
}

impl Linger {
    /// Begins a wait of `at_most`, and of `grace` for the FINs of the peers.
    pub(crate) fn new(now: Instant, at_most: Duration, grace: Duration) -> Self {
        let last = now + at_most;
        Self {
            last,
            grace,
            until: last,
            was_acknowledged: false,
        }
    }

    /// Returns how long to wait on.
    ///
    /// # Errors
    /// The wait is over; `true`: because all connections are closed.
    pub(crate) fn until(&mut self, stacks: &[Stack], now: Instant) -> Result<Instant, bool> {
        let all_closed = stacks.iter().all(|stack| stack.stats().orphans == 0);
        if all_closed || now >= self.until {
            return Err(all_closed);
        }
        let acknowledged = !stacks.iter().any(Stack::has_unacknowledged_orphan);
        if acknowledged && !self.was_acknowledged {
            self.until = self.last.min(now + self.grace);
        }
        self.was_acknowledged = acknowledged;
        Ok(self.until)
    }
}
