//! Why a packet socket could not be opened.

use devmem_uapi::text::Printable;
use std::net::IpAddr;
use std::ops::RangeInclusive;

use rustix::io::Errno;

use super::SharedStation;
use crate::netlink::NetlinkError;

/// The remedy for missing privileges.
const PRIVILEGES: &str = "run as root, or: setcap cap_net_raw,cap_net_admin+ep PROGRAM";

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
    #[error("there is no interface {interface}", interface = Printable(.interface))]
    NoInterface {
        /// Its name.
        interface: String,
        /// The answer of the kernel.
        source: NetlinkError,
    },
    /// Frames of the interface have no Ethernet header.
    #[error("{interface} is not an Ethernet interface", interface = Printable(.interface))]
    NotEthernet {
        /// Its name.
        interface: String,
    },
    /// The interface is down.
    #[error("{interface} is down", interface = Printable(.interface))]
    Down {
        /// Its name.
        interface: String,
    },
    /// Netlink failed.
    #[error(transparent)]
    Netlink(#[from] NetlinkError),
    /// The ports to share are none, too many, or contain port 0.
    #[error("ports {}-{}: a range has 1 to {} ports, without port 0", ports.start(), ports.end(), SharedStation::MAX_PORTS)]
    BadPorts {
        /// The requested ports.
        ports: RangeInclusive<u16>,
    },
    /// The address to share is not one of the interface.
    #[error("{interface} does not have the address {address}", interface = Printable(.interface))]
    NotItsAddress {
        /// The interface.
        interface: String,
        /// The requested address.
        address: IpAddr,
    },
    /// A program of this machine has a port of the range.
    #[error("port {port} of {address} is in use by a program of this machine")]
    PortInUse {
        /// The address.
        address: IpAddr,
        /// The port.
        port: u16,
    },
    /// A port could not be held.
    #[error("hold port {port} of {address}: {errno}")]
    NotHeld {
        /// The address.
        address: IpAddr,
        /// The port.
        port: u16,
        /// The error of socket(2) or bind(2).
        errno: Errno,
    },
    /// The kernel could not be kept from answering segments to the ports.
    #[error(transparent)]
    NotHidden(NetlinkError),
    /// A set-up call was refused.
    #[error("{call} on a packet socket for {interface}: {errno}", interface = Printable(.interface))]
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
    /// Returns the errno.
    pub fn errno(&self) -> Errno {
        match self {
            Self::NotRaw { errno }
            | Self::Unsupported { errno }
            | Self::NotHeld { errno, .. }
            | Self::Call { errno, .. } => *errno,
            Self::NoInterface { .. } => Errno::NODEV,
            Self::NotEthernet { .. } | Self::BadPorts { .. } => Errno::INVAL,
            Self::Down { .. } => Errno::NETDOWN,
            Self::NotItsAddress { .. } => Errno::ADDRNOTAVAIL,
            Self::PortInUse { .. } => Errno::ADDRINUSE,
            Self::Netlink(error) | Self::NotHidden(error) => error.errno,
        }
    }

    /// Returns the remedy.
    pub fn remedy(&self) -> Option<String> {
        let remedy = match self {
            Self::NotRaw { .. } => PRIVILEGES.to_owned(),
            Self::NotHidden(error) if error.errno == Errno::PERM => PRIVILEGES.to_owned(),
            Self::NotHidden(_) => {
                "this needs Linux 5.12 with nftables: modprobe nf_tables".to_owned()
            }
            Self::NoInterface { .. } => "`ip link` lists those of this network namespace".to_owned(),
            Self::NotEthernet { .. } => {
                "choose an Ethernet interface, or a TAP (tap:NAME) to reach programs on this machine"
                    .to_owned()
            }
            Self::Down { interface } => format!("ip link set {interface} up"),
            Self::NotItsAddress { interface, .. } => format!(
                "`ip address show dev {interface}` lists its addresses; without ports the NIC has another MAC address, \
                 and any free address"
            ),
            Self::PortInUse { port, .. } => format!(
                "choose other ports, or stop the program: `ss -tanp sport = {port}` shows it"
            ),
            Self::NotHeld { errno, .. } if *errno == Errno::MFILE => {
                "choose fewer ports, or raise the limit: ulimit -n 65536".to_owned()
            }
            Self::Call {
                call: "PACKET_IGNORE_OUTGOING",
                ..
            } => "use Linux 4.20 or later".to_owned(),
            Self::Call {
                call: "PACKET_FANOUT" | "PACKET_FANOUT_DATA",
                ..
            } => "open the NIC with one shard".to_owned(),
            Self::BadPorts { .. }
            | Self::NotHeld { .. }
            | Self::Unsupported { .. }
            | Self::Netlink(_)
            | Self::Call { .. } => return None,
        };
        Some(remedy)
    }
}
