//! Queues that a netkit has leased, and the NICs they are leased from.

use devmem_uapi::IfIndex;
use serde::Serialize;

use super::{Check, CheckState};
use crate::drivers::{KnownDriver, Support};
use crate::netdev::{KernelRxQueueId, LeaseEnd, Netdev, QueueUser};
use crate::netif;

/// A queue of a netkit, leased from a NIC.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Leased {
    /// The netkit's queue.
    pub queue: KernelRxQueueId,
    /// Whose it is; `None` if the NIC is in another network namespace, as it is for a pod.
    pub from: Option<Lessor>,
}

/// A NIC that has leased a queue to a netkit.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Lessor {
    /// The NIC.
    pub interface: String,
    /// Its queue.
    pub queue: KernelRxQueueId,
}

impl std::fmt::Display for Leased {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { queue, from } = self;
        match from {
            Some(Lessor {
                interface,
                queue: of,
            }) => {
                write!(
                    f,
                    "RX queue {queue} is leased from queue {of} of {interface}"
                )
            }
            None => write!(
                f,
                "RX queue {queue} is leased from a NIC of another network namespace"
            ),
        }
    }
}

/// Returns whether a driver has queues of a NIC instead of its own.
pub(super) fn is_lessee(known: Option<&KnownDriver>) -> bool {
    known.is_some_and(|known| matches!(known.rx, Support::LeasedSince(_)))
}

/// Lists the leased queues of a netkit: all but its own one, queue 0.
pub(super) fn of_netkit(
    index: u32,
    queues: &[(KernelRxQueueId, Option<QueueUser>)],
) -> Vec<Leased> {
    let leased = queues.iter().filter(|(id, _)| id.0 != 0);
    let numbers: Vec<_> = leased.map(|(id, _)| *id).collect();
    let lessors = match numbers.is_empty() {
        true => Vec::new(),
        false => lessors(),
    };
    let from = |queue| {
        let mut ends = lessors.iter();
        let found =
            ends.find(|(_, end)| (end.ifindex, end.queue, end.netns) == (index, queue, None));
        found.map(|(lessor, _)| lessor.clone())
    };
    numbers
        .into_iter()
        .map(|queue| Leased {
            queue,
            from: from(queue),
        })
        .collect()
}

/// Lists the queues that the NICs of this network namespace have leased, with the other ends. The kernel tells of a lease at the NIC only.
fn lessors() -> Vec<(Lessor, LeaseEnd)> {
    let all = netif::interfaces().unwrap_or_default();
    let mut found = Vec::new();
    for (index, interface, _up) in all {
        let leases =
            Netdev::with_index(&interface, IfIndex(index)).and_then(|mut nic| nic.leases());
        let leases = leases.unwrap_or_default().into_iter();
        found.extend(leases.map(|(queue, end)| {
            let interface = interface.clone();
            (Lessor { interface, queue }, end)
        }));
    }
    found
}

/// Checks a netkit: with a leased queue it can be bound, and its agent has the settings of the NIC.
pub(super) fn check(queues: &[(KernelRxQueueId, Option<QueueUser>)]) -> Check {
    const NAME: &str = "leased_queues";
    let leased = queues.iter().filter(|(id, _)| id.0 != 0);
    let free = leased.clone().filter(|(_, user)| user.is_none()).count();
    let found = format!(
        "{free} of {} can be bound; header split, RSS and flow rules are set at the NIC that they are leased from",
        leased.count()
    );
    match free {
        0 => Check::new(NAME, CheckState::Mendable, found).remedy(
            "devmem-tcp lease NIC --pod ...   on the host, as its root; `devmem-tcp lease --help`",
        ),
        _ => Check::new(NAME, CheckState::Good, found),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::drivers::known_driver;

    #[test]
    fn a_netkit_is_judged_by_its_leased_queues_alone() {
        let queue = |id| (KernelRxQueueId(id), None);
        let none = check(&[queue(0)]);
        assert_eq!(none.state, CheckState::Mendable);
        assert!(none.remedy.unwrap().starts_with("devmem-tcp lease "));
        let two = check(&[queue(0), queue(1), queue(2)]);
        assert_eq!(two.state, CheckState::Good);
        assert!(
            two.found.starts_with("2 of 2 can be bound"),
            "{}",
            two.found
        );
        assert!(is_lessee(known_driver("netkit")));
        assert!(!is_lessee(known_driver("gve")) && !is_lessee(None));
    }

    #[test]
    fn a_leased_queue_names_its_nic_where_that_can_be_seen() {
        // No interface of this machine has an index as large.
        let pods = of_netkit(
            u32::MAX,
            &[(KernelRxQueueId(0), None), (KernelRxQueueId(1), None)],
        );
        let [pods] = &pods[..] else {
            panic!("{pods:?}")
        };
        assert_eq!(
            pods.to_string(),
            "RX queue 1 is leased from a NIC of another network namespace"
        );
        let here = Leased {
            from: Some(Lessor {
                interface: "eth1".to_owned(),
                queue: KernelRxQueueId(3),
            }),
            ..pods.clone()
        };
        assert_eq!(
            here.to_string(),
            "RX queue 1 is leased from queue 3 of eth1"
        );
    }
}
