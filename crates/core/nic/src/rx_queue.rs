//! One receive queue: its memory, its posted net_iovs and its counters.

use netmem::{DmabufId, PoolId, PoolStats};
use steer::RxQueueId;

use crate::config::NicConfig;
use crate::queue_mgmt::{ProviderChoice, QueueMemory};
use crate::restart_error::RestartError;
use crate::stats::RxQueueStats;

/// A receive queue with the memory it fills.
#[derive(Debug)]
pub(crate) struct RxQueue {
    pub(crate) id: RxQueueId,
    pub(crate) memory: QueueMemory,
    pub(crate) stats: RxQueueStats,
}

/// Facts about one queue, for the validation of a binding and for reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RxQueueInfo {
    /// The queue.
    pub id: RxQueueId,
    /// The bound dma-buf; `None`: host memory.
    pub dmabuf: Option<DmabufId>,
    /// The page pool.
    pub pool: PoolId,
    /// Bytes of a net_iov.
    pub niov_size: usize,
    /// Number of net_iovs of the memory.
    pub niovs: usize,
}

impl RxQueue {
    pub(crate) fn new(
        id: RxQueueId,
        choice: ProviderChoice,
        config: &NicConfig,
    ) -> Result<Self, RestartError> {
        let memory = QueueMemory::allocate(choice, config)?;
        Ok(Self {
            id,
            memory,
            stats: RxQueueStats::default(),
        })
    }

    /// Returns whether the CPU cannot access the memory of the queue.
    pub(crate) fn is_staged(&self) -> bool {
        self.memory.ring.is_some()
    }

    /// Returns whether `payload` bytes can be received without waiting for a device.
    pub(crate) fn is_open(&mut self, payload: usize, headroom: usize) -> bool {
        self.memory
            .ring
            .as_mut()
            .is_none_or(|ring| ring.has_room(payload, headroom))
    }

    pub(crate) fn info(&self) -> RxQueueInfo {
        let fill = &self.memory.fill;
        RxQueueInfo {
            id: self.id,
            dmabuf: fill.pool.dmabuf_id(),
            pool: fill.pool.id(),
            niov_size: fill.niov_size(),
            niovs: fill.pool.niov_count() as usize,
        }
    }

    pub(crate) fn stats(&self) -> RxQueueStats {
        RxQueueStats {
            tidied: self.memory.fill.tidied,
            collapsed: self.memory.fill.collapsed,
            collapsed_bytes: self.memory.fill.collapsed_bytes,
            ..self.stats
        }
    }

    pub(crate) fn pool_stats(&self) -> PoolStats {
        self.memory.fill.pool.stats()
    }
}
