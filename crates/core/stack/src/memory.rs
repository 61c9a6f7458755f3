//! The memory that a stack accounts for: what peers may send, what is bound, and what is sent from.

use std::sync::Arc;

use netmem::{HostProvider, NiovSize, PagePool, PoolConfig};

use crate::binding::Bindings;
use crate::pressure::Pressure;
use crate::stack::StackError;
use crate::window::Windows;

/// State about memory. Binding, granting windows and relieving pressure change it; sockets only send from `send_pool`.
pub(crate) struct StackMemory {
    /// Receive memory promised to peers.
    pub(crate) windows: Windows,
    /// Connections that hold payload, and the time of the next look at them.
    pub(crate) pressure: Pressure,
    pub(crate) bindings: Bindings,
    /// Host memory for payload to be sent.
    pub(crate) send_pool: PagePool,
}

impl StackMemory {
    /// Returns the memory state of a NIC with `queues` receive queues, and allocates `send_bytes` of host memory.
    pub(crate) fn new(queues: usize, send_bytes: usize) -> Result<Self, StackError> {
        Ok(Self {
            windows: Windows::new(queues),
            pressure: Pressure::default(),
            bindings: Bindings::default(),
            send_pool: send_pool(send_bytes)?,
        })
    }
}

fn send_pool(bytes: usize) -> Result<PagePool, StackError> {
    let provider = HostProvider::new(bytes, NiovSize::MIN);
    let provider = provider.map_err(|source| StackError::SendMemory { bytes, source })?;
    Ok(PagePool::create(Arc::new(provider), PoolConfig::default())?)
}
