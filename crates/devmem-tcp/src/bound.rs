//! A dma-buf bound to RX queues.

use std::fmt;

use devmem_uapi::DmabufId;
use netmem::{Dmabuf, NiovSize};
use steer::RxQueueId;

use crate::backend::{NetIovs, Nic, Rx};
use crate::error::BindError;
use crate::net_iov_count::NetIovCount;

/// Device memory bound to RX queues of a [`Netdev`](crate::Netdev): the payload of their packets lands in it.
///
/// Dropping it unbinds: the queues switch back to host memory at once. Frags that the program still holds stay valid, and
/// their bytes do not change; the memory is freed when the last net_iov is home, however late. Memory has at most one receive
/// binding at a time, over all NICs. It can be bound again as soon as this is dropped and the last frag received through it
/// has been returned.
#[must_use = "dropping it unbinds the memory"]
pub struct BoundRx {
    binding: Rx,
    memory: Dmabuf,
    niov_size: NiovSize,
    net_iovs: NetIovs,
}

impl BoundRx {
    /// Binds with net_iovs of `niov_size`, or of the backend's default size.
    pub(crate) fn bind(
        nic: &Nic,
        memory: &Dmabuf,
        queues: &[RxQueueId],
        niov_size: Option<NiovSize>,
    ) -> Result<Self, BindError> {
        let (binding, niov_size) = nic.bind_rx(memory, queues, niov_size)?;
        Ok(Self {
            net_iovs: binding.net_iovs(),
            binding,
            memory: memory.clone(),
            niov_size,
        })
    }

    /// Returns the id of the binding, which is also in each of its frags.
    pub fn id(&self) -> DmabufId {
        self.binding.id()
    }

    /// Returns the bound memory.
    pub fn memory(&self) -> &Dmabuf {
        &self.memory
    }

    /// Returns the size of a net_iov.
    pub fn niov_size(&self) -> NiovSize {
        self.niov_size
    }

    /// Counts the net_iovs. Where the kernel does not report their page pools, those count that this process has received and not
    /// returned, one for each frag, and not those that are posted or in packets: on a leased queue, whose page pools are those of a NIC
    /// in another network namespace, and with a kernel that is older than 6.12 or built without page pool statistics.
    pub fn net_iovs(&self) -> NetIovCount {
        self.net_iovs.count()
    }

    /// Unbinds, and returns a value that can still count the net_iovs.
    pub fn unbind(self) -> Unbound {
        drop(self.binding);
        Unbound {
            net_iovs: self.net_iovs,
        }
    }
}

impl fmt::Debug for BoundRx {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BoundRx")
            .field("id", &self.id())
            .field("niov_size", &self.niov_size)
            .field("net_iovs", &self.net_iovs())
            .finish_non_exhaustive()
    }
}

/// A former receive binding. It keeps the memory alive, as do the frags that the program still holds.
pub struct Unbound {
    net_iovs: NetIovs,
}

impl Unbound {
    /// Counts the net_iovs. Those that are not home are still in use: posted, in a packet, or lent to the application; see
    /// [`BoundRx::net_iovs`].
    pub fn net_iovs(&self) -> NetIovCount {
        self.net_iovs.count()
    }
}

impl fmt::Debug for Unbound {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Unbound")
            .field("net_iovs", &self.net_iovs())
            .finish()
    }
}
