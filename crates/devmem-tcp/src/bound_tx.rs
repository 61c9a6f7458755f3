//! A dma-buf bound for sending.

use std::fmt;
use std::sync::Arc;

use devmem_uapi::DmabufId;
use netmem::Dmabuf;
use stack::BindTx;

use crate::driver::StackIndex;
use crate::error::BindTxError;
use crate::kernel;
use crate::netdev::{Backend, IFINDEX, Netdev, Shared, UserNic};

/// Device memory that a [`Stream`](crate::Stream) of the same [`Netdev`] sends ranges of.
///
/// Dropping it unbinds. What was sent and is not acknowledged still leaves, and keeps the memory mapped until then:
/// bytes that a send names must not change before it is complete, whether the binding still exists or not.
pub struct BoundTx {
    pub(crate) binding: Binding,
    id: DmabufId,
    memory: Dmabuf,
}

/// What unbinds when it is dropped.
pub(crate) enum Binding {
    User(UserTx),
    Kernel(kernel::Tx),
}

pub(crate) struct UserTx {
    pub(crate) shared: Arc<Shared>,
    pub(crate) at: StackIndex,
    id: DmabufId,
}

impl BoundTx {
    pub(crate) fn bind(netdev: &Netdev, memory: &Dmabuf) -> Result<Self, BindTxError> {
        let (binding, id) = match &netdev.backend {
            Backend::User(nic) => {
                let binding = UserTx::bind(nic, memory)?;
                let id = binding.id;
                (Binding::User(binding), id)
            }
            Backend::Kernel(nic) => {
                let binding = kernel::Tx::bind(nic, memory)?;
                let id = binding.id();
                (Binding::Kernel(binding), id)
            }
        };
        Ok(Self {
            binding,
            id,
            memory: memory.clone(),
        })
    }

    /// The name of the binding, as the control message of a send carries it.
    pub fn id(&self) -> DmabufId {
        self.id
    }

    /// The memory that is bound.
    pub fn memory(&self) -> &Dmabuf {
        &self.memory
    }

    /// How many sends from the memory are not complete, over all streams, those dropped since included. At 0 all of
    /// it may be changed. In a child by fork(2), whose sends they are not, 0.
    pub fn in_flight(&self) -> usize {
        match &self.binding {
            Binding::User(UserTx { shared, at, id }) => {
                let in_flight = |stack: &mut stack::Stack, _| stack.sends_in_flight(*id);
                // Bound until this is dropped.
                let in_flight = shared.driver.with(*at, in_flight).ok().flatten();
                in_flight.unwrap_or(0)
            }
            Binding::Kernel(tx) => match tx.nic().check() {
                Ok(()) => tx.in_flight(),
                Err(_forked) => 0,
            },
        }
    }
}

impl UserTx {
    /// Binds on the stack of `nic`.
    fn bind(nic: &UserNic, memory: &Dmabuf) -> Result<Self, BindTxError> {
        let UserNic { shared, at } = nic;
        let request = BindTx {
            ifindex: IFINDEX,
            dmabuf: memory.clone(),
        };
        let id = shared
            .driver
            .with(*at, |stack, _| stack.bind_tx(request))??;
        Ok(Self {
            shared: Arc::clone(shared),
            at: *at,
            id,
        })
    }
}

impl fmt::Debug for BoundTx {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BoundTx")
            .field("id", &self.id)
            .field("in_flight", &self.in_flight())
            .finish_non_exhaustive()
    }
}

impl Drop for UserTx {
    fn drop(&mut self) {
        let id = self.id;
        // In a child by fork(2) the binding is the parent's.
        let _ = self.shared.driver.with(self.at, |stack, _| {
            // This handle is the only one that unbinds.
            let unbound = stack.unbind_tx(id);
            debug_assert!(unbound.is_ok(), "{unbound:?}");
        });
    }
}
