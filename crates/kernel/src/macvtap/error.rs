//! Why a macvtap interface could not be opened.

use devmem_uapi::text::Printable;
use rustix::io::Errno;

use crate::netlink::NetlinkError;
use crate::netns::NetnsError;
use crate::packet::PacketError;

/// The remedy for missing privileges: a network namespace and a device file are made.
const PRIVILEGES: &str = "run as root (in a container: with --privileged), or name a macvtap interface that root has made, \
                          after chmod of its /dev/tapN";

/// Why a macvtap interface could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum MacvtapError {
    /// More queues than an interface can have, or none.
    #[error("{queues} queues were requested; a macvtap interface has 1 to {limit}")]
    Queues {
        /// The requested value.
        queues: u16,
        /// The kernel's limit.
        limit: u16,
    },
    /// The lower interface cannot be used, or groups cannot be joined.
    #[error(transparent)]
    Interface(#[from] PacketError),
    /// The macvtap interface exists, and a setting for a new one was requested.
    #[error("{interface} is a macvtap interface already, and its {option} is not changed", interface = Printable(.interface))]
    Exists {
        /// The interface.
        interface: String,
        /// The setting: `mode` or `mac`.
        option: &'static str,
    },
    /// The MTU is larger than that of the lower interface.
    #[error("an MTU of {mtu} bytes: that of {interface} is {limit}", interface = Printable(.interface))]
    Mtu {
        /// The lower interface.
        interface: String,
        /// The requested value.
        mtu: u16,
        /// MTU of the lower interface.
        limit: u32,
    },
    /// A MAC address was requested for an interface that has that of its lower interface.
    #[error("in mode passthru the MAC address is that of {interface}", interface = Printable(.interface))]
    PassthruMac {
        /// The lower interface.
        interface: String,
    },
    /// No network namespace could be made.
    #[error("no permission to make a network namespace: {0}")]
    Namespace(Errno),
    /// The new network namespace could not be opened.
    #[error(transparent)]
    Opened(#[from] NetnsError),
    /// The kernel refused to make the interface.
    #[error("{error}")]
    NotMade {
        /// The lower interface.
        interface: String,
        /// The refusal.
        error: NetlinkError,
    },
    /// Netlink failed.
    #[error(transparent)]
    Netlink(#[from] NetlinkError),
    /// The device could not be opened.
    #[error("{what}: {errno}")]
    Node {
        /// What failed.
        what: &'static str,
        /// The error.
        errno: Errno,
    },
    /// A set-up call was refused.
    #[error("{call} on a macvtap interface of {interface}: {errno}", interface = Printable(.interface))]
    Call {
        /// The interface.
        interface: String,
        /// The ioctl's name.
        call: &'static str,
        /// Its error.
        errno: Errno,
    },
}

impl MacvtapError {
    /// Returns the errno.
    pub fn errno(&self) -> Errno {
        match self {
            Self::Queues { .. }
            | Self::Exists { .. }
            | Self::Mtu { .. }
            | Self::PassthruMac { .. } => Errno::INVAL,
            Self::Interface(error) => error.errno(),
            Self::Namespace(errno) | Self::Node { errno, .. } | Self::Call { errno, .. } => *errno,
            Self::Opened(NetnsError::Open { errno, .. }) => *errno,
            Self::Opened(_) => Errno::IO,
            Self::NotMade { error, .. } | Self::Netlink(error) => error.errno,
        }
    }

    /// Returns whether the kernel has no macvtap.
    pub fn is_unsupported(&self) -> bool {
        matches!(self, Self::NotMade { error, .. } if error.errno == Errno::OPNOTSUPP)
    }

    /// Returns the remedy.
    pub fn remedy(&self) -> Option<String> {
        match self {
            Self::Interface(error) => error.remedy(),
            Self::Exists {
                interface,
                option: "mac",
            } => Some(format!(
                "leave it out, or change it before: ip link set {interface} address MAC"
            )),
            Self::Exists { .. } => Some("leave it out".to_owned()),
            Self::Mtu { interface, mtu, .. } => Some(format!(
                "choose a smaller one, or: ip link set {interface} mtu {mtu}"
            )),
            Self::PassthruMac { .. } => {
                Some("leave the MAC address out, or choose mode bridge".to_owned())
            }
            Self::NotMade { error, .. } if error.errno == Errno::OPNOTSUPP => {
                Some("load the driver: modprobe macvtap; or use packet:NAME".to_owned())
            }
            Self::NotMade { interface, error }
                if matches!(error.errno, Errno::BUSY | Errno::INVAL) =>
            {
                Some(format!(
                    "`ip -d link` shows whether {interface} is in a bridge, or has a macvlan or macvtap interface in mode passthru; \
                     in mode passthru it must have no other"
                ))
            }
            Self::Namespace(_) | Self::Opened(_) => Some(PRIVILEGES.to_owned()),
            Self::NotMade { error, .. } | Self::Netlink(error) if error.errno == Errno::PERM => {
                Some(PRIVILEGES.to_owned())
            }
            Self::Node { errno, .. } if matches!(*errno, Errno::PERM | Errno::ACCESS) => {
                Some(PRIVILEGES.to_owned())
            }
            Self::Node { errno, .. } if *errno == Errno::NOSYS => {
                Some("use Linux 5.2 or later".to_owned())
            }
            Self::Queues { .. }
            | Self::NotMade { .. }
            | Self::Netlink(_)
            | Self::Node { .. }
            | Self::Call { .. } => None,
        }
    }
}
