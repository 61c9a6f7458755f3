//! Memory that the stack accounts for: windows of peers, bindings, and host memory for sending.

use std::sync::Arc;

use netmem::{HostProvider, NiovSize, PagePool, PoolConfig};

use crate::binding::Bindings;
use crate::pressure::Pressure;
use crate::stack::StackError;
use crate::window::Windows;

/// Changed by binding, by granting windows and by relieving pressure. Sockets only take memory from `send_pool`.
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
    pub(crate) fn new(
        queues: usize,
        send_bytes: usize,
        sharing: SendSharing,
    ) -> Result<Self, StackError> {
        Ok(Self {
            windows: Windows::new(queues),
            pressure: Pressure::default(),
            bindings: Bindings::default(),
            send_pool: send_pool(send_bytes, sharing)?,
        })
    }
}

/// Whether the other end of the link maps the host memory for sending.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SendSharing {
    /// It does not.
    Private,
    /// It does, and copies the payload from there.
    Shared,
}

fn send_pool(bytes: usize, sharing: SendSharing) -> Result<PagePool, StackError> {
    let provider = match sharing {
        SendSharing::Private => HostProvider::new(bytes, NiovSize::MIN),
        SendSharing::Shared => HostProvider::shareable(bytes, NiovSize::DEFAULT),
    };
    let provider = provider.map_err(|source| StackError::SendMemory { bytes, source })?;
    Ok(PagePool::create(Arc::new(provider), PoolConfig::default())?)
}
