//! One interface, and requests about it.

use std::os::fd::{AsFd, OwnedFd};

use devmem_uapi::text::Printable;
use devmem_uapi::{Errno, IfIndex};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};

use crate::netif::Interface;
use crate::netlink::attr::Attributes;
use crate::netlink::{GenericSocket, Names, NetlinkError, Request};
use crate::sys::tun::IFNAMSIZ;

/// Name of the generic netlink family (linux include/uapi/linux/ethtool_netlink_generated.h, like the
/// numbers in this folder).
const FAMILY: &str = "ethtool";
/// `ETHTOOL_A_*_HEADER`, which names the interface. It has this number in every request.
const A_HEADER: u16 = 1;
/// `ETHTOOL_A_HEADER_DEV_INDEX`, `_FLAGS`.
const A_HEADER_INDEX: u16 = 1;
const A_HEADER_FLAGS: u16 = 3;
/// `ETHTOOL_FLAG_OMIT_REPLY`.
pub(super) const FLAG_OMIT_REPLY: u32 = 2;
pub(super) const HEADER_NAMES: Names = Names(&[
    (1, "dev-index", Names::NONE),
    (2, "dev-name", Names::NONE),
    (3, "flags", Names::NONE),
]);

/// Why an ethtool request failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EthtoolError {
    /// Refused over netlink.
    #[error(transparent)]
    Netlink(#[from] NetlinkError),
    /// Refused by the ioctl, which reports no message.
    #[error("{what}: {errno} ({})", errno.describe())]
    Ioctl {
        /// The operation, for people.
        what: String,
        /// The errno of ioctl(2).
        errno: Errno,
    },
    /// The rule table is full.
    #[error("add a flow rule to {interface}: its rule table is full ({size} rules)", interface = Printable(.interface))]
    RuleTableFull {
        /// The interface.
        interface: String,
        /// Capacity of its rule table.
        size: u32,
    },
}

impl EthtoolError {
    /// Returns the errno; `None` if no system call failed.
    pub fn errno(&self) -> Option<Errno> {
        match self {
            Self::Netlink(error) => Some(Errno(error.errno.raw_os_error())),
            Self::Ioctl { errno, .. } => Some(*errno),
            Self::RuleTableFull { .. } => None,
        }
    }

    /// Returns whether the driver or this kernel does not support the request.
    pub fn is_unsupported(&self) -> bool {
        matches!(self.errno(), Some(Errno::EOPNOTSUPP | Errno::ENOTTY))
    }
}

/// One interface, with the sockets for its settings. It belongs to the network namespace of the thread
/// that created this. Requests name the interface by its index, so that renaming it does no harm.
#[derive(Debug)]
pub struct Ethtool {
    pub(super) name: String,
    pub(super) index: IfIndex,
    pub(super) socket: GenericSocket,
    /// Socket for the ioctls, of any kind; it selects the network namespace.
    ioctl: OwnedFd,
}

impl Ethtool {
    /// Finds the interface `name`.
    ///
    /// # Errors
    ///
    /// `ENODEV` if there is none, `ENOENT` if this kernel has no ethtool family (before 5.6).
    pub fn by_name(name: &str) -> Result<Self, EthtoolError> {
        let index = IfIndex(Interface::by_name(name)?.index());
        Self::with_index(name, index)
    }

    /// Creates it from a known index. The interface is looked up only by later requests.
    ///
    /// # Errors
    ///
    /// `ENOENT` if this kernel has no ethtool family (before 5.6).
    pub fn with_index(name: &str, index: IfIndex) -> Result<Self, EthtoolError> {
        let ioctl = socket_with(
            AddressFamily::INET,
            SocketType::DGRAM,
            SocketFlags::CLOEXEC,
            None,
        );
        let ioctl = ioctl.map_err(|errno| NetlinkError::new("open a socket for ethtool", errno))?;
        Ok(Self {
            name: name.to_owned(),
            index,
            socket: GenericSocket::open(FAMILY)?,
            ioctl,
        })
    }

    /// Returns the name by which it was found.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the interface index.
    #[doc(alias = "ifindex")]
    pub fn index(&self) -> IfIndex {
        self.index
    }

    /// Sends the request `command` about this interface and parses the reply. `what` is for errors: `"the rings"`. `names` are
    /// those of the attributes beside the header.
    pub(super) fn read<T>(
        &mut self,
        what: &str,
        command: u8,
        names: Names,
        parse: impl Fn(Attributes<'_>) -> T,
    ) -> Result<T, EthtoolError> {
        let what = format!("read {what} of {}", self.name);
        let request = about(self.socket.command(command, names), self.index, None);
        let reply = |reply: Attributes<'_>| Some(parse(reply));
        Ok(self.socket.get(&what, request, reply)?)
    }

    /// Changes a setting: `build` appends the attributes to the request. Only an acknowledgement is expected. `what` is for
    /// errors: `"change the rings"`.
    pub(super) fn change(
        &mut self,
        what: &str,
        command: u8,
        names: Names,
        build: impl FnOnce(Request) -> Request,
    ) -> Result<(), NetlinkError> {
        let what = format!("{what} of {}", self.name);
        let request = self.socket.command(command, names);
        let request = build(about(request, self.index, Some(FLAG_OMIT_REPLY)));
        self.socket
            .request(&what, request, |_reply| Some(()))
            .map(|_reply| ())
    }

    /// Runs the ioctl command in `buffer` on the interface by its current name.
    pub(super) fn ioctl(&self, verb: &str, buffer: &mut [u8]) -> Result<(), EthtoolError> {
        let failed = |errno: rustix::io::Errno| EthtoolError::Ioctl {
            what: format!("{verb} {}", self.name),
            errno: Errno(errno.raw_os_error()),
        };
        let name = rustix::net::netdevice::index_to_name(&self.ioctl, self.index.0);
        // The ioctl returns ENODEV for an unknown name; looking up the name returns ENODEV or ENXIO.
        let name = name.map_err(|_gone| failed(rustix::io::Errno::NODEV))?;
        let mut padded = [0; IFNAMSIZ];
        let bytes = name.as_bytes();
        let room = padded.get_mut(..bytes.len());
        room.ok_or_else(|| failed(rustix::io::Errno::NAMETOOLONG))?
            .copy_from_slice(bytes);
        crate::sys::ethtool::ethtool(self.ioctl.as_fd(), &padded, buffer).map_err(failed)
    }
}

/// Appends the header of a request: the interface, and flags for the reply.
pub(super) fn about(request: Request, index: IfIndex, flags: Option<u32>) -> Request {
    request.nested(A_HEADER, |header| {
        header
            .u32(A_HEADER_INDEX, index.0)
            .with(flags, |header, flags| header.u32(A_HEADER_FLAGS, flags))
    })
}
