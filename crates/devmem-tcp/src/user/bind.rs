//! Device memory bound to a NIC in user space.

use std::ops::Range;
use std::sync::Arc;

use devmem_uapi::{DmabufId, Errno};
use netmem::{Dmabuf, MemoryProvider, NiovSize};
use stack::{BindRx, BoundMemory, RxPart, Stack};
use steer::RxQueueId;

use super::nic::{Nic, same_id};
use super::settings::ShardSettings;
use super::shard::Shard;
use crate::error::{BindError, Error, ErrorKind, Forked};
use crate::net_iov_count::NetIovCount;

/// Memory bound to RX queues: a part of it on each shard, with the same id. Dropping it unbinds.
pub(crate) struct Rx {
    shards: Vec<ShardRx>,
    id: DmabufId,
}

/// The binding of one shard. Dropping it unbinds, and then gives up the settings of the queues.
struct ShardRx {
    _settings: Vec<Arc<ShardSettings>>,
    shard: Shard,
    id: DmabufId,
    provider: Arc<MemoryProvider>,
}

/// The net_iovs of a binding, counted by the memory provider of each shard.
pub(crate) struct NetIovs(Vec<Arc<MemoryProvider>>);

impl NetIovs {
    pub(crate) fn count(&self) -> NetIovCount {
        let Self(providers) = self;
        NetIovCount {
            total: providers.iter().map(|it| it.area().count() as usize).sum(),
            home: providers.iter().map(|it| it.free_niovs() as usize).sum(),
        }
    }
}

impl Nic {
    /// Binds to RX queues of all shards, to as many parts of the memory, with net_iovs of `size`. Returns the binding and the size.
    pub(crate) fn bind_rx(
        &self,
        memory: &Dmabuf,
        queues: &[RxQueueId],
        size: Option<NiovSize>,
    ) -> Result<(Rx, NiovSize), BindError> {
        let niov_size = size.unwrap_or_default();
        let _bindings = self.first().lock_bindings();
        self.align_dmabuf_ids();
        let parts = parts(memory.size(), niov_size, self.shards().len())?;
        let mut shards = Vec::new();
        let mut claim = None;
        for (shard, range) in self.shards().iter().zip(parts) {
            let request = BindRx {
                dmabuf: memory.clone(),
                niov_size,
                queues: queues.to_vec(),
            };
            let part = RxPart {
                range,
                memory: claim,
            };
            let (bound, memory) = ShardRx::bind(shard, request, part)?;
            shards.push(bound);
            claim = Some(memory);
        }
        let id = same_id(shards.iter().map(|bound| bound.id))?;
        Ok((Rx { shards, id }, niov_size))
    }

    /// Binds for sending, on all shards.
    pub(crate) fn bind_tx(&self, memory: &Dmabuf) -> Result<Tx, Error> {
        let _bindings = self.first().lock_bindings();
        self.align_dmabuf_ids();
        let bind = |shard: &Shard| {
            let id = shard.with(|stack, _| stack.bind_tx(memory))?;
            Ok(ShardTx {
                shard: shard.clone(),
                id,
            })
        };
        let shards: Vec<_> = self
            .shards()
            .iter()
            .map(bind)
            .collect::<Result<_, Error>>()?;
        let id = same_id(shards.iter().map(|bound| bound.id))?;
        Ok(Tx { shards, id })
    }
}

impl Rx {
    pub(crate) fn id(&self) -> DmabufId {
        self.id
    }

    /// Returns a counter of the net_iovs, which also works after unbinding.
    pub(crate) fn net_iovs(&self) -> NetIovs {
        let providers = self.shards.iter().map(|bound| &bound.provider);
        NetIovs(providers.cloned().collect())
    }
}

impl ShardRx {
    fn bind(
        shard: &Shard,
        request: BindRx,
        part: RxPart,
    ) -> Result<(Self, Arc<BoundMemory>), BindError> {
        let observer = request.dmabuf.observer();
        let settings = shard.settings_of(&request.queues);
        let (id, memory, provider) = shard.with(|stack, _| {
            let (id, memory) = stack.bind_rx_part(request, part)?;
            Ok::<_, BindError>((id, memory, stack.provider(id)))
        })?;
        let Some(provider) = provider else {
            unreachable!("the stack knows what it bound just now")
        };
        shard.note_memory(id, observer);
        let bound = Self {
            _settings: settings,
            shard: shard.clone(),
            id,
            provider,
        };
        Ok((bound, memory))
    }
}

impl Drop for ShardRx {
    fn drop(&mut self) {
        let id = self.id;
        self.shard.undo(|stack| {
            // Cannot fail: only this handle unbinds, and the host memory for the queues is already allocated.
            let unbound = stack.unbind_rx(id);
            debug_assert!(unbound.is_ok(), "{unbound:?}");
        });
    }
}

/// Memory bound for sending: on each shard, with the same id. Dropping it unbinds.
pub(crate) struct Tx {
    shards: Vec<ShardTx>,
    id: DmabufId,
}

/// The binding of one shard. Dropping it unbinds.
struct ShardTx {
    shard: Shard,
    id: DmabufId,
}

impl Tx {
    pub(crate) fn id(&self) -> DmabufId {
        self.id
    }

    /// Fails in a child of fork(2).
    pub(crate) fn check(&self) -> Result<(), Forked> {
        self.shards.iter().try_for_each(|bound| bound.shard.check())
    }

    /// Returns whether the memory is bound to this stack.
    pub(crate) fn is_at(&self, shard: &Shard) -> bool {
        self.shards.iter().any(|bound| bound.shard.is_same(shard))
    }

    /// Returns whether the memory is bound to all shards of `nic`.
    pub(crate) fn is_on(&self, nic: &Nic) -> bool {
        nic.shards().iter().all(|shard| self.is_at(shard))
    }

    /// Returns the number of incomplete sends from this memory.
    pub(crate) fn in_flight(&self) -> usize {
        let in_flight = |stack: &mut Stack, _| stack.sends_in_flight(self.id);
        // The stacks know the id: the memory is bound until this is dropped.
        let of_shards = self.shards.iter().map(|it| it.shard.with(in_flight));
        of_shards.flatten().sum()
    }
}

impl Drop for ShardTx {
    fn drop(&mut self) {
        let id = self.id;
        self.shard.undo(|stack| {
            // Cannot fail: only this handle unbinds.
            let unbound = stack.unbind_tx(id);
            debug_assert!(unbound.is_ok(), "{unbound:?}");
        });
    }
}

/// Divides `size` bytes into ranges of whole net_iovs, one for each shard.
fn parts(size: usize, niov_size: NiovSize, shards: usize) -> Result<Vec<Range<usize>>, Error> {
    let niovs = size / niov_size.bytes();
    if niovs < shards && shards > 1 {
        let reason = format!(
            "{size} bytes have fewer net_iovs of {niov_size} than the NIC has shards ({shards})"
        );
        let refusal = Error::new(ErrorKind::InvalidInput, Errno::EINVAL, reason);
        let least = shards * niov_size.bytes();
        return Err(
            refusal.with_remedy(format!("bind at least {least} bytes, or smaller net_iovs"))
        );
    }
    let start = |shard: usize| niovs * shard / shards * niov_size.bytes();
    let end = |shard: usize| match shard + 1 < shards {
        true => start(shard + 1),
        // Bytes that are no whole net_iov are refused by the stack.
        false => size,
    };
    Ok((0..shards).map(|shard| start(shard)..end(shard)).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_parts_of_shards_are_whole_net_iovs_and_together_all_of_the_memory() {
        let niov = NiovSize::MIN.bytes();
        for shards in 1..9 {
            for niovs in shards..40 {
                let parts = parts(niovs * niov, NiovSize::MIN, shards).expect("enough");
                assert_eq!((parts.len(), parts[0].start), (shards, 0));
                assert_eq!(parts[shards - 1].end, niovs * niov);
                assert!(parts.windows(2).all(|two| two[0].end == two[1].start));
                let fair = niovs / shards;
                for part in parts {
                    let has = part.len() / niov;
                    assert!(part.start % niov == 0 && (fair..=fair + 1).contains(&has));
                }
            }
        }
        let refused = parts(3 * niov + 1, NiovSize::MIN, 4).expect_err("one too few");
        assert_eq!(
            refused.to_string(),
            "12289 bytes have fewer net_iovs of 4 KiB than the NIC has shards (4)"
        );
        assert_eq!(
            refused.remedy(),
            Some("bind at least 16384 bytes, or smaller net_iovs".into())
        );
    }
}
