//! Selection of the RX queue of a packet.

use wire::RxHeaders;

use crate::{Rss, RuleAction, Rules, RxQueueId};

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

impl Steering {
    /// Returns the queue of a packet: that of the matching flow rule with the lowest location, else that of the indirection
    /// table, else queue 0. `None`: the rule drops it.
    #[inline]
    pub fn select_queue(&self, headers: &RxHeaders) -> Option<RxQueueId> {
        let rule = match self.ntuple {
            true => self.rules.lookup(headers),
            false => None,
        };
        match rule {
            Some((_, RuleAction::Queue(queue))) => Some(queue),
            // A rule matches TCP and UDP only, which the default hash types cover.
            Some((_, RuleAction::Spread(queues))) => {
                Some(queues.queue(self.rss.hash(headers).unwrap_or(0)))
            }
            Some((_, RuleAction::Drop)) => None,
            None => Some(self.rss.queue(headers).unwrap_or(RxQueueId(0))),
        }
    }
}

#[cfg(test)]
mod tests;
