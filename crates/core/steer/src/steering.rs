//! Which queue a packet goes to.

use wire::RxHeaders;

use crate::{Rss, RuleAction, RuleLocation, Rules, RxQueueId};

/// Everything that decides about a packet's queue.
#[derive(Clone, Debug)]
pub struct Steering {
    /// Receive side scaling.
    pub rss: Rss,
    /// Flow rules.
    pub rules: Rules,
    /// Flow rules count (ethtool feature `rx-ntuple-filter`); RSS always does.
    pub ntuple: bool,
}

/// What decided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum By {
    /// The flow rule at this location.
    Rule(RuleLocation),
    /// The indirection table.
    Rss,
    /// Nothing: the packet has no hash.
    Default,
}

/// The decision.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Selected {
    /// The packet goes to a queue.
    Queue {
        /// Which.
        queue: RxQueueId,
        /// Why.
        by: By,
    },
    /// A flow rule drops the packet.
    Drop(RuleLocation),
}

impl Steering {
    /// Decides: the lowest flow rule that matches, else the indirection table, else queue 0.
    #[inline]
    pub fn select_queue(&self, headers: &RxHeaders) -> Selected {
        let rule = if self.ntuple {
            self.rules.lookup(headers)
        } else {
            None
        };
        if let Some((location, action)) = rule {
            return match action {
                RuleAction::Queue(queue) => Selected::Queue {
                    queue,
                    by: By::Rule(location),
                },
                RuleAction::Drop => Selected::Drop(location),
            };
        }
        match self.rss.queue(headers) {
            Some(queue) => Selected::Queue { queue, by: By::Rss },
            None => Selected::Queue {
                queue: RxQueueId(0),
                by: By::Default,
            },
        }
    }
}

#[cfg(test)]
mod tests;
