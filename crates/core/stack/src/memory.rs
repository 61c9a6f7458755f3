//! Memory that the stack accounts for: windows of peers, bindings, and host memory for sending.

use std::sync::Arc;

use netmem::{FragList, MemoryProvider, NiovSize, PagePool, PoolStats};
use nic::Nic;

use crate::binding::Bindings;
use crate::config::StackError;
use crate::pressure::Pressure;
use crate::window::Windows;

/// Changed by binding, by granting windows and by relieving pressure. Sockets only take memory from `send_pools`.
pub(crate) struct StackMemory {
    /// Receive memory promised to peers.
    pub(crate) windows: Windows,
    /// Connections that hold payload, and the time of the next look at them.
    pub(crate) pressure: Pressure,
    pub(crate) bindings: Bindings,
    /// Host memory for payload to be sent.
    pub(crate) send_pools: SendPools,
    /// Most bytes of it that one connection uses.
    pub(crate) host_send_buffer: usize,
}

/// Most host bytes in the send queue of a connection on a link whose other end copies payload from memory of this end. The sender
/// writes them, and the peer reads them soon after: fewer bytes in between stay in the processor's cache. In two of three pairs
/// of runs an exchange of messages of 4 MiB was faster with 2 MiB than with 8 MiB, by 11 to 31 % (`devmem-bench exchange`, row
/// ours/shared).
const IN_PLACE_SEND_BUFFER: usize = 2 << 20;

/// The same on a link to another process that copies payload out of frames. As much as Linux' sockets have by default (`tcp_wmem`),
/// because that process may be a cable with a delay: with 2 MiB there was no difference (`devmem-bench exchange`, row ours/unix).
const NEAR_SEND_BUFFER: usize = 4 << 20;

impl StackMemory {
    /// Returns the memory state of a stack on `nic`, and allocates `send_bytes` of host memory.
    pub(crate) fn new(nic: &Nic, send_bytes: usize) -> Result<Self, StackError> {
        // To another process of this machine, one page holds one piece that is copied, so that a frame has few of them.
        let (niov_size, host_send_buffer) = match (nic.link_caps().borrows, nic.link().is_near()) {
            (true, _) => (NiovSize::DEFAULT, IN_PLACE_SEND_BUFFER),
            (false, true) => (NiovSize::DEFAULT, NEAR_SEND_BUFFER),
            (false, false) => (NiovSize::MIN, usize::MAX),
        };
        Ok(Self {
            windows: Windows::new(nic.rx_queue_count().into()),
            pressure: Pressure::default(),
            bindings: Bindings::default(),
            send_pools: SendPools::new(send_bytes, niov_size)?,
            host_send_buffer,
        })
    }
}

/// Host memory for payload to be sent: the stack's own, and the link's, if its peer may read what waits to be sent.
pub(crate) struct SendPools {
    own: PagePool,
    /// The memory of the link's peer. It is left when the peer has changed: what is queued in it stays until it is
    /// acknowledged, and the link copies it for the next peer.
    peers: Option<PeerPool>,
}

struct PeerPool {
    provider: Arc<MemoryProvider>,
    pool: PagePool,
}

impl SendPools {
    fn new(bytes: usize, niov_size: NiovSize) -> Result<Self, StackError> {
        let provider = MemoryProvider::host(bytes, niov_size)
            .map_err(|error| StackError::SendMemory { bytes, error })?;
        Ok(Self {
            own: PagePool::new(Arc::new(provider)),
            peers: None,
        })
    }

    /// Uses the memory `theirs` of the link's peer from now on; `None`: it has none.
    pub(crate) fn use_memory_of_peer(&mut self, theirs: Option<&Arc<MemoryProvider>>) {
        let is_same = match (&self.peers, theirs) {
            (Some(peers), Some(theirs)) => Arc::ptr_eq(&peers.provider, theirs),
            (None, None) => true,
            _ => false,
        };
        if is_same {
            return;
        }
        self.peers = theirs.map(|provider| PeerPool {
            provider: Arc::clone(provider),
            pool: PagePool::new(Arc::clone(provider)),
        });
    }

    /// Copies bytes for the peer of the link; `None` if there is no room.
    pub(crate) fn copy_for_peer(&mut self, bytes: &[u8]) -> Option<FragList> {
        let peers = self.peers.as_mut();
        peers
            .and_then(|peers| FragList::from_host_bytes(&mut peers.pool, bytes))
            .or_else(|| self.copy(bytes))
    }

    /// Copies bytes to the stack's own memory; `None` if there is no room.
    pub(crate) fn copy(&mut self, bytes: &[u8]) -> Option<FragList> {
        FragList::from_host_bytes(&mut self.own, bytes)
    }

    /// Returns the counters of the stack's own memory, with what is in use of the peer's.
    pub(crate) fn stats(&self) -> PoolStats {
        let own = self.own.stats();
        let peers = self.peers.as_ref().map(|peers| peers.pool.stats());
        PoolStats {
            outstanding: own.outstanding + peers.map_or(0, |peers| peers.outstanding),
            ..own
        }
    }

    /// Returns whether there is memory.
    pub(crate) fn has_room(&self) -> bool {
        self.own.available_niovs() > 0
    }
}
