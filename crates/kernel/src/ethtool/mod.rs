//! What `ethtool` does: rings and header split, features, channels, RSS, flow rules.
//!
//! An [`Ethtool`] is one interface. Over generic netlink where the kernel has it there (its errors carry
//! the kernel's words), by ioctl where it has not: flow rules, the driver's name, resetting a table.

mod channels;
mod driver;
mod features;
mod layout;
mod ntuple;
mod rings;
mod rss;

use std::os::fd::{AsFd, OwnedFd};

use devmem_uapi::{Errno, IfIndex};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};

pub use channels::{Channels, ChannelsChange};
pub use driver::DriverInfo;
pub use features::{Feature, NTUPLE, RX_GRO_HW};
pub use ntuple::{InstalledRule, RuleAction, RuleTable, TcpFlow};
pub use rings::{DataSplit, Rings, RingsChange};
pub use rss::{MAIN_CONTEXT, RssContext};

use crate::netif::Interface;
use crate::netlink::attr::Attributes;
use crate::netlink::{GenericSocket, Names, NetlinkError, Request};
use crate::sys::tun::IFNAMSIZ;

/// Name of the generic netlink family (linux include/uapi/linux/ethtool_netlink_generated.h, like the
/// numbers in this folder).
const FAMILY: &str = "ethtool";
/// The attribute that names the interface is the first of every request: `ETHTOOL_A_*_HEADER`.
const A_HEADER: u16 = 1;
/// `ETHTOOL_A_HEADER_DEV_INDEX`, `_FLAGS`.
const A_HEADER_INDEX: u16 = 1;
const A_HEADER_FLAGS: u16 = 3;
/// `ETHTOOL_FLAG_OMIT_REPLY`.
const FLAG_OMIT_REPLY: u32 = 2;
const HEADER_NAMES: Names = Names(&[
    (1, "dev-index", Names::NONE),
    (2, "dev-name", Names::NONE),
    (3, "flags", Names::NONE),
]);

/// Reads attributes as every reply we know, for fuzzing. Returns an RSS context, if that is what they are.
#[cfg(any(test, fuzzing, feature = "test-util"))]
pub(crate) fn fuzz_replies(reply: Attributes<'_>) -> Option<RssContext> {
    let _ = Rings::parse(reply);
    let _ = Channels::parse(reply).rx_queues();
    let _ = features::parse(reply);
    RssContext::parse(reply)
}

/// Reads `bytes` as what the ioctl answers, for fuzzing.
#[cfg(any(test, fuzzing, feature = "test-util"))]
pub(crate) fn fuzz_ioctl(bytes: &[u8]) {
    ntuple::fuzz_rule(bytes);
}

/// Why an ethtool request failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EthtoolError {
    /// Refused over netlink.
    #[error(transparent)]
    Netlink(#[from] NetlinkError),
    /// Refused by the ioctl, which gives no words.
    #[error("{what}: {errno} ({})", errno.describe())]
    Ioctl {
        /// What was being done, for people.
        what: String,
        /// What ioctl(2) said.
        errno: Errno,
    },
    /// The rule table has no free place.
    #[error("add a flow rule to {interface}: all {size} places of its rule table are taken")]
    RuleTableFull {
        /// The interface.
        interface: String,
        /// How many rules it can hold.
        size: u32,
    },
}

impl EthtoolError {
    /// Returns the errno, if a system call failed.
    pub fn errno(&self) -> Option<Errno> {
        match self {
            Self::Netlink(error) => Some(Errno(error.errno.raw_os_error())),
            Self::Ioctl { errno, .. } => Some(*errno),
            Self::RuleTableFull { .. } => None,
        }
    }

    /// Tells whether the driver or this kernel does not know the request at all.
    pub fn is_unsupported(&self) -> bool {
        matches!(self.errno(), Some(Errno::EOPNOTSUPP | Errno::ENOTTY))
    }
}

/// One interface and the sockets to set it up with. It belongs to the network namespace of the thread
/// that made it. The interface is known by its index, so that renaming it in between does no harm.
#[derive(Debug)]
pub struct Ethtool {
    name: String,
    index: IfIndex,
    socket: GenericSocket,
    /// Any socket will do for the ioctl; it says which network namespace is meant.
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

    /// Takes an interface whose index is known; it is looked up when something is asked of it.
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

    /// Returns the name it was found by.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the interface index.
    #[doc(alias = "ifindex")]
    pub fn index(&self) -> IfIndex {
        self.index
    }

    /// Reads what `command` tells about this interface. `what` is for errors: `"the rings"`. `names` are those of the
    /// attributes beside the header.
    fn read<T>(
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

    /// Changes something by what `build` appends to the request; an acknowledgement is answer enough. `what` is for
    /// errors: `"change the rings"`.
    fn change(
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

    /// Runs the ioctl command in `buffer`, on the name that the interface has now.
    fn ioctl(&self, verb: &str, buffer: &mut [u8]) -> Result<(), EthtoolError> {
        let failed = |errno: rustix::io::Errno| EthtoolError::Ioctl {
            what: format!("{verb} {}", self.name),
            errno: Errno(errno.raw_os_error()),
        };
        let name = rustix::net::netdevice::index_to_name(&self.ioctl, self.index.0);
        // The ioctl says ENODEV for a name it does not know; the look-up says ENODEV or ENXIO.
        let name = name.map_err(|_gone| failed(rustix::io::Errno::NODEV))?;
        let mut padded = [0; IFNAMSIZ];
        let bytes = name.as_bytes();
        let room = padded.get_mut(..bytes.len());
        room.ok_or_else(|| failed(rustix::io::Errno::NAMETOOLONG))?
            .copy_from_slice(bytes);
        crate::sys::ethtool::ethtool(self.ioctl.as_fd(), &padded, buffer).map_err(failed)
    }
}

/// Says which interface a request is about, and how to answer it.
fn about(request: Request, index: IfIndex, flags: Option<u32>) -> Request {
    request.nested(A_HEADER, |header| {
        header
            .u32(A_HEADER_INDEX, index.0)
            .with(flags, |header, flags| header.u32(A_HEADER_FLAGS, flags))
    })
}
