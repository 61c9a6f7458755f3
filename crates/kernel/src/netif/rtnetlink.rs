//! The messages of route netlink that this crate sends and parses (linux include/uapi/linux/rtnetlink.h).

use std::net::IpAddr;

use zerocopy::IntoBytes;

use super::facts::InterfaceFacts;
use crate::netlink::attr::Attributes;
use crate::netlink::{F_DUMP, Names, NetlinkMessage, Request};

/// Message types.
pub(super) const RTM_NEWLINK: u16 = 16;
pub(super) const RTM_DELLINK: u16 = 17;
pub(super) const RTM_GETLINK: u16 = 18;
const RTM_NEWADDR: u16 = 20;
const RTM_DELADDR: u16 = 21;
const RTM_GETADDR: u16 = 22;
const RTM_NEWROUTE: u16 = 24;
const RTM_GETROUTE: u16 = 26;
/// `NLM_F_CREATE` and `NLM_F_EXCL`: create the object; fail if it exists.
pub(super) const F_CREATE_EXCL: u16 = 0x400 | 0x200;
/// Link attributes (linux include/uapi/linux/if_link.h).
pub(super) const IFLA_ADDRESS: u16 = 1;
pub(super) const IFLA_IFNAME: u16 = 3;
pub(super) const IFLA_MTU: u16 = 4;
pub(super) const IFLA_LINK: u16 = 5;
#[cfg(test)]
pub(super) const IFLA_MASTER: u16 = 10;
pub(super) const IFLA_TXQLEN: u16 = 13;
pub(super) const IFLA_LINKINFO: u16 = 18;
pub(super) const IFLA_NET_NS_FD: u16 = 28;
#[cfg(test)]
const IFLA_PROMISCUITY: u16 = 30;
/// `IFLA_XDP`, and `IFLA_XDP_ATTACHED` in it: `XDP_ATTACHED_NONE` is 0.
const IFLA_XDP: u16 = 43;
const IFLA_XDP_ATTACHED: u16 = 2;
pub(super) const IFLA_GSO_MAX_SIZE: u16 = 41;
const IFLA_GRO_MAX_SIZE: u16 = 58;
pub(super) const IFLA_GSO_IPV4_MAX_SIZE: u16 = 63;
const IFLA_GRO_IPV4_MAX_SIZE: u16 = 64;
pub(super) const IFLA_INFO_KIND: u16 = 1;
pub(super) const IFLA_INFO_DATA: u16 = 2;
/// Attributes of the data of a TUN or TAP interface (linux include/uapi/linux/if_link.h).
const IFLA_TUN_TYPE: u16 = 3;
const IFLA_TUN_MULTI_QUEUE: u16 = 7;
/// `VETH_INFO_PEER` (linux include/uapi/linux/veth.h): an `ifinfomsg` and the peer's attributes.
const VETH_INFO_PEER: u16 = 1;
/// Address attributes and flags (linux include/uapi/linux/if_addr.h).
const IFA_ADDRESS: u16 = 1;
const IFA_LOCAL: u16 = 2;
const IFA_F_NODAD: u8 = 0x02;
/// Route attributes.
const RTA_DST: u16 = 1;
const RTA_OIF: u16 = 4;
/// `RT_TABLE_MAIN`, `RTPROT_STATIC`, `RT_SCOPE_LINK` and `RTN_UNICAST` (linux include/uapi/linux/rtnetlink.h).
const TABLE_MAIN: u8 = 254;
const PROTOCOL_STATIC: u8 = 4;
const SCOPE_LINK: u8 = 253;
const UNICAST: u8 = 1;
/// Flags of interfaces (linux include/uapi/linux/if.h).
pub(super) const IFF_UP: u32 = 0x1;
pub(super) const IFF_LOWER_UP: u32 = 0x1_0000;
/// `ARPHRD_ETHER` (linux include/uapi/linux/if_arp.h).
const ARPHRD_ETHER: u16 = 1;
pub(super) const AF_UNSPEC: u8 = 0;
const AF_INET: u8 = 2;
const AF_INET6: u8 = 10;

/// `IFF_TUN` (linux include/uapi/linux/if_tun.h).
const TUN_TYPE_TUN: u8 = 1;

/// An interface of the TUN driver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TunKind {
    /// Of IP packets.
    Tun,
    /// Of Ethernet frames, with one queue.
    Tap,
    /// Of Ethernet frames, with as many queues as descriptors are attached.
    MultiQueueTap,
}

/// Attribute names, for errors.
const LINK_NAMES: Names = Names(&[
    (IFLA_ADDRESS, "address", Names::NONE),
    (IFLA_IFNAME, "ifname", Names::NONE),
    (IFLA_MTU, "mtu", Names::NONE),
    (IFLA_LINK, "link", Names::NONE),
    (IFLA_TXQLEN, "txqlen", Names::NONE),
    (IFLA_LINKINFO, "linkinfo", Names::NONE),
    (IFLA_NET_NS_FD, "net-ns-fd", Names::NONE),
    (IFLA_GSO_MAX_SIZE, "gso-max-size", Names::NONE),
    (IFLA_GSO_IPV4_MAX_SIZE, "gso-ipv4-max-size", Names::NONE),
]);
const ADDRESS_NAMES: Names = Names(&[
    (IFA_ADDRESS, "address", Names::NONE),
    (IFA_LOCAL, "local", Names::NONE),
]);

/// `struct ifinfomsg`: family and hardware type; index; flags; mask of the flags to change.
pub(super) type LinkBody = [u32; 4];
/// `struct ifaddrmsg`: family, prefix, flags and scope, of one byte each; index.
type AddressBody = [u32; 2];
/// `struct rtmsg`: family, prefixes of destination and source, TOS, table, protocol, scope, type, and four bytes of flags.
type RouteBody = [u8; 12];

/// A message about an interface.
pub(super) struct LinkMessage<'a> {
    pub(super) index: u32,
    /// Whether the interface is administratively up.
    pub(super) up: bool,
    ethernet: bool,
    attributes: Attributes<'a>,
}

impl<'a> LinkMessage<'a> {
    /// Parses a reply; `None` if it is not about an interface.
    pub(super) fn parse(reply: &NetlinkMessage<'a>) -> Option<Self> {
        let ([kind, index, flags, _], attributes) = reply.split::<LinkBody>()?;
        let [_family, _pad, kind @ ..] = kind.to_ne_bytes();
        (reply.kind == RTM_NEWLINK).then_some(Self {
            index,
            up: flags & IFF_UP != 0,
            ethernet: u16::from_ne_bytes(kind) == ARPHRD_ETHER,
            attributes,
        })
    }

    pub(super) fn name(&self) -> Option<&'a str> {
        self.attributes.text(IFLA_IFNAME)
    }

    pub(super) fn facts(&self) -> InterfaceFacts {
        let mac = self.attributes.find(IFLA_ADDRESS);
        InterfaceFacts {
            ethernet: self.ethernet,
            mac: mac.and_then(|mac| mac.value.try_into().ok()),
            mtu: self.attributes.u32(IFLA_MTU).unwrap_or(0),
            up: self.up,
            gso_max_size: self.attributes.u32(IFLA_GSO_MAX_SIZE),
            gso_ipv4_max_size: self.attributes.u32(IFLA_GSO_IPV4_MAX_SIZE),
            gro_max_size: self.attributes.u32(IFLA_GRO_MAX_SIZE),
            gro_ipv4_max_size: self.attributes.u32(IFLA_GRO_IPV4_MAX_SIZE),
        }
    }

    /// Returns the kind of a virtual interface: `veth`, `macvtap`.
    pub(super) fn kind(&self) -> Option<&'a str> {
        self.attributes.nested(IFLA_LINKINFO)?.text(IFLA_INFO_KIND)
    }

    /// Returns how many packets the interface queues.
    pub(super) fn tx_queue_len(&self) -> Option<u32> {
        self.attributes.u32(IFLA_TXQLEN)
    }

    /// Returns what a TUN or TAP interface is; `None` for another interface.
    pub(super) fn tun(&self) -> Option<TunKind> {
        let info = self.attributes.nested(IFLA_LINKINFO)?;
        let data = info.nested(IFLA_INFO_DATA);
        let byte = |kind| data.and_then(|data| data.u8(kind));
        (info.text(IFLA_INFO_KIND)? == "tun").then(|| match byte(IFLA_TUN_TYPE) {
            Some(TUN_TYPE_TUN) => TunKind::Tun,
            _ if byte(IFLA_TUN_MULTI_QUEUE) == Some(1) => TunKind::MultiQueueTap,
            _ => TunKind::Tap,
        })
    }

    /// Returns how many users want all frames of the interface.
    #[cfg(test)]
    pub(super) fn promiscuity(&self) -> Option<u32> {
        self.attributes.u32(IFLA_PROMISCUITY)
    }

    pub(super) fn has_xdp_program(&self) -> bool {
        let xdp = self.attributes.nested(IFLA_XDP);
        let mode = xdp.and_then(|xdp| xdp.u8(IFLA_XDP_ATTACHED));
        mode.is_some_and(|mode| mode != 0)
    }
}

/// Starts a request about the interface `index`; 0 if an attribute names the interface.
pub(super) fn link(kind: u16, index: u32) -> Request {
    link_request(kind, 0, [0, index, 0, 0])
}

/// Returns a request that sets the flags in `mask` of the interface `index` to those of `flags`.
pub(super) fn link_flags(index: u32, flags: u32, mask: u32) -> Request {
    link_request(RTM_NEWLINK, 0, [0, index, flags, mask])
}

pub(super) fn list_links() -> Request {
    link_request(RTM_GETLINK, F_DUMP, LinkBody::default())
}

pub(super) fn create_veth_pair(name: &str, peer: &str) -> Request {
    link_request(RTM_NEWLINK, F_CREATE_EXCL, LinkBody::default())
        .text(IFLA_IFNAME, name)
        .nested(IFLA_LINKINFO, |info| {
            let info = info.attribute(IFLA_INFO_KIND, b"veth");
            info.nested(IFLA_INFO_DATA, |data| {
                data.nested_after(VETH_INFO_PEER, LinkBody::default().as_bytes(), |p| {
                    p.text(IFLA_IFNAME, peer)
                })
            })
        })
}

#[cfg(test)]
pub(super) fn create_bridge(name: &str) -> Request {
    link_request(RTM_NEWLINK, F_CREATE_EXCL, LinkBody::default())
        .text(IFLA_IFNAME, name)
        .nested(IFLA_LINKINFO, |info| {
            info.attribute(IFLA_INFO_KIND, b"bridge")
        })
}

pub(super) fn link_request(kind: u16, flags: u16, body: LinkBody) -> Request {
    Request::new(kind, flags, body.as_bytes()).named(LINK_NAMES)
}

/// Returns a request that adds an address; an IPv6 address without duplicate address detection.
pub(super) fn create_address(index: u32, address: IpAddr, prefix: u8) -> Request {
    address_request(RTM_NEWADDR, F_CREATE_EXCL, index, address, prefix)
}

/// Returns a request that removes an address.
pub(super) fn delete_address(index: u32, address: IpAddr, prefix: u8) -> Request {
    address_request(RTM_DELADDR, 0, index, address, prefix)
}

fn address_request(kind: u16, flags: u16, index: u32, address: IpAddr, prefix: u8) -> Request {
    let (family, of_address, bytes) = match address {
        IpAddr::V4(v4) => (AF_INET, 0, v4.octets().to_vec()),
        IpAddr::V6(v6) => (AF_INET6, IFA_F_NODAD, v6.octets().to_vec()),
    };
    let body: AddressBody = [u32::from_ne_bytes([family, prefix, of_address, 0]), index];
    Request::new(kind, flags, body.as_bytes())
        .named(ADDRESS_NAMES)
        .attribute(IFA_LOCAL, &bytes)
        .attribute(IFA_ADDRESS, &bytes)
}

/// Returns a request for the addresses of the interface `index`. Linux before 4.20, which has no strict checking, lists those
/// of all interfaces.
/// Lists the addresses of an interface, or with the index 0 of all.
pub(super) fn list_addresses(index: u32) -> Request {
    let body: AddressBody = [0, index];
    Request::new(RTM_GETADDR, F_DUMP, body.as_bytes())
}

/// Parses an address with the index of its interface; `None` if the reply is about something else.
pub(super) fn address(reply: &NetlinkMessage<'_>) -> Option<(u32, IpAddr)> {
    let ([_, index], attributes) = reply.split::<AddressBody>()?;
    // IFA_LOCAL is the interface's address; on point-to-point links IFA_ADDRESS is the peer's.
    let local = attributes.find(IFA_LOCAL);
    let bytes = local.or_else(|| attributes.find(IFA_ADDRESS))?.value;
    let address = match bytes.len() {
        4 => <[u8; 4]>::try_from(bytes).ok()?.into(),
        _ => <[u8; 16]>::try_from(bytes).ok()?.into(),
    };
    Some((index, address))
}

/// Returns a request that adds a route without a router through the interface `index`.
pub(super) fn create_route(index: u32, destination: IpAddr, prefix: u8) -> Request {
    let (family, bytes) = match destination {
        IpAddr::V4(v4) => (AF_INET, v4.octets().to_vec()),
        IpAddr::V6(v6) => (AF_INET6, v6.octets().to_vec()),
    };
    let mut body = RouteBody::default();
    (body[0], body[1]) = (family, prefix);
    (body[4], body[5], body[6], body[7]) = (TABLE_MAIN, PROTOCOL_STATIC, SCOPE_LINK, UNICAST);
    let request = Request::new(RTM_NEWROUTE, F_CREATE_EXCL, &body);
    // A default route has no destination.
    let request = request.with((prefix > 0).then_some(bytes), |request, bytes| {
        request.attribute(RTA_DST, &bytes)
    });
    request.u32(RTA_OIF, index)
}

pub(super) fn get_route(destination: IpAddr) -> Request {
    let (family, prefix, bytes) = match destination {
        IpAddr::V4(v4) => (AF_INET, 32, v4.octets().to_vec()),
        IpAddr::V6(v6) => (AF_INET6, 128, v6.octets().to_vec()),
    };
    let mut body = RouteBody::default();
    (body[0], body[1]) = (family, prefix);
    Request::new(RTM_GETROUTE, 0, &body).attribute(RTA_DST, &bytes)
}

/// Parses the index of a route's interface.
pub(super) fn route_interface(reply: &NetlinkMessage<'_>) -> Option<u32> {
    let (_, attributes) = reply.split::<RouteBody>()?;
    attributes.u32(RTA_OIF)
}
