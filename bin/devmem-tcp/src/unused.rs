//! What is left of a binding when a transfer is over, for its report.

use devmem_tcp::stats::NetIovCount;
use devmem_tcp::{Dmabuf, Netdev};

/// A NIC and memory that was bound to it.
#[derive(Debug)]
pub struct Unused {
    /// The NIC.
    pub nic: Netdev,
    /// The memory.
    pub memory: Dmabuf,
    /// Size of its net_iovs.
    pub niov_bytes: u64,
    /// How many of them came back.
    pub net_iovs: NetIovCount,
}
