//! Network interfaces of this machine: find, set up, read. Over route netlink, for both IP versions,
//! so that no `ip` command and no file under /sys is needed (in a fresh network namespace /sys still
//! shows the old one).

use std::net::IpAddr;
use std::os::fd::{AsRawFd, BorrowedFd};

use rustix::io::Errno;

use crate::netlink::attr::append;
use crate::netlink::{F_DUMP, NetlinkError, NetlinkSocket, Request};

/// Message types (linux include/uapi/linux/rtnetlink.h).
const RTM_NEWLINK: u16 = 16;
const RTM_DELLINK: u16 = 17;
const RTM_GETLINK: u16 = 18;
const RTM_NEWADDR: u16 = 20;
/// `NLM_F_CREATE` and `NLM_F_EXCL`: make it; say so if it exists.
const F_CREATE_EXCL: u16 = 0x400 | 0x200;
/// `sizeof(struct ifinfomsg)`.
const LINK_BODY_LEN: usize = 16;
/// Link attributes (linux include/uapi/linux/if_link.h).
const IFLA_ADDRESS: u16 = 1;
const IFLA_IFNAME: u16 = 3;
const IFLA_MTU: u16 = 4;
const IFLA_TXQLEN: u16 = 13;
const IFLA_LINKINFO: u16 = 18;
const IFLA_NET_NS_FD: u16 = 28;
const IFLA_GSO_IPV4_MAX_SIZE: u16 = 63;
const IFLA_INFO_KIND: u16 = 1;
const IFLA_INFO_DATA: u16 = 2;
/// `VETH_INFO_PEER` (linux include/uapi/linux/veth.h): an `ifinfomsg` and the peer's attributes.
const VETH_INFO_PEER: u16 = 1;
/// Address attributes and flags (linux include/uapi/linux/if_addr.h).
const IFA_ADDRESS: u16 = 1;
const IFA_LOCAL: u16 = 2;
const IFA_F_NODAD: u8 = 0x02;
/// `IFF_UP` (linux include/uapi/linux/if.h).
const IFF_UP: u32 = 0x1;
const AF_INET: u8 = 2;
const AF_INET6: u8 = 10;

/// An interface, named by its index in the network namespace where it was looked up.
#[derive(Debug)]
pub struct Interface {
    socket: NetlinkSocket,
    name: String,
    index: u32,
}

/// What the kernel says about an interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InterfaceFacts {
    /// The link-layer address, where the interface has one of six bytes.
    pub mac: Option<[u8; 6]>,
    /// Largest IP packet in bytes.
    pub mtu: u32,
    /// Set up by its administrator.
    pub up: bool,
    /// Bytes of the largest super-packet of IPv4 that the kernel gives it; `None`: it knows none of more than 65,535, on
    /// any way (Linux before 6.3).
    pub gso_ipv4_max_size: Option<u32>,
}

impl Interface {
    /// Finds the interface `name` in the calling thread's network namespace.
    ///
    /// # Errors
    ///
    /// `ENODEV` if there is none.
    pub fn by_name(name: &str) -> Result<Self, NetlinkError> {
        let mut socket = NetlinkSocket::route()?;
        let what = format!("find interface {name}");
        let mut index = None;
        let get = Request::new(RTM_GETLINK, 0, &link_body(0, 0, 0))
            .attribute(IFLA_IFNAME, &with_nul(name));
        socket.request(&what, get, |reply| {
            if reply.kind == RTM_NEWLINK {
                index = body_u32(reply.payload(), 4);
            }
        })?;
        let index = index.ok_or_else(|| NetlinkError::new(&what, Errno::NODEV))?;
        Ok(Self {
            socket,
            name: name.to_owned(),
            index,
        })
    }

    /// Makes two interfaces joined by a cable (veth), both in the calling thread's network namespace.
    ///
    /// # Errors
    ///
    /// `EEXIST` if one of the names is taken, `EOPNOTSUPP` where the kernel has no veth, `EPERM` without
    /// CAP_NET_ADMIN.
    pub fn create_veth_pair(name: &str, peer: &str) -> Result<(Self, Self), NetlinkError> {
        let mut peer_info = link_body(0, 0, 0).to_vec();
        append(&mut peer_info, IFLA_IFNAME, &with_nul(peer));
        let mut data = Vec::new();
        append(&mut data, VETH_INFO_PEER, &peer_info);
        let mut info = Vec::new();
        append(&mut info, IFLA_INFO_KIND, b"veth");
        append(&mut info, IFLA_INFO_DATA, &data);
        let request = Request::new(RTM_NEWLINK, F_CREATE_EXCL, &link_body(0, 0, 0))
            .attribute(IFLA_IFNAME, &with_nul(name))
            .attribute(IFLA_LINKINFO, &info);
        let what = format!("make veth pair {name} and {peer}");
        NetlinkSocket::route()?.request(&what, request, |_| {})?;
        Ok((Self::by_name(name)?, Self::by_name(peer)?))
    }

    /// Returns the name it was found by.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the interface index.
    #[doc(alias = "ifindex")]
    pub fn index(&self) -> u32 {
        self.index
    }

    /// Tells whether this kernel takes super-packets that are longer than the length field of their IP header can say, of
    /// both families, on any way (BIG TCP; Linux 6.3 and later).
    ///
    /// # Errors
    ///
    /// The namespace has no loopback interface to be asked about, or netlink fails.
    pub fn kernel_has_big_tcp() -> Result<bool, NetlinkError> {
        // It says the limits of any interface once it knows them.
        let facts = Self::by_name("lo")?.facts()?;
        Ok(facts.gso_ipv4_max_size.is_some())
    }

    /// Asks the kernel for address, MTU and state.
    ///
    /// # Errors
    ///
    /// `ENODEV` if the interface went away.
    pub fn facts(&mut self) -> Result<InterfaceFacts, NetlinkError> {
        let what = format!("read interface {}", self.name);
        let mut facts = None;
        let get = Request::new(RTM_GETLINK, 0, &link_body(self.index, 0, 0));
        self.socket.request(&what, get, |reply| {
            if reply.kind != RTM_NEWLINK {
                return;
            }
            let attributes = reply.attributes(LINK_BODY_LEN);
            let mac = attributes.clone().find(IFLA_ADDRESS);
            let mtu = attributes.clone().find(IFLA_MTU).and_then(|a| a.u32());
            let gso = attributes.find(IFLA_GSO_IPV4_MAX_SIZE);
            facts = Some(InterfaceFacts {
                mac: mac.and_then(|a| a.value.try_into().ok()),
                mtu: mtu.unwrap_or(0),
                up: body_u32(reply.payload(), 8).is_some_and(|flags| flags & IFF_UP != 0),
                gso_ipv4_max_size: gso.and_then(|a| a.u32()),
            });
        })?;
        facts.ok_or_else(|| NetlinkError::new(&what, Errno::NODEV))
    }

    /// Sets the interface up.
    ///
    /// # Errors
    ///
    /// `EPERM` without CAP_NET_ADMIN in the namespace.
    pub fn set_up(&mut self) -> Result<(), NetlinkError> {
        let body = link_body(self.index, IFF_UP, IFF_UP);
        self.change("set up", Request::new(RTM_NEWLINK, 0, &body))
    }

    /// Sets the interface down.
    ///
    /// # Errors
    ///
    /// `EPERM` without CAP_NET_ADMIN in the namespace.
    pub fn set_down(&mut self) -> Result<(), NetlinkError> {
        let body = link_body(self.index, 0, IFF_UP);
        self.change("set down", Request::new(RTM_NEWLINK, 0, &body))
    }

    /// Sets the largest IP packet, in bytes.
    ///
    /// # Errors
    ///
    /// `EINVAL` with the driver's limit in the text.
    pub fn set_mtu(&mut self, mtu: u32) -> Result<(), NetlinkError> {
        let request = self.link_request().attribute(IFLA_MTU, &mtu.to_ne_bytes());
        self.change("set MTU of", request)
    }

    /// Sets how long super-packets of IPv4 may be that the kernel gives the interface, in bytes.
    ///
    /// # Errors
    ///
    /// `EINVAL` for more than the driver takes.
    pub fn set_gso_ipv4_max_size(&mut self, bytes: u32) -> Result<(), NetlinkError> {
        let request = self
            .link_request()
            .attribute(IFLA_GSO_IPV4_MAX_SIZE, &bytes.to_ne_bytes());
        self.change("set gso_ipv4_max_size of", request)
    }

    /// Sets the link-layer address.
    ///
    /// # Errors
    ///
    /// `EADDRNOTAVAIL` for an address that is not unicast.
    pub fn set_mac(&mut self, mac: [u8; 6]) -> Result<(), NetlinkError> {
        let request = self.link_request().attribute(IFLA_ADDRESS, &mac);
        self.change("set MAC address of", request)
    }

    /// Sets how many packets the kernel queues towards the interface before it drops.
    ///
    /// # Errors
    ///
    /// `ENOMEM` for a length that cannot be had.
    pub fn set_tx_queue_len(&mut self, packets: u32) -> Result<(), NetlinkError> {
        let request = self
            .link_request()
            .attribute(IFLA_TXQLEN, &packets.to_ne_bytes());
        self.change("set queue length of", request)
    }

    /// Gives the interface an address; an IPv6 one is usable at once (no duplicate address detection).
    /// An address it has already is fine.
    ///
    /// # Errors
    ///
    /// `EINVAL` for a prefix that is too long, `EACCES` where IPv6 is switched off.
    pub fn add_address(&mut self, address: IpAddr, prefix: u8) -> Result<(), NetlinkError> {
        let (family, flags, bytes) = match address {
            IpAddr::V4(v4) => (AF_INET, 0, v4.octets().to_vec()),
            IpAddr::V6(v6) => (AF_INET6, IFA_F_NODAD, v6.octets().to_vec()),
        };
        let [i0, i1, i2, i3] = self.index.to_ne_bytes();
        let body = [family, prefix, flags, 0, i0, i1, i2, i3];
        let request = Request::new(RTM_NEWADDR, F_CREATE_EXCL, &body)
            .attribute(IFA_LOCAL, &bytes)
            .attribute(IFA_ADDRESS, &bytes);
        match self.change(&format!("add address {address}/{prefix} to"), request) {
            Err(NetlinkError {
                errno: Errno::EXIST,
                ..
            }) => Ok(()),
            other => other,
        }
    }

    /// Moves the interface into another network namespace, where it arrives set down and without
    /// addresses. This handle no longer finds it.
    ///
    /// # Errors
    ///
    /// `EPERM` without CAP_NET_ADMIN over both namespaces, `EINVAL` if it may not move.
    pub fn move_to(mut self, namespace: BorrowedFd<'_>) -> Result<(), NetlinkError> {
        let fd = namespace.as_raw_fd().to_ne_bytes();
        let request = self.link_request().attribute(IFLA_NET_NS_FD, &fd);
        self.change("move to another namespace", request)
    }

    /// Removes the interface.
    ///
    /// # Errors
    ///
    /// `EOPNOTSUPP` for interfaces that cannot be removed.
    pub fn delete(mut self) -> Result<(), NetlinkError> {
        let request = Request::new(RTM_DELLINK, 0, &link_body(self.index, 0, 0));
        self.change("delete", request)
    }

    /// Switches IPv6 on, but without what it would say by itself: duplicate address detection, router
    /// solicitation, a link-local address and the multicast reports for it. For a link whose other end we
    /// are; call it before the interface is set up. Best effort: where /proc/sys is read-only, a few more
    /// packets and a second's delay are all that happens.
    pub fn quiet_ipv6(&self) {
        /// `IN6_ADDR_GEN_MODE_NONE` (linux include/uapi/linux/if_link.h).
        const NO_LINK_LOCAL: &str = "1";
        for (knob, value) in [
            ("disable_ipv6", "0"),
            ("accept_dad", "0"),
            ("router_solicitations", "0"),
            ("addr_gen_mode", NO_LINK_LOCAL),
        ] {
            let path = format!("/proc/sys/net/ipv6/conf/{}/{knob}", self.name);
            let _ = std::fs::write(path, value);
        }
    }

    fn link_request(&self) -> Request {
        Request::new(RTM_NEWLINK, 0, &link_body(self.index, 0, 0))
    }

    fn change(&mut self, verb: &str, request: Request) -> Result<(), NetlinkError> {
        let what = format!("{verb} {}", self.name);
        self.socket.request(&what, request, |_| {})
    }
}

/// Lists the interfaces of the calling thread's network namespace: index, name, and whether each is up.
///
/// # Errors
///
/// What the kernel said.
pub fn interfaces() -> Result<Vec<(u32, String, bool)>, NetlinkError> {
    let all = Request::new(RTM_GETLINK, F_DUMP, &link_body(0, 0, 0));
    NetlinkSocket::route()?.dump("list interfaces", &all, |reply| {
        let name = reply.attributes(LINK_BODY_LEN).find(IFLA_IFNAME)?;
        let index = body_u32(reply.payload(), 4)?;
        let up = body_u32(reply.payload(), 8)? & IFF_UP != 0;
        Some((index, name.text()?.to_owned(), up))
    })
}

/// Lists the addresses of the interface `index` of the calling thread's network namespace.
///
/// # Errors
///
/// What the kernel said.
pub fn addresses(index: u32) -> Result<Vec<IpAddr>, NetlinkError> {
    const RTM_GETADDR: u16 = 22;
    /// `sizeof(struct ifaddrmsg)`: family, prefix, flags, scope, index.
    const BODY_LEN: usize = 8;
    /// The address itself; `IFA_ADDRESS` is the peer's where there is one.
    const IFA_ADDRESS: u16 = 1;
    const IFA_LOCAL: u16 = 2;
    let all = Request::new(RTM_GETADDR, F_DUMP, &[0; BODY_LEN]);
    let what = format!("list the addresses of interface {index}");
    NetlinkSocket::route()?.dump(&what, &all, |reply| {
        if body_u32(reply.payload(), 4)? != index {
            return None;
        }
        let find = |kind| reply.attributes(BODY_LEN).find(kind);
        let bytes = find(IFA_LOCAL).or_else(|| find(IFA_ADDRESS))?.value;
        match bytes.len() {
            4 => <[u8; 4]>::try_from(bytes).ok().map(IpAddr::from),
            _ => <[u8; 16]>::try_from(bytes).ok().map(IpAddr::from),
        }
    })
}

/// Returns the interface by which packets to `destination` leave the calling thread's network namespace.
///
/// # Errors
///
/// `ENETUNREACH` if there is no route.
pub fn route_interface(destination: IpAddr) -> Result<String, NetlinkError> {
    const RTM_GETROUTE: u16 = 26;
    /// `sizeof(struct rtmsg)`.
    const BODY_LEN: usize = 12;
    const RTA_DST: u16 = 1;
    const RTA_OIF: u16 = 4;
    let what = format!("find the route to {destination}");
    let (family, bytes) = match destination {
        IpAddr::V4(v4) => (AF_INET, v4.octets().to_vec()),
        IpAddr::V6(v6) => (AF_INET6, v6.octets().to_vec()),
    };
    let prefix = if destination.is_ipv4() { 32 } else { 128 };
    let mut body = [0; BODY_LEN];
    body[0] = family;
    body[1] = prefix;
    let get = Request::new(RTM_GETROUTE, 0, &body).attribute(RTA_DST, &bytes);
    let mut index = None;
    let mut socket = NetlinkSocket::route()?;
    socket.request(&what, get, |reply| {
        let interface = reply.attributes(BODY_LEN).find(RTA_OIF);
        index = index.or(interface.and_then(|a| a.u32()));
    })?;
    let index = index.ok_or_else(|| NetlinkError::new(&what, Errno::NETUNREACH))?;
    let mut name = None;
    let get = Request::new(RTM_GETLINK, 0, &link_body(index, 0, 0));
    socket.request(&what, get, |reply| {
        let found = reply.attributes(LINK_BODY_LEN).find(IFLA_IFNAME);
        name = found.and_then(|a| a.text()).map(str::to_owned);
    })?;
    name.ok_or_else(|| NetlinkError::new(&what, Errno::NODEV))
}

/// Tells whether an XDP program is attached to the interface `index` of the calling thread's network
/// namespace.
///
/// # Errors
///
/// `ENODEV` if there is no such interface.
pub fn has_xdp_program(index: u32) -> Result<bool, NetlinkError> {
    /// `IFLA_XDP`, and `IFLA_XDP_ATTACHED` in it: `XDP_ATTACHED_NONE` is 0.
    const IFLA_XDP: u16 = 43;
    const IFLA_XDP_ATTACHED: u16 = 2;
    let what = format!("look for an XDP program on interface {index}");
    let mut attached = false;
    let get = Request::new(RTM_GETLINK, 0, &link_body(index, 0, 0));
    NetlinkSocket::route()?.request(&what, get, |reply| {
        let xdp = reply.attributes(LINK_BODY_LEN).find(IFLA_XDP);
        let mode = xdp.and_then(|a| a.nested().find(IFLA_XDP_ATTACHED));
        attached |= mode.and_then(|a| a.u8()).is_some_and(|mode| mode != 0);
    })?;
    Ok(attached)
}

/// `struct ifinfomsg`: family, padding, type, index, flags, change mask.
fn link_body(index: u32, flags: u32, change: u32) -> [u8; LINK_BODY_LEN] {
    let mut body = [0; LINK_BODY_LEN];
    body[4..8].copy_from_slice(&index.to_ne_bytes());
    body[8..12].copy_from_slice(&flags.to_ne_bytes());
    body[12..16].copy_from_slice(&change.to_ne_bytes());
    body
}

fn body_u32(payload: &[u8], offset: usize) -> Option<u32> {
    payload
        .get(offset..)?
        .first_chunk()
        .map(|b| u32::from_ne_bytes(*b))
}

fn with_nul(name: &str) -> Vec<u8> {
    let mut bytes = name.as_bytes().to_vec();
    bytes.push(0);
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_loopback_interface_is_found_and_read() {
        let mut lo = Interface::by_name("lo").expect("every network namespace has lo");
        assert_eq!(lo.index(), 1);
        let facts = lo.facts().unwrap();
        assert_eq!(facts.mac, Some([0; 6]));
        assert!(facts.mtu >= 1280, "{facts:?}");
    }

    #[test]
    fn the_loopback_has_its_address() {
        let index = Interface::by_name("lo").unwrap().index();
        let all = addresses(index).unwrap();
        // Down, as in a namespace that was just made, it may have none.
        if !all.is_empty() {
            assert!(all.iter().all(|address| address.is_loopback()), "{all:?}");
        }
        assert_eq!(addresses(u32::MAX).unwrap_or_default(), [] as [IpAddr; 0]);
    }

    #[test]
    fn the_loopback_is_among_the_interfaces() {
        let interfaces = interfaces().unwrap();
        assert!(
            interfaces
                .iter()
                .any(|(i, name, _)| *i == 1 && name == "lo"),
            "{interfaces:?}"
        );
    }

    #[test]
    fn the_loopback_has_no_xdp_program_and_an_unknown_interface_is_enodev() {
        assert_eq!(has_xdp_program(1), Ok(false));
        assert_eq!(has_xdp_program(1 << 30).unwrap_err().errno, Errno::NODEV);
    }

    #[test]
    fn packets_to_this_machine_leave_by_the_loopback() {
        let home = IpAddr::from([127, 0, 0, 1]);
        assert_eq!(route_interface(home).as_deref(), Ok("lo"));
    }

    #[test]
    fn an_unknown_interface_is_enodev_with_its_name() {
        let error = Interface::by_name("nosuch0").unwrap_err();
        assert_eq!(error.errno, Errno::NODEV);
        assert!(
            error.to_string().starts_with("find interface nosuch0: "),
            "{error}"
        );
    }
}
