//! bind-rx: dma-bufs attached to receive queues, and their ids.
//!
//! A bind goes step by step, each leaving something that undoes it when a later one fails: the
//! request is judged in the kernel's order (ABI.md 2), the memory is cut into net_iovs, the queues
//! are restarted one by one, the binding gets its place in the table. A binding is not freed by
//! unbinding but when its last net_iov is home; until then its memory is not bound a second time, or two
//! bindings would lend the same bytes ([`RxClaim`]).

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use devmem_uapi::{DmabufId, Errno, IfIndex};
use netmem::{Dmabuf, DmabufProvider, GeometryError, InUse, MemoryProvider, NiovSize, RxClaim};
use nic::{Nic, ProviderChoice, RestartError, TcpDataSplit};
use steer::RxQueueId;
use thiserror::Error;

use crate::Stack;
use crate::binding_tx::TxBinding;
use crate::socket::error::UnknownBinding;

/// A request to attach a dma-buf to receive queues.
///
/// A queue entry without an id or of another type, which the kernel refuses, cannot be written down
/// here.
#[derive(Debug, Clone)]
pub struct BindRx {
    /// The interface.
    pub ifindex: IfIndex,
    /// The memory.
    pub dmabuf: Dmabuf,
    /// Size of each net_iov (linux 7.3: `rx-page-size`).
    pub niov_size: NiovSize,
    /// The queues.
    pub queues: Vec<RxQueueId>,
}

/// Why a [`BindRx`] was refused; nothing has changed then.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum BindRxError {
    /// No queue was given.
    #[error("bind-rx needs at least one rx queue; name the queues the flows are steered to")]
    NoQueues,
    /// This stack has another interface.
    #[error("there is no interface {ifindex}; this stack's is {ours}")]
    UnknownInterface {
        /// The interface asked for.
        ifindex: IfIndex,
        /// The one there is.
        ours: IfIndex,
    },
    /// The interface has fewer queues.
    #[error(
        "rx queue {queue} does not exist, there are {queues}; name one below that, or set more \
         channels"
    )]
    NoSuchQueue {
        /// The queue asked for.
        queue: RxQueueId,
        /// How many there are.
        queues: u16,
    },
    /// The dma-buf cannot be cut into net_iovs.
    #[error("the dma-buf cannot be cut into net_iovs: {0}")]
    Geometry(#[from] GeometryError),
    /// Header split is not switched on.
    #[error(
        "tcp-data-split is disabled or was never set ({setting:?}); the NIC must part headers \
         from payload before device \
         memory can be bound to rx queue {queue}: set tcp-data-split on, hds-thresh 0"
    )]
    SplitOff {
        /// The queue.
        queue: RxQueueId,
        /// What is set.
        setting: TcpDataSplit,
    },
    /// Short packets are not split.
    #[error(
        "hds-thresh is {thresh} bytes, so that short packets would miss device memory on rx \
         queue {queue}: set hds-thresh 0"
    )]
    Threshold {
        /// The queue.
        queue: RxQueueId,
        /// What is set, in bytes.
        thresh: u16,
    },
    /// The queue has a memory provider already.
    #[error(
        "rx queue {queue} is bound to dma-buf {by} already; unbind that, or name another queue"
    )]
    QueueTaken {
        /// The queue.
        queue: RxQueueId,
        /// Who has it; `None` for a provider that is no dma-buf.
        by: Owner,
    },
    /// The memory is bound already, or some of it is still lent from an earlier binding. Linux takes it, and each binding
    /// hands out the other's net_iovs.
    #[error(transparent)]
    InUse(#[from] InUse),
    /// The NIC could not restart the queue.
    #[error("rx queue {queue} could not be restarted with the dma-buf's memory: {source}")]
    Restart {
        /// The queue.
        queue: RxQueueId,
        /// What the NIC says.
        source: RestartError,
    },
    /// Every id is in use.
    #[error("every dma-buf id is in use; unbind some")]
    NoId,
}

/// Who has a queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Owner(pub Option<DmabufId>);

impl fmt::Display for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(id) => write!(f, "{id}"),
            None => f.write_str("of a provider without an id"),
        }
    }
}

impl BindRxError {
    /// Returns the errno of the same refusal by the kernel; of [`InUse`](Self::InUse), which the kernel does not refuse,
    /// EBUSY.
    pub const fn errno(&self) -> Errno {
        match self {
            Self::NoQueues
            | Self::NoSuchQueue { .. }
            | Self::Geometry(_)
            | Self::SplitOff { .. }
            | Self::Threshold { .. } => Errno::EINVAL,
            Self::UnknownInterface { .. } => Errno::ENODEV,
            Self::QueueTaken { .. } => Errno::EEXIST,
            Self::InUse(_) => Errno::EBUSY,
            Self::Restart { source, .. } => match source {
                RestartError::NoSuchQueue { .. } => Errno::EINVAL,
                _ => Errno::ENOMEM,
            },
            Self::NoId => Errno::ENOSPC,
        }
    }
}

/// A dma-buf and the queues it feeds.
#[derive(Debug)]
struct Binding {
    queues: Vec<RxQueueId>,
    niov_size: NiovSize,
    /// Keeps the memory mapped while it is bound; frags that are out keep it longer.
    dmabuf: Dmabuf,
    provider: Arc<dyn MemoryProvider>,
    /// Keeps other bindings from handing out the same memory.
    _claim: RxClaim,
}

/// What is bound, as [`Stack::bindings`] tells it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BindingInfo {
    /// The id.
    pub id: DmabufId,
    /// The queues it feeds.
    pub queues: Vec<RxQueueId>,
    /// Size of its net_iovs.
    pub niov_size: NiovSize,
    /// Bytes of device memory.
    pub size: usize,
}

/// Bindings by id. Ids go up from 1 and come round (linux `xa_alloc_cyclic`).
#[derive(Debug, Default)]
pub(crate) struct Bindings {
    by_id: BTreeMap<DmabufId, Binding>,
    /// Bound for sending; see `binding_tx.rs`.
    pub(crate) sending: BTreeMap<DmabufId, TxBinding>,
    last: u32,
}

impl Bindings {
    /// Returns the id that the next binding gets.
    pub(crate) fn next_id(&self) -> Option<DmabufId> {
        let (above, below) = ((self.last.saturating_add(1)..=u32::MAX), (1..=self.last));
        above
            .chain(below)
            .map(DmabufId)
            .find(|id| id.0 != 0 && !self.is_taken(*id))
    }

    fn is_taken(&self, id: DmabufId) -> bool {
        self.is_receiving(id) || self.sending.contains_key(&id)
    }

    /// Returns whether `id` is bound for receiving.
    pub(crate) fn is_receiving(&self, id: DmabufId) -> bool {
        self.by_id.contains_key(&id)
    }

    pub(crate) fn insert_tx(&mut self, id: DmabufId, binding: TxBinding) {
        self.last = id.0;
        self.sending.insert(id, binding);
    }

    fn insert(&mut self, id: DmabufId, binding: Binding) {
        self.last = id.0;
        self.by_id.insert(id, binding);
    }
}

/// Queues that were given other memory and are given their old kind back unless all goes well.
struct Restarted<'n> {
    nic: &'n mut Nic,
    done: Vec<RxQueueId>,
}

impl<'n> Restarted<'n> {
    fn none(nic: &'n mut Nic) -> Self {
        Self {
            nic,
            done: Vec::new(),
        }
    }

    fn restart(
        &mut self,
        queue: RxQueueId,
        provider: &Arc<dyn MemoryProvider>,
    ) -> Result<(), BindRxError> {
        let taken = self
            .nic
            .queue_info(queue)
            .filter(|info| info.dmabuf.is_some() || !info.readable);
        if let Some(info) = taken {
            // Only a queue named twice gets here: validation looked at each before any was
            // restarted.
            return Err(BindRxError::QueueTaken {
                queue,
                by: Owner(info.dmabuf),
            });
        }
        let choice = ProviderChoice::Provider(Arc::clone(provider));
        self.nic
            .restart_queue(queue, choice)
            .map_err(|source| BindRxError::Restart { queue, source })?;
        self.done.push(queue);
        Ok(())
    }

    /// Keeps the queues as they are now.
    fn commit(mut self) -> Vec<RxQueueId> {
        std::mem::take(&mut self.done)
    }
}

impl Drop for Restarted<'_> {
    fn drop(&mut self) {
        for queue in self.done.drain(..).rev() {
            let undone = self.nic.restart_queue(queue, ProviderChoice::Host);
            debug_assert!(
                undone.is_ok(),
                "a queue had host memory a moment ago: {undone:?}"
            );
        }
    }
}

impl BindRx {
    /// Judges what the request names, in the order of the kernel (linux net/core/netdev-genl.c
    /// `netdev_nl_bind_rx_doit`); whether the queues can be bound comes after the memory was
    /// attached.
    fn validate(&self, ours: IfIndex, nic: &Nic) -> Result<(), BindRxError> {
        let Self {
            ifindex,
            dmabuf: _,
            niov_size: _,
            queues,
        } = self;
        if queues.is_empty() {
            return Err(BindRxError::NoQueues);
        }
        if *ifindex != ours {
            return Err(BindRxError::UnknownInterface {
                ifindex: *ifindex,
                ours,
            });
        }
        let count = nic.channels().rx;
        match queues.iter().find(|queue| queue.0 >= count) {
            Some(&queue) => Err(BindRxError::NoSuchQueue {
                queue,
                queues: count,
            }),
            None => Ok(()),
        }
    }
}

/// Judges whether a queue can be bound now (linux net/core/netdev_rx_queue.c `net_mp_open_rxq`).
fn validate_queue(queue: RxQueueId, nic: &Nic) -> Result<(), BindRxError> {
    let rings = nic.rings();
    if rings.tcp_data_split != TcpDataSplit::Enabled {
        return Err(BindRxError::SplitOff {
            queue,
            setting: rings.tcp_data_split,
        });
    }
    if rings.hds_thresh != 0 {
        return Err(BindRxError::Threshold {
            queue,
            thresh: rings.hds_thresh,
        });
    }
    match nic.queue_info(queue) {
        Some(info) if info.dmabuf.is_some() || !info.readable => Err(BindRxError::QueueTaken {
            queue,
            by: Owner(info.dmabuf),
        }),
        _ => Ok(()),
    }
}

/// Takes the memory for the queues of a binding.
fn claim(
    request: &BindRx,
    provider: &Arc<dyn MemoryProvider>,
    holder: String,
) -> Result<RxClaim, InUse> {
    let claim = RxClaim::take(&request.dmabuf, request.niov_size, holder)?;
    let provider = Arc::downgrade(provider);
    claim.lent_by(move || {
        let lent = |provider: Arc<dyn MemoryProvider>| {
            provider
                .area()
                .count()
                .saturating_sub(provider.free_niovs())
        };
        provider.upgrade().map_or(0, lent) as usize
    });
    Ok(claim)
}

impl Stack {
    /// Attaches a dma-buf to receive queues; payload that is steered to them lands there from now
    /// on. Memory has one binding at a time: it can be bound again, here or on another stack, when the earlier one was
    /// given up and the last of its net_iovs is home, and at once then.
    ///
    /// # Errors
    /// [`BindRxError`], and nothing has changed: queues that were restarted already have host
    /// memory again.
    pub fn bind_rx(&mut self, request: BindRx) -> Result<DmabufId, BindRxError> {
        request.validate(self.ifindex, self.network.nic())?;
        let id = self.bindings.next_id().ok_or(BindRxError::NoId)?;
        let provider = DmabufProvider::new(&request.dmabuf, id, request.niov_size)?;
        let provider: Arc<dyn MemoryProvider> = Arc::new(provider);
        request
            .queues
            .iter()
            .try_for_each(|&queue| validate_queue(queue, self.network.nic()))?;
        // Dropped after the restarted queues, if one of them fails.
        let claim = claim(&request, &provider, self.holder(&request.queues))?;
        let BindRx {
            ifindex: _,
            dmabuf,
            niov_size,
            queues,
        } = request;
        let mut restarted = Restarted::none(self.network.nic_mut());
        for queue in queues {
            restarted.restart(queue, &provider)?;
        }
        let queues = restarted.commit();
        for queue in &queues {
            self.windows.restarted(queue.index());
        }
        self.bindings.insert(
            id,
            Binding {
                queues,
                niov_size,
                dmabuf,
                provider,
                _claim: claim,
            },
        );
        Ok(id)
    }

    /// Names the queues, for the refusal of a second binding of the same memory.
    fn holder(&self, queues: &[RxQueueId]) -> String {
        let queues: Vec<_> = queues.iter().map(RxQueueId::to_string).collect();
        let queues = queues.join(", ");
        match self.addresses().next() {
            Some(address) => format!("rx queue {queues} of the NIC with the address {address}"),
            None => format!("rx queue {queues} of a NIC without an address"),
        }
    }

    /// Detaches a dma-buf: its queues go on with host memory, while other queues run. Frags that
    /// are out stay valid; the memory is freed when the last of them is home.
    ///
    /// # Errors
    /// [`UnbindRxError`]; with [`UnbindRxError::Restart`] the binding stays.
    pub fn unbind_rx(&mut self, id: DmabufId) -> Result<(), UnbindRxError> {
        let binding = self.bindings.by_id.get_mut(&id).ok_or(UnknownBinding(id))?;
        while let Some(&queue) = binding.queues.last() {
            let nic = self.network.nic_mut();
            let restarted = nic.restart_queue(queue, ProviderChoice::Host);
            restarted.map_err(|source| UnbindRxError::Restart { queue, source })?;
            self.windows.restarted(queue.index());
            binding.queues.pop();
        }
        self.bindings.by_id.remove(&id);
        Ok(())
    }

    /// Returns the provider of a binding's net_iovs, to count them by, also after it was unbound.
    pub fn provider(&self, id: DmabufId) -> Option<Arc<dyn MemoryProvider>> {
        self.bindings
            .by_id
            .get(&id)
            .map(|binding| Arc::clone(&binding.provider))
    }

    /// Returns what is bound, by id.
    pub fn bindings(&self) -> impl Iterator<Item = BindingInfo> + '_ {
        self.bindings.by_id.iter().map(
            |(
                &id,
                Binding {
                    queues,
                    niov_size,
                    dmabuf,
                    provider: _,
                    _claim: _,
                },
            )| BindingInfo {
                id,
                queues: queues.clone(),
                niov_size: *niov_size,
                size: dmabuf.size(),
            },
        )
    }
}

/// Why a dma-buf stays bound.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum UnbindRxError {
    /// Nothing is bound under this id.
    #[error(transparent)]
    Unknown(#[from] UnknownBinding),
    /// A queue cannot go back to host memory; it still runs on the dma-buf.
    #[error(
        "rx queue {queue} could not go back to host memory: {source}; free some and unbind again"
    )]
    Restart {
        /// The queue.
        queue: RxQueueId,
        /// What the NIC says.
        source: RestartError,
    },
}

impl UnbindRxError {
    /// Returns the errno that says the same.
    pub const fn errno(&self) -> Errno {
        match self {
            Self::Unknown(unknown) => unknown.errno(),
            Self::Restart { .. } => Errno::ENOMEM,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn binding() -> Binding {
        let (dmabuf, niov_size) = (Dmabuf::anonymous(4096).unwrap(), NiovSize::MIN);
        let provider = Arc::new(DmabufProvider::new(&dmabuf, DmabufId(1), niov_size).unwrap());
        let claim = RxClaim::take(&dmabuf, niov_size, String::new()).unwrap();
        Binding {
            queues: Vec::new(),
            niov_size,
            dmabuf,
            provider,
            _claim: claim,
        }
    }

    #[test]
    fn ids_start_at_one_and_are_not_used_again_until_all_were() {
        let mut bindings = Bindings::default();
        for expected in 1..=3 {
            let id = bindings.next_id().unwrap();
            assert_eq!(id, DmabufId(expected));
            bindings.insert(id, binding());
        }
        bindings.by_id.remove(&DmabufId(1));
        assert_eq!(bindings.next_id(), Some(DmabufId(4)));
    }

    #[test]
    fn ids_come_round_past_the_last_number() {
        let mut bindings = Bindings {
            last: u32::MAX - 1,
            ..Bindings::default()
        };
        bindings.insert(DmabufId(1), binding());
        bindings.insert(DmabufId(u32::MAX), binding());
        assert_eq!(bindings.next_id(), Some(DmabufId(2)));
    }
}
