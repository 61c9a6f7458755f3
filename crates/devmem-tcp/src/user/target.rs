//! Memory of a NIC in user space in which received bytes are placed directly.

use std::ops::Range;

use devmem_uapi::{DmabufId, Errno};
use netmem::Dmabuf;

use super::nic::{Nic, same_id};
use super::shard::Shard;
use super::socket::Socket;
use crate::error::{Error, ErrorKind, Remedy};

/// Memory bound as a target: on each shard, with the same id. Dropping it unbinds.
pub(crate) struct Target {
    shards: Vec<ShardTarget>,
    id: DmabufId,
    memory: Dmabuf,
}

/// The binding of one shard. Dropping it unbinds.
struct ShardTarget {
    shard: Shard,
    id: DmabufId,
}

impl Nic {
    /// Binds as a target, on all shards.
    pub(crate) fn bind_target(&self, memory: &Dmabuf) -> Result<Target, Error> {
        let _bindings = self.first().lock_bindings();
        self.align_dmabuf_ids();
        self.first().note_target();
        let shards = self.shards().iter();
        let shards: Vec<_> = shards
            .map(|shard| ShardTarget::bind(shard, memory))
            .collect::<Result<_, Error>>()?;
        let id = same_id(shards.iter().map(|bound| bound.id))?;
        Ok(Target {
            shards,
            id,
            memory: memory.clone(),
        })
    }
}

impl Target {
    pub(crate) fn id(&self) -> DmabufId {
        self.id
    }

    pub(crate) fn memory(&self) -> &Dmabuf {
        &self.memory
    }

    fn is_at(&self, shard: &Shard) -> bool {
        self.shards.iter().any(|bound| bound.shard.is_same(shard))
    }
}

impl ShardTarget {
    fn bind(shard: &Shard, memory: &Dmabuf) -> Result<Self, Error> {
        let id = shard.with(|stack, _| stack.bind_target(memory))?;
        shard.note_memory(id, memory.observer());
        Ok(Self {
            shard: shard.clone(),
            id,
        })
    }
}

impl Drop for ShardTarget {
    fn drop(&mut self) {
        let id = self.id;
        self.shard.undo(|stack| {
            // Cannot fail: only this handle unbinds.
            let unbound = stack.unbind_target(id);
            debug_assert!(unbound.is_ok(), "{unbound:?}");
        });
    }
}

impl Socket {
    /// Has the next bytes received in `ranges` of `target`.
    pub(crate) fn place_next(&self, target: &Target, ranges: &[Range<usize>]) -> Result<(), Error> {
        let shard = self.shard();
        if !target.is_at(shard) {
            let reason = "the target is bound to another NIC";
            let refusal = Error::new(ErrorKind::InvalidInput, Errno::EINVAL, reason);
            return Err(refusal.with_remedy(Remedy::BindTargetToStreamsNic));
        }
        let elsewhere = shard.find_in_stacks(|stack, is_ours| match is_ours {
            true => None,
            false => stack.places_in_use(&target.memory, ranges),
        });
        if let Some(found) = elsewhere {
            return Err(stack::PlaceError::InUse(found).into());
        }
        Ok(self.with(|stack, id| stack.place_next(id, target.id, ranges))?)
    }
}
