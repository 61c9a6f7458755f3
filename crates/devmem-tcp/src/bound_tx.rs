//! A dma-buf bound for sending.

use std::fmt;
use std::sync::Arc;

use devmem_uapi::DmabufId;
use netmem::Dmabuf;
use stack::BindTx;

use crate::driver::StackIndex;
use crate::error::BindTxError;
use crate::netdev::{IFINDEX, Netdev, Shared};

/// Device memory that a [`Stream`](crate::Stream) of the same [`Netdev`] sends ranges of.
///
/// Dropping it unbinds. What was sent and is not acknowledged still leaves, and keeps the memory mapped until then:
/// bytes that a send names must not change before it is complete, whether the binding still exists or not.
pub struct BoundTx {
    pub(crate) shared: Arc<Shared>,
    pub(crate) at: StackIndex,
    id: DmabufId,
    memory: Dmabuf,
}

impl BoundTx {
    /// Binds on the stack of `netdev`.
    pub(crate) fn bind(netdev: &Netdev, memory: &Dmabuf) -> Result<Self, BindTxError> {
        let Netdev { shared, at } = netdev;
        let request = BindTx {
            ifindex: IFINDEX,
            dmabuf: memory.clone(),
        };
        let id = shared.driver.with(*at, |stack, _| stack.bind_tx(request))?;
        Ok(Self {
            shared: Arc::clone(shared),
            at: *at,
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
    /// it may be changed.
    pub fn in_flight(&self) -> usize {
        let in_flight = |stack: &mut stack::Stack, _| stack.sends_in_flight(self.id);
        // Bound until this is dropped.
        self.shared.driver.with(self.at, in_flight).unwrap_or(0)
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

impl Drop for BoundTx {
    fn drop(&mut self) {
        let id = self.id;
        self.shared.driver.with(self.at, |stack, _| {
            // This handle is the only one that unbinds.
            let unbound = stack.unbind_tx(id);
            debug_assert!(unbound.is_ok(), "{unbound:?}");
        });
    }
}
