//! Configuration of a stack.

use std::borrow::Cow;
use std::net::IpAddr;

use netmem::DmabufError;
use thiserror::Error;

use crate::claims::{AddressCheck, AddressConflicts};
use crate::path_mtu::PathMtus;
use crate::ports::LocalPorts;
use crate::random::Secret;
use crate::route::{AddressError, LeasedAddress};
use wire::MacAddr;

/// Packets taken from the NIC in one [`Stack::poll`](crate::Stack::poll) (linux
/// `NAPI_POLL_WEIGHT`).
pub const POLL_BUDGET: usize = 64;

/// Payload bytes after which a poll ends. Less than the second-level cache of today's processors: the reader finds the bytes
/// there, and the next poll receives into the memory that it has returned, which is there, too.
pub const POLL_BYTES: usize = 512 << 10;

/// Maximum number of sockets of a stack. Closed connections that have not finished yet count.
pub const MAX_SOCKETS: usize = 65_536;

/// Maximum number of orphaned connections: the program has closed the socket, and the connection has not
/// finished (linux `tcp_max_orphans` scales with memory from 4096 on). A connection beyond it is reset.
pub const MAX_ORPHANS: usize = 4096;

/// Bytes of host memory for payload that waits to be sent or acknowledged.
pub const SEND_MEMORY_BYTES: usize = 64 << 20;

/// Maximum bytes of unread payload of one connection. It determines the window scale. It limits how far
/// one reader may fall behind, not the device memory that is used.
pub const RCV_BUF_MAX: u32 = 32 << 20;

/// Maximum length of an accept queue (linux `net.core.somaxconn`).
pub const MAX_BACKLOG: usize = 4096;

/// Configuration of a stack.
#[derive(Debug, Clone)]
pub struct StackConfig {
    /// Local addresses, each with the length of its on-link prefix.
    pub addresses: Vec<(IpAddr, u8)>,
    /// Local addresses that may be removed while the stack runs.
    pub leased: Vec<LeasedAddress>,
    /// What the stack does before it uses its addresses. Not those of `leased`, which somebody has asked about.
    pub address_check: AddressCheck,
    /// Conflicts about the addresses, which the shards of one NIC share.
    pub conflicts: AddressConflicts,
    /// The TCP ports of this stack at its addresses.
    pub local_ports: LocalPorts,
    /// Next hops of packets to addresses that no prefix covers; at most one per family is used.
    pub gateways: Vec<IpAddr>,
    /// Hardware address of the peer on a point-to-point link. All packets go there, without ARP and
    /// neighbour discovery.
    pub point_to_point: Option<MacAddr>,
    /// Every unicast address is local, and may be bound (linux: `ip route add local` for all addresses). For
    /// test programs that choose local addresses later.
    pub any_local: bool,
    /// Configuration of new connections and listeners.
    pub tcp: tcp::Config,
    /// Source of all values that peers must not guess: 16 random bytes, or a seed in a simulation.
    pub secret: Secret,
    /// Maximum number of sockets.
    pub max_sockets: usize,
    /// Maximum number of connections that finish after their socket was closed.
    pub max_orphans: usize,
    /// Bytes of host memory for payload that waits to be sent or acknowledged, a multiple of 64 KiB.
    pub send_memory_bytes: usize,
    /// Maximum number of packets taken from the NIC in one poll.
    pub poll_budget: usize,
    /// The path MTUs, which the shards of one NIC share.
    pub path_mtus: PathMtus,
}

impl StackConfig {
    /// Returns the defaults for an interface with one address.
    pub fn new(address: IpAddr, prefix_len: u8, secret: Secret) -> Self {
        Self {
            addresses: vec![(address, prefix_len)],
            leased: Vec::new(),
            address_check: AddressCheck::default(),
            conflicts: AddressConflicts::default(),
            local_ports: LocalPorts::All,
            gateways: Vec::new(),
            point_to_point: None,
            any_local: false,
            tcp: tcp::Config {
                settings: tcp::Settings {
                    rcv_buf_max: RCV_BUF_MAX,
                    ..tcp::Settings::default()
                },
                ..tcp::Config::default()
            },
            secret,
            max_sockets: MAX_SOCKETS,
            max_orphans: MAX_ORPHANS,
            send_memory_bytes: SEND_MEMORY_BYTES,
            poll_budget: POLL_BUDGET,
            path_mtus: PathMtus::default(),
        }
    }
}

/// Why a stack could not be created.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum StackError {
    /// An address or gateway is invalid.
    #[error(transparent)]
    Address(#[from] AddressError),
    /// The host memory for sending could not be allocated.
    #[error("{bytes} bytes of host memory for sending: {error}")]
    SendMemory {
        /// Requested size.
        bytes: usize,
        /// Cause.
        error: DmabufError,
    },
    /// The NIC's MTU is too small for IP.
    #[error("an MTU of {mtu} bytes is less than the {least} that hosts must take")]
    Mtu {
        /// MTU of the NIC.
        mtu: u16,
        /// Minimum MTU.
        least: u16,
    },
}

impl StackError {
    /// Returns what to do about it.
    pub fn remedy(&self) -> Option<Cow<'static, str>> {
        match self {
            Self::Address(error) => Some(error.remedy().into()),
            Self::SendMemory { error, .. } => error.remedy(),
            Self::Mtu { .. } => Some("use a link with a larger one".into()),
        }
    }
}
