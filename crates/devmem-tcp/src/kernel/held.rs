//! Who holds the memory that a connection of the kernel receives into. The kernel counts net_iovs for each binding; this process
//! knows which frags it has not returned.

use std::sync::{Arc, Weak};

use super::bind::NetIovs;
use super::socket::Socket;
use crate::error::{HeldMemory, HeldUnit};

impl Socket {
    /// Returns who holds the memory; `None` while this process holds nothing, or enough is free.
    pub(crate) fn held_memory(&self) -> Option<HeldMemory> {
        let lenders: Vec<_> = {
            let lenders = &mut self.nic.known().lenders;
            lenders.retain(|lender| lender.strong_count() > 0);
            lenders.iter().filter_map(Weak::upgrade).collect()
        };
        let all: u64 = lenders.iter().map(|lender| lender.outstanding()).sum();
        if all == 0 {
            return None;
        }
        let queue = self.queue_id();
        let (dmabuf, total) = {
            let known = self.nic.known();
            // Of the connection's queue, if the driver tells it.
            let of_queue = known
                .bound
                .iter()
                .find(|(_, queues)| queues.iter().any(|id| Some(id.0) == queue));
            let (dmabuf, _) = of_queue.or(known.bound.last())?;
            (*dmabuf, *known.net_iovs.get(dmabuf)?)
        };
        let net_iovs = NetIovs {
            nic: Arc::clone(&self.nic),
            id: dmabuf,
            total,
        };
        let lent = count(self.outstanding());
        let all = count(all);
        // A kernel that does not tell: each frag may occupy a net_iov.
        let is_scarce = net_iovs.are_scarce().unwrap_or(all > total / 4 * 3);
        is_scarce.then_some(HeldMemory {
            dmabuf,
            net_iovs: total,
            unit: HeldUnit::Frags,
            lent,
            lent_by_others: all.saturating_sub(lent),
            unread: 0,
        })
    }
}

fn count(frags: u64) -> usize {
    usize::try_from(frags).unwrap_or(usize::MAX)
}
