//! Local addresses and routes, neighbours, sending through them, and counters of dropped packets.
//!
//! This module does not access sockets. Connections with an unreachable neighbour are kept in a list for the stack.

mod arp;
mod claiming;
mod egress;
mod ndp;
mod tx;
mod waiting;

use std::collections::VecDeque;
use std::net::IpAddr;

use nic::{LEGACY_SUPER_PAYLOAD, Nic};
use tcp::{LinkLimits, SeqNum, SuperPayload, UnfitPayload};
use wire::{Instant, MacAddr};

use crate::claims::Claims;
use crate::drops::{DropReason, Drops};
use crate::neighbor::Neighbors;
use crate::path_mtu::headers_for;
use crate::route::Routes;
use crate::socket::id::SocketId;
pub(crate) use egress::{Egress, SegmentOwner};
use waiting::WaitingPacket;

/// Maximum bytes of IP and TCP header over IPv4, with TCP options.
const MAX_HEADERS_V4: usize = 20 + 60;
/// Maximum bytes of headers over IPv6, with TCP options and a jumbo payload option (RFC 2675).
const MAX_HEADERS_V6: usize = 40 + 8 + 60;

/// State below the sockets. The NIC that it sends through is an argument.
pub(crate) struct Network {
    /// Hardware address of the NIC.
    mac: MacAddr,
    routes: Routes,
    point_to_point: Option<MacAddr>,
    neighbors: Neighbors<WaitingPacket>,
    /// Claims to the addresses of `routes`. None on a point-to-point link.
    pub(crate) claims: Claims,
    /// Addresses are leased: another one may come when one is lost.
    has_leases: bool,
    /// Counters of packets that were dropped here, or by a caller.
    pub(crate) drops: Drops,
    /// Packets passed to the NIC.
    tx_packets: u64,
    was_up: bool,
    /// Connections with a neighbour that did not answer, each with the sequence number of the segment that waited.
    failed: VecDeque<(SocketId, SeqNum)>,
}

impl Network {
    /// Returns the network of a NIC with the hardware address `mac`.
    pub(crate) fn new(
        mac: MacAddr,
        routes: Routes,
        point_to_point: Option<MacAddr>,
        claims: Claims,
        neighbor_key: [u8; 16],
    ) -> Self {
        Self {
            mac,
            routes,
            point_to_point,
            claims,
            has_leases: false,
            neighbors: Neighbors::new(neighbor_key),
            drops: Drops::default(),
            tx_packets: 0,
            was_up: false,
            failed: VecDeque::new(),
        }
    }

    pub(crate) fn routes(&self) -> &Routes {
        &self.routes
    }

    /// Returns `mac` if it can be the address of another station: unicast, not zero, and not the NIC's own, for which
    /// the NIC would receive its own frames.
    pub(crate) fn station(&self, mac: MacAddr) -> Option<MacAddr> {
        (mac.is_unicast() && mac != self.mac).then_some(mac)
    }

    /// Returns how many packets were passed to the NIC.
    pub(crate) fn tx_packets(&self) -> u64 {
        self.tx_packets
    }

    /// Returns the number of known neighbours, and of those being resolved.
    pub(crate) fn neighbors(&self) -> (usize, usize) {
        (self.neighbors.known(), self.neighbors.questions())
    }

    /// Returns the time of the next request for a neighbour, or about a local address.
    pub(crate) fn next_deadline(&self) -> Option<Instant> {
        let deadlines = [self.neighbors.next_deadline(), self.claims.next_deadline()];
        deadlines.into_iter().flatten().min()
    }

    /// Returns the limits for segments to `peer`: the NIC's MTU less the headers of the address family, and the longest
    /// super-packets that the NIC accepts.
    pub(crate) fn link_limits(&self, nic: &Nic, peer: IpAddr) -> LinkLimits {
        let mss = nic.mtu() - headers_for(peer);
        // Packets to a local address are received as they are sent, and packets longer than the header can say can only
        // be sent.
        if self.routes.is_ours(peer) {
            return LinkLimits::new(mss, LEGACY_SUPER_PAYLOAD);
        }
        // A router sends on through another interface. Interfaces of Linux take super-packets of 64 KiB unless they are
        // configured for longer ones (gso_max_size), and the router would cut a longer one to packets of the MTU.
        if self.routes.next_hop(peer) != Ok(peer) {
            return LinkLimits::new(mss, LEGACY_SUPER_PAYLOAD);
        }
        let headers = match peer {
            IpAddr::V4(_) => MAX_HEADERS_V4,
            IpAddr::V6(_) => MAX_HEADERS_V6,
        };
        let caps = nic.link_caps();
        let longest = u32::try_from(caps.max_super_packet - headers).unwrap_or(u32::MAX);
        LinkLimits {
            mss,
            super_payload: SuperPayload {
                longest: longest.max(LEGACY_SUPER_PAYLOAD),
                unfit: caps.unfit_payload().and_then(UnfitPayload::new),
            },
        }
    }

    /// Asks about the local addresses, and announces them, when the link comes up; clears the neighbour table when it goes down.
    pub(crate) fn watch_link(&mut self, nic: &mut Nic, now: Instant) {
        let is_up = nic.is_up();
        if is_up && !self.was_up {
            self.claims.on_link_up(now);
            // Before the answers to what has arrived.
            self.poll_claims(nic, now);
        }
        if !is_up && self.was_up {
            self.claims.on_link_down();
            let waited = self.neighbors.clear();
            waited
                .iter()
                .for_each(|_| self.drops.count(DropReason::NeighborFailed));
        }
        self.was_up = is_up;
    }
}
