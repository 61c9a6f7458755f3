//! The net_iovs of a binding, counted while it exists and afterwards.

use std::sync::{Arc, Weak};

use devmem_uapi::DmabufId;

use super::nic::Nic;
use crate::net_iov_count::NetIovCount;

/// The net_iovs of a binding.
#[derive(Clone, Debug)]
pub(crate) struct NetIovs {
    nic: Arc<Nic>,
    id: DmabufId,
    total: usize,
    counted_by: CountedBy,
}

/// What counts them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum CountedBy {
    /// The page pools of the kernel: all that are in use, also those that are posted or in packets.
    PagePools,
    /// This process: the frags of the interface that it has not returned, each as a net_iov. The page pools of a leased queue belong to the
    /// NIC that it is leased from, and the kernel lists page pools only in the network namespace of their NIC (linux
    /// net/core/page_pool_user.c `netdev_nl_page_pool_get_dump`). Some kernels list none.
    Frags,
}

impl NetIovs {
    /// Returns the net_iovs of a binding that was just made: its queues have page pools, so that these are listed, or never will be.
    pub(super) fn of(nic: &Arc<Nic>, id: DmabufId, total: usize) -> Self {
        Self {
            nic: Arc::clone(nic),
            id,
            total,
            counted_by: match in_pools(nic, id) {
                Some(_) => CountedBy::PagePools,
                None => CountedBy::Frags,
            },
        }
    }

    pub(super) fn nic(&self) -> &Arc<Nic> {
        &self.nic
    }

    /// Returns their number.
    pub(super) fn total(&self) -> usize {
        self.total
    }

    /// Counts them.
    pub(crate) fn count(&self) -> NetIovCount {
        NetIovCount {
            total: self.total,
            home: self.total.saturating_sub(self.lent()),
        }
    }

    /// Returns whether less than a quarter of them is free, as far as is known.
    pub(super) fn are_scarce(&self) -> bool {
        self.total.saturating_sub(self.lent()) < self.total / 4
    }

    /// Counts those that are not home, as far as is known.
    pub(super) fn lent(&self) -> usize {
        let lent = match self.counted_by {
            // The last net_iov that comes home after the end of the binding takes its pool along.
            CountedBy::PagePools => in_pools(&self.nic, self.id).unwrap_or(0),
            CountedBy::Frags => outstanding_frags(&self.nic),
        };
        usize::try_from(lent).unwrap_or(usize::MAX)
    }
}

/// Counts the net_iovs of a binding in the page pools that are listed; `None` if no pool of it is.
fn in_pools(nic: &Nic, id: DmabufId) -> Option<u64> {
    let pools = nic.netdev().and_then(|mut netdev| netdev.page_pools());
    let pools = pools.ok()?;
    let ours = pools.iter().filter(|pool| pool.dmabuf == Some(id.0));
    ours.map(|pool| pool.inflight.unwrap_or(0))
        .reduce(u64::saturating_add)
}

/// Counts the frags that the program has of an interface.
pub(super) fn outstanding_frags(nic: &Nic) -> u64 {
    let lenders: Vec<_> = {
        let lenders = &mut nic.known().lenders;
        lenders.retain(|lender| lender.strong_count() > 0);
        lenders.iter().filter_map(Weak::upgrade).collect()
    };
    lenders.iter().map(|lender| lender.outstanding()).sum()
}
