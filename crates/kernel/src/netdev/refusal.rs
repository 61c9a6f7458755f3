//! Why the kernel would refuse RX queues, whatever memory is bound to them: asked without binding.
//!
//! A caller that will not bind its memory, because it is lent or is no dma-buf, gives the kernel's answer first: both
//! backends then refuse the same request with the same errno.

use rustix::io::Errno;

use super::bind::{BindError, NEVER_OPEN, rx_request};
use super::{KernelRxQueueId, Netdev, QueueUser};
use crate::errors::{Facts, Operation};
use crate::ethtool::DataSplit;
use crate::netlink::{GenericSocket, NetlinkError};

impl Netdev {
    /// Returns the kernel's refusal of these queues; `None` if it would accept them. Nothing is bound, and no queue
    /// restarts. It does not find what only a restart shows, as for queue 0 of a gVNIC.
    pub fn refusal_of_queues(&mut self, queues: &[KernelRxQueueId]) -> Option<BindError> {
        let request = |socket: &GenericSocket, index: u32| {
            rx_request(socket, index, NEVER_OPEN, queues, None)
        };
        // The kernel checks privilege, interface, driver and queue numbers before the descriptor of the memory, and the
        // settings of the queues after it (linux net/core/netdev-genl.c netdev_nl_bind_rx_doit).
        let refused = self.bind("try bind-rx", request).err()?;
        if refused.errno != Errno::BADF {
            return Some(self.explain(Operation::BindRx, queues, refused));
        }
        let facts = self.facts(queues, &refused);
        let refused = NetlinkError {
            errno: refusal_by_settings(&facts)?,
            ..refused
        };
        Some(self.explain(Operation::BindRx, queues, refused))
    }
}

/// Returns the errno for settings under which queues cannot be bound, in the order of the kernel (linux
/// net/core/netdev_rx_queue.c `net_mp_open_rxq`).
fn refusal_by_settings(facts: &Facts) -> Option<Errno> {
    // Before Linux 7.3, the kernel looks at this after the memory, too.
    let is_past_the_end = |count: u32| facts.queues.iter().any(|queue| queue.0 >= count);
    if facts.rx_queues.is_some_and(is_past_the_end) {
        return Some(Errno::INVAL);
    }
    let split_is_off = facts
        .data_split
        .is_some_and(|split| split != DataSplit::Enabled);
    if split_is_off || facts.hds_thresh.is_some_and(|thresh| thresh != 0) {
        return Some(Errno::INVAL);
    }
    if facts.xdp == Some(true) {
        return Some(Errno::EXIST);
    }
    let user_of = |queue: &KernelRxQueueId| {
        let mut taken = facts.taken.iter();
        taken.find(|(id, _)| id == queue).map(|(_, user)| *user)
    };
    Some(match facts.queues.iter().find_map(user_of)? {
        QueueUser::Dmabuf(_) | QueueUser::IoUring => Errno::EXIST,
        QueueUser::Xsk | QueueUser::Lease(_) => Errno::BUSY,
    })
}

#[cfg(test)]
mod tests {
    use devmem_uapi::DmabufId;

    use super::*;

    #[test]
    fn settings_are_judged_in_the_order_of_the_kernel() {
        let [first, second, third] = [1, 2, 3].map(KernelRxQueueId);
        let good = || Facts {
            queues: vec![first, second],
            rx_queues: Some(4),
            data_split: Some(DataSplit::Enabled),
            hds_thresh: Some(0),
            xdp: Some(false),
            taken: vec![(third, QueueUser::Xsk)],
            ..Facts::default()
        };
        assert_eq!(refusal_by_settings(&good()), None);
        assert_eq!(refusal_by_settings(&Facts::default()), None);
        // Each is worse than those before it.
        let mut facts = good();
        facts.taken = vec![
            (first, QueueUser::Lease(None)),
            (second, QueueUser::Dmabuf(DmabufId(1))),
        ];
        assert_eq!(refusal_by_settings(&facts), Some(Errno::BUSY));
        facts.queues = vec![second, first];
        assert_eq!(refusal_by_settings(&facts), Some(Errno::EXIST));
        facts.taken = vec![(first, QueueUser::Xsk)];
        assert_eq!(refusal_by_settings(&facts), Some(Errno::BUSY));
        facts.xdp = Some(true);
        assert_eq!(refusal_by_settings(&facts), Some(Errno::EXIST));
        facts.hds_thresh = Some(256);
        assert_eq!(refusal_by_settings(&facts), Some(Errno::INVAL));
        facts = good();
        facts.data_split = Some(DataSplit::Unknown);
        assert_eq!(refusal_by_settings(&facts), Some(Errno::INVAL));
        facts = good();
        facts.queues.push(KernelRxQueueId(4));
        assert_eq!(refusal_by_settings(&facts), Some(Errno::INVAL));
    }
}
