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
use crate::plan::UserSettings;

/// Device memory bound to RX queues of a [`Netdev`]: the payload of their packets lands in it.
///
/// Dropping it unbinds: the queues switch back to host memory at once. Frags that the program still holds stay valid, and
/// their bytes do not change; the memory is freed when the last net_iov is home, however late. Memory has at most one receive
/// binding at a time, over all NICs. It can be bound again as soon as this is dropped and the last frag received through it
/// has been returned.
#[must_use = "dropping it unbinds the memory"]
pub struct BoundRx {
    binding: Binding,
    id: DmabufId,
    memory: Dmabuf,
    niov_size: NiovSize,
    counter: Counter,
}

/// The binding of either backend. Dropping it unbinds.
enum Binding {
    User { _unbinds: UserRx },
    Kernel { _unbinds: kernel::Rx },
}

/// Dropping it unbinds, and then gives up the settings of the queues.
struct UserRx {
    shared: Arc<Shared>,
    at: StackIndex,
    id: DmabufId,
    _settings: Vec<Arc<UserSettings>>,
}

/// Source of the counts of net_iovs.
enum Counter {
    User(Arc<dyn MemoryProvider>),
    Kernel(NetIovs),
}

/// How many net_iovs a binding has, and how many are home.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NetIovCount {
    /// All net_iovs: the size of the memory divided by the net_iov size.
    pub total: usize,
    /// Free net_iovs: neither in a queue (posted, or cached in its page pool), nor in a packet, nor lent to the
    /// application.
    pub home: usize,
}

impl BoundRx {
    /// Binds with net_iovs of `niov_size`, or of the backend's default size.
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

    /// Returns the id of the binding, which is also in each of its frags.
    pub fn id(&self) -> DmabufId {
        self.id
    }

    /// Returns the bound memory.
    pub fn memory(&self) -> &Dmabuf {
        &self.memory
    }

    /// Returns the size of a net_iov.
    pub fn niov_size(&self) -> NiovSize {
        self.niov_size
    }

    /// Counts the net_iovs. With a kernel that does not report page pools (before 6.12, or built without page pool
    /// statistics), `home` is 0.
    pub fn net_iovs(&self) -> NetIovCount {
        self.counter.count()
    }

    /// Unbinds, and returns a value that can still count the net_iovs.
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
            _settings: UserSettings::needed_by(nic, queues),
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
        // In a child of fork(2) the binding belongs to the parent.
        let _ = self.shared.driver.with(self.at, |stack, _| {
            // Cannot fail: only this handle unbinds, and the host memory for the queues is already allocated.
            let unbound = stack.unbind_rx(id);
            debug_assert!(unbound.is_ok(), "{unbound:?}");
        });
    }
}

/// A former receive binding. It keeps the memory alive, as do the frags that the program still holds.
pub struct Unbound {
    counter: Counter,
}

impl Unbound {
    /// Counts the net_iovs. Those that are not home are still in use: posted, in a packet, or lent to the application.
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
