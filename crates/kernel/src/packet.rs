//! Packet sockets: the link between an interface of this machine, usually a NIC, and our stack (packet(7)).
//!
//! Every packet has a virtio-net header, so super-packets pass whole in both directions: the kernel's GRO merges the packets
//! of a NIC, and what we send is cut by the NIC (TSO) or by the kernel.

mod error;
mod filter;
mod hold;
#[cfg(test)]
mod machine;
mod spread;
mod station;
#[cfg(test)]
mod tests;

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::io::Errno;
use rustix::net::sockopt::{
    set_socket_recv_buffer_size, set_socket_recv_buffer_size_force, set_socket_send_buffer_size,
    set_socket_send_buffer_size_force,
};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};

pub use error::PacketError;
pub use hold::HeldPorts;
pub use station::{SharedStation, Station};

pub use crate::netif::Presence;
use crate::netif::{self, Interface, InterfaceFacts};
use crate::netlink::NetlinkError;
use crate::sys::packet::{self as sys, FanoutGroup, Flag, Instruction, Membership};

/// Receive buffer in bytes: hundreds of super-packets, with the kernel's own structures. The kernel doubles the value. The
/// default of 208 KiB holds three.
const RECEIVE_BUFFER: usize = 16 << 20;
/// Send buffer in bytes. The kernel doubles the value, which is what our TCP sends on one connection without an
/// acknowledgement.
const SEND_BUFFER: usize = 4 << 20;

/// How to open a packet socket.
#[derive(Clone, Debug)]
pub struct PacketOptions {
    /// Name of the interface. It must be an Ethernet interface, and up.
    pub interface: String,
    /// The addresses of our stack.
    pub station: Station,
}

impl PacketOptions {
    /// Opens the socket. It gets no frames that this machine sends, and none of VLANs: the kernel removes their tags, so that
    /// they could not be told from others. In place of one that it would get without the tag, a [`Station::Own`] or
    /// [`Station::Cable`] gets 12 bytes, its addresses, which can be counted.
    ///
    /// As [`Station::Own`] it gets the frames to our MAC address and to multicast addresses. As [`Station::Shared`] it gets the
    /// TCP segments to our ports, the errors of ICMP, and answers to questions for MAC addresses; programs of this machine
    /// cannot use the ports then, and the kernel does not answer the segments. As [`Station::Auto`] it gets
    /// messages to DHCP clients, advertisements of routers, ARP and neighbour discovery. As [`Station::Cable`] it gets all frames.
    ///
    /// # Errors
    ///
    /// See [`PacketError`].
    pub fn open(&self) -> Result<PacketSocket, PacketError> {
        let OpenStation {
            interface,
            facts,
            held,
        } = self.prepare()?;
        let (fd, filter) = self.socket(&interface, &facts)?;
        let failed = |call| self.failed(call);
        sys::attach_filter(fd.as_fd(), &filter).map_err(failed("SO_ATTACH_FILTER"))?;
        // Last: from now on packets arrive.
        sys::bind(fd.as_fd(), interface.index()).map_err(failed("bind"))?;
        Ok(PacketSocket {
            fd,
            index: interface.index(),
            mac: self.mac(&facts),
            mtu: facts.mtu,
            max_super_packet: facts.max_super_packet(),
            held,
        })
    }

    /// As [`open`](Self::open), with `shards` sockets that share the packets: each packet arrives at one of them. Both
    /// directions of a TCP connection are on the socket whose number `steer::shard_of` computes; packets without ports are on
    /// the first one.
    ///
    /// # Errors
    ///
    /// See [`PacketError`]; `shards` is 0 or more than [`PacketGroup::MAX_SOCKETS`].
    pub fn open_group(&self, shards: u16) -> Result<PacketGroup, PacketError> {
        let failed = |call| self.failed(call);
        if !(1..=PacketGroup::MAX_SOCKETS).contains(&shards) {
            return Err(failed("PACKET_FANOUT")(Errno::INVAL));
        }
        let OpenStation {
            interface,
            facts,
            held,
        } = self.prepare()?;
        let index = interface.index();
        let mut sockets = Vec::with_capacity(shards.into());
        let mut group = None;
        for _ in 0..shards {
            let (fd, filter) = self.socket(&interface, &facts)?;
            let socket = fd.as_fd();
            // A socket that is bound but not in the group yet would get all packets, also those of the others.
            sys::attach_filter(socket, &filter::nothing()).map_err(failed("SO_ATTACH_FILTER"))?;
            sys::bind(socket, index).map_err(failed("bind"))?;
            match group {
                Some(group) => sys::join_group(socket, group).map_err(failed("PACKET_FANOUT"))?,
                None => group = Some(make_group(socket, shards, failed)?),
            }
            sockets.push((fd, filter::incoming(filter)));
        }
        // Last, and all at once: from now on packets arrive.
        for (socket, filter) in &sockets {
            sys::attach_filter(socket.as_fd(), filter).map_err(failed("SO_ATTACH_FILTER"))?;
        }
        Ok(PacketGroup {
            sockets: sockets.into_iter().map(|(socket, _)| socket).collect(),
            index,
            mac: self.mac(&facts),
            mtu: facts.mtu,
            max_super_packet: facts.max_super_packet(),
            held,
        })
    }

    /// Finds the interface, and takes the ports of the station.
    fn prepare(&self) -> Result<OpenStation, PacketError> {
        let Self {
            interface: name,
            station,
        } = self;
        let (interface, facts) = find(name)?;
        let held = match station {
            Station::Own { .. } | Station::Auto { .. } | Station::Cable => None,
            Station::Shared(station) => Some(HeldPorts::new(name, interface.index(), station)?),
        };
        Ok(OpenStation {
            interface,
            facts,
            held,
        })
    }

    /// Opens a socket that gets no packets yet, and makes the interface receive the frames of the station. Returns the filter
    /// that it needs, too.
    fn socket(
        &self,
        interface: &Interface,
        facts: &InterfaceFacts,
    ) -> Result<(OwnedFd, Vec<Instruction>), PacketError> {
        let fd = open_socket()?;
        let (socket, index) = (fd.as_fd(), interface.index());
        let failed = |call| self.failed(call);
        sys::enable(socket, Flag::VnetHeader).map_err(failed("PACKET_VNET_HDR"))?;
        sys::enable(socket, Flag::IgnoreOutgoing).map_err(failed("PACKET_IGNORE_OUTGOING"))?;
        set_buffers(socket);
        let joined = failed("PACKET_ADD_MEMBERSHIP");
        let filter = match &self.station {
            Station::Own { mac, multicast } => {
                join(socket, index, *mac, multicast).map_err(joined)?;
                filter::own_address(*mac)
            }
            Station::Shared(station) => filter::shared_address(self.mac(facts), station),
            Station::Auto { mac } => {
                let [.., d, e, f] = *mac;
                // All nodes, and the solicited-node group of addresses that end in the MAC address (RFC 2464 7).
                let groups = [[0x33, 0x33, 0, 0, 0, 1], [0x33, 0x33, 0xff, d, e, f]];
                join(socket, index, *mac, &groups).map_err(joined)?;
                filter::auto(*mac)
            }
            Station::Cable => {
                let mac = self.mac(facts);
                sys::join(socket, index, Membership::Promiscuous, mac).map_err(joined)?;
                filter::untagged()
            }
        };
        Ok((fd, filter))
    }

    /// Returns the MAC address of the station.
    fn mac(&self, facts: &InterfaceFacts) -> [u8; 6] {
        match self.station {
            Station::Own { mac, .. } | Station::Auto { mac } => mac,
            Station::Shared(_) | Station::Cable => facts.mac.unwrap_or_default(),
        }
    }

    fn failed(&self, call: &'static str) -> impl Fn(Errno) -> PacketError {
        let interface = self.interface.clone();
        move |errno| PacketError::Call {
            interface: interface.clone(),
            call,
            errno,
        }
    }
}

/// What all sockets of a station have in common.
struct OpenStation {
    interface: Interface,
    facts: InterfaceFacts,
    held: Option<HeldPorts>,
}

/// Packet sockets of one station that share its packets.
#[derive(Debug)]
pub struct PacketGroup {
    /// The sockets, in the order of their numbers; see [`PacketSocket::into_parts`].
    pub sockets: Vec<OwnedFd>,
    /// Index of the interface.
    pub index: u32,
    /// Our MAC address; of a [`Station::Cable`], that of the interface.
    pub mac: [u8; 6],
    /// MTU of the interface, in bytes.
    pub mtu: u32,
    /// [`InterfaceFacts::max_super_packet`].
    pub max_super_packet: u32,
    /// For [`Station::Shared`], the hold of the ports, which must live as long as the sockets.
    pub held: Option<HeldPorts>,
}

impl PacketGroup {
    /// Most sockets of a group (linux net/packet/af_packet.c `fanout_add`).
    pub const MAX_SOCKETS: u16 = 256;
}

/// An open packet socket.
#[derive(Debug)]
pub struct PacketSocket {
    fd: OwnedFd,
    index: u32,
    mac: [u8; 6],
    mtu: u32,
    max_super_packet: u32,
    held: Option<HeldPorts>,
}

impl PacketSocket {
    /// Returns the index of the interface, which does not change when the interface is renamed.
    pub fn index(&self) -> u32 {
        self.index
    }

    /// Returns our MAC address; of a [`Station::Cable`], that of the interface.
    pub fn mac(&self) -> [u8; 6] {
        self.mac
    }

    /// Returns the MTU of the interface, in bytes.
    pub fn mtu(&self) -> u32 {
        self.mtu
    }

    /// Returns [`InterfaceFacts::max_super_packet`].
    pub fn max_super_packet(&self) -> u32 {
        self.max_super_packet
    }

    /// Returns the descriptor, non-blocking, and for [`Station::Shared`] the hold of the ports, which must live as long. Each
    /// read and write is one packet after a virtio-net header of 10 bytes.
    pub fn into_parts(self) -> (OwnedFd, Option<HeldPorts>) {
        (self.fd, self.held)
    }
}

impl From<PacketSocket> for PacketGroup {
    /// Returns the group of one socket.
    fn from(socket: PacketSocket) -> Self {
        let PacketSocket {
            fd,
            index,
            mac,
            mtu,
            max_super_packet,
            held,
        } = socket;
        Self {
            sockets: vec![fd],
            index,
            mac,
            mtu,
            max_super_packet,
            held,
        }
    }
}

/// Looks at the interface `index` of a packet socket, in the network namespace of the socket.
///
/// # Errors
///
/// The error of ioctl(2), other than `ENODEV`.
pub fn presence(socket: BorrowedFd<'_>, index: u32) -> Result<Presence, Errno> {
    match sys::is_up(socket, index) {
        Ok(true) => Ok(Presence::Up),
        Ok(false) => Ok(Presence::Down),
        Err(Errno::NODEV) => Ok(Presence::Gone),
        Err(errno) => Err(errno),
    }
}

/// Returns how many packets were dropped since the last call because the socket's buffer was full.
///
/// # Errors
///
/// The error of getsockopt(2).
pub fn take_drops(socket: BorrowedFd<'_>) -> Result<u32, Errno> {
    sys::take_drops(socket)
}

/// Returns the names and facts of the Ethernet interfaces of the calling thread's network namespace that are up.
///
/// # Errors
///
/// The error of route netlink.
pub fn interfaces() -> Result<Vec<(String, InterfaceFacts)>, NetlinkError> {
    let mut found = Vec::new();
    for (_, name, _) in netif::interfaces()? {
        // One that was removed meanwhile is none.
        let facts = Interface::by_name(&name).and_then(|mut interface| interface.facts());
        if let Ok(facts) = facts
            && facts.ethernet
            && facts.up
        {
            found.push((name, facts));
        }
    }
    Ok(found)
}

/// Opens a packet socket that gets no packets, to find out whether this process may.
///
/// # Errors
///
/// [`PacketError::NotRaw`] or [`PacketError::Unsupported`].
pub fn try_open() -> Result<(), PacketError> {
    open_socket().map(|_closed| ())
}

/// Makes a group of one socket on `lo` that gets no packets, to find out whether this process may make groups.
///
/// # Errors
///
/// As [`PacketOptions::open_group`].
pub fn try_group() -> Result<(), PacketError> {
    let socket = open_socket()?;
    let lo = Interface::by_name("lo")?.index();
    let socket = socket.as_fd();
    let call = |call| {
        move |errno| PacketError::Call {
            interface: "lo".to_owned(),
            call,
            errno,
        }
    };
    sys::attach_filter(socket, &filter::nothing()).map_err(call("SO_ATTACH_FILTER"))?;
    sys::bind(socket, lo).map_err(call("bind"))?;
    make_group(socket, 1, call).map(|_group| ())
}

/// Makes a group of a socket that is bound, for `shards` sockets.
fn make_group<F: Fn(Errno) -> PacketError>(
    socket: BorrowedFd<'_>,
    shards: u16,
    failed: impl Fn(&'static str) -> F,
) -> Result<FanoutGroup, PacketError> {
    let group = sys::make_group(socket).map_err(failed("PACKET_FANOUT"))?;
    sys::spread_by(socket, &spread::by_flow(shards)).map_err(failed("PACKET_FANOUT_DATA"))?;
    Ok(group)
}

/// Opens a socket that gets no packets, and makes the interface `index` receive frames to the multicast addresses as long as
/// the socket is open.
pub(crate) fn join_groups(
    interface: &str,
    index: u32,
    groups: &[[u8; 6]],
) -> Result<OwnedFd, PacketError> {
    let socket = open_socket()?;
    for group in groups {
        let joined = sys::join(socket.as_fd(), index, Membership::Multicast, *group);
        joined.map_err(|errno| PacketError::Call {
            interface: interface.to_owned(),
            call: "PACKET_ADD_MEMBERSHIP",
            errno,
        })?;
    }
    Ok(socket)
}

fn open_socket() -> Result<OwnedFd, PacketError> {
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    // Protocol 0: the socket gets no packets before it is bound.
    socket_with(AddressFamily::PACKET, SocketType::RAW, flags, None).map_err(|errno| match errno {
        Errno::PERM | Errno::ACCESS => PacketError::NotRaw { errno },
        errno => PacketError::Unsupported { errno },
    })
}

/// Finds an Ethernet interface that is up.
pub(crate) fn find(name: &str) -> Result<(Interface, InterfaceFacts), PacketError> {
    let interface = name.to_owned();
    let mut found = match Interface::by_name(name) {
        Err(source) if source.errno == Errno::NODEV => {
            return Err(PacketError::NoInterface { interface, source });
        }
        found => found?,
    };
    let facts = found.facts()?;
    if !facts.ethernet {
        return Err(PacketError::NotEthernet { interface });
    }
    if !facts.up {
        return Err(PacketError::Down { interface });
    }
    Ok((found, facts))
}

/// Makes the interface receive frames to our MAC address and to the groups, as long as the socket is open.
fn join(socket: BorrowedFd<'_>, index: u32, mac: [u8; 6], groups: &[[u8; 6]]) -> Result<(), Errno> {
    let join = |kind, address| sys::join(socket, index, kind, address);
    for group in groups {
        join(Membership::Multicast, *group)?;
    }
    // The kernel makes an interface promiscuous whose driver cannot filter by a second address, until the socket is closed (linux
    // v6.18 net/core/dev.c `__dev_set_rx_mode`). It does not ask the driver before it takes the address (`dev_uc_add`).
    join(Membership::Unicast, mac)
}

/// Makes the buffers large; without CAP_NET_ADMIN as large as `net.core.rmem_max` and `wmem_max` allow. Smaller buffers cost
/// speed only.
fn set_buffers(socket: BorrowedFd<'_>) {
    let _ = set_socket_recv_buffer_size_force(socket, RECEIVE_BUFFER)
        .or_else(|_| set_socket_recv_buffer_size(socket, RECEIVE_BUFFER));
    let _ = set_socket_send_buffer_size_force(socket, SEND_BUFFER)
        .or_else(|_| set_socket_send_buffer_size(socket, SEND_BUFFER));
}
