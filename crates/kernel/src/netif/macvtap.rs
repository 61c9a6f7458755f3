//! Making macvtap interfaces: stations beside an Ethernet interface, with a device file for their frames.

use std::os::fd::{AsRawFd, BorrowedFd};

use super::interface::{Interface, read_link};
use super::rtnetlink::{
    self, F_CREATE_EXCL, IFLA_ADDRESS, IFLA_IFNAME, IFLA_INFO_DATA, IFLA_INFO_KIND, IFLA_LINK,
    IFLA_LINKINFO, IFLA_MTU, IFLA_NET_NS_FD, LinkBody, RTM_GETLINK, RTM_NEWLINK, link_request,
};
use crate::netlink::{NetlinkError, Request};

/// Kind of the interface, as the kernel names it.
const MACVTAP: &str = "macvtap";

/// `IFLA_MACVLAN_MODE`.
const IFLA_MACVLAN_MODE: u16 = 1;

/// Which other macvlan and macvtap interfaces of the same lower interface a macvtap interface can reach (`MACVLAN_MODE_*`,
/// linux include/uapi/linux/if_link.h).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u32)]
pub enum MacvtapMode {
    /// None.
    Private = 1,
    /// All, if the switch sends frames back to the port that they came from.
    Vepa = 2,
    /// All, directly.
    #[default]
    Bridge = 4,
    /// There is no other: it has the MAC address of the lower interface, and gets all its frames.
    Passthru = 8,
}

/// A macvtap interface to be made.
#[derive(Clone, Copy, Debug)]
pub struct NewMacvtap<'a> {
    /// Name of the interface.
    pub name: &'a str,
    /// The network namespace in which it is made.
    pub namespace: BorrowedFd<'a>,
    /// Which others it can reach.
    pub mode: MacvtapMode,
    /// Its MAC address; by default random, or that of the lower interface for [`MacvtapMode::Passthru`].
    pub mac: Option<[u8; 6]>,
    /// Its MTU in bytes; by default that of the lower interface.
    pub mtu: Option<u32>,
}

impl Interface {
    /// Makes a macvtap interface over this one. It ends with either this interface or its namespace.
    ///
    /// # Errors
    ///
    /// `EOPNOTSUPP` if the kernel has no macvtap; `EPERM` without CAP_NET_ADMIN over both namespaces; `EBUSY` or `EINVAL` if
    /// this interface is in a bridge, or in use by an interface that excludes others.
    pub fn create_macvtap(&mut self, new: &NewMacvtap<'_>) -> Result<(), NetlinkError> {
        let what = format!("make a macvtap interface over {}", self.name);
        let request = create(self.index, new);
        self.socket.request(&what, request, |_| {})
    }

    /// Returns whether this is a macvtap interface.
    ///
    /// # Errors
    ///
    /// `ENODEV` if the interface was removed.
    pub fn is_macvtap(&mut self) -> Result<bool, NetlinkError> {
        let what = format!("read the kind of {}", self.name);
        let get = rtnetlink::link(RTM_GETLINK, self.index);
        read_link(&mut self.socket, &what, get, |link| {
            Some(link.kind() == Some(MACVTAP))
        })
    }
}

/// Returns a request that creates a macvtap over the interface `lower`, in another network namespace.
fn create(lower: u32, new: &NewMacvtap<'_>) -> Request {
    let NewMacvtap {
        name,
        namespace,
        mode,
        mac,
        mtu,
    } = *new;
    let namespace = namespace.as_raw_fd().to_ne_bytes();
    link_request(RTM_NEWLINK, F_CREATE_EXCL, LinkBody::default())
        .text(IFLA_IFNAME, name)
        .u32(IFLA_LINK, lower)
        .attribute(IFLA_NET_NS_FD, &namespace)
        .with(mac, |request, mac| request.attribute(IFLA_ADDRESS, &mac))
        .with(mtu, |request, mtu| request.u32(IFLA_MTU, mtu))
        .nested(IFLA_LINKINFO, |info| {
            let info = info.attribute(IFLA_INFO_KIND, MACVTAP.as_bytes());
            info.nested(IFLA_INFO_DATA, |data| {
                data.u32(IFLA_MACVLAN_MODE, mode as u32)
            })
        })
}
