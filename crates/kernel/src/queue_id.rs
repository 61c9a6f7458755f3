//! Queues of a kernel interface, who uses their memory, and to whom they are leased.

use devmem_uapi::DmabufId;
use serde::{Deserialize, Serialize};

/// Number of an RX queue of a kernel interface, as netlink and ethtool have it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct KernelRxQueueId(pub u32);

impl std::fmt::Display for KernelRxQueueId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.fmt(f)
    }
}

/// The user of a queue's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum QueueUser {
    /// Device memory is bound to it.
    Dmabuf(#[serde(serialize_with = "id_number")] DmabufId),
    /// An io_uring receives into its own memory.
    IoUring,
    /// An AF_XDP socket receives into its own memory.
    Xsk,
    /// It is leased to another netdev, which alone can bind memory to it; `None` if the kernel does not say to which.
    Lease(Option<LeaseEnd>),
}

/// The other end of a lease: a queue of another netdev.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct LeaseEnd {
    /// Index of the netdev, in its network namespace.
    pub ifindex: u32,
    /// Its queue.
    pub queue: KernelRxQueueId,
    /// Its network namespace, as the caller's one numbers it (`ip netns list-id`); `None` if it is the caller's.
    pub netns: Option<i32>,
}

impl std::fmt::Display for LeaseEnd {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self {
            ifindex,
            queue,
            netns,
        } = self;
        write!(f, "queue {queue} of interface {ifindex}")?;
        match netns {
            Some(id) => write!(f, " in network namespace {id}"),
            None => Ok(()),
        }
    }
}

fn id_number<S: serde::Serializer>(id: &DmabufId, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_u32(id.0)
}

impl std::fmt::Display for QueueUser {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Dmabuf(id) => write!(f, "dma-buf {id}"),
            Self::IoUring => f.write_str("an io_uring"),
            Self::Xsk => f.write_str("an AF_XDP socket"),
            Self::Lease(Some(end)) => write!(f, "a lease to {end}"),
            Self::Lease(None) => f.write_str("a lease to another netdev"),
        }
    }
}
