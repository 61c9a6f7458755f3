//! One interface.

use std::net::IpAddr;
use std::os::fd::{AsRawFd, BorrowedFd};

use rustix::io::Errno;

use super::facts::InterfaceFacts;
use super::rtnetlink::{
    self, IFF_UP, IFLA_ADDRESS, IFLA_GSO_IPV4_MAX_SIZE, IFLA_GSO_MAX_SIZE, IFLA_IFNAME, IFLA_MTU,
    IFLA_NET_NS_FD, IFLA_TXQLEN, LinkMessage, RTM_DELLINK, RTM_GETLINK, RTM_NEWLINK, TunKind,
};
use crate::netlink::{NetlinkError, NetlinkSocket, Request};

/// An interface, named by its index in the network namespace where it was looked up.
#[derive(Debug)]
pub struct Interface {
    pub(super) socket: NetlinkSocket,
    pub(super) name: String,
    pub(super) index: u32,
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
    pub(super) fn request(&self) -> Request {
        rtnetlink::link(RTM_NEWLINK, self.index)
    }

    pub(super) fn change(&mut self, verb: &str, request: Request) -> Result<(), NetlinkError> {
        let what = format!("{verb} {}", self.name);
        self.socket.request(&what, request, |_| {})
    }
}

/// Reads one interface: `ENODEV` if there is no answer that `parse` can read.
pub(super) fn read_link<T>(
    socket: &mut NetlinkSocket,
    what: &str,
    get: Request,
    mut parse: impl FnMut(LinkMessage<'_>) -> Option<T>,
) -> Result<T, NetlinkError> {
    let read = socket.get(what, get, |reply| parse(LinkMessage::parse(&reply)?))?;
    read.ok_or_else(|| NetlinkError::new(what, Errno::NODEV))
}
