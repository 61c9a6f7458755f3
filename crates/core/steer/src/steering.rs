//! Selection of the RX queue of a packet.

use wire::RxHeaders;

use crate::{Rss, RuleAction, RuleLocation, Rules, RxQueueId};

/// Settings that determine the RX queue of a packet.
#[derive(Clone, Debug)]
pub struct Steering {
    /// Receive side scaling.
    pub rss: Rss,
    /// Flow rules.
    pub rules: Rules,
    /// Flow rules are applied (ethtool feature `rx-ntuple-filter`); RSS always is.
    pub ntuple: bool,
}

/// Reason for the selected queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SelectedBy {
    /// The flow rule at this location.
    Rule(RuleLocation),
    /// The indirection table.
    Rss,
    /// No match and no hash: queue 0.
    Default,
}

/// Result of [`Steering::select_queue`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Selected {
    /// The packet goes to a queue.
    Queue {
        /// Number of the queue.
        queue: RxQueueId,
        /// Reason.
        by: SelectedBy,
    },
    /// A flow rule drops the packet.
    Drop(RuleLocation),
}

impl Steering {
    /// Returns the queue of a packet: that of the matching flow rule with the lowest location, else that of the indirection
    /// table, else queue 0.
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
                    by: SelectedBy::Rule(location),
                },
                RuleAction::Spread(queues) => Selected::Queue {
                    // A rule matches TCP and UDP only, which the default hash types cover.
                    queue: queues.queue(self.rss.hash(headers).unwrap_or(0)),
                    by: SelectedBy::Rule(location),
                },
                RuleAction::Drop => Selected::Drop(location),
            };
        }
        match self.rss.queue(headers) {
            Some(queue) => Selected::Queue {
                queue,
                by: SelectedBy::Rss,
            },
            None => Selected::Queue {
                queue: RxQueueId(0),
                by: SelectedBy::Default,
            },
        }
    }
}

#[cfg(test)]
mod tests;
