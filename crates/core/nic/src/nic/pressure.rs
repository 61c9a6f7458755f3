//! Memory pressure: how much memory is free, and moving small frags together.

use netmem::{FragList, Netmem, PagePool};
use steer::RxQueueId;

use super::Nic;
use crate::collapse::{NiovUsage, RxMemory};
use crate::fill::{Fill, MemoryDemand, MemoryLevel};

impl Nic {
    /// Iterates over all memory that packets are received into.
    pub fn rx_memories(&self) -> impl Iterator<Item = RxMemory> + use<> {
        (0..self.rx_queue_count())
            .map(|queue| RxMemory::Queue(RxQueueId(queue)))
            .chain([RxMemory::Host])
    }

    /// Returns the free bytes of `memory`; 0 of 0 for a queue that does not exist.
    pub fn memory_level(&self, memory: RxMemory) -> MemoryLevel {
        self.fill_of(memory).map(Fill::level).unwrap_or_default()
    }

    /// Returns the page pool of `memory`, to ask which net_iovs are its own; `None` for a queue that does not exist.
    pub fn page_pool(&self, memory: RxMemory) -> Option<&PagePool> {
        self.fill_of(memory).map(|fill| &fill.pool)
    }

    /// Returns and resets the greatest demand of all memories. Costs one load per queue.
    pub fn take_memory_demand(&mut self) -> MemoryDemand {
        let mut greatest = self.rx.host.take_demand();
        for queue in &mut self.rx.queues {
            greatest = greatest.max(queue.memory.fill.take_demand());
        }
        greatest
    }

    /// Records that the caller has examined `memory`: its demand is [`MemoryDemand::Check`] again when another sixteenth
    /// is in use.
    pub fn note_memory_check(&mut self, memory: RxMemory) {
        if let Some(fill) = self.fill_of_mut(memory) {
            fill.note_check();
        }
    }

    /// Adds the part of `payload` that is in `memory` to `usage`.
    pub fn measure(&self, memory: RxMemory, payload: &FragList, usage: &mut NiovUsage) {
        let Some(fill) = self.fill_of(memory) else {
            return;
        };
        for frag in payload {
            let netmem = frag.netmem();
            if fill.pool.covers(netmem) {
                *usage.bytes.entry(netmem.dmabuf_offset(0)).or_default() += frag.len() as u64;
            }
        }
    }

    /// Copies the frags of `payload` that are in sparse net_iovs of `memory` into net_iovs of the same memory
    /// that small frags share (as linux `tcp_collapse` does for readable payload). The bytes, their order and their dma-buf
    /// stay the same; the offsets change, so the payload must not have been lent to an application yet.
    pub fn collapse(&mut self, memory: RxMemory, payload: &mut FragList, usage: &NiovUsage) {
        let Some(fill) = self.fill_of_mut(memory) else {
            return;
        };
        let is_to_move = |netmem: &Netmem| fill.pool.covers(netmem) && usage.is_sparse(netmem);
        if !payload.iter().any(|frag| is_to_move(frag.netmem())) {
            return;
        }
        for frag in std::mem::take(payload) {
            let is_sparse = fill.pool.covers(frag.netmem()) && usage.is_sparse(frag.netmem());
            let copy = is_sparse.then(|| fill.collapse(&frag)).flatten();
            match copy {
                Some(copy) => {
                    payload.push_merge(copy);
                    fill.pool.recycle(frag.into_netmem());
                }
                None => payload.push(frag),
            }
        }
    }

    fn fill_of(&self, memory: RxMemory) -> Option<&Fill> {
        match memory {
            RxMemory::Queue(queue) => Some(&self.rx.queues.get(queue.index())?.memory.fill),
            RxMemory::Host => Some(&self.rx.host),
        }
    }

    fn fill_of_mut(&mut self, memory: RxMemory) -> Option<&mut Fill> {
        match memory {
            RxMemory::Queue(queue) => Some(&mut self.rx.queues.get_mut(queue.index())?.memory.fill),
            RxMemory::Host => Some(&mut self.rx.host),
        }
    }
}
