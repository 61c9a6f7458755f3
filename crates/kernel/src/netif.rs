//! Network interfaces of this machine: find, set up, read. Uses route netlink for both IP versions, so that neither the `ip`
//! command nor files under /sys are needed (in a new network namespace, /sys still shows the old one).

#[cfg(test)]
mod bridge;
mod macvtap;
mod netkit;
mod route;
mod rtnetlink;
mod watch;

use std::net::IpAddr;
use std::os::fd::{AsRawFd, BorrowedFd};

use rustix::io::Errno;

use self::rtnetlink::{
    IFF_UP, IFLA_ADDRESS, IFLA_GSO_IPV4_MAX_SIZE, IFLA_GSO_MAX_SIZE, IFLA_IFNAME, IFLA_MTU,
    IFLA_NET_NS_FD, IFLA_TXQLEN, LinkMessage, RTM_DELLINK, RTM_GETLINK, RTM_NEWLINK,
};
use crate::netlink::{NetlinkError, NetlinkSocket, Request};
pub use macvtap::{MacvtapMode, NewMacvtap};
pub use netkit::{NewNetkit, netkits};
pub use rtnetlink::TunKind;
pub use watch::{InterfaceState, InterfaceWatch, Presence};

/// An interface, named by its index in the network namespace where it was looked up.
#[derive(Debug)]
pub struct Interface {
    socket: NetlinkSocket,
    name: String,
    index: u32,
}

/// Facts about an interface, reported by the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InterfaceFacts {
    /// Whether its frames have an Ethernet header.
    pub ethernet: bool,
    /// The link-layer address, if the interface has one of six bytes.
    pub mac: Option<[u8; 6]>,
    /// Largest IP packet in bytes.
    pub mtu: u32,
    /// Whether the interface is administratively up.
    pub up: bool,
    /// Super-packets of as many bytes or more are cut by the kernel before it passes them to the interface; IPv6, and IPv4 before
    /// Linux 6.3. `None` before Linux 4.16.
    pub gso_max_size: Option<u32>,
    /// The same of IPv4; `None` if the kernel does not support more than 65,535 (Linux before 6.3).
    pub gso_ipv4_max_size: Option<u32>,
    /// Bytes up to which the kernel merges received packets (GRO); IPv6, and IPv4 before Linux 6.3. `None` before Linux 5.19.
    pub gro_max_size: Option<u32>,
    /// The same of IPv4; `None` before Linux 6.3.
    pub gro_ipv4_max_size: Option<u32>,
}

/// The most that Linux permits for these limits, in bytes (linux include/linux/netdevice.h `GSO_MAX_SIZE`).
pub const GSO_MAX_SIZE: u32 = 8 * 65_535;

/// The default of these limits, in bytes (linux include/linux/netdevice.h `GSO_LEGACY_MAX_SIZE`).
pub(crate) const LEGACY_GSO_MAX_SIZE: u32 = 65_536;

/// Bytes of the longest Ethernet header, with a tag.
const ETHERNET_LEN: u32 = 18;

impl InterfaceFacts {
    /// Returns the bytes up to which the kernel merges received packets (GRO), of both families.
    pub fn max_merged_packet(&self) -> u32 {
        of_both(self.gro_max_size, self.gro_ipv4_max_size)
    }

    /// Returns the bytes from which on the kernel cuts super-packets before it passes them to the interface, of both families.
    pub(crate) fn gso_limit(&self) -> u32 {
        of_both(self.gso_max_size, self.gso_ipv4_max_size)
    }

    /// Returns the bytes of the longest IP packet that the kernel passes to the interface as a super-packet, of both families.
    pub fn max_super_packet(&self) -> u32 {
        // linux v6.18 net/core/dev.c `gso_features_check`: the length with Ethernet header must be smaller.
        self.gso_limit().saturating_sub(ETHERNET_LEN + 1)
    }
}

/// Returns the smaller one of the limits of two address families.
fn of_both(v6: Option<u32>, v4: Option<u32>) -> u32 {
    let limit = |limit: Option<u32>| limit.unwrap_or(LEGACY_GSO_MAX_SIZE);
    limit(v6).min(limit(v4))
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
        let get = rtnetlink::link(RTM_GETLINK, 0).text(IFLA_IFNAME, name);
        let index = read_link(&mut socket, &what, get, |link| Some(link.index))?;
        Ok(Self {
            socket,
            name: name.to_owned(),
            index,
        })
    }

    /// Creates a veth pair, both interfaces in the calling thread's network namespace.
    ///
    /// # Errors
    ///
    /// `EEXIST` if one of the names is in use, `EOPNOTSUPP` if the kernel has no veth, `EPERM` without CAP_NET_ADMIN.
    pub fn create_veth_pair(name: &str, peer: &str) -> Result<(Self, Self), NetlinkError> {
        let request = rtnetlink::create_veth_pair(name, peer);
        let what = format!("make veth pair {name} and {peer}");
        NetlinkSocket::route()?.request(&what, request, |_| {})?;
        Ok((Self::by_name(name)?, Self::by_name(peer)?))
    }

    /// Returns the name by which it was found.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the interface index.
    #[doc(alias = "ifindex")]
    pub fn index(&self) -> u32 {
        self.index
    }

    /// Returns whether this kernel supports super-packets that are longer than the length field of their IP header can hold,
    /// for both address families (BIG TCP; Linux 6.3 and later).
    ///
    /// # Errors
    ///
    /// The namespace has no loopback interface to read, or netlink fails.
    pub fn kernel_has_big_tcp() -> Result<bool, NetlinkError> {
        // A kernel that supports it reports the limits of every interface.
        let facts = Self::by_name("lo")?.facts()?;
        Ok(facts.gso_ipv4_max_size.is_some())
    }

    /// Reads address, MTU and state.
    ///
    /// # Errors
    ///
    /// `ENODEV` if the interface was removed.
    pub fn facts(&mut self) -> Result<InterfaceFacts, NetlinkError> {
        let what = format!("read interface {}", self.name);
        let get = rtnetlink::link(RTM_GETLINK, self.index);
        read_link(&mut self.socket, &what, get, |link| Some(link.facts()))
    }

    /// Sets the interface up.
    ///
    /// # Errors
    ///
    /// `EPERM` without CAP_NET_ADMIN in the namespace.
    pub fn set_up(&mut self) -> Result<(), NetlinkError> {
        let request = rtnetlink::link_flags(self.index, IFF_UP, IFF_UP);
        self.change("set up", request)
    }

    /// Sets the interface down.
    ///
    /// # Errors
    ///
    /// `EPERM` without CAP_NET_ADMIN in the namespace.
    pub fn set_down(&mut self) -> Result<(), NetlinkError> {
        let request = rtnetlink::link_flags(self.index, 0, IFF_UP);
        self.change("set down", request)
    }

    /// Returns how many packets it queues.
    ///
    /// # Errors
    ///
    /// `ENODEV` if the interface was removed.
    pub fn tx_queue_len(&mut self) -> Result<u32, NetlinkError> {
        let what = format!("read the queue length of {}", self.name);
        let get = rtnetlink::link(RTM_GETLINK, self.index);
        read_link(&mut self.socket, &what, get, |link| link.tx_queue_len())
    }

    /// Returns what this is for the TUN driver; `None` if it belongs to another driver.
    ///
    /// # Errors
    ///
    /// `ENODEV` if the interface was removed.
    pub fn tun_kind(&mut self) -> Result<Option<TunKind>, NetlinkError> {
        let what = format!("read the kind of {}", self.name);
        let get = rtnetlink::link(RTM_GETLINK, self.index);
        read_link(&mut self.socket, &what, get, |link| Some(link.tun()))
    }

    /// Sets the largest IP packet, in bytes.
    ///
    /// # Errors
    ///
    /// `EINVAL` with the driver's limit in the text.
    pub fn set_mtu(&mut self, mtu: u32) -> Result<(), NetlinkError> {
        self.change("set MTU of", self.request().u32(IFLA_MTU, mtu))
    }

    /// Sets the size in bytes from which on the kernel cuts super-packets before it passes them to the interface, for both
    /// families (Linux 6.3 and later).
    ///
    /// # Errors
    ///
    /// `EINVAL` for more than the driver supports.
    pub fn set_gso_max_size(&mut self, bytes: u32) -> Result<(), NetlinkError> {
        let request = self.request().u32(IFLA_GSO_MAX_SIZE, bytes);
        let request = request.u32(IFLA_GSO_IPV4_MAX_SIZE, bytes);
        self.change("set gso_max_size of", request)
    }

    /// Renames the interface.
    ///
    /// # Errors
    ///
    /// `EEXIST` if the name is in use, `EBUSY` for an interface that is up (Linux before 6.2).
    pub fn rename(&mut self, name: &str) -> Result<(), NetlinkError> {
        let request = self.request().text(IFLA_IFNAME, name);
        self.change("rename", request)?;
        name.clone_into(&mut self.name);
        Ok(())
    }

    /// Sets the link-layer address.
    ///
    /// # Errors
    ///
    /// `EADDRNOTAVAIL` for an address that is not unicast.
    pub fn set_mac(&mut self, mac: [u8; 6]) -> Result<(), NetlinkError> {
        let request = self.request().attribute(IFLA_ADDRESS, &mac);
        self.change("set MAC address of", request)
    }

    /// Sets the length of the transmit queue in packets; the kernel drops packets beyond it.
    ///
    /// # Errors
    ///
    /// `ENOMEM` if the queue cannot be allocated.
    pub fn set_tx_queue_len(&mut self, packets: u32) -> Result<(), NetlinkError> {
        let request = self.request().u32(IFLA_TXQLEN, packets);
        self.change("set queue length of", request)
    }

    /// Adds an address to the interface; an IPv6 one can be used at once (no duplicate address detection). Succeeds if the
    /// interface has the address already.
    ///
    /// # Errors
    ///
    /// `EINVAL` for a prefix that is too long, `EACCES` if IPv6 is disabled.
    pub fn add_address(&mut self, address: IpAddr, prefix: u8) -> Result<(), NetlinkError> {
        let request = rtnetlink::create_address(self.index, address, prefix);
        match self.change(&format!("add address {address}/{prefix} to"), request) {
            Err(NetlinkError {
                errno: Errno::EXIST,
                ..
            }) => Ok(()),
            other => other,
        }
    }

    /// Removes an address from the interface.
    ///
    /// # Errors
    ///
    /// `EADDRNOTAVAIL` if the interface does not have it.
    pub fn remove_address(&mut self, address: IpAddr, prefix: u8) -> Result<(), NetlinkError> {
        let request = rtnetlink::delete_address(self.index, address, prefix);
        self.change(&format!("remove address {address}/{prefix} from"), request)
    }

    /// Moves the interface into another network namespace, where it is down and has no addresses. This handle cannot be used
    /// with it any more.
    ///
    /// # Errors
    ///
    /// `EPERM` without CAP_NET_ADMIN over both namespaces, `EINVAL` if it may not move.
    pub fn move_to(mut self, namespace: BorrowedFd<'_>) -> Result<(), NetlinkError> {
        let fd = namespace.as_raw_fd().to_ne_bytes();
        let request = self.request().attribute(IFLA_NET_NS_FD, &fd);
        self.change("move to another namespace", request)
    }

    /// Removes the interface.
    ///
    /// # Errors
    ///
    /// `EOPNOTSUPP` for interfaces that cannot be removed.
    pub fn delete(mut self) -> Result<(), NetlinkError> {
        self.change("delete", rtnetlink::link(RTM_DELLINK, self.index))
    }

    /// Enables IPv6 without its automatic traffic: duplicate address detection, router solicitation, a link-local address and
    /// the multicast reports for it. For a link to our stack; call it before the interface is set up. Errors are ignored: if
    /// /proc/sys is read-only, the only effect is a few more packets and a delay of a second.
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

    /// Starts a request that changes the interface.
    fn request(&self) -> Request {
        rtnetlink::link(RTM_NEWLINK, self.index)
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
/// The error of the kernel.
pub fn interfaces() -> Result<Vec<(u32, String, bool)>, NetlinkError> {
    let all = rtnetlink::list_links();
    NetlinkSocket::route()?.dump("list interfaces", &all, |reply| {
        let link = LinkMessage::parse(&reply)?;
        Some((link.index, link.name()?.to_owned(), link.up))
    })
}

/// Lists the addresses of the interface `index` of the calling thread's network namespace.
///
/// # Errors
///
/// `ENODEV` if there is no such interface.
pub fn addresses(index: u32) -> Result<Vec<IpAddr>, NetlinkError> {
    let what = format!("list the addresses of interface {index}");
    let list = rtnetlink::list_addresses(index);
    NetlinkSocket::route()?.dump(&what, &list, |reply| {
        let (of, address) = rtnetlink::address(&reply)?;
        (of == index).then_some(address)
    })
}

/// Lists the addresses of all interfaces of the calling thread's network namespace, each with the index of its interface.
///
/// # Errors
///
/// The error of the kernel.
pub fn all_addresses() -> Result<Vec<(u32, IpAddr)>, NetlinkError> {
    let list = rtnetlink::list_addresses(0);
    NetlinkSocket::route()?.dump("list the addresses of this machine", &list, |reply| {
        rtnetlink::address(&reply)
    })
}

/// Returns the interface of the route to `destination` in the calling thread's network namespace.
///
/// # Errors
///
/// `ENETUNREACH` if there is no route.
pub fn route_interface(destination: IpAddr) -> Result<String, NetlinkError> {
    let what = format!("find the route to {destination}");
    let mut socket = NetlinkSocket::route()?;
    let get = rtnetlink::get_route(destination);
    let index = socket.get(&what, get, |reply| rtnetlink::route_interface(&reply))?;
    let index = index.ok_or_else(|| NetlinkError::new(&what, Errno::NETUNREACH))?;
    let get = rtnetlink::link(RTM_GETLINK, index);
    read_link(&mut socket, &what, get, |link| {
        Some(link.name()?.to_owned())
    })
}

/// Returns whether an XDP program is attached to the interface `index` of the calling thread's network namespace.
///
/// # Errors
///
/// `ENODEV` if there is no such interface.
pub fn has_xdp_program(index: u32) -> Result<bool, NetlinkError> {
    let what = format!("look for an XDP program on interface {index}");
    let mut socket = NetlinkSocket::route()?;
    let get = rtnetlink::link(RTM_GETLINK, index);
    read_link(&mut socket, &what, get, |link| Some(link.has_xdp_program()))
}

/// Reads one interface: `ENODEV` if there is no answer that `parse` can read.
fn read_link<T>(
    socket: &mut NetlinkSocket,
    what: &str,
    get: Request,
    mut parse: impl FnMut(LinkMessage<'_>) -> Option<T>,
) -> Result<T, NetlinkError> {
    let read = socket.get(what, get, |reply| parse(LinkMessage::parse(&reply)?))?;
    read.ok_or_else(|| NetlinkError::new(what, Errno::NODEV))
}

/// Parses a message as each known kind of reply, for fuzzing.
#[cfg(any(test, fuzzing, feature = "test-util"))]
pub(crate) fn fuzz_replies(message: &crate::netlink::NetlinkMessage<'_>) {
    if let Some(link) = LinkMessage::parse(message) {
        let _ = (
            link.name(),
            link.kind(),
            link.facts(),
            link.has_xdp_program(),
        );
    }
    let _ = InterfaceState::parse(message, 1);
    let _ = rtnetlink::address(message);
    let _ = rtnetlink::route_interface(message);
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
        let of_all = all_addresses().unwrap();
        let is_there = |address: &IpAddr| of_all.contains(&(index, *address));
        assert!(all.iter().all(is_there), "{all:?} in {of_all:?}");
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
    fn packets_to_this_machine_are_routed_through_the_loopback() {
        let home = IpAddr::from([127, 0, 0, 1]);
        assert_eq!(route_interface(home).as_deref(), Ok("lo"));
    }

    #[test]
    fn a_name_that_is_too_long_for_a_message_is_refused() {
        let error = Interface::by_name(&"x".repeat(70_000)).unwrap_err();
        assert_eq!(error.errno, Errno::MSGSIZE);
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
