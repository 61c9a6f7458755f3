//! A dma-buf bound to RX queues.

use std::fmt;
use std::sync::Arc;

use devmem_uapi::DmabufId;
use netmem::{Dmabuf, MemoryProvider, NiovSize};
use stack::BindRx;
use steer::RxQueueId;

use crate::driver::StackIndex;
use crate::error::BindError;
use crate::kernel::{self, NetIovs};
use crate::netdev::{Backend, IFINDEX, Netdev, Shared, UserNic};

/// Device memory bound to RX queues of a [`Netdev`]: their packets' payload lands in it.
///
/// Dropping it unbinds: the queues go back to host memory at once. The memory itself is let go when its last
/// net_iov is home, however late, so frags that are still held stay valid: their bytes do not change, because nothing
/// else is received there meanwhile. Memory has one receive binding at a time, on whatever NIC; it can be bound again
/// when this is dropped and the last frag received through it was given back, at once then.
pub struct BoundRx {
    binding: Binding,
    id: DmabufId,
    memory: Dmabuf,
    niov_size: NiovSize,
    counter: Counter,
}

/// What unbinds when it is dropped.
enum Binding {
    User { _unbinds: UserRx },
    Kernel { _unbinds: kernel::Rx },
}

struct UserRx {
    shared: Arc<Shared>,
    at: StackIndex,
    id: DmabufId,
}

/// What knows where the net_iovs are.
enum Counter {
    User(Arc<dyn MemoryProvider>),
    Kernel(NetIovs),
}

/// Where a binding's net_iovs are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NetIovCount {
    /// All there are: the memory's size divided by the net_iov size.
    pub total: usize,
    /// Those that are free with the binding: neither in a queue (posted, or kept ready in its page pool), nor in
    /// a packet, nor lent to the application.
    pub home: usize,
}

impl BoundRx {
    /// Binds with net_iovs of `niov_size`, or of the backend's usual size.
    pub(crate) fn bind(
        netdev: &Netdev,
        memory: &Dmabuf,
        queues: &[RxQueueId],
        niov_size: Option<NiovSize>,
    ) -> Result<Self, BindError> {
        let (binding, id, niov_size, counter) = match &netdev.backend {
            Backend::User(nic) => {
                let niov_size = niov_size.unwrap_or_default();
                let (binding, provider) = UserRx::bind(nic, memory, queues, niov_size)?;
                let (id, counter) = (binding.id, Counter::User(provider));
                let binding = Binding::User { _unbinds: binding };
                (binding, id, niov_size, counter)
            }
            Backend::Kernel(nic) => {
                let (binding, niov_size) = kernel::Rx::bind(nic, memory, queues, niov_size)?;
                let counter = Counter::Kernel(binding.net_iovs(memory, niov_size));
                let id = binding.id();
                let binding = Binding::Kernel { _unbinds: binding };
                (binding, id, niov_size, counter)
            }
        };
        Ok(Self {
            binding,
            id,
            memory: memory.clone(),
            niov_size,
            counter,
        })
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

    /// Counts the binding's net_iovs. A kernel that does not say (before 6.12, or built without page pool counts) has
    /// none at home.
    pub fn net_iovs(&self) -> NetIovCount {
        self.counter.count()
    }

    /// Unbinds, and returns what still knows where the net_iovs are.
    pub fn unbind(self) -> Unbound {
        drop(self.binding);
        Unbound {
            counter: self.counter,
        }
    }
}

impl UserRx {
    /// Binds on the stack of `nic`.
    fn bind(
        nic: &UserNic,
        memory: &Dmabuf,
        queues: &[RxQueueId],
        niov_size: NiovSize,
    ) -> Result<(Self, Arc<dyn MemoryProvider>), BindError> {
        let UserNic { shared, at } = nic;
        let request = BindRx {
            ifindex: IFINDEX,
            dmabuf: memory.clone(),
            niov_size,
            queues: queues.to_vec(),
        };
        let (id, provider) = shared.driver.with(*at, |stack, _| {
            let id = stack.bind_rx(request)?;
            Ok::<_, BindError>((id, stack.provider(id)))
        })??;
        let Some(provider) = provider else {
            unreachable!("the stack knows what it bound just now")
        };
        let memories = &mut shared.driver.lock().memories;
        memories.retain(|_, memory| !memory.is_freed());
        memories.insert((*at, id), memory.observer());
        let bound = Self {
            shared: Arc::clone(shared),
            at: *at,
            id,
        };
        Ok((bound, provider))
    }
}

impl fmt::Debug for BoundRx {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BoundRx")
            .field("id", &self.id)
            .field("niov_size", &self.niov_size)
            .field("net_iovs", &self.net_iovs())
            .finish_non_exhaustive()
    }
}

impl Drop for UserRx {
    fn drop(&mut self) {
        let id = self.id;
        // In a child by fork(2) the binding is the parent's.
        let _ = self.shared.driver.with(self.at, |stack, _| {
            // This handle is the only one that unbinds, and host memory for the queues is kept ready.
            let unbound = stack.unbind_rx(id);
            debug_assert!(unbound.is_ok(), "{unbound:?}");
        });
    }
}

/// A binding that was given up. Frags that are still held keep its memory; so does this.
pub struct Unbound {
    counter: Counter,
}

impl Unbound {
    /// Counts the net_iovs: those that are not home are still held by somebody.
    pub fn net_iovs(&self) -> NetIovCount {
        self.counter.count()
    }
}

impl fmt::Debug for Unbound {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Unbound")
            .field("net_iovs", &self.net_iovs())
            .finish()
    }
}

impl Counter {
    fn count(&self) -> NetIovCount {
        match self {
            Self::User(provider) => NetIovCount {
                total: provider.area().count() as usize,
                home: provider.free_niovs() as usize,
            },
            Self::Kernel(net_iovs) => net_iovs.count(),
        }
    }
}
