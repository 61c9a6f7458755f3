//! The queues of an interface, as the shards of a NIC have them.

use std::os::fd::OwnedFd;

/// Divides the queues of an interface: one shard has all of them, each of several has one.
pub(super) fn of_shards(queues: Vec<OwnedFd>, shards: u16) -> Vec<Vec<OwnedFd>> {
    match shards {
        1 => vec![queues],
        _ => queues.into_iter().map(|queue| vec![queue]).collect(),
    }
}
