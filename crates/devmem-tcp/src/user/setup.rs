//! Settings of a NIC in user space for a receiver.

use std::net::SocketAddr;
use std::sync::Arc;

use steer::RxQueueId;

use super::nic::Nic;
use super::settings::{ShardSettings, SteeredShard};
use crate::error::Error;
use crate::flows::Flows;

/// Applied settings. The previous ones are restored when this and every binding of the queues are dropped.
#[derive(Debug)]
pub(crate) struct Prepared {
    shards: Vec<Arc<ShardSettings>>,
    /// Dropped after them: the NIC stays open as long.
    nic: Nic,
}

/// Segments from a peer are steered to the queues until it is dropped.
#[derive(Debug)]
pub(crate) struct Steered {
    _shards: Vec<SteeredShard>,
    /// Dropped after them, too.
    _nic: Nic,
}

impl Prepared {
    /// Steers what comes from `peer`, too.
    pub(crate) fn steer_from(&self, peer: SocketAddr) -> Result<Steered, Error> {
        let shards = self.shards.iter().map(|shard| shard.steer_from(peer));
        Ok(Steered {
            _shards: shards.collect::<Result<_, _>>()?,
            _nic: self.nic.clone(),
        })
    }
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
            shards,
            nic: self.clone(),
        };
        Ok((prepared, queues.unwrap_or_default()))
    }
}
