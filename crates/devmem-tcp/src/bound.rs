//! A dma-buf bound to RX queues.

use std::sync::Arc;

use devmem_uapi::DmabufId;
use netmem::{Dmabuf, NiovSize};

use crate::driver::StackIndex;
use crate::netdev::Shared;

/// Device memory bound to RX queues of a [`Netdev`](crate::Netdev): their packets' payload lands in it.
///
/// Dropping it unbinds: the queues go back to host memory at once. The memory itself is let go when its last
/// net_iov is home, however late, so frags that are still held stay valid.
#[derive(Debug)]
pub struct BoundRx {
    shared: Arc<Shared>,
    at: StackIndex,
    id: DmabufId,
    memory: Dmabuf,
    niov_size: NiovSize,
}

/// Where a binding's net_iovs are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NetIovCount {
    /// All there are: the memory's size divided by the net_iov size.
    pub total: usize,
    /// Those that nobody holds: neither a queue's posted buffers, nor a packet, nor the application.
    pub home: usize,
}

impl BoundRx {
    pub(crate) fn new(shared: Arc<Shared>, at: StackIndex, id: DmabufId, memory: Dmabuf, niov_size: NiovSize) -> Self {
        shared.driver.lock().memories.insert((at, id), memory.clone());
        Self { shared, at, id, memory, niov_size }
    }

    /// The name of the binding, as frags carry it.
    pub fn id(&self) -> DmabufId {
        self.id
    }

    /// The memory that is bound.
    pub fn memory(&self) -> &Dmabuf {
        &self.memory
    }

    /// The size of one net_iov.
    pub fn niov_size(&self) -> NiovSize {
        self.niov_size
    }

    /// Unbinds, and returns a watch on the net_iovs that are still out.
    pub fn unbind(self) -> Unbound {
        let watch = self.shared.driver.with(self.at, |stack, _| stack.binding_watch(self.id));
        Unbound { watch }
    }
}

impl Drop for BoundRx {
    fn drop(&mut self) {
        let id = self.id;
        self.shared.driver.with(self.at, |stack, now| stack.unbind_rx(id, now));
    }
}
