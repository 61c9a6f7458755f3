//! Why a queue cannot have the memory that it was to get.

use netmem::DmabufError;
use steer::RxQueueId;

/// Error of [`Nic::restart_queue`](crate::Nic::restart_queue); the queue keeps its memory.
#[derive(Debug, thiserror::Error)]
pub enum RestartError {
    /// There is no such queue.
    #[error("rx queue {queue} of {queues} does not exist")]
    NoSuchQueue {
        /// The requested queue.
        queue: RxQueueId,
        /// Number of queues.
        queues: u16,
    },
    /// There is no host memory for the queue.
    #[error("no host memory for the queue: {0}")]
    HostMemory(DmabufError),
    /// The provider has no free net_iov, so the queue could not receive anything.
    #[error("the memory provider has no net_iov left")]
    Empty,
}

impl From<DmabufError> for RestartError {
    fn from(error: DmabufError) -> Self {
        Self::HostMemory(error)
    }
}
