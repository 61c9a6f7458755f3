//! The stack: its parts, and what may be asked about it.

mod addresses;
mod arrivals;
mod bindings;
mod burst;
mod close;
mod connect;
mod failures;
pub(crate) mod holders;
mod icmp;
mod listen;
mod options;
pub(crate) mod poll;
mod queries;
mod recvmsg;
mod rx;
pub(crate) mod sendmsg;
mod serve;
mod targets;

use std::fmt;
use std::net::IpAddr;

use nic::{LinkState, Nic};
use steer::RxQueueId;
use wire::Instant;

use crate::claims::{AddressCheck, AddressConflicts, Claims};
use crate::config::{StackConfig, StackError};
use crate::icmp::Icmp;
use crate::memory::StackMemory;
use crate::network::Network;
use crate::path_mtu::PathMtus;
use crate::route::Routes;
use crate::socket::agenda::Mark;
use crate::socket::id::SocketId;
use crate::socket::sockets::Sockets;
use crate::tcp_setup::TcpSetup;
use arrivals::Arrivals;
use burst::Burst;
pub use burst::FlushScope;

/// Counters of a stack.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct StackStats {
    /// Packets taken from the NIC.
    pub rx_packets: u64,
    /// Packets handed to the NIC.
    pub tx_packets: u64,
    /// Connections opened by this stack.
    pub connects: u64,
    /// Connections opened through a listener.
    pub accepts: u64,
    /// Current number of sockets of all kinds.
    pub sockets: usize,
    /// Current number of orphaned connections (closed by the program, but not finished).
    pub orphans: usize,
    /// Current number of four-tuples in use, TIME-WAIT included.
    pub connections: usize,
    /// Current number of known neighbours, at most [`MAX_NEIGHBORS`](crate::MAX_NEIGHBORS).
    pub neighbors: usize,
    /// Current number of neighbours that are being resolved, with packets waiting.
    pub neighbors_asked: usize,
}

/// A TCP/IP stack on one NIC. It has one owner, no thread and no clock, and does I/O only through the NIC.
///
/// Socket calls change state and send nothing; the next [`Stack::poll`] or [`Stack::flush`] sends.
pub struct Stack {
    pub(crate) nic: Nic,
    pub(crate) network: Network,
    pub(crate) sockets: Sockets,
    pub(crate) memory: StackMemory,
    pub(crate) icmp: Icmp,
    pub(crate) tcp: TcpSetup,
    /// Path MTUs that connections have discovered.
    pub(crate) path_mtus: PathMtus,
    pub(crate) stats: StackStats,
    poll_budget: usize,
    /// See [`Stack::turns`].
    pub(crate) turns: u64,
    /// The current poll receives no more: the first bytes behind a place have arrived, and the program may tell from them where the
    /// next ones belong. What the poll received before the program reads them would have to be copied.
    pub(crate) pause: bool,
    /// Packets in the NIC's queues, because the link was busy.
    tx_waiting: usize,
    /// The link has ended for good, and the connections were told.
    was_link_gone: bool,
    /// How the last poll ended.
    last_burst: Burst,
    arrivals: Arrivals,
    last_poll: Instant,
}

impl fmt::Debug for Stack {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Stack")
            .field("nic", &self.nic)
            .field("stats", &self.stats())
            .finish_non_exhaustive()
    }
}

impl Stack {
    /// Creates a stack on `nic`.
    ///
    /// # Errors
    /// [`StackError`]: an invalid address, an MTU that is too small, or no memory.
    pub fn new(nic: Nic, config: StackConfig) -> Result<Self, StackError> {
        let StackConfig {
            addresses,
            leased,
            address_check,
            conflicts,
            local_ports,
            gateways,
            point_to_point,
            any_local,
            tcp,
            secret,
            max_sockets,
            max_orphans,
            send_memory_bytes,
            poll_budget,
            path_mtus,
        } = config;
        let mut routes = Routes::new(nic.mac(), &addresses, &gateways)?;
        let claims = match point_to_point {
            None => claims(address_check, &mut routes, conflicts),
            Some(_) => Claims::new(AddressCheck::Never, [], conflicts),
        };
        let all = routes.all_addresses().chain(leased.iter().map(|it| it.ip));
        check_mtu(nic.mtu(), all)?;
        let mut stack = Self {
            memory: StackMemory::new(&nic, send_memory_bytes)?,
            network: Network::new(
                nic.mac(),
                routes.with_any_local(any_local),
                point_to_point,
                claims,
                secret.key("neighbors"),
            ),
            nic,
            sockets: Sockets::new(max_sockets, max_orphans, local_ports, &secret),
            icmp: Icmp::new(),
            tcp: TcpSetup::new(tcp, &secret),
            path_mtus,
            stats: StackStats::default(),
            poll_budget: poll_budget.max(1),
            turns: 0,
            pause: false,
            tx_waiting: 0,
            was_link_gone: false,
            last_burst: Burst::Over,
            arrivals: Arrivals::default(),
            last_poll: Instant::ZERO,
        };
        for leased in &leased {
            stack.add_address(leased, Instant::ZERO)?;
        }
        Ok(stack)
    }

    /// Returns how often the program or a peer has done what the other one is likely to follow up at once: bytes that a call has
    /// queued to send, connections that have begun, and those that the program has ended.
    pub fn turns(&self) -> u64 {
        self.turns
    }

    /// Returns when [`Stack::poll`] was called last; [`Instant::ZERO`] before the first time.
    pub fn last_poll(&self) -> Instant {
        self.last_poll
    }

    /// Returns whether a connection has bytes that were never sent: they wait for an ACK, a timer, or the next poll.
    pub fn has_unsent(&self) -> bool {
        self.sockets.any(Mark::Unsent)
    }

    /// Returns whether [`Stack::take_events`] will return any. An expired timer may change a socket without sending.
    pub fn has_events(&self) -> bool {
        self.sockets.any(Mark::Event)
    }

    /// Returns the sockets whose readiness has changed since the last call.
    pub fn take_events(&mut self) -> impl Iterator<Item = SocketId> + '_ {
        self.check_readiness();
        self.sockets.take_events()
    }

    /// Returns all counters of dropped packets with their stable names: those of the NIC, the stack and the
    /// connections.
    pub fn drops(&self) -> impl Iterator<Item = (&'static str, u64)> + '_ {
        let nic = self.nic.drops().iter();
        nic.chain(self.network.drops.iter())
    }

    /// Returns the counters.
    pub fn stats(&self) -> StackStats {
        let (neighbors, neighbors_asked) = self.network.neighbors();
        StackStats {
            tx_packets: self.network.tx_packets(),
            sockets: self.sockets.len(),
            orphans: self.sockets.orphans(),
            connections: self.sockets.names.connections(),
            neighbors,
            neighbors_asked,
            ..self.stats
        }
    }

    /// Returns whether a connection that finishes by itself has sent data, or a FIN, that the peer has not acknowledged.
    pub fn has_unacknowledged_orphan(&self) -> bool {
        self.sockets.has_unacknowledged_orphan()
    }

    /// Returns the NIC, to read its settings and counters.
    pub fn nic(&self) -> &Nic {
        &self.nic
    }

    /// Returns the NIC, to change its settings. Only [`Stack::bind_rx`] and [`Stack::unbind_rx`] restart queues
    /// with bound memory.
    pub fn nic_mut(&mut self) -> &mut Nic {
        &mut self.nic
    }

    /// Returns the local addresses, including the link-local one.
    pub fn addresses(&self) -> impl Iterator<Item = IpAddr> + '_ {
        self.network.routes().addresses()
    }

    /// Returns the counters of the host memory for payload to be sent.
    pub fn send_pool_stats(&self) -> netmem::PoolStats {
        self.memory.send_pools.stats()
    }

    /// Returns whether there is host memory for payload to be sent: sends that found none can be retried.
    pub fn has_send_memory(&self) -> bool {
        self.memory.send_pools.has_room()
    }

    /// Returns how many bytes of the memory of `queue` are set aside for windows of peers that are not idle: promised
    /// and not yet received.
    pub fn promised(&self, queue: RxQueueId) -> u64 {
        self.memory.windows.promised(queue)
    }

    /// Returns whether the link has ended for good. It stays so while late frames of other shards arrive.
    pub(crate) fn is_link_gone(&self) -> bool {
        self.was_link_gone || self.nic.link_state() == LinkState::Gone
    }
}

/// Returns the claims to the addresses of `routes`, which are not used yet if other stations are asked first.
fn claims(check: AddressCheck, routes: &mut Routes, conflicts: AddressConflicts) -> Claims {
    let addresses: Vec<IpAddr> = match check {
        AddressCheck::Never => Vec::new(),
        _ => routes.all_addresses().collect(),
    };
    if check == AddressCheck::AskFirst {
        routes.doubt_all();
    }
    Claims::new(check, addresses, conflicts)
}

/// Smallest MTU of a link for IPv6, in bytes (RFC 8200 5).
pub const MIN_IPV6_MTU: u16 = 1280;

/// Refuses an MTU that is smaller than the address families allow (for IPv4: RFC 791 3.2 and linux).
fn check_mtu(mtu: u16, mut addresses: impl Iterator<Item = IpAddr>) -> Result<(), StackError> {
    let least = match addresses.any(|ip| ip.is_ipv6()) {
        true => MIN_IPV6_MTU,
        false => 576,
    };
    match mtu < least {
        true => Err(StackError::Mtu { mtu, least }),
        false => Ok(()),
    }
}
