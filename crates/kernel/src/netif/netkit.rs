//! Making netkit interfaces: a pair whose peer is moved to the network namespace of a pod, where it can have queues of a NIC
//! ([`Netdev::lease_queue`](crate::netdev::Netdev::lease_queue)).

use zerocopy::IntoBytes;

use super::interface::Interface;
use super::rtnetlink::{
    self, F_CREATE_EXCL, IFLA_IFNAME, IFLA_INFO_DATA, IFLA_INFO_KIND, IFLA_LINKINFO, LinkBody,
    LinkMessage, RTM_NEWLINK, link_request,
};
use crate::netlink::{NetlinkError, NetlinkSocket, Request};

/// Kind of the interface, as the kernel names it.
const NETKIT: &str = "netkit";

/// `IFLA_NUM_RX_QUEUES`.
const IFLA_NUM_RX_QUEUES: u16 = 32;
/// `IFLA_NETKIT_PEER_INFO`: an `ifinfomsg` and the peer's attributes; `IFLA_NETKIT_MODE`, and its value `NETKIT_L3`.
const IFLA_NETKIT_PEER_INFO: u16 = 1;
const IFLA_NETKIT_MODE: u16 = 5;
const NETKIT_L3: u32 = 1;

/// A netkit pair to be made, in layer 3 mode: its packets have no Ethernet header, so that it needs no neighbours.
#[derive(Clone, Copy, Debug)]
pub struct NewNetkit<'a> {
    /// Name of the primary end, which stays.
    pub name: &'a str,
    /// Name of the peer, which is to be moved to a pod.
    pub peer: &'a str,
    /// The most RX queues that the peer can have: its own one, and those that are leased to it.
    pub rx_queues: u32,
}

/// Lists the netkit interfaces of the calling thread's network namespace, by index and name.
///
/// # Errors
///
/// The error of the kernel.
pub fn netkits() -> Result<Vec<(u32, String)>, NetlinkError> {
    let all = rtnetlink::list_links();
    NetlinkSocket::route()?.dump("list netkit interfaces", &all, |reply| {
        let link = LinkMessage::parse(&reply)?;
        let is_netkit = link.kind() == Some(NETKIT);
        is_netkit.then_some((link.index, link.name()?.to_owned()))
    })
}

impl Interface {
    /// Makes a netkit pair, both ends in the calling thread's network namespace. Removing either end removes both.
    ///
    /// # Errors
    ///
    /// `EEXIST` if one of the names is in use, `EOPNOTSUPP` if the kernel has no netkit (CONFIG_NETKIT, Linux 6.7), `EPERM` without
    /// CAP_NET_ADMIN.
    pub fn create_netkit(new: &NewNetkit<'_>) -> Result<(Self, Self), NetlinkError> {
        let NewNetkit { name, peer, .. } = *new;
        let what = format!("make netkit {name} with peer {peer}");
        NetlinkSocket::route()?.request(&what, create(new), |_| {})?;
        Ok((Self::by_name(name)?, Self::by_name(peer)?))
    }
}

/// Returns a request that creates a netkit pair. Both ends have room for the queues: kernels differ in whose attribute they read.
fn create(new: &NewNetkit<'_>) -> Request {
    let NewNetkit {
        name,
        peer,
        rx_queues,
    } = *new;
    link_request(RTM_NEWLINK, F_CREATE_EXCL, LinkBody::default())
        .text(IFLA_IFNAME, name)
        .u32(IFLA_NUM_RX_QUEUES, rx_queues)
        .nested(IFLA_LINKINFO, |info| {
            let info = info.attribute(IFLA_INFO_KIND, NETKIT.as_bytes());
            info.nested(IFLA_INFO_DATA, |data| {
                let data = data.u32(IFLA_NETKIT_MODE, NETKIT_L3);
                data.nested_after(
                    IFLA_NETKIT_PEER_INFO,
                    LinkBody::default().as_bytes(),
                    |of_peer| {
                        of_peer
                            .text(IFLA_IFNAME, peer)
                            .u32(IFLA_NUM_RX_QUEUES, rx_queues)
                    },
                )
            })
        })
}
