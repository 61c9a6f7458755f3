//! Who holds the memory that a connection receives into: for the error of a receive that waited in vain.

use std::collections::HashMap;

use devmem_uapi::DmabufId;
use netmem::{Netmem, PagePool};
use nic::{MemoryLevel, RxMemory};

use super::Stack;
use crate::socket::error::BadSocket;
use crate::socket::id::SocketId;

/// Divisor: the holders are of interest when less than a quarter of the memory is free, because windows are small then.
const FREE_PARTS: usize = 4;

/// The holders of the net_iovs of a binding; on a NIC with several shards, of the shard's part. A net_iov counts for the first holder of
/// this order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MemoryHolders {
    /// The binding.
    pub dmabuf: DmabufId,
    /// All net_iovs.
    pub niovs: usize,
    /// Those that this connection has lent to its program.
    pub lent: usize,
    /// Those that other connections have lent.
    pub lent_by_others: usize,
    /// Those with bytes that no program has received yet.
    pub unread: usize,
}

/// How one net_iov is used, the first one first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum NiovUse {
    Lent,
    LentByOther,
    Unread,
}

/// The net_iovs of one memory by their offset, each with its use.
struct Holders<'a> {
    pool: &'a PagePool,
    found: HashMap<u64, NiovUse>,
}

impl Holders<'_> {
    fn add(&mut self, netmem: &Netmem, used: NiovUse) {
        if self.pool.covers(netmem) {
            let found = self.found.entry(netmem.dmabuf_offset(0)).or_insert(used);
            *found = used.min(*found);
        }
    }

    fn count(&self, wanted: NiovUse) -> usize {
        let uses = self.found.values();
        uses.filter(|used| **used == wanted).count()
    }
}

impl Stack {
    /// Returns who holds the memory that packets of this connection are received into; `None` while a quarter of it or more is free,
    /// and for host memory. Visits all frags of that memory if less is free: not for the path of packets.
    ///
    /// # Errors
    /// [`BadSocket`], also of a listener.
    pub fn memory_holders(&mut self, id: SocketId) -> Result<Option<MemoryHolders>, BadSocket> {
        let memory = RxMemory::Queue(self.rx_queue(id)?);
        let nic = &self.nic;
        let MemoryLevel {
            free_bytes,
            share_bytes,
        } = nic.memory_level(memory);
        let is_scarce = free_bytes * FREE_PARTS < share_bytes;
        let pool = nic.page_pool(memory).filter(|_| is_scarce);
        let Some((pool, dmabuf)) = pool.and_then(|pool| Some((pool, pool.dmabuf_id()?))) else {
            return Ok(None);
        };
        let mut holders = Holders {
            pool,
            found: HashMap::new(),
        };
        for slot in self.sockets.connections(|_| true) {
            let Some(mut connection) = self.sockets.connection_at(slot) else {
                continue;
            };
            let lent = match slot == id.slot() {
                true => NiovUse::Lent,
                false => NiovUse::LentByOther,
            };
            for netmem in connection.reader.lent() {
                holders.add(netmem, lent);
            }
            connection.conn.for_each_waiting(|payload| {
                payload
                    .iter()
                    .for_each(|frag| holders.add(frag.netmem(), NiovUse::Unread));
            });
        }
        Ok(Some(MemoryHolders {
            dmabuf,
            niovs: pool.niov_count() as usize,
            lent: holders.count(NiovUse::Lent),
            lent_by_others: holders.count(NiovUse::LentByOther),
            unread: holders.count(NiovUse::Unread),
        }))
    }
}
