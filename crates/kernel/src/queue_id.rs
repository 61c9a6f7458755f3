//! Queues of a kernel interface, and who uses their memory.

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
    /// It is leased to another netdev.
    Lease,
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
            Self::Lease => f.write_str("a lease to another netdev"),
        }
    }
}
