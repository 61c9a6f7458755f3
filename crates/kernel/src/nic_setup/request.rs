//! What a set-up is asked for, and what it leases.

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;

use crate::netdev::KernelRxQueueId;

/// The RX queues to prepare. Queue 0 is never one of them: it receives all packets that are not steered, and some drivers
/// cannot bind it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum QueueChoice {
    /// This number of queues, from the last one down, without queues in use.
    Count(u32),
    /// These queues.
    These(Vec<KernelRxQueueId>),
}

/// A flow that is to arrive in device memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Flow {
    /// The local address and port. An unspecified address matches any. Port 0 matches any, and needs the peer's
    /// address and port.
    pub local: SocketAddr,
    /// The peer's address, if it is known; it makes the rule narrower.
    pub peer: Option<IpAddr>,
    /// The peer's port, if it is known.
    pub peer_port: Option<u16>,
}

impl Flow {
    /// Returns the flow from any peer to `local`.
    pub fn to(local: SocketAddr) -> Self {
        Self {
            local,
            peer: None,
            peer_port: None,
        }
    }
}

/// The request for a set-up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SetupRequest {
    /// The interface.
    pub interface: String,
    /// Its queues.
    pub queues: QueueChoice,
    /// The flows to steer to them.
    pub flows: Vec<Flow>,
    /// Leases of the queues to pods; none to bind them here. Each takes as many as it names, the first one the first of them, and has
    /// flows of its own.
    pub leases: Vec<NewLease>,
    /// Folder of the state file; by default /run/devmem-tcp for root, else
    /// `$XDG_RUNTIME_DIR/devmem-tcp`.
    pub state_folder: Option<PathBuf>,
}

/// A netkit pair to be made for a pod, whose peer gets queues of a set-up. It is removed when the settings are restored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewLease {
    /// Name of the primary end, which stays.
    pub netkit: String,
    /// Name of the peer, which is to be moved to the network namespace of the pod.
    pub peer: String,
    /// Number of queues.
    pub queues: u32,
    /// The flows to steer to them.
    pub flows: Vec<Flow>,
}

/// A queue of the NIC that was leased, and the number that the netkit has for it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeasedQueue {
    /// Name of the netkit's primary end.
    pub netkit: String,
    /// The queue of the NIC.
    pub queue: KernelRxQueueId,
    /// The netkit's number of it.
    pub leased: KernelRxQueueId,
}
