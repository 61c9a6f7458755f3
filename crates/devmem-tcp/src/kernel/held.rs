//! Who holds the memory that a connection of the kernel receives into. The kernel counts net_iovs for each binding; this process
//! knows which frags it has not returned.

use super::net_iovs::outstanding_frags;
use super::socket::Socket;
use crate::error::{HeldMemory, HeldUnit};

impl Socket {
    /// Returns who holds the memory; `None` while this process holds nothing, or enough is free.
    pub(crate) fn held_memory(&self) -> Option<HeldMemory> {
        let all = outstanding_frags(&self.nic);
        if all == 0 {
            return None;
        }
        let queue = self.queue_id();
        let (dmabuf, net_iovs) = {
            let known = self.nic.known();
            // Of the connection's queue, if the driver tells it.
            let of_queue = known
                .bound
                .iter()
                .find(|(_, queues)| queues.iter().any(|id| Some(id.0) == queue));
            let (dmabuf, _) = of_queue.or(known.bound.last())?;
            (*dmabuf, known.net_iovs.get(dmabuf)?.clone())
        };
        let lent = count(self.outstanding());
        let all = count(all);
        net_iovs.are_scarce().then(|| HeldMemory {
            dmabuf,
            net_iovs: net_iovs.total(),
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
