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
    /// Most bytes of it that one connection uses.
    pub(crate) host_send_buffer: usize,
}

/// Most host bytes in the send queue of a connection whose peer copies them from here. The sender writes them, and the peer
/// reads them soon after: fewer bytes in between stay in the processor's cache. In two of three pairs of runs an exchange of
/// messages of 4 MiB was faster with 2 MiB than with 8 MiB, by 11 to 31 % (`devmem-bench exchange`, row ours/shared).
const SHARED_SEND_BUFFER: usize = 2 << 20;

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
            host_send_buffer: match sharing {
                SendSharing::Private => usize::MAX,
                SendSharing::Shared => SHARED_SEND_BUFFER,
            },
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
