//! Device memory bound to an interface of the kernel.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use devmem_linux::broker;
use devmem_linux::netdev::{self as linux, KernelRxQueueId};
use devmem_linux::socket::TxSource;
use devmem_uapi::DmabufId;
use netmem::{Dmabuf, NiovSize, RxClaim};
use steer::RxQueueId;

use super::exporters::dmabuf_of;
use super::net_iovs::NetIovs;
use super::nic::Nic;
use super::niov_size;
use super::prepared::Prepared;
use super::rights::Rights;
use crate::error::{BindError, Error, Forked, Remedy};

/// Memory bound to RX queues. The fields are dropped in this order: unbind the queues, allow binding the memory again, restore
/// the settings of the queues. So the order in which the program drops its values does not matter.
#[derive(Debug)]
pub(crate) struct Rx {
    binding: linux::BoundRx,
    _claim: RxClaim,
    net_iovs: NetIovs,
    _prepared: Vec<Arc<Prepared>>,
}

impl Nic {
    /// Binds to RX queues with net_iovs of `size`, one page by default. Returns the binding and the size.
    pub(crate) fn bind_rx(
        self: &Arc<Self>,
        memory: &Dmabuf,
        queues: &[RxQueueId],
        size: Option<NiovSize>,
    ) -> Result<(Rx, NiovSize), BindError> {
        let dmabuf = dmabuf_of(memory).map_err(Error::from)?;
        let dmabuf = dmabuf.ok_or_else(anonymous)?;
        let fd = dmabuf.as_dmabuf().map_err(Error::not_exported)?;
        let fd = fd.ok_or_else(anonymous)?;
        let queues: Vec<_> = queues
            .iter()
            .map(|id| KernelRxQueueId(id.0.into()))
            .collect();
        let page = rustix::param::page_size();
        // The default is not sent: kernels before 7.3 do not know the attribute.
        let wanted = size.filter(|size| size.bytes() != page);
        let size = match size {
            Some(size) => size,
            None => NiovSize::new(page).unwrap_or_default(),
        };
        let mut netdev = self
            .netdev()
            .map_err(|error| Error::no_family(self.name(), "bind-rx", &error))?;
        if let Some(wanted) = wanted {
            niov_size::check(&mut netdev, memory, wanted)?;
        }
        let wanted = wanted.map(|size| u32::try_from(size.bytes()).unwrap_or(u32::MAX));
        let claim = RxClaim::take(memory, size, holder(self, &queues));
        let claim = claim.map_err(
            |in_use| match self.refusal_of_queues(&mut netdev, &queues) {
                Some(refused) => BindError::Failed(refused),
                None => BindError::InUse(in_use),
            },
        )?;
        let binding = match self.rights() {
            Rights::All | Rights::Bind => netdev
                .bind_rx_sized(fd, &queues, wanted)
                .map_err(Error::from)?,
            Rights::Ask(broker) => broker::bind_rx(broker, self.name(), fd, &queues, wanted)
                .map_err(|error| Error::of_broker(self.name(), &error))?,
        };
        let net_iovs = NetIovs::of(self, binding.id(), memory.size() / size.bytes());
        let lent = net_iovs.clone();
        claim.lent_by(move || lent.lent());
        let mut known = self.known();
        known.memories.retain(|_, memory| !memory.is_freed());
        known.memories.insert(binding.id(), memory.observer());
        known.net_iovs.insert(binding.id(), net_iovs.clone());
        let concerned = known.prepared.iter().filter_map(std::sync::Weak::upgrade);
        let prepared: Vec<_> = concerned
            .filter(|setup| setup.queues().iter().any(|queue| queues.contains(queue)))
            .collect();
        known.bound.push((binding.id(), queues));
        drop(known);
        let rx = Rx {
            binding,
            _claim: claim,
            net_iovs,
            _prepared: prepared,
        };
        Ok((rx, size))
    }

    /// Returns what the kernel has against the queues, which comes before our refusal of the memory, as in user space. It does not tell a
    /// process that may not bind.
    fn refusal_of_queues(
        &self,
        netdev: &mut linux::Netdev,
        queues: &[KernelRxQueueId],
    ) -> Option<Error> {
        match self.rights() {
            Rights::All | Rights::Bind => netdev.refusal_of_queues(queues).map(Error::from),
            Rights::Ask(_) => None,
        }
    }

    /// Binds for sending, which needs no privilege.
    pub(crate) fn bind_tx(self: &Arc<Self>, memory: &Dmabuf) -> Result<Tx, Error> {
        let dmabuf = dmabuf_of(memory).map_err(Error::from)?;
        let dmabuf = dmabuf.ok_or_else(anonymous)?;
        let fd = dmabuf.as_dmabuf().map_err(Error::not_exported)?;
        let fd = fd.ok_or_else(anonymous)?;
        let mut netdev = self
            .netdev()
            .map_err(|error| Error::no_family(self.name(), "bind-tx", &error))?;
        let binding = netdev.bind_tx(fd).map_err(Error::from)?;
        Ok(Tx {
            binding,
            nic: Arc::clone(self),
            size: memory.size(),
            in_flight: Arc::default(),
        })
    }
}

impl Rx {
    pub(crate) fn id(&self) -> DmabufId {
        self.binding.id()
    }

    /// Returns a counter of the net_iovs, which also works after unbinding.
    pub(crate) fn net_iovs(&self) -> NetIovs {
        self.net_iovs.clone()
    }
}

/// Anonymous memory has no file descriptor. The errno is the kernel's for a descriptor that is not a dma-buf.
fn anonymous() -> Error {
    Error::invalid("anonymous memory is not a dma-buf and cannot be bound to a NIC of the kernel")
        .with_remedy(Remedy::ExportableMemory)
}

/// Returns the names of the queues, for the refusal of a second binding of the same memory.
fn holder(nic: &Nic, queues: &[KernelRxQueueId]) -> String {
    let queues: Vec<_> = queues.iter().map(|queue| queue.0.to_string()).collect();
    format!("rx queue {} of {}", queues.join(", "), nic.name())
}

impl Drop for Rx {
    fn drop(&mut self) {
        let nic = self.net_iovs.nic();
        if nic.check().is_err() {
            // In a child of fork(2): closing its copy of the netlink socket unbinds nothing, and the settings belong to the
            // parent.
            self._prepared.drain(..).for_each(std::mem::forget);
            return;
        }
        let id = self.binding.id();
        let mut known = nic.known();
        known.bound.retain(|(bound, _)| *bound != id);
        known.net_iovs.remove(&id);
    }
}

/// Memory bound for sending.
#[derive(Debug)]
pub(crate) struct Tx {
    binding: linux::BoundTx,
    nic: Arc<Nic>,
    size: usize,
    in_flight: Arc<AtomicUsize>,
}

impl Tx {
    pub(crate) fn id(&self) -> DmabufId {
        self.binding.id()
    }

    /// Fails in a child of fork(2).
    pub(crate) fn check(&self) -> Result<(), Forked> {
        self.nic.check()
    }

    /// Returns whether the memory is bound to `nic`.
    pub(crate) fn is_on(&self, nic: &Nic) -> bool {
        self.nic.is_same(nic)
    }

    /// Returns the number of bytes of the memory.
    pub(crate) fn size(&self) -> usize {
        self.size
    }

    pub(super) fn source(&self) -> TxSource<'_> {
        self.binding.source()
    }

    pub(super) fn in_flight_count(&self) -> &Arc<AtomicUsize> {
        &self.in_flight
    }

    /// Returns the number of incomplete sends from this memory, after reading the error queues.
    pub(crate) fn in_flight(&self) -> usize {
        self.nic.collect_all();
        self.in_flight.load(Ordering::Relaxed)
    }
}
