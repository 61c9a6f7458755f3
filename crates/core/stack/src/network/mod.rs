//! The way out and in: the NIC, our addresses and routes, the link's other stations, and what is dropped.
//!
//! Nothing here knows a socket. A connection whose neighbour does not answer is kept for the stack to tell it.

mod arp;
mod ndp;
mod tx;

use std::collections::VecDeque;
use std::net::IpAddr;

use nic::Nic;
use tcp::{LinkLimits, SegmentDrop, SeqNum, SuperPayload, UnfitPayload};
use wire::{Instant, MacAddr};

use crate::drops::{DropReason, Drops};
use crate::neighbor::Neighbors;
use crate::path_mtu::PathMtus;
use crate::route::Routes;
use crate::socket::SocketId;
use tx::Waiting;
pub(crate) use tx::{Egress, Speaker};

/// Largest part of a TCP segment that is not payload or options: IPv4 and TCP header, IPv6 and TCP
/// header.
const HEADERS_V4: u16 = 40;
const HEADERS_V6: u16 = 60;

/// The longest headers that we send over IPv4: TCP with all of its options.
const MAX_HEADERS_V4: usize = 20 + 60;
/// The same over IPv6, with a jumbo payload option (RFC 2675).
const MAX_HEADERS_V6: usize = 40 + 8 + 60;

/// What packets go through. No other module changes these fields.
pub(crate) struct Network {
    nic: Nic,
    routes: Routes,
    point_to_point: Option<MacAddr>,
    neighbors: Neighbors<Waiting>,
    /// What paths carry, as connections found out.
    path_mtus: PathMtus,
    drops: Drops,
    /// Packets handed to the NIC.
    tx_packets: u64,
    /// Packets that the link was too busy for.
    tx_waiting: usize,
    was_up: bool,
    /// Connections whose neighbour did not answer, each with the sequence number of the segment that waited.
    failed: VecDeque<(SocketId, SeqNum)>,
}

impl Network {
    /// Returns the network of `nic`.
    pub(crate) fn new(
        nic: Nic,
        routes: Routes,
        point_to_point: Option<MacAddr>,
        neighbor_key: [u8; 16],
    ) -> Self {
        Self {
            nic,
            routes,
            point_to_point,
            neighbors: Neighbors::new(neighbor_key),
            path_mtus: PathMtus::default(),
            drops: Drops::default(),
            tx_packets: 0,
            tx_waiting: 0,
            was_up: false,
            failed: VecDeque::new(),
        }
    }

    pub(crate) fn nic(&self) -> &Nic {
        &self.nic
    }

    pub(crate) fn nic_mut(&mut self) -> &mut Nic {
        &mut self.nic
    }

    pub(crate) fn routes(&self) -> &Routes {
        &self.routes
    }

    pub(crate) fn mac(&self) -> MacAddr {
        self.nic.mac()
    }

    /// Returns the packets that were dropped, by reason.
    pub(crate) fn drops(&self) -> &Drops {
        &self.drops
    }

    /// Counts a dropped packet.
    pub(crate) fn count(&mut self, reason: DropReason) {
        self.drops.count(reason);
    }

    /// Counts a segment that a connection did not use, or not all of.
    pub(crate) fn count_segment(&mut self, reason: SegmentDrop) {
        self.drops.count_segment(reason);
    }

    /// Returns how many packets were handed to the NIC.
    pub(crate) fn tx_packets(&self) -> u64 {
        self.tx_packets
    }

    /// Returns how many neighbours are known, and how many are asked for without an answer.
    pub(crate) fn neighbors(&self) -> (usize, usize) {
        (self.neighbors.known(), self.neighbors.questions())
    }

    /// Returns the size of segments that the path to `peer` is known to carry.
    pub(crate) fn path_mss(&self, peer: IpAddr, now: Instant) -> Option<u16> {
        self.path_mtus.get(peer, now)
    }

    /// Notes that packets to `peer` carry segments of `mss` bytes at most.
    pub(crate) fn note_path_mss(&mut self, peer: IpAddr, mss: u16, now: Instant) {
        self.path_mtus.note(peer, mss, now);
    }

    /// Has the NIC send what waits in its queues.
    pub(crate) fn flush_tx(&mut self, now: Instant) {
        self.tx_waiting = self.nic.flush_tx(now);
    }

    /// Returns whether packets wait for a link that was busy, and does not say when it is not busy any more.
    pub(crate) fn wants_flush(&self) -> bool {
        self.tx_waiting > 0 && !self.nic.is_told_of_room()
    }

    /// Returns whether nothing can be sent before the link says that it has room.
    pub(crate) fn is_held_up(&self) -> bool {
        self.nic.is_told_of_room() && self.nic.tx_room() == 0
    }

    /// Returns when a neighbour is due to be asked for, or the NIC has something to do.
    pub(crate) fn next_deadline(&self) -> Option<Instant> {
        let deadlines = [self.neighbors.next_deadline(), self.nic.next_due()];
        deadlines.into_iter().flatten().min()
    }

    /// Returns what the way to a peer takes: the NIC's MTU less the headers of its family, and super-packets as long as
    /// the NIC can cut them.
    pub(crate) fn link_limits(&self, peer: IpAddr) -> LinkLimits {
        let link = LinkLimits::of_mss(self.nic.mtu() - headers_for(peer));
        // What goes to ourselves is received as it was sent, and nobody receives such packets.
        if self.routes.is_ours(peer) {
            return link;
        }
        let headers = match peer {
            IpAddr::V4(_) => MAX_HEADERS_V4,
            IpAddr::V6(_) => MAX_HEADERS_V6,
        };
        let caps = self.nic.link_caps();
        let longest = u32::try_from(caps.max_super_packet - headers).unwrap_or(u32::MAX);
        LinkLimits {
            super_payload: SuperPayload {
                longest: link.super_payload.longest.max(longest),
                unfit: caps.unfit_payload().and_then(UnfitPayload::new),
            },
            ..link
        }
    }

    /// Announces our addresses when the link comes up; what was known of neighbours is void when it
    /// goes down.
    pub(crate) fn watch_link(&mut self, now: Instant) {
        let is_up = self.nic.is_up();
        if is_up && !self.was_up && self.point_to_point.is_none() {
            self.announce(now);
        }
        if !is_up && self.was_up {
            let waited = self.neighbors.clear();
            waited
                .iter()
                .for_each(|_| self.drops.count(DropReason::NeighborFailed));
        }
        self.was_up = is_up;
    }
}

/// Returns the bytes of IP and TCP headers without options.
pub(crate) fn headers_for(peer: IpAddr) -> u16 {
    if peer.is_ipv4() {
        HEADERS_V4
    } else {
        HEADERS_V6
    }
}
