//! Change of a queue's memory while the other queues run (linux net/core/netdev_rx_queue.c
//! netdev_rx_queue_restart): allocate new, stop old, start new, free old.

use std::sync::Arc;

use netmem::{MemoryProvider, NiovSize};

use crate::config::NicConfig;
use crate::fill::{Fill, MAX_PAYLOAD};
use crate::restart_error::RestartError;
use crate::staging::Ring;

/// Source of a queue's memory.
#[derive(Clone, Debug)]
pub enum ProviderChoice {
    /// Host memory that only this queue uses, as before any binding.
    Host,
    /// The provider of a binding, which other queues may share.
    Provider(Arc<MemoryProvider>),
}

/// A queue's page pool with its posted net_iovs.
#[derive(Debug)]
pub(crate) struct QueueMemory {
    pub(crate) fill: Fill,
    pub(crate) is_readable: bool,
    /// Host memory to receive into, if the CPU cannot access that of `fill`.
    pub(crate) ring: Option<Ring>,
}

impl QueueMemory {
    /// Creates a pool of the chosen memory; nothing is posted yet.
    pub(crate) fn allocate(
        choice: ProviderChoice,
        config: &NicConfig,
    ) -> Result<Self, RestartError> {
        let provider = match choice {
            ProviderChoice::Provider(provider) => provider,
            ProviderChoice::Host => Arc::new(MemoryProvider::host(
                config.host_mem_bytes,
                NiovSize::DEFAULT,
            )?),
        };
        let engine = provider.area().copy_engine();
        let ring = engine
            .map(|engine| Ring::new(engine, provider.area().niov_size()))
            .transpose()?;
        let fill = Fill::new(provider);
        Ok(Self {
            is_readable: fill.pool.is_readable(),
            fill,
            ring,
        })
    }

    /// Returns the memory that frames are received into: host memory if the CPU cannot access that of the queue.
    pub(crate) fn posted(&self) -> &Fill {
        self.ring.as_ref().map_or(&self.fill, |ring| &ring.fill)
    }

    /// As [`posted`](Self::posted), to change it.
    pub(crate) fn posted_mut(&mut self) -> &mut Fill {
        match &mut self.ring {
            Some(ring) => &mut ring.fill,
            None => &mut self.fill,
        }
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
