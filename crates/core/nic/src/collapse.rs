//! Memory pressure: how much memory is free, and moving small frags together to free net_iovs.

use std::collections::HashMap;

use netmem::Netmem;
use steer::RxQueueId;

/// Divisor: a net_iov is sparse when less than 1 / `SPARSE_PARTS` of it holds payload that waits.
const SPARSE_PARTS: u64 = 4;

/// Memory that packets are received into.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RxMemory {
    /// The memory of a queue: a binding, or host memory.
    Queue(RxQueueId),
    /// The NIC's own host memory, for linear bytes and packets that are not split.
    Host,
}

/// Number of bytes that wait in each net_iov of one memory.
///
/// It is filled under memory pressure only, from the payload that waits in connections; nothing is counted per packet.
#[derive(Debug, Default)]
pub struct NiovUsage {
    /// Bytes by the offset of the net_iov in its memory.
    pub(crate) bytes: HashMap<u64, u64>,
}

impl NiovUsage {
    /// Removes all entries; keeps the allocation.
    pub fn clear(&mut self) {
        self.bytes.clear();
    }

    /// Returns the number of net_iovs with bytes that wait.
    pub fn niovs(&self) -> usize {
        self.bytes.len()
    }

    /// Returns whether a net_iov is sparse.
    pub(crate) fn is_sparse(&self, netmem: &Netmem) -> bool {
        let used = self.bytes.get(&netmem.dmabuf_offset(0));
        used.is_some_and(|&used| used < netmem.size() as u64 / SPARSE_PARTS)
    }
}
