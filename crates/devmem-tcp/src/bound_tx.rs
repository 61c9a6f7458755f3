//! A dma-buf bound for sending.

use std::fmt;

use devmem_uapi::DmabufId;
use netmem::Dmabuf;

use crate::backend::{Nic, Tx};
use crate::error::Error;

/// Device memory bound for sending: a [`Stream`](crate::Stream) of the same [`Netdev`](crate::Netdev) can send ranges of it.
///
/// Dropping it unbinds. Sends that are queued or not yet acknowledged go on, and keep the memory mapped until they are
/// complete: the bytes of a send must not change before then, whether the binding still exists or not.
#[must_use = "dropping it unbinds the memory"]
pub struct BoundTx {
    binding: Tx,
    memory: Dmabuf,
}

impl BoundTx {
    pub(crate) fn bind(nic: &Nic, memory: &Dmabuf) -> Result<Self, Error> {
        Ok(Self {
            binding: nic.bind_tx(memory)?,
            memory: memory.clone(),
        })
    }

    pub(crate) fn binding(&self) -> &Tx {
        &self.binding
    }

    /// Returns the id of the binding, which the control message of a send contains.
    pub fn id(&self) -> DmabufId {
        self.binding.id()
    }

    /// Returns the bound memory.
    pub fn memory(&self) -> &Dmabuf {
        &self.memory
    }

    /// Returns the number of incomplete sends from the memory, over all streams, including dropped ones. At 0, all of the
    /// memory may be changed. Always 0 in a child of fork(2).
    pub fn in_flight(&self) -> usize {
        self.binding.in_flight()
    }
}

impl fmt::Debug for BoundTx {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BoundTx")
            .field("id", &self.id())
            .field("in_flight", &self.in_flight())
            .finish_non_exhaustive()
    }
}
