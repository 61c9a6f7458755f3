//! Making netkit interfaces: a pair whose peer is moved to the network namespace of a pod, where it can have queues of a NIC
//! ([`Netdev::lease_queue`](crate::netdev::Netdev::lease_queue)).

use super::Interface;
use super::rtnetlink::{self, LinkMessage};
use crate::netlink::{NetlinkError, NetlinkSocket};

/// Kind of the interface, as the kernel names it.
pub(super) const NETKIT: &str = "netkit";

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
        NetlinkSocket::route()?.request(&what, rtnetlink::create_netkit(new), |_| {})?;
        Ok((Self::by_name(name)?, Self::by_name(peer)?))
    }
}
