//! bind-rx: dma-bufs attached to receive queues, and their ids.
//!
//! The steps of a bind: the request is checked in the kernel's order (linux net/core/netdev-genl.c), the memory is divided into
//! net_iovs, the queues are restarted one by one, the binding is entered into the table. If a step fails, the
//! earlier ones are undone. After an unbind, the memory is freed when its last net_iov has been given back.
//! Until then it cannot be bound again: two bindings would hand out the same bytes ([`RxClaim`]).

mod tx;

use std::collections::BTreeMap;
use std::fmt;
use std::net::IpAddr;
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use devmem_uapi::{DmabufId, Errno};
use netmem::{Dmabuf, FragSource, GeometryError, InUse, MemoryProvider, NiovSize, RxClaim};
use nic::{Nic, ProviderChoice, RestartError, TcpDataSplit};
use steer::RxQueueId;
use thiserror::Error;

use crate::network::Network;
use crate::placement::GivenPlaces;
use crate::route::Routes;
use crate::socket::error::{SendError, UnknownBinding};
use crate::window::Windows;
pub use tx::BindTxError;

/// A request to attach a dma-buf to receive queues.
///
/// The kernel refuses a queue entry without an id, or of another type; this type has no such entries.
#[derive(Debug, Clone)]
pub struct BindRx {
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
    #[error("bind-rx needs at least one rx queue")]
    NoQueues,
    /// The interface has fewer queues.
    #[error("rx queue {queue} does not exist, there are {queues}")]
    NoSuchQueue {
        /// The requested queue.
        queue: RxQueueId,
        /// Number of queues.
        queues: u16,
    },
    /// The size of the dma-buf is not a multiple of the net_iov size.
    #[error("the dma-buf cannot be cut into net_iovs: {0}")]
    Geometry(GeometryError),
    /// Header split is not switched on.
    #[error(
        "tcp-data-split is disabled or was never set ({setting:?}): the NIC must separate headers from payload before device memory \
         can be bound to rx queue {queue}"
    )]
    SplitOff {
        /// The queue.
        queue: RxQueueId,
        /// The setting.
        setting: TcpDataSplit,
    },
    /// The queue has a memory provider already.
    #[error("rx queue {queue} is bound to dma-buf {by} already")]
    QueueTaken {
        /// The queue.
        queue: RxQueueId,
        /// The binding that has it.
        by: DmabufId,
    },
    /// The memory is bound already, or some of it is still in use from an earlier binding. Linux accepts this, and each
    /// binding hands out the net_iovs of the other.
    #[error(transparent)]
    InUse(#[from] InUse),
    /// The memory is a target, in which programs choose where bytes are received.
    #[error(
        "the memory is bound as a target (dma-buf {target}), in which streams receive directly"
    )]
    IsTarget {
        /// The binding as a target.
        target: DmabufId,
    },
    /// The NIC could not restart the queue.
    #[error("rx queue {queue} could not be restarted with the dma-buf's memory: {error}")]
    Restart {
        /// The queue.
        queue: RxQueueId,
        /// Cause.
        error: RestartError,
    },
    /// Every id is in use.
    #[error("every dma-buf id is in use")]
    NoId,
}

impl BindRxError {
    /// Returns the errno with which the kernel refuses the same. [`InUse`](Self::InUse), which the kernel accepts, is
    /// EBUSY.
    pub const fn errno(&self) -> Errno {
        match self {
            Self::NoQueues
            | Self::NoSuchQueue { .. }
            | Self::Geometry(_)
            | Self::SplitOff { .. } => Errno::EINVAL,
            Self::QueueTaken { .. } => Errno::EEXIST,
            Self::InUse(_) | Self::IsTarget { .. } => Errno::EBUSY,
            Self::Restart { error, .. } => match error {
                RestartError::NoSuchQueue { .. } => Errno::EINVAL,
                _ => Errno::ENOMEM,
            },
            Self::NoId => Errno::ENOSPC,
        }
    }

    /// Returns what to do about it.
    pub const fn remedy(&self) -> Option<&'static str> {
        match self {
            Self::NoQueues => Some("name the queues the flows are steered to"),
            Self::NoSuchQueue { .. } => Some("name one below that"),
            Self::SplitOff { .. } => Some("set tcp-data-split on"),
            Self::QueueTaken { .. } => Some("unbind that, or name another queue"),
            Self::InUse(in_use) => Some(in_use.remedy()),
            Self::IsTarget { .. } => Some("bind other memory for receiving"),
            Self::NoId => Some("unbind some"),
            Self::Geometry(error) => Some(error.remedy()),
            Self::Restart { .. } => None,
        }
    }
}

impl From<GeometryError> for BindRxError {
    fn from(error: GeometryError) -> Self {
        Self::Geometry(error)
    }
}

/// A dma-buf that is bound to receive queues.
#[derive(Debug)]
pub(crate) struct RxBinding {
    queues: Vec<RxQueueId>,
    /// Keeps the memory mapped while it is bound; frags in use keep it mapped for longer.
    pub(crate) provider: Arc<MemoryProvider>,
    /// Prevents other bindings of the same memory.
    _claim: Arc<BoundMemory>,
}

/// What a memory is bound for.
#[derive(Debug)]
pub(crate) enum Bound {
    /// Queues receive into it.
    Receiving(RxBinding),
    /// Programs send from it; see `binding/tx.rs`.
    Sending(FragSource),
    /// Received payload is placed in it directly; see `stack/targets.rs`.
    Target(FragSource),
}

/// Bindings by id. Ids begin at 1, increase, and wrap around (linux `xa_alloc_cyclic`).
#[derive(Debug, Default)]
pub(crate) struct Bindings {
    by_id: BTreeMap<DmabufId, Bound>,
    /// Places that connections were given in targets.
    pub(crate) places: GivenPlaces,
    pub(crate) last: u32,
}

impl Bindings {
    /// Returns the id that the next binding gets.
    pub(crate) fn next_id(&self) -> Option<DmabufId> {
        let (above, below) = ((self.last.saturating_add(1)..=u32::MAX), (1..=self.last));
        above
            .chain(below)
            .map(DmabufId)
            .find(|id| id.0 != 0 && !self.by_id.contains_key(id))
    }

    /// Returns the binding for receiving with this id.
    pub(crate) fn rx(&self, id: DmabufId) -> Option<&RxBinding> {
        match self.by_id.get(&id)? {
            Bound::Receiving(binding) => Some(binding),
            Bound::Sending(_) | Bound::Target(_) => None,
        }
    }

    /// Returns the target with this id.
    pub(crate) fn target(&self, id: DmabufId) -> Result<&FragSource, UnknownBinding> {
        match self.by_id.get(&id) {
            Some(Bound::Target(memory)) => Ok(memory),
            _ => Err(UnknownBinding(id)),
        }
    }

    /// Returns the memory that programs send from under `id`.
    pub(crate) fn source(&self, id: DmabufId) -> Result<&FragSource, UnknownBinding> {
        match self.by_id.get(&id) {
            Some(Bound::Sending(memory)) => Ok(memory),
            _ => Err(UnknownBinding(id)),
        }
    }

    /// Returns the memory that is bound under `id`, if there is a route to `remote` (linux net/core/devmem.c
    /// `net_devmem_get_binding`).
    pub(crate) fn tx(
        &self,
        id: DmabufId,
        routes: &Routes,
        remote: IpAddr,
    ) -> Result<&FragSource, SendError> {
        let memory = self.source(id).map_err(|_| match self.rx(id) {
            Some(_) => SendError::ReceiveBinding { dmabuf: id },
            None => SendError::UnknownBinding { dmabuf: id },
        })?;
        // Local addresses are reached through the same NIC, which supports device memory, unlike the kernel's loopback.
        routes.route(remote).map_err(SendError::NoRoute)?;
        Ok(memory)
    }

    pub(crate) fn insert(&mut self, id: DmabufId, bound: Bound) {
        self.last = id.0;
        self.by_id.insert(id, bound);
    }

    /// Removes a binding that [`Bindings::source`] or [`Bindings::target`] has found.
    pub(crate) fn remove(&mut self, id: DmabufId) {
        self.by_id.remove(&id);
    }
}

/// Queues that were restarted on device memory. Unless it is committed, `Drop` restarts them on host memory.
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
        provider: &Arc<MemoryProvider>,
    ) -> Result<(), BindRxError> {
        // It is taken if the request names it twice: all queues were validated before the first was restarted.
        check_free(queue, self.nic)?;
        let choice = ProviderChoice::Provider(Arc::clone(provider));
        self.nic
            .restart_queue(queue, choice)
            .map_err(|error| BindRxError::Restart { queue, error })?;
        self.done.push(queue);
        Ok(())
    }

    /// Keeps the queues on device memory.
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
    /// Checks the queues in the order of the kernel (linux net/core/netdev-genl.c
    /// `netdev_nl_bind_rx_doit`). Whether the queues can be bound is checked after the memory.
    fn validate(&self, nic: &Nic) -> Result<(), BindRxError> {
        if self.queues.is_empty() {
            return Err(BindRxError::NoQueues);
        }
        let count = nic.rx_queue_count();
        match self.queues.iter().find(|queue| queue.0 >= count) {
            Some(&queue) => Err(BindRxError::NoSuchQueue {
                queue,
                queues: count,
            }),
            None => Ok(()),
        }
    }
}

/// Checks whether a queue can be bound now (linux net/core/netdev_rx_queue.c `net_mp_open_rxq`).
fn validate_queue(queue: RxQueueId, nic: &Nic) -> Result<(), BindRxError> {
    let setting = nic.rings().tcp_data_split;
    if setting != TcpDataSplit::Enabled {
        return Err(BindRxError::SplitOff { queue, setting });
    }
    check_free(queue, nic)
}

/// Checks that a queue has no memory provider.
fn check_free(queue: RxQueueId, nic: &Nic) -> Result<(), BindRxError> {
    match nic.queue_info(queue).and_then(|info| info.dmabuf) {
        Some(by) => Err(BindRxError::QueueTaken { queue, by }),
        None => Ok(()),
    }
}

/// The claim on the memory of a binding. The shards of a NIC, each of which binds a part of the memory, have one together.
pub struct BoundMemory {
    _claim: RxClaim,
    providers: Providers,
}

/// The providers of the parts of a memory. The lock is held to add or to count; no other lock is taken meanwhile.
type Providers = Arc<Mutex<Vec<Weak<MemoryProvider>>>>;

impl BoundMemory {
    /// Claims the memory of `request`; `holder` names its queues in a later refusal.
    fn claim(request: &BindRx, holder: String) -> Result<Arc<Self>, InUse> {
        let claim = RxClaim::take(&request.dmabuf, request.niov_size, holder)?;
        let providers = Providers::default();
        let counted = Arc::clone(&providers);
        claim.lent_by(move || {
            let in_use = |provider: Arc<MemoryProvider>| {
                let all = provider.area().count();
                all.saturating_sub(provider.free_niovs()) as usize
            };
            let providers = counted.lock().unwrap_or_else(PoisonError::into_inner);
            let provided = providers.iter().filter_map(Weak::upgrade);
            provided.map(in_use).sum()
        });
        Ok(Arc::new(Self {
            _claim: claim,
            providers,
        }))
    }

    fn add(&self, provider: &Arc<MemoryProvider>) {
        let mut providers = self
            .providers
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        providers.push(Arc::downgrade(provider));
    }
}

impl fmt::Debug for BoundMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("BoundMemory")
    }
}

/// The part of a memory that one shard of a NIC binds.
#[derive(Debug)]
pub struct RxPart {
    /// Bytes of the memory, a number of net_iovs. The parts of the shards do not overlap.
    pub range: Range<usize>,
    /// The claim of the shards that have bound their part; `None` for the first one, which claims all of the memory.
    pub memory: Option<Arc<BoundMemory>>,
}

impl Bindings {
    /// Carries out [`Stack::bind_rx_part`](crate::Stack::bind_rx_part).
    pub(crate) fn bind_rx(
        &mut self,
        request: BindRx,
        part: RxPart,
        network: &Network,
        nic: &mut Nic,
        windows: &mut Windows,
    ) -> Result<(DmabufId, Arc<BoundMemory>), BindRxError> {
        request.validate(nic)?;
        let id = self.next_id().ok_or(BindRxError::NoId)?;
        let RxPart { range, memory } = part;
        let provider = MemoryProvider::of_range(&request.dmabuf, range, id, request.niov_size)?;
        let provider: Arc<MemoryProvider> = Arc::new(provider);
        request
            .queues
            .iter()
            .try_for_each(|&queue| validate_queue(queue, nic))?;
        let is_here = |(_, bound): &(_, &Bound)| match bound {
            Bound::Target(memory) => memory.dmabuf().is_same(&request.dmabuf),
            Bound::Receiving(_) | Bound::Sending(_) => false,
        };
        if let Some((&target, _)) = self.by_id.iter().find(is_here) {
            return Err(BindRxError::IsTarget { target });
        }
        // Declared before `restarted`: if a queue fails, the claim is dropped after the queues are back on host memory.
        let claim = match memory {
            Some(memory) => memory,
            None => BoundMemory::claim(&request, holder(&request.queues, network))?,
        };
        claim.add(&provider);
        let mut restarted = Restarted::none(nic);
        for queue in request.queues {
            restarted.restart(queue, &provider)?;
        }
        let queues = restarted.commit();
        for &queue in &queues {
            windows.restarted(queue);
        }
        let binding = RxBinding {
            queues,
            provider,
            _claim: Arc::clone(&claim),
        };
        self.insert(id, Bound::Receiving(binding));
        Ok((id, claim))
    }

    /// Carries out [`Stack::unbind_rx`](crate::Stack::unbind_rx).
    pub(crate) fn unbind_rx(
        &mut self,
        id: DmabufId,
        nic: &mut Nic,
        windows: &mut Windows,
    ) -> Result<(), UnbindRxError> {
        let Some(Bound::Receiving(binding)) = self.by_id.get_mut(&id) else {
            return Err(UnknownBinding(id).into());
        };
        while let Some(&queue) = binding.queues.last() {
            let restarted = nic.restart_queue(queue, ProviderChoice::Host);
            restarted.map_err(|error| UnbindRxError::Restart { queue, error })?;
            windows.restarted(queue);
            binding.queues.pop();
        }
        self.by_id.remove(&id);
        Ok(())
    }
}

/// Returns the name of the queues, for the refusal of a second binding of the same memory.
fn holder(queues: &[RxQueueId], network: &Network) -> String {
    let queues: Vec<_> = queues.iter().map(RxQueueId::to_string).collect();
    let queues = queues.join(", ");
    match network.routes().addresses().next() {
        Some(address) => format!("rx queue {queues} of the NIC with the address {address}"),
        None => format!("rx queue {queues} of a NIC without an address"),
    }
}

/// Why a dma-buf could not be unbound.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum UnbindRxError {
    /// There is no binding with this id.
    #[error(transparent)]
    Unknown(#[from] UnknownBinding),
    /// A queue could not be restarted on host memory; it still uses the dma-buf.
    #[error("rx queue {queue} could not be restarted on host memory: {error}")]
    Restart {
        /// The queue.
        queue: RxQueueId,
        /// Cause.
        error: RestartError,
    },
}

impl UnbindRxError {
    /// Returns the corresponding errno.
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

    fn binding() -> RxBinding {
        let (dmabuf, niov_size) = (Dmabuf::anonymous(4096).unwrap(), NiovSize::MIN);
        let provider =
            Arc::new(MemoryProvider::of_dmabuf(&dmabuf, DmabufId(1), niov_size).unwrap());
        let request = BindRx {
            dmabuf,
            niov_size,
            queues: Vec::new(),
        };
        let claim = BoundMemory::claim(&request, String::new()).unwrap();
        RxBinding {
            queues: Vec::new(),
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
            bindings.insert(id, Bound::Receiving(binding()));
        }
        bindings.remove(DmabufId(1));
        assert_eq!(bindings.next_id(), Some(DmabufId(4)));
    }

    #[test]
    fn ids_come_round_past_the_last_number() {
        let mut bindings = Bindings {
            last: u32::MAX - 1,
            ..Bindings::default()
        };
        bindings.insert(DmabufId(1), Bound::Receiving(binding()));
        bindings.insert(DmabufId(u32::MAX), Bound::Receiving(binding()));
        assert_eq!(bindings.next_id(), Some(DmabufId(2)));
    }
}
