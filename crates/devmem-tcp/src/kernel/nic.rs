//! An interface of the kernel, and the state that this process keeps about it.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use devmem_linux::netdev::{KernelRxQueueId, Netdev, QueueKind};
use devmem_linux::netif;
use devmem_linux::netlink::NetlinkError;
use devmem_uapi::{DmabufId, IfIndex};
use netmem::{Dmabuf, MemoryObserver};
use nic::LinkState;

use super::ledger::{Leaving, Ledger};
use super::net_iovs::NetIovs;
use super::prepared::Prepared;
use super::rights::Rights;
use crate::error::{Error, Forked};
use crate::home::Home;
use crate::queue_stats::QueueStats;

/// An interface by its name, in the network namespace where it was looked up.
#[derive(Debug)]
pub(crate) struct Nic {
    name: String,
    index: IfIndex,
    rights: Rights,
    home: Home,
    known: Mutex<Known>,
}

/// State shared by the handles of the interface.
#[derive(Debug, Default)]
pub(super) struct Known {
    /// Memories by binding, to find the memory of a frag.
    pub(super) memories: HashMap<DmabufId, MemoryObserver>,
    /// RX bindings and their queues.
    pub(super) bound: Vec<(DmabufId, Vec<KernelRxQueueId>)>,
    /// The net_iovs of each RX binding.
    pub(super) net_iovs: HashMap<DmabufId, NetIovs>,
    /// Sockets that have lent frags.
    pub(super) lenders: Vec<Weak<Ledger>>,
    /// Set-ups that are not restored yet.
    pub(super) prepared: Vec<Weak<Prepared>>,
    /// Sockets that have made zero-copy sends.
    pub(super) senders: Vec<Weak<Ledger>>,
    /// Dropped sockets with incomplete sends.
    pub(super) leaving: Vec<Leaving>,
}

impl Nic {
    /// Finds the interface `name`, with which this process may do what `rights` says.
    pub(crate) fn by_name(name: &str, rights: Rights) -> Result<Arc<Self>, Error> {
        let found = netif::Interface::by_name(name);
        let found = found.map_err(|error| Error::no_interface(name, &error))?;
        Ok(Arc::new(Self {
            name: name.to_owned(),
            index: IfIndex(found.index()),
            rights,
            home: Home::here(),
            known: Mutex::default(),
        }))
    }

    /// Fails in a child of fork(2). Must be called before a lock is taken.
    #[inline]
    pub(crate) fn check(&self) -> Result<(), Forked> {
        self.home.check()
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// Returns what this process may do with the interface.
    pub(super) fn rights(&self) -> &Rights {
        &self.rights
    }

    /// Returns whether both are the same interface, so that bindings of one can be used with sockets of the other.
    pub(crate) fn is_same(&self, other: &Nic) -> bool {
        self.index == other.index && self.name == other.name
    }

    /// Returns the interface for requests of the netdev family.
    pub(super) fn netdev(&self) -> Result<Netdev, NetlinkError> {
        Netdev::with_index(&self.name, self.index)
    }

    pub(super) fn known(&self) -> MutexGuard<'_, Known> {
        // Each operation leaves it consistent, so a panic of another thread does not matter.
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes a socket that makes zero-copy sends.
    pub(super) fn note_sender(&self, ledger: &Arc<Ledger>) {
        self.reap();
        self.known().senders.push(Arc::downgrade(ledger));
    }

    /// Closes the leaving sockets whose sends are complete.
    fn reap(&self) {
        self.known().leaving.retain(Leaving::is_needed);
    }

    /// Reads the error queues of all sockets with incomplete sends.
    pub(super) fn collect_all(&self) {
        let senders: Vec<_> = {
            let senders = &mut self.known().senders;
            senders.retain(|sender| sender.strong_count() > 0);
            senders.iter().filter_map(Weak::upgrade).collect()
        };
        for sender in senders {
            // An error of a connection is reported by the calls of its stream.
            let _ = sender.collect();
        }
        self.reap();
    }

    /// Returns the memory of a binding, if it has not been freed.
    pub(crate) fn memory(&self, dmabuf: DmabufId) -> Option<Dmabuf> {
        let known = self.known();
        known
            .memories
            .get(&dmabuf)
            .and_then(MemoryObserver::upgrade)
    }

    /// Returns the addresses; none if the kernel does not report them.
    pub(crate) fn addresses(&self) -> Vec<IpAddr> {
        netif::addresses(self.index.0).unwrap_or_default()
    }

    /// Returns the state of the interface; up if the kernel does not report it.
    pub(crate) fn link_state(&self) -> LinkState {
        let Ok(all) = netif::interfaces() else {
            return LinkState::Up;
        };
        match all.into_iter().find(|(index, ..)| *index == self.index.0) {
            Some((.., true)) => LinkState::Up,
            Some((.., false)) => LinkState::Down,
            None => LinkState::Gone,
        }
    }

    /// Returns the MTU, or 0 if the kernel does not report it.
    pub(crate) fn mtu(&self) -> u16 {
        let facts = netif::Interface::by_name(&self.name).and_then(|mut found| found.facts());
        facts.map_or(0, |facts| u16::try_from(facts.mtu).unwrap_or(u16::MAX))
    }

    /// Returns the driver's counters of each RX queue; none if it does not report any.
    pub(crate) fn queue_stats(&self) -> Vec<QueueStats> {
        let stats = self.netdev().and_then(|mut netdev| netdev.queue_stats());
        let rows = stats.unwrap_or_default().into_iter();
        rows.filter_map(|row| {
            let (QueueKind::Rx, queue) = row.queue? else {
                return None;
            };
            let counter = |name| row.counters.get(name).copied();
            Some(QueueStats {
                queue: steer::RxQueueId(u16::try_from(queue).ok()?),
                packets: counter("rx-packets").unwrap_or_default(),
                bytes: counter("rx-bytes").unwrap_or_default(),
                split_packets: None,
                direct_bytes: 0,
                direct_copied_bytes: 0,
                pool: None,
            })
        })
        .collect()
    }

    /// Returns the driver's counters of dropped packets; none if it does not report any.
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
