//! `packet:NAME`: a link to an Ethernet interface of this machine.

use std::io;
use std::net::IpAddr;
use std::ops::RangeInclusive;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use devmem_linux::packet::{
    self, PacketError, PacketGroup, PacketOptions, PacketSocket, Presence, SharedStation, Station,
};
use devmem_uapi::Errno;
use lease::LeasePort;
use nic::{InterfaceStatus, LinkState, PacketLink, PacketLinkOptions};
use wire::MacAddr;

use crate::error::{Error, ErrorKind};

/// The addresses of a NIC on a packet link.
#[derive(Clone, Debug)]
pub(super) enum Sharing {
    /// The NIC has a MAC address and IP addresses beside those of the interface.
    Nothing(MacAddr),
    /// The NIC has the MAC address of the interface, some of its IP addresses, and these TCP ports.
    Ports(RangeInclusive<u16>),
}

/// Opens a link, a socket for each shard; returns the MAC address of the NIC, too.
pub(super) fn open(
    name: &str,
    sharing: &Sharing,
    addresses: &[(IpAddr, u8)],
    shards: u16,
) -> Result<(Vec<PacketLink>, MacAddr), Error> {
    let options = PacketOptions {
        interface: name.to_owned(),
        station: match sharing {
            Sharing::Nothing(mac) => Station::Own {
                mac: mac.0,
                multicast: solicited_nodes(addresses),
            },
            Sharing::Ports(ports) => Station::Shared(SharedStation {
                addresses: addresses.iter().map(|(address, _)| *address).collect(),
                ports: ports.clone(),
            }),
        },
    };
    let opened = match shards {
        1 => options.open().map(PacketGroup::from),
        _ => options.open_group(shards),
    };
    let opened = opened.map_err(|error| refused(name, error))?;
    let options = PacketLinkOptions {
        ifindex: opened.index,
        // The MTU of an Ethernet interface is at most 65,535 (linux include/uapi/linux/if_ether.h ETH_MAX_MTU).
        mtu: u16::try_from(opened.mtu).unwrap_or(u16::MAX),
        max_super_packet: super_packet_limit(opened.max_super_packet),
        look,
    };
    let held = Arc::new(opened.held);
    let link = |socket| {
        let link = PacketLink::new(socket, options)?;
        Ok(link.keeping(Arc::clone(&held)))
    };
    let links: io::Result<Vec<_>> = opened.sockets.into_iter().map(link).collect();
    let links = links.map_err(Error::system("epoll"))?;
    Ok((links, MacAddr(opened.mac)))
}

/// Opens the socket by which the station `mac` beside the interface gets its addresses.
pub(super) fn open_auto(name: &str, mac: MacAddr) -> Result<LeasePort, Error> {
    let options = PacketOptions {
        interface: name.to_owned(),
        station: Station::Auto { mac: mac.0 },
    };
    let socket = options.open().map_err(|error| refused(name, error))?;
    Ok(lease_port(socket))
}

pub(super) fn lease_port(socket: PacketSocket) -> LeasePort {
    let mac = MacAddr(socket.mac());
    let (fd, _no_ports) = socket.into_parts();
    LeasePort::new(fd, mac)
}

/// Returns the multicast addresses of neighbour discovery (RFC 4861): solicited-node groups, which end in the last three bytes
/// of an address (RFC 2464 7).
pub(super) fn solicited_nodes(addresses: &[(IpAddr, u8)]) -> Vec<[u8; 6]> {
    let v6 = addresses.iter().filter_map(|(address, _)| match address {
        IpAddr::V4(_) => None,
        IpAddr::V6(address) => Some(address.octets()),
    });
    v6.map(|[.., a, b, c]| [0x33, 0x33, 0xff, a, b, c])
        .collect()
}

/// Returns the bytes of the longest super-packet for an interface whose own limit is `limit`.
pub(super) fn super_packet_limit(limit: u32) -> usize {
    let limit = usize::try_from(limit).unwrap_or(usize::MAX);
    limit.clamp(nic::MAX_PACKET_LEN, nic::BIG_PACKET_LEN)
}

fn look(socket: BorrowedFd<'_>, ifindex: u32) -> io::Result<InterfaceStatus> {
    let state = link_state(packet::presence(socket, ifindex)?);
    let lost = packet::take_drops(socket)?.into();
    Ok(InterfaceStatus { state, lost })
}

pub(super) fn link_state(presence: Presence) -> LinkState {
    match presence {
        Presence::Up => LinkState::Up,
        Presence::Down => LinkState::Down,
        Presence::Gone => LinkState::Gone,
    }
}

pub(super) fn refused(name: &str, error: PacketError) -> Error {
    let errno = Errno(error.errno().raw_os_error());
    let kind = match error {
        PacketError::NoInterface { source, .. } => return Error::no_interface(name, &source),
        PacketError::NotRaw { .. } => ErrorKind::PermissionDenied,
        PacketError::Unsupported { .. } => ErrorKind::Unsupported,
        PacketError::NotHidden(_) if ErrorKind::of_errno(errno) != ErrorKind::PermissionDenied => {
            ErrorKind::Unsupported
        }
        PacketError::NotEthernet { .. }
        | PacketError::Down { .. }
        | PacketError::BadPorts { .. }
        | PacketError::NotItsAddress { .. }
        | PacketError::PortInUse { .. }
        | PacketError::NotHeld { .. }
        | PacketError::NotHidden(_)
        | PacketError::Netlink(_)
        | PacketError::Call { .. } => ErrorKind::of_errno(errno),
    };
    Error::new(kind, errno, error.to_string())
        .with_remedy_if(error.remedy())
        .on(name)
}
