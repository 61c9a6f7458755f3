//! Settings of a NIC in user space for a receiver.

use std::sync::Arc;

use steer::RxQueueId;

use super::nic::Nic;
use super::settings::ShardSettings;
use crate::error::Error;
use crate::flows::Flows;

/// Applied settings. The previous ones are restored when this and every binding of the queues are dropped.
#[derive(Debug)]
pub(crate) struct Prepared {
    _shards: Vec<Arc<ShardSettings>>,
    /// Dropped after them: the NIC stays open as long.
    _nic: Nic,
}

impl Nic {
    /// Applies the settings. Returns them and the chosen queues.
    pub(crate) fn prepare(
        &self,
        flows: &Flows,
        queues: u16,
    ) -> Result<(Prepared, Vec<RxQueueId>), Error> {
        let shards = self.shards().iter();
        let shards: Vec<_> = shards
            .map(|shard| shard.prepare(flows, queues))
            .collect::<Result<_, _>>()?;
        let queues = shards.first().map(|it| it.queues().to_vec());
        let prepared = Prepared {
            _shards: shards,
            _nic: self.clone(),
        };
        Ok((prepared, queues.unwrap_or_default()))
    }
}
