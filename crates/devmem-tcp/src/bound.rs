//! A dma-buf bound to RX queues.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use devmem_uapi::{DmabufId, Errno};
use netmem::{Dmabuf, MemoryProvider, NiovSize};
use stack::{BindRx, BoundMemory, RxPart};
use steer::RxQueueId;

use crate::error::{BindError, Error, ErrorKind};
use crate::kernel::{self, NetIovs};
use crate::netdev::{Backend, IFINDEX, Netdev};
use crate::plan::UserSettings;
use crate::shards::{UserNic, UserShard, same_id};

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

/// The binding of each shard, to a part of the memory, with the same id.
struct UserRx {
    shards: Vec<ShardRx>,
    id: DmabufId,
}

/// The binding of one shard. Dropping it unbinds, and then gives up the settings of the queues.
struct ShardRx {
    shard: UserShard,
    id: DmabufId,
    provider: Arc<dyn MemoryProvider>,
    _settings: Vec<Arc<UserSettings>>,
}

/// Source of the counts of net_iovs.
enum Counter {
    /// Of each shard.
    User(Vec<Arc<dyn MemoryProvider>>),
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
                let binding = UserRx::bind(nic, memory, queues, niov_size)?;
                let providers = binding.shards.iter().map(|bound| &bound.provider);
                let counter = Counter::User(providers.cloned().collect());
                let id = binding.id;
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
    /// Binds on the stacks of `nic`, to as many parts of the memory as it has shards.
    fn bind(
        nic: &UserNic,
        memory: &Dmabuf,
        queues: &[RxQueueId],
        niov_size: NiovSize,
    ) -> Result<Self, BindError> {
        let _bindings = nic.lock_bindings();
        nic.align_dmabuf_ids()?;
        let parts = parts(memory.size(), niov_size, nic.shards().len())?;
        let mut shards = Vec::new();
        let mut claim = None;
        for (shard, range) in nic.shards().iter().zip(parts) {
            let request = BindRx {
                ifindex: IFINDEX,
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
        Ok(Self { shards, id })
    }
}

impl ShardRx {
    fn bind(
        shard: &UserShard,
        request: BindRx,
        part: RxPart,
    ) -> Result<(Self, Arc<BoundMemory>), BindError> {
        let observer = request.dmabuf.observer();
        let settings = UserSettings::needed_by(shard, &request.queues);
        let (id, memory, provider) = shard.with(|stack, _| {
            let (id, memory) = stack.bind_rx_part(request, part)?;
            Ok::<_, BindError>((id, memory, stack.provider(id)))
        })??;
        let Some(provider) = provider else {
            unreachable!("the stack knows what it bound just now")
        };
        shard.note_memory(id, observer);
        let bound = Self {
            shard: shard.clone(),
            id,
            provider,
            _settings: settings,
        };
        Ok((bound, memory))
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

impl fmt::Debug for BoundRx {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BoundRx")
            .field("id", &self.id)
            .field("niov_size", &self.niov_size)
            .field("net_iovs", &self.net_iovs())
            .finish_non_exhaustive()
    }
}

impl Drop for ShardRx {
    fn drop(&mut self) {
        let id = self.id;
        // In a child of fork(2) the binding belongs to the parent.
        let _ = self.shard.with(|stack, _| {
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
            Self::User(providers) => NetIovCount {
                total: providers.iter().map(|it| it.area().count() as usize).sum(),
                home: providers.iter().map(|it| it.free_niovs() as usize).sum(),
            },
            Self::Kernel(net_iovs) => net_iovs.count(),
        }
    }
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
            "12289 bytes have fewer net_iovs of 4 KiB than the NIC has shards (4)\n  bind at least 16384 bytes, or smaller \
             net_iovs"
        );
    }
}
