//! Change of a queue's memory while the other queues run (linux net/core/netdev_rx_queue.c
//! netdev_rx_queue_restart): allocate new, stop old, start new, free old.

use std::fmt;
use std::sync::Arc;

use mapped::DmaRight;
use netmem::{DmabufError, HostProvider, MemoryProvider, PagePool, PoolConfig, PoolError};
use steer::RxQueueId;

use crate::config::NicConfig;
use crate::fill::{Fill, MAX_PAYLOAD};
use crate::nic::Nic;
use crate::staging::Ring;

/// Source of a queue's memory.
#[derive(Clone)]
pub enum ProviderChoice {
    /// Host memory that only this queue uses, as before any binding.
    Host,
    /// The provider of a binding, which other queues may share.
    Provider(Arc<dyn MemoryProvider>),
}

impl fmt::Debug for ProviderChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Host => f.write_str("Host"),
            Self::Provider(provider) => write!(f, "Provider({:?})", provider.dmabuf_id()),
        }
    }
}

/// Error of [`Nic::restart_queue`]; the queue keeps its memory.
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
    HostMemory(#[from] DmabufError),
    /// The provider refuses the pool.
    #[error("the memory provider refuses: {0}")]
    Pool(#[from] PoolError),
    /// The provider has no free net_iov, so the queue could not receive anything.
    #[error("the memory provider has no net_iov left")]
    Empty,
}

/// A queue's page pool with its posted net_iovs, and the pool's provider.
pub(crate) struct QueueMemory {
    pub(crate) fill: Fill,
    pub(crate) provider: Arc<dyn MemoryProvider>,
    pub(crate) readable: bool,
    /// Host memory to receive into, if the CPU cannot access that of `fill`.
    pub(crate) ring: Option<Ring>,
}

impl fmt::Debug for QueueMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("QueueMemory")
            .field("fill", &self.fill)
            .finish_non_exhaustive()
    }
}

impl QueueMemory {
    /// Creates a pool of the chosen memory; nothing is posted yet.
    pub(crate) fn allocate(
        choice: ProviderChoice,
        config: &NicConfig,
    ) -> Result<Self, RestartError> {
        let provider = match choice {
            ProviderChoice::Provider(provider) => provider,
            ProviderChoice::Host => Arc::new(HostProvider::new(
                config.host_mem_bytes,
                config.host_niov_size,
            )?),
        };
        let pool = PagePool::create(Arc::clone(&provider), PoolConfig::default())?;
        let port = pool.dma_port(DmaRight::of_a_nic());
        let readable = provider.is_readable();
        let engine = provider.area().copy_engine();
        let ring = engine
            .map(|engine| Ring::new(engine, pool.niov_size()))
            .transpose()?;
        Ok(Self {
            fill: Fill::new(pool, port),
            provider,
            readable,
            ring,
        })
    }

    /// Posts the first run.
    fn start(&mut self) -> Result<(), RestartError> {
        match self.fill.post(MAX_PAYLOAD, 0) {
            0 => Err(RestartError::Empty),
            _ => Ok(()),
        }
    }

    /// Returns the posted net_iovs to the pool. Frags in use stay valid and return to the pool when they are dropped.
    fn stop(&mut self) {
        self.fill.stop();
        if let Some(ring) = &mut self.ring {
            ring.fill.stop();
        }
    }
}

impl Nic {
    /// Gives a queue other memory. The other queues keep running; frags of the old memory that are in use
    /// stay valid, and the old memory is freed when the last of them is dropped.
    ///
    /// # Errors
    /// [`RestartError`]: the queue continues with its old memory.
    pub fn restart_queue(
        &mut self,
        queue: RxQueueId,
        choice: ProviderChoice,
    ) -> Result<(), RestartError> {
        let queues = self.rx_queue_count();
        let Some(target) = self.rx.queues.get_mut(queue.index()) else {
            return Err(RestartError::NoSuchQueue { queue, queues });
        };
        let mut new = QueueMemory::allocate(choice, &self.config)?;
        target.memory.stop();
        match new.start() {
            Ok(()) => {
                let old = std::mem::replace(&mut target.memory, new);
                drop(old);
                self.note_sharing();
                Ok(())
            }
            Err(error) => {
                // `stop` has returned the posted net_iovs to the pool, so this finds them.
                let restarted = target.memory.start();
                debug_assert!(restarted.is_ok() || target.fill().pool().available_niovs() == 0);
                Err(error)
            }
        }
    }

    /// Divides each provider's memory equally among its queues: a queue advertises receive windows for its share only.
    pub(crate) fn note_sharing(&mut self) {
        let providers: Vec<_> = self
            .rx
            .queues
            .iter()
            .map(|queue| Arc::clone(&queue.memory.provider))
            .collect();
        for queue in &mut self.rx.queues {
            let mine = Arc::clone(&queue.memory.provider);
            let sharers = providers
                .iter()
                .filter(|other| Arc::ptr_eq(other, &mine))
                .count();
            queue
                .memory
                .fill
                .set_share(mine.area().count() as usize / sharers.max(1));
        }
    }
}
