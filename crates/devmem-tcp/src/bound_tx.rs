//! A dma-buf bound for sending.

use std::fmt;
use std::sync::Arc;

use devmem_uapi::{DmabufId, Errno};
use netmem::Dmabuf;
use stack::BindTx;

use crate::driver::StackIndex;
use crate::error::{Error, ErrorKind, Remedy};
use crate::kernel;
use crate::netdev::{Backend, IFINDEX, Netdev};
use crate::shards::{Shared, UserNic, UserShard, same_id};

/// Device memory bound for sending: a [`Stream`](crate::Stream) of the same [`Netdev`] can send ranges of it.
///
/// Dropping it unbinds. Sends that are queued or not yet acknowledged go on, and keep the memory mapped until they are
/// complete: the bytes of a send must not change before then, whether the binding still exists or not.
#[must_use = "dropping it unbinds the memory"]
pub struct BoundTx {
    pub(crate) binding: Binding,
    id: DmabufId,
    memory: Dmabuf,
}

/// The binding of either backend. Dropping it unbinds.
pub(crate) enum Binding {
    User(UserTx),
    Kernel(kernel::Tx),
}

/// The binding of each shard, with the same id.
pub(crate) struct UserTx {
    shards: Vec<ShardTx>,
    id: DmabufId,
}

/// The binding of one shard. Dropping it unbinds.
struct ShardTx {
    shard: UserShard,
    id: DmabufId,
}

impl BoundTx {
    pub(crate) fn bind(netdev: &Netdev, memory: &Dmabuf) -> Result<Self, Error> {
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

    /// Returns whether the memory is bound to `nic`.
    pub(crate) fn is_on(&self, nic: &Netdev) -> bool {
        match (&self.binding, &nic.backend) {
            (Binding::User(bound), Backend::User(nic)) => {
                let mut shards = nic.shards().iter();
                shards.all(|shard| bound.is_at(&shard.shared, shard.at))
            }
            (Binding::Kernel(bound), Backend::Kernel(nic)) => bound.nic().is_same(nic),
            _ => false,
        }
    }

    /// Returns the id of the binding, which the control message of a send contains.
    pub fn id(&self) -> DmabufId {
        self.id
    }

    /// Returns the bound memory.
    pub fn memory(&self) -> &Dmabuf {
        &self.memory
    }

    /// Returns the number of incomplete sends from the memory, over all streams, including dropped ones. At 0, all of the
    /// memory may be changed. Always 0 in a child of fork(2).
    pub fn in_flight(&self) -> usize {
        match &self.binding {
            Binding::User(UserTx { shards, id }) => {
                let in_flight = |stack: &mut stack::Stack, _| stack.sends_in_flight(*id);
                // The stacks know the id: the memory is bound until this is dropped.
                let of_shards = shards.iter().map(|it| it.shard.with(in_flight));
                of_shards.filter_map(|it| it.ok().flatten()).sum()
            }
            Binding::Kernel(tx) => match tx.nic().check() {
                Ok(()) => tx.in_flight(),
                Err(_forked) => 0,
            },
        }
    }
}

impl UserTx {
    /// Returns whether the memory is bound to this stack.
    pub(crate) fn is_at(&self, shared: &Arc<Shared>, at: StackIndex) -> bool {
        self.shards.iter().any(|bound| bound.shard.is(shared, at))
    }

    /// Binds on the stacks of `nic`.
    fn bind(nic: &UserNic, memory: &Dmabuf) -> Result<Self, Error> {
        let _bindings = nic.lock_bindings();
        nic.align_dmabuf_ids()?;
        let bind = |shard: &UserShard| {
            let request = BindTx {
                ifindex: IFINDEX,
                dmabuf: memory.clone(),
            };
            let id = shard.with(|stack, _| stack.bind_tx(request))??;
            Ok(ShardTx {
                shard: shard.clone(),
                id,
            })
        };
        let shards: Vec<_> = nic
            .shards()
            .iter()
            .map(bind)
            .collect::<Result<_, Error>>()?;
        let id = same_id(shards.iter().map(|bound| bound.id))?;
        Ok(Self { shards, id })
    }
}

impl BoundTx {
    /// The error for a stream of another NIC.
    pub(crate) fn is_elsewhere(&self) -> Error {
        let reason = format!(
            "dma-buf {} is bound to another NIC than the stream's",
            self.id()
        );
        Error::new(ErrorKind::InvalidInput, Errno::ENODEV, reason)
            .with_remedy(Remedy::BindToStreamsNic)
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

impl Drop for ShardTx {
    fn drop(&mut self) {
        let id = self.id;
        // In a child of fork(2) the binding belongs to the parent.
        let _ = self.shard.with(|stack, _| {
            // Cannot fail: only this handle unbinds.
            let unbound = stack.unbind_tx(id);
            debug_assert!(unbound.is_ok(), "{unbound:?}");
        });
    }
}
