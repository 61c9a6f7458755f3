//! A NIC in user space: its shards, stacks that share nothing on the path of a packet.
//!
//! Each shard has a queue pair of the link, a NIC half with page pools on it, a stack, a lock, and a background thread. A flow
//! belongs to one shard, by a hash of its addresses and ports; frames that arrive at another shard cross (`nic`). A NIC has one
//! shard unless [`NetdevBuilder::shards`](crate::NetdevBuilder::shards) says otherwise.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use devmem_uapi::{DmabufId, Errno};
use nic::LinkState;
use stack::{AddressConflict, Stack};

use super::shard::Shard;
use crate::connect::ConnectOptions;
use crate::error::{Error, ErrorKind, Forked};
use crate::queue_stats::{QueueStats, TxStats};

/// A NIC in user space: all of its shards, or one of them.
#[derive(Clone, Debug)]
pub(crate) struct Nic {
    /// Never empty.
    shards: Arc<[Shard]>,
    /// Number of connects, which take turns.
    connects: Arc<AtomicUsize>,
}

impl Nic {
    pub(crate) fn new(shards: impl IntoIterator<Item = Shard>) -> Self {
        Self {
            shards: shards.into_iter().collect(),
            connects: Arc::default(),
        }
    }

    pub(crate) fn shards(&self) -> &[Shard] {
        &self.shards
    }

    /// Returns the first shard, for what all of them have in common.
    pub(crate) fn first(&self) -> &Shard {
        &self.shards[0]
    }

    /// Fails in a child of fork(2).
    pub(crate) fn check(&self) -> Result<(), Forked> {
        self.first().check()
    }

    /// Returns whether both are the same NIC, or the same shards of it.
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        let mut pairs = self.shards.iter().zip(&*other.shards);
        self.shards.len() == other.shards.len() && pairs.all(|(one, other)| one.is_same(other))
    }

    /// Returns handles of the shards, each a NIC of one shard.
    pub(crate) fn each(&self) -> impl Iterator<Item = Self> + '_ {
        self.shards.iter().map(|shard| Self::new([shard.clone()]))
    }

    pub(crate) fn is_in_virtual_time(&self) -> bool {
        self.first().driver().is_virtual()
    }

    /// Waits until the connections of all dropped streams are closed, for `at_most`. Returns whether all are.
    pub(crate) fn close(&self, at_most: Duration) -> bool {
        self.first().linger(at_most)
    }

    /// Runs `call` on the stack of the first shard, for what all of them have in common.
    fn ask<T>(&self, call: impl FnOnce(&mut Stack) -> T) -> T {
        self.first().with(|stack, _| call(stack))
    }

    /// Runs `call` on the stack of each shard.
    fn ask_each<'a, T>(
        &'a self,
        call: impl Fn(&mut Stack) -> T + 'a,
    ) -> impl Iterator<Item = T> + 'a {
        let shards = self.shards.iter();
        shards.map(move |shard| shard.with(|stack, _| call(stack)))
    }

    pub(crate) fn mtu(&self) -> u16 {
        self.ask(|stack| stack.nic().mtu())
    }

    pub(crate) fn addresses(&self) -> Vec<IpAddr> {
        self.ask(|stack| stack.addresses().collect())
    }

    pub(crate) fn address_conflicts(&self) -> Vec<AddressConflict> {
        self.ask(|stack| stack.address_conflicts().since(0))
    }

    pub(crate) fn link_state(&self) -> LinkState {
        self.ask(|stack| stack.nic().link_state())
    }

    /// Returns how many received frames crossed to the shard of their connection.
    pub(crate) fn crossed_frames(&self) -> u64 {
        self.ask_each(|stack| stack.nic().crossing_stats().received)
            .sum()
    }

    pub(crate) fn queue_stats(&self) -> Vec<QueueStats> {
        self.ask_each(|stack| QueueStats::of_nic(stack.nic()))
            .reduce(QueueStats::add_all)
            .unwrap_or_default()
    }

    /// Returns the counters of the transmit sides.
    pub(crate) fn tx_stats(&self) -> TxStats {
        self.ask_each(|stack| TxStats::of_nic(stack.nic()))
            .fold(TxStats::default(), TxStats::add)
    }

    /// Returns the packets that the shards have dropped, by reason; without reasons that never occurred.
    pub(crate) fn drops(&self) -> Vec<(&'static str, u64)> {
        let mut all = self.ask_each(|stack| stack.drops().collect::<Vec<_>>());
        let mut sums = all.next().unwrap_or_default();
        for of_shard in all {
            // Every stack has the same reasons.
            for (sum, (_, count)) in sums.iter_mut().zip(of_shard) {
                sum.1 += count;
            }
        }
        sums.retain(|(_, count)| *count > 0);
        sums
    }

    /// Makes the next binding get the same id from all shards. The bindings are locked.
    pub(crate) fn align_dmabuf_ids(&self) {
        if let [_] = &*self.shards {
            return;
        }
        let mut next = DmabufId(1);
        for shard in self.shards.iter() {
            let id = shard.with(|stack, _| stack.next_dmabuf_id());
            next = next.max(id.unwrap_or(next));
        }
        for shard in self.shards.iter() {
            shard.with(|stack, _| stack.skip_to_dmabuf_id(next));
        }
    }

    /// Returns the shard for a connection: the one that has its addresses and ports, or the next in turn if the local port is
    /// still to be chosen.
    pub(crate) fn shard_for(&self, address: SocketAddr, options: &ConnectOptions) -> &Shard {
        let turn = self.connects.fetch_add(1, Ordering::Relaxed) % self.shards.len();
        let in_turn = &self.shards[turn];
        let [_, _, ..] = &*self.shards else {
            return in_turn;
        };
        let Some(source) = options.source.filter(|source| source.port() != 0) else {
            return in_turn;
        };
        let mut shards = self.shards.iter();
        let has_it = |shard: &&Shard| shard.with(|stack, _| stack.has_connections(source, address));
        // There is no route, or no such address: any shard says so.
        shards.find(has_it).unwrap_or(in_turn)
    }
}

/// Returns the id that all shards have given a binding.
pub(super) fn same_id(ids: impl IntoIterator<Item = DmabufId>) -> Result<DmabufId, Error> {
    let mut ids = ids.into_iter();
    let first = ids.next().unwrap_or(DmabufId(0));
    match ids.all(|id| id == first) {
        true => Ok(first),
        // Only after four billion bindings, when ids are used again.
        false => Err(Error::new(
            ErrorKind::OutOfResources,
            Errno::ENOSPC,
            "the shards have no free id of a binding in common",
        )
        .with_remedy("drop some bindings, or open the NIC again")),
    }
}
