//! What a stack is told when it is made.

use std::net::IpAddr;

use devmem_uapi::IfIndex;

use crate::random::Secret;
use wire::MacAddr;

/// Packets taken from the NIC in one [`Stack::poll`](crate::Stack::poll) (linux
/// `NAPI_POLL_WEIGHT`).
pub const POLL_BUDGET: usize = 64;

/// Most sockets of a stack, those of closed connections that still finish included.
pub const MAX_SOCKETS: usize = 65_536;

/// Most connections that finish by themselves after their socket was closed (linux
/// `tcp_max_orphans` scales with memory from 4096 on); one more is reset.
pub const MAX_ORPHANS: usize = 4096;

/// Host memory for payload that waits to be sent or acknowledged.
pub const SEND_MEMORY_BYTES: usize = 64 << 20;

/// Most unread payload of one connection, which also chooses the window scale. It is no limit on
/// device memory, only on how far one reader may fall behind.
pub const RCV_BUF_MAX: u32 = 32 << 20;

/// Longest accept queue (linux `net.core.somaxconn`).
pub const MAX_BACKLOG: usize = 4096;

/// What a stack is told when it is made.
#[derive(Debug, Clone)]
pub struct StackConfig {
    /// Number by which [`BindRx`](crate::BindRx) names the interface.
    pub ifindex: IfIndex,
    /// Our addresses with the lengths of their on-link prefixes.
    pub addresses: Vec<(IpAddr, u8)>,
    /// Where packets go that no prefix covers; at most one of each family is used.
    pub gateways: Vec<IpAddr>,
    /// The only other end of the link, if there are but two: nobody is asked for hardware addresses, and
    /// nobody told ours.
    pub point_to_point: Option<MacAddr>,
    /// Packets to any unicast address are ours, and any may be bound: a tester does not tell which it
    /// will use (linux: an `ip route add local` for everything).
    pub any_local: bool,
    /// How connections behave; `mss` is overridden by what the NIC's MTU allows.
    pub tcp: tcp::Config,
    /// Source of everything peers must not guess: 16 random bytes, or a seed in a simulation.
    pub secret: Secret,
    /// Most sockets.
    pub max_sockets: usize,
    /// Most connections that finish after their socket was closed.
    pub max_orphans: usize,
    /// Host memory for payload that waits to be sent or acknowledged, a multiple of 64 KiB.
    pub send_memory_bytes: usize,
    /// Packets taken from the NIC in one poll.
    pub poll_budget: usize,
}

impl StackConfig {
    /// Returns the defaults for an interface with one address.
    pub fn new(address: IpAddr, prefix_len: u8, secret: Secret) -> Self {
        Self {
            ifindex: IfIndex(1),
            addresses: vec![(address, prefix_len)],
            gateways: Vec::new(),
            point_to_point: None,
            any_local: false,
            tcp: tcp::Config {
                options: tcp::ConnectionOptions {
                    rcv_buf_max: RCV_BUF_MAX,
                    ..tcp::ConnectionOptions::default()
                },
                ..tcp::Config::default()
            },
            secret,
            max_sockets: MAX_SOCKETS,
            max_orphans: MAX_ORPHANS,
            send_memory_bytes: SEND_MEMORY_BYTES,
            poll_budget: POLL_BUDGET,
        }
    }
}
