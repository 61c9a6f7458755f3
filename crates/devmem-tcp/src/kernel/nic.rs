//! An interface of the kernel, and what this process has to do with it.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use devmem_linux::netdev::{Netdev, RxQueueId};
use devmem_linux::netif;
use devmem_linux::netlink::NetlinkError;
use devmem_uapi::{DmabufId, IfIndex};
use netmem::{Dmabuf, MemoryObserver};

use super::send::Leaving;
use super::setup::Prepared;
use super::socket::Socket;
use crate::error::{Forked, OpenError};
use crate::home::Home;

/// An interface by its name, in the network namespace where it was looked up.
#[derive(Debug)]
pub(crate) struct Nic {
    name: String,
    index: IfIndex,
    home: Home,
    known: Mutex<Known>,
}

/// What has to be found again from elsewhere.
#[derive(Debug, Default)]
pub(super) struct Known {
    /// Memories by binding, so that a frag finds its bytes.
    pub(super) memories: HashMap<DmabufId, MemoryObserver>,
    /// RX bindings and their queues.
    pub(super) bound: Vec<(DmabufId, Vec<RxQueueId>)>,
    /// Set-ups that are not restored yet.
    pub(super) prepared: Vec<Weak<Prepared>>,
    /// Sockets that have sent without a copy.
    pub(super) senders: Vec<Weak<Socket>>,
    /// Sockets that nobody holds any more and whose sends are not complete.
    pub(super) leaving: Vec<Leaving>,
}

impl Nic {
    /// Finds the interface `name`.
    pub(crate) fn by_name(name: &str) -> Result<Arc<Self>, OpenError> {
        let found = netif::Interface::by_name(name);
        let found = found.map_err(|source| OpenError::NoInterface {
            name: name.to_owned(),
            source,
        })?;
        Ok(Arc::new(Self {
            name: name.to_owned(),
            index: IfIndex(found.index()),
            home: Home::here(),
            known: Mutex::default(),
        }))
    }

    /// Refuses in a child by fork(2) of the process that found it. Asked before any lock is taken.
    #[inline]
    pub(crate) fn check(&self) -> Result<(), Forked> {
        self.home.check()
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// Whether both are the same interface: bindings and sockets of one serve the other.
    pub(crate) fn is_same(&self, other: &Nic) -> bool {
        self.index == other.index && self.name == other.name
    }

    /// The interface for the netdev family's calls.
    pub(super) fn netdev(&self) -> Result<Netdev, NetlinkError> {
        Netdev::with_index(&self.name, self.index)
    }

    pub(super) fn known(&self) -> MutexGuard<'_, Known> {
        // Whole between any two of its operations, so a panic elsewhere has not harmed it.
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether one of the queues is bound by this process, through this handle of the interface.
    pub(super) fn has_bound_one_of(&self, queues: &[RxQueueId]) -> bool {
        let known = self.known();
        let mut bound = known.bound.iter().flat_map(|(_, queues)| queues);
        bound.any(|queue| queues.contains(queue))
    }

    /// The memory behind a binding, if anybody still has it.
    pub(crate) fn memory(&self, dmabuf: DmabufId) -> Option<Dmabuf> {
        let known = self.known();
        known
            .memories
            .get(&dmabuf)
            .and_then(MemoryObserver::upgrade)
    }

    /// The addresses; none if the kernel does not say.
    pub(crate) fn addresses(&self) -> Vec<IpAddr> {
        netif::addresses(self.index.0).unwrap_or_default()
    }

    /// What the driver dropped, by its counters; none if it does not say.
    pub(crate) fn drops(&self) -> Vec<(&'static str, u64)> {
        let stats = self.netdev().and_then(|mut netdev| netdev.total_stats());
        let counters = stats.ok().flatten().map(|stats| stats.counters);
        let lost = |(name, count): &(&'static str, u64)| {
            *count > 0
                && ["drop", "fail", "bad"]
                    .iter()
                    .any(|word| name.contains(word))
        };
        counters.into_iter().flatten().filter(lost).collect()
    }
}
