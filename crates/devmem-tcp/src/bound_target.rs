//! Memory in which received bytes are placed directly.

use std::fmt;
use std::ops::Range;

use devmem_uapi::{DmabufId, Errno};
use netmem::Dmabuf;

use crate::error::{ErrorKind, PlaceError, Refusal};
use crate::netdev::{Backend, Netdev};
use crate::recv_half::RecvHalf;
use crate::shards::{UserShard, same_id};
use crate::socket::Socket;
use crate::stream::Stream;

/// Memory in which a [`Stream`] of the same [`Netdev`] can receive bytes directly:
/// [`place_next`](RecvHalf::place_next).
///
/// Dropping it unbinds. A range that a stream is filling stays in use, and its frags keep the memory mapped.
#[must_use = "dropping it unbinds the memory"]
pub struct BoundTarget {
    /// The binding of each shard, with the same id.
    shards: Vec<ShardTarget>,
    id: DmabufId,
    memory: Dmabuf,
}

/// The binding of one shard. Dropping it unbinds.
struct ShardTarget {
    shard: UserShard,
    id: DmabufId,
}

impl BoundTarget {
    pub(crate) fn bind(netdev: &Netdev, memory: &Dmabuf) -> Result<Self, PlaceError> {
        let Backend::User(nic) = &netdev.backend else {
            return Err(kernel_places_nothing().into());
        };
        let _bindings = nic.lock_bindings();
        nic.align_dmabuf_ids()?;
        let shards = nic.shards().iter();
        shards.clone().for_each(|shard| shard.shared.note_target());
        let shards = shards.map(|shard| ShardTarget::bind(shard, memory));
        let shards: Vec<_> = shards.collect::<Result<_, PlaceError>>()?;
        let id = same_id(shards.iter().map(|bound| bound.id))?;
        Ok(Self {
            shards,
            id,
            memory: memory.clone(),
        })
    }

    /// Returns the id of the binding, which frags in the memory have.
    pub fn id(&self) -> DmabufId {
        self.id
    }

    /// Returns the bound memory.
    pub fn memory(&self) -> &Dmabuf {
        &self.memory
    }

    fn is_at(&self, socket: &Socket) -> bool {
        let Socket::User(inner) = socket else {
            return false;
        };
        let mut shards = self.shards.iter();
        shards.any(|bound| bound.shard.is(&inner.shared, inner.at))
    }
}

impl ShardTarget {
    fn bind(shard: &UserShard, memory: &Dmabuf) -> Result<Self, PlaceError> {
        let id = shard.with(|stack, _| stack.bind_target(memory))??;
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
        // In a child of fork(2) the binding belongs to the parent.
        let _ = self.shard.with(|stack, _| {
            // Cannot fail: only this handle unbinds.
            let unbound = stack.unbind_target(id);
            debug_assert!(unbound.is_ok(), "{unbound:?}");
        });
    }
}

impl fmt::Debug for BoundTarget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BoundTarget")
            .field("id", &self.id)
            .field("bytes", &self.memory.size())
            .finish_non_exhaustive()
    }
}

/// The refusal by a NIC of the kernel.
fn kernel_places_nothing() -> Refusal {
    let reason = "a NIC of the kernel receives into the memory that is bound to its queues, and nowhere else";
    let refusal = Refusal::new(ErrorKind::Unsupported, Errno::EOPNOTSUPP, reason);
    refusal.with_remedy("copy what was received with `RxBatch::gather_into`")
}

impl RecvHalf {
    /// Says where the next bytes of the stream belong: in `ranges` of `target`, one after another, from the first byte that was
    /// not received yet. A user-space NIC then receives them there, without a copy of its own, as far as it can. Bytes that
    /// were queued before this call stay where they are: in the bound memory, or in the ranges of an earlier call. Those that arrive out of
    /// order lie in the bound memory; those of a packet that the NIC did not expect were copied to their place, or lie in
    /// the bound memory, too.
    ///
    /// Receive as usual, range by range ([`recv_at_most`](Self::recv_at_most)), and pass each batch to
    /// [`RxBatch::gather_into`](crate::RxBatch::gather_into) with its place: it copies only what is not there. Bytes behind the last
    /// range go to the bound memory. The call replaces an earlier one; without ranges it only ends that.
    ///
    /// Until a byte of a range was received, the NIC may write anything to it. To use a range for something else before
    /// all of it was received, end this first: by a call without ranges, or by dropping the stream.
    ///
    /// So the ranges must not have bytes of the target that are still needed. These are, for any stream of the NIC: bytes that
    /// have arrived in the ranges of an earlier call and were not received (where the new ranges have them at the
    /// same place, they may stay); those in batches that were neither gathered nor released; ranges that another stream is filling.
    ///
    /// # Errors
    /// [`PlaceError`]: the stream is not established, or has ended; the target is bound to another NIC; a range is not inside
    /// it; a byte is in two of the ranges, or is still needed. The earlier call stays in effect then.
    pub fn place_next(
        &mut self,
        target: &BoundTarget,
        ranges: &[Range<usize>],
    ) -> Result<(), PlaceError> {
        self.socket.check()?;
        let Socket::User(inner) = &self.socket else {
            return Err(kernel_places_nothing().into());
        };
        if !target.is_at(&self.socket) {
            let reason = "the target is bound to another NIC";
            let refusal = Refusal::new(ErrorKind::InvalidInput, Errno::EINVAL, reason);
            return Err(refusal
                .with_remedy("bind it with `bind_target` of the NIC of the stream")
                .into());
        }
        let (id, at) = (target.id, inner.at);
        let elsewhere = inner
            .shared
            .find_in_stacks(at, |stack, is_ours| match is_ours {
                true => None,
                false => stack.places_in_use(&target.memory, ranges),
            });
        if let Some(found) = elsewhere {
            return Err(stack::PlaceError::InUse(found).into());
        }
        Ok(inner.with(|stack| stack.place_next(inner.socket, id, ranges))??)
    }
}

impl Stream {
    /// Says where the next bytes of the stream belong: see [`RecvHalf::place_next`].
    ///
    /// # Errors
    /// As [`RecvHalf::place_next`].
    pub fn place_next(
        &mut self,
        target: &BoundTarget,
        ranges: &[Range<usize>],
    ) -> Result<(), PlaceError> {
        self.split().0.place_next(target, ranges)
    }
}
