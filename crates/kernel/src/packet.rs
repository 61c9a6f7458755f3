//! Packet sockets: the link between an interface of this machine, usually a NIC, and our stack (packet(7)).
//!
//! Every packet has a virtio-net header, so super-packets pass whole in both directions: the kernel's GRO merges the packets
//! of a NIC, and what we send is cut by the NIC (TSO) or by the kernel.

mod filter;

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::io::Errno;
use rustix::net::sockopt::{
    set_socket_recv_buffer_size, set_socket_recv_buffer_size_force, set_socket_send_buffer_size,
    set_socket_send_buffer_size_force,
};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};

use crate::netif::{self, Interface, InterfaceFacts};
use crate::netlink::NetlinkError;
use crate::sys::packet::{self as sys, Flag, Membership};

/// Receive buffer in bytes: 100 super-packets, with the kernel's own structures. The kernel doubles the value. The default
/// of 208 KiB holds three.
const RECEIVE_BUFFER: usize = 16 << 20;
/// Send buffer in bytes: as much as our TCP may have in flight on one connection fits into it twice.
const SEND_BUFFER: usize = 4 << 20;

/// How to open a packet socket with a MAC address of our own, beside that of the interface.
#[derive(Clone, Debug)]
pub struct PacketOptions {
    /// Name of the interface. It must be an Ethernet interface, and up.
    pub interface: String,
    /// Our MAC address.
    pub mac: [u8; 6],
    /// Multicast addresses that our stack receives, beside broadcast.
    pub multicast: Vec<[u8; 6]>,
}

impl PacketOptions {
    /// Opens the socket and makes the interface receive frames to our addresses. It gets untagged frames to our MAC address
    /// and to multicast addresses, nothing that this machine sends, and no frames of VLANs: the kernel removes their tags, so
    /// that they could not be told from others.
    ///
    /// # Errors
    ///
    /// See [`PacketError`].
    pub fn open(&self) -> Result<PacketSocket, PacketError> {
        let Self {
            interface: name,
            mac,
            multicast,
        } = self;
        let (index, facts) = find(name)?;
        let fd = open_socket()?;
        let failed = |call| {
            move |errno| PacketError::Call {
                interface: name.clone(),
                call,
                errno,
            }
        };
        let socket = fd.as_fd();
        sys::enable(socket, Flag::VnetHeader).map_err(failed("PACKET_VNET_HDR"))?;
        sys::enable(socket, Flag::IgnoreOutgoing).map_err(failed("PACKET_IGNORE_OUTGOING"))?;
        sys::attach_filter(socket, &filter::own_address(*mac))
            .map_err(failed("SO_ATTACH_FILTER"))?;
        set_buffers(socket);
        let join = |kind, address| sys::join(socket, index, kind, address);
        for group in multicast {
            join(Membership::Multicast, *group).map_err(failed("PACKET_ADD_MEMBERSHIP"))?;
        }
        // A driver that cannot filter by a second address refuses it, or the kernel makes it promiscuous by itself.
        join(Membership::Unicast, *mac)
            .or_else(|_| join(Membership::Promiscuous, *mac))
            .map_err(failed("PACKET_ADD_MEMBERSHIP"))?;
        sys::bind(socket, index).map_err(failed("bind"))?;
        Ok(PacketSocket {
            fd,
            index,
            mtu: facts.mtu,
        })
    }
}

/// An open packet socket.
#[derive(Debug)]
pub struct PacketSocket {
    fd: OwnedFd,
    index: u32,
    mtu: u32,
}

impl PacketSocket {
    /// Returns the index of the interface, which does not change when the interface is renamed.
    pub fn index(&self) -> u32 {
        self.index
    }

    /// Returns the MTU of the interface, in bytes.
    pub fn mtu(&self) -> u32 {
        self.mtu
    }

    /// Returns the descriptor, non-blocking. Each read and write is one packet after a virtio-net header of 10 bytes.
    pub fn into_fd(self) -> OwnedFd {
        self.fd
    }
}

/// State of the interface of a packet socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Presence {
    /// It is up.
    Up,
    /// It is down; the socket gets packets again when it is up.
    Down,
    /// It was removed, or moved to another network namespace: the socket gets no packets any more.
    Gone,
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

/// Returns the names of the Ethernet interfaces of the calling thread's network namespace that are up.
///
/// # Errors
///
/// The error of route netlink.
pub fn interfaces() -> Result<Vec<String>, NetlinkError> {
    let mut names = Vec::new();
    for (_, name, _) in netif::interfaces()? {
        // One that was removed meanwhile is none.
        let facts = Interface::by_name(&name).and_then(|mut found| found.facts());
        if facts.is_ok_and(|facts| facts.ethernet && facts.up) {
            names.push(name);
        }
    }
    Ok(names)
}

/// Opens a packet socket that gets no packets, to find out whether this process may.
///
/// # Errors
///
/// [`PacketError::NotRaw`] or [`PacketError::Unsupported`].
pub fn try_open() -> Result<(), PacketError> {
    open_socket().map(|_closed| ())
}

fn open_socket() -> Result<OwnedFd, PacketError> {
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    // Protocol 0: the socket gets no packets before it is bound.
    socket_with(AddressFamily::PACKET, SocketType::RAW, flags, None).map_err(PacketError::of_socket)
}

/// Finds an Ethernet interface that is up.
fn find(name: &str) -> Result<(u32, InterfaceFacts), PacketError> {
    let interface = name.to_owned();
    let mut found = match Interface::by_name(name) {
        Err(error) if error.errno == Errno::NODEV => {
            return Err(PacketError::NoInterface {
                interface,
                source: error,
            });
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
    Ok((found.index(), facts))
}

/// Makes the buffers large; without CAP_NET_ADMIN as large as `net.core.rmem_max` and `wmem_max` allow. Smaller buffers cost
/// speed only.
fn set_buffers(socket: BorrowedFd<'_>) {
    let _ = set_socket_recv_buffer_size_force(socket, RECEIVE_BUFFER)
        .or_else(|_| set_socket_recv_buffer_size(socket, RECEIVE_BUFFER));
    let _ = set_socket_send_buffer_size_force(socket, SEND_BUFFER)
        .or_else(|_| set_socket_send_buffer_size(socket, SEND_BUFFER));
}

/// Why a packet socket could not be opened.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PacketError {
    /// The process lacks CAP_NET_RAW in its network namespace.
    #[error("no permission to open a packet socket: {errno}")]
    NotRaw {
        /// The error of socket(2).
        errno: Errno,
    },
    /// The kernel has no packet sockets.
    #[error("this kernel has no packet sockets: {errno}")]
    Unsupported {
        /// The error of socket(2).
        errno: Errno,
    },
    /// There is no such interface in this network namespace.
    #[error("there is no interface {interface}")]
    NoInterface {
        /// Its name.
        interface: String,
        /// The answer of the kernel.
        source: NetlinkError,
    },
    /// Frames of the interface have no Ethernet header.
    #[error("{interface} is not an Ethernet interface")]
    NotEthernet {
        /// Its name.
        interface: String,
    },
    /// The interface is down.
    #[error("{interface} is down")]
    Down {
        /// Its name.
        interface: String,
    },
    /// Route netlink failed.
    #[error(transparent)]
    Netlink(#[from] NetlinkError),
    /// A set-up call was refused.
    #[error("{call} on a packet socket for {interface}: {errno}")]
    Call {
        /// The interface.
        interface: String,
        /// The call or option.
        call: &'static str,
        /// Its error.
        errno: Errno,
    },
}

impl PacketError {
    fn of_socket(errno: Errno) -> Self {
        match errno {
            Errno::PERM | Errno::ACCESS => Self::NotRaw { errno },
            errno => Self::Unsupported { errno },
        }
    }

    /// Returns the errno.
    pub fn errno(&self) -> Errno {
        match self {
            Self::NotRaw { errno } | Self::Unsupported { errno } | Self::Call { errno, .. } => {
                *errno
            }
            Self::NoInterface { .. } => Errno::NODEV,
            Self::NotEthernet { .. } => Errno::INVAL,
            Self::Down { .. } => Errno::NETDOWN,
            Self::Netlink(error) => error.errno,
        }
    }

    /// Returns the remedy.
    pub fn remedy(&self) -> Option<String> {
        match self {
            Self::NotRaw { .. } => Some(
                "run as root, or: setcap cap_net_raw,cap_net_admin+ep PROGRAM".to_owned(),
            ),
            Self::NoInterface { .. } => {
                Some("`ip link` lists those of this network namespace".to_owned())
            }
            Self::NotEthernet { .. } => Some(
                "choose an Ethernet interface, or a TAP (tap:NAME) to reach programs on this machine"
                    .to_owned(),
            ),
            Self::Down { interface } => Some(format!("ip link set {interface} up")),
            Self::Call {
                call: "PACKET_IGNORE_OUTGOING",
                ..
            } => Some("use Linux 4.20 or later".to_owned()),
            Self::Unsupported { .. } | Self::Netlink(_) | Self::Call { .. } => None,
        }
    }
}
