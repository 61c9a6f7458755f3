//! Change of a queue's memory while the other queues run (linux net/core/netdev_rx_queue.c
//! netdev_rx_queue_restart): allocate new, stop old, start new, free old.

use std::fmt;
use std::sync::Arc;

use mapped::DmaRight;
use netmem::{HostProvider, MemoryProvider, PagePool, PoolConfig};

use crate::config::NicConfig;
use crate::fill::{Fill, MAX_PAYLOAD};
use crate::restart_error::RestartError;
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
    pub(crate) fn start(&mut self) -> Result<(), RestartError> {
        match self.fill.post(MAX_PAYLOAD, 0) {
            0 => Err(RestartError::Empty),
            _ => Ok(()),
        }
    }

    /// Returns the posted net_iovs to the pool. Frags in use stay valid and return to the pool when they are dropped.
    pub(crate) fn stop(&mut self) {
        self.fill.stop();
        if let Some(ring) = &mut self.ring {
            ring.fill.stop();
        }
    }
}
