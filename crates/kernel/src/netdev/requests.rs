//! One interface, and what requests about it have in common.

use devmem_uapi::{IfIndex, netdev as uapi};

use crate::netif::Interface;
use crate::netlink::{GenericSocket, Names, NetlinkError};

/// Attribute names, for errors.
pub(super) const DMABUF_NAMES: Names = Names(&[
    (uapi::A_DMABUF_IFINDEX, "ifindex", Names::NONE),
    (uapi::A_DMABUF_QUEUES, "queues", QUEUE_NAMES),
    (uapi::A_DMABUF_FD, "fd", Names::NONE),
    (uapi::A_DMABUF_RX_PAGE_SIZE, "rx-page-size", Names::NONE),
]);
pub(super) const QUEUE_NAMES: Names = Names(&[
    (uapi::A_QUEUE_ID, "id", Names::NONE),
    (uapi::A_QUEUE_IFINDEX, "ifindex", Names::NONE),
    (uapi::A_QUEUE_TYPE, "type", Names::NONE),
    (uapi::A_QUEUE_LEASE, "lease", LEASE_NAMES),
]);
const LEASE_NAMES: Names = Names(&[
    (uapi::A_LEASE_IFINDEX, "ifindex", Names::NONE),
    (uapi::A_LEASE_QUEUE, "queue", LEASED_NAMES),
    (uapi::A_LEASE_NETNS_ID, "netns-id", Names::NONE),
]);
const LEASED_NAMES: Names = Names(&[
    (uapi::A_QUEUE_ID, "id", Names::NONE),
    (uapi::A_QUEUE_TYPE, "type", Names::NONE),
]);
pub(super) const IFINDEX_NAMES: Names = Names(&[(1, "ifindex", Names::NONE)]);

/// One network interface in the netdev family. It belongs to the network namespace of the thread that created this; bind
/// from a thread in the same namespace.
#[derive(Debug)]
pub struct Netdev {
    pub(super) name: String,
    pub(super) index: IfIndex,
    pub(super) socket: GenericSocket,
}

impl Netdev {
    /// Finds the interface `name`.
    ///
    /// # Errors
    ///
    /// `ENODEV` if there is none, `ENOENT` if this kernel has no netdev family (before 6.3).
    pub fn by_name(name: &str) -> Result<Self, NetlinkError> {
        let index = IfIndex(Interface::by_name(name)?.index());
        Self::with_index(name, index)
    }

    /// Creates it from a known index. The interface is looked up only by later requests.
    ///
    /// # Errors
    ///
    /// `ENOENT` if this kernel has no netdev family (before 6.3).
    pub fn with_index(name: &str, index: IfIndex) -> Result<Self, NetlinkError> {
        Ok(Self {
            name: name.to_owned(),
            index,
            socket: GenericSocket::open(uapi::FAMILY_NAME)?,
        })
    }

    /// Returns the name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the interface index.
    #[doc(alias = "ifindex")]
    pub fn index(&self) -> IfIndex {
        self.index
    }

    /// Returns the driver's XDP features (`NETDEV_XDP_ACT_*` bits).
    ///
    /// # Errors
    ///
    /// `ENODEV` if the interface was removed.
    pub fn xdp_features(&mut self) -> Result<u64, NetlinkError> {
        let what = format!("read netdev {}", self.name);
        let request = self.socket.command(uapi::CMD_DEV_GET, IFINDEX_NAMES);
        let request = request.u32(uapi::A_DEV_IFINDEX, self.index.0);
        self.socket
            .get(&what, request, |reply| reply.uint(uapi::A_DEV_XDP_FEATURES))
    }
}
