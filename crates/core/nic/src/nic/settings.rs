//! Settings that may change while the NIC runs: rings, receive side scaling, flow rules.

use steer::{IndirectionTableError, NtupleRule, Rss, RuleError, RuleLocation, Rules, RxQueueId};

use super::Nic;
use crate::features::{MAX_TX_PACKETS, Rings, SetRingsError, TcpDataSplit};

impl Nic {
    /// Returns the rings.
    pub fn rings(&self) -> Rings {
        self.rings
    }

    /// Sets the rings.
    ///
    /// # Errors
    /// [`SetRingsError`]: a length out of range, or header split switched off while device memory is bound (linux
    /// net/ethtool/rings.c ethnl_set_rings).
    pub fn set_rings(&mut self, rings: Rings) -> Result<(), SetRingsError> {
        let Rings {
            tx_packets,
            tcp_data_split,
        } = rings;
        if tx_packets == 0 || tx_packets > MAX_TX_PACKETS {
            return Err(SetRingsError::TxPackets(tx_packets));
        }
        if tcp_data_split != TcpDataSplit::Enabled
            && let Some(queue) = self.last_bound_queue()
        {
            return Err(SetRingsError::SplitNeeded(queue));
        }
        self.rings = rings;
        self.tx.set_limit(tx_packets);
        Ok(())
    }

    /// Returns key, table and hash types of receive side scaling.
    pub fn rss(&self) -> &Rss {
        &self.steering.rss
    }

    /// Sets receive side scaling.
    ///
    /// # Errors
    /// The table names a queue that does not exist.
    pub fn set_rss(&mut self, rss: Rss) -> Result<(), IndirectionTableError> {
        rss.table.check(self.rx_queue_count())?;
        self.steering.rss = rss;
        Ok(())
    }

    /// Returns the flow rules.
    pub fn rules(&self) -> &Rules {
        &self.steering.rules
    }

    /// Inserts a flow rule at `location`, or at the first free location; returns the location.
    ///
    /// # Errors
    /// [`RuleError`]: the table is full, the rule malformed, or its queue does not exist.
    pub fn insert_rule(
        &mut self,
        location: Option<RuleLocation>,
        rule: NtupleRule,
    ) -> Result<RuleLocation, RuleError> {
        let queues = self.rx_queue_count();
        if let Some(queue) = rule.queue().filter(|queue| queue.0 >= queues) {
            let location = location.unwrap_or(RuleLocation(0));
            return Err(RuleError::NoSuchQueue {
                location,
                queue,
                queues,
            });
        }
        self.steering.rules.insert(location, rule)
    }

    /// Removes the flow rule at `location`.
    ///
    /// # Errors
    /// [`RuleError::NoRule`].
    pub fn remove_rule(&mut self, location: RuleLocation) -> Result<NtupleRule, RuleError> {
        self.steering.rules.remove(location)
    }

    fn last_bound_queue(&self) -> Option<RxQueueId> {
        self.rx
            .queues
            .iter()
            .rev()
            .find(|queue| queue.memory.fill.pool.dmabuf_id().is_some())
            .map(|queue| queue.id)
    }
}
