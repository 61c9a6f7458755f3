//! Memory in which received bytes are placed directly.

use std::fmt;

use devmem_uapi::DmabufId;
use netmem::Dmabuf;

use crate::backend::{Nic, Target};
use crate::error::Error;

/// Memory in which a [`Stream`](crate::Stream) of the same [`Netdev`](crate::Netdev) can receive bytes directly:
/// [`place_next`](crate::RecvHalf::place_next).
///
/// Dropping it unbinds. A range that a stream is filling stays in use, and its frags keep the memory mapped.
#[must_use = "dropping it unbinds the memory"]
pub struct BoundTarget {
    binding: Target,
}

impl BoundTarget {
    pub(crate) fn bind(nic: &Nic, memory: &Dmabuf) -> Result<Self, Error> {
        let binding = nic.bind_target(memory)?;
        Ok(Self { binding })
    }

    pub(crate) fn binding(&self) -> &Target {
        &self.binding
    }

    /// Returns the id of the binding, which frags in the memory have.
    pub fn id(&self) -> DmabufId {
        self.binding.id()
    }

    /// Returns the bound memory.
    pub fn memory(&self) -> &Dmabuf {
        self.binding.memory()
    }
}

impl fmt::Debug for BoundTarget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BoundTarget")
            .field("id", &self.id())
            .field("bytes", &self.memory().size())
            .finish_non_exhaustive()
    }
}
