//! The NIC, local addresses and routes, neighbours, path MTUs, and counters of dropped packets.
//!
//! This module does not access sockets. Connections with an unreachable neighbour are kept in a list for the stack.

mod arp;
mod claiming;
mod ndp;
mod tx;

use std::collections::VecDeque;
use std::net::IpAddr;

use devmem_uapi::IfIndex;
use netmem::{DeviceError, FragList, Netmem};
use nic::{
    LEGACY_SUPER_PAYLOAD, LinkState, MemoryDemand, Nic, NiovUsage, ProviderChoice, RestartError,
    RxMemory, RxPacket, RxSpace,
};
use steer::RxQueueId;
use tcp::{LinkLimits, SegmentDrop, SeqNum, SuperPayload, UnfitPayload};
use wire::{FourTuple, Instant, MacAddr};

use crate::claims::Claims;
use crate::drops::{DropReason, Drops};
use crate::neighbor::Neighbors;
use crate::path_mtu::{PathMtu, PathMtus};
use crate::route::Routes;
use crate::socket::SocketId;
use tx::WaitingPacket;
pub(crate) use tx::{Egress, SegmentOwner};

/// Bytes of IP and TCP header without options, over IPv4.
const HEADERS_V4: u16 = 40;
/// Bytes of IP and TCP header without options, over IPv6.
const HEADERS_V6: u16 = 60;

/// Maximum bytes of IP and TCP header over IPv4, with TCP options.
const MAX_HEADERS_V4: usize = 20 + 60;
/// Maximum bytes of headers over IPv6, with TCP options and a jumbo payload option (RFC 2675).
const MAX_HEADERS_V6: usize = 40 + 8 + 60;

/// State below the sockets. No other module changes these fields.
pub(crate) struct Network {
    nic: Nic,
    /// Number of the interface.
    ifindex: IfIndex,
    routes: Routes,
    point_to_point: Option<MacAddr>,
    neighbors: Neighbors<WaitingPacket>,
    /// Claims to the addresses of `routes`. None on a point-to-point link.
    claims: Claims,
    /// Addresses are lent: another one may come when one is lost.
    is_lent_to: bool,
    /// Path MTUs that connections have discovered.
    path_mtus: PathMtus,
    drops: Drops,
    /// Packets passed to the NIC.
    tx_packets: u64,
    /// Packets in the NIC's queues, because the link was busy.
    tx_waiting: usize,
    was_up: bool,
    /// The link has ended for good, and the connections were told.
    was_gone: bool,
    /// Connections with a neighbour that did not answer, each with the sequence number of the segment that waited.
    failed: VecDeque<(SocketId, SeqNum)>,
}

impl Network {
    /// Returns the network of `nic`, which has the interface number `ifindex`.
    pub(crate) fn new(
        nic: Nic,
        ifindex: IfIndex,
        routes: Routes,
        point_to_point: Option<MacAddr>,
        claims: Claims,
        neighbor_key: [u8; 16],
        path_mtus: PathMtus,
    ) -> Self {
        Self {
            nic,
            ifindex,
            routes,
            point_to_point,
            claims,
            is_lent_to: false,
            neighbors: Neighbors::new(neighbor_key),
            path_mtus,
            drops: Drops::default(),
            tx_packets: 0,
            tx_waiting: 0,
            was_up: false,
            was_gone: false,
            failed: VecDeque::new(),
        }
    }

    pub(crate) fn nic(&self) -> &Nic {
        &self.nic
    }

    /// Returns the NIC, for changes of its settings by the program. The stack itself uses the functions below.
    pub(crate) fn nic_for_settings(&mut self) -> &mut Nic {
        &mut self.nic
    }

    pub(crate) fn ifindex(&self) -> IfIndex {
        self.ifindex
    }

    /// Returns the next packet that the NIC has received.
    pub(crate) fn poll_rx(&mut self, now: Instant) -> Option<RxPacket> {
        self.nic.poll_rx(now)
    }

    /// Gives the memory of a payload back to the NIC.
    pub(crate) fn recycle(&mut self, payload: FragList) {
        self.nic.recycle(payload);
    }

    /// Gives one net_iov back to the NIC.
    pub(crate) fn recycle_netmem(&mut self, netmem: Netmem) {
        self.nic.recycle_netmem(netmem);
    }

    /// Gives the payload of a dropped packet back to the NIC, and counts the drop.
    pub(crate) fn drop_packet(&mut self, payload: FragList, reason: DropReason) {
        self.count(reason);
        self.recycle(payload);
    }

    /// Returns the free receive memory of `queue`.
    pub(crate) fn rx_space(&mut self, queue: RxQueueId) -> RxSpace {
        self.nic.rx_space(queue)
    }

    /// Returns the payload bytes that the free memory of a queue can take; 0 if there is no such queue.
    pub(crate) fn rx_free(&mut self, queue: usize) -> u64 {
        match u16::try_from(queue) {
            Ok(queue) => self.rx_space(RxQueueId(queue)).bytes as u64,
            Err(_) => 0,
        }
    }

    /// Restarts a queue on other memory.
    pub(crate) fn restart_queue(
        &mut self,
        queue: RxQueueId,
        choice: ProviderChoice,
    ) -> Result<(), RestartError> {
        self.nic.restart_queue(queue, choice)
    }

    /// Returns how urgently receive memory is needed, and resets that.
    pub(crate) fn take_memory_demand(&mut self) -> MemoryDemand {
        self.nic.take_memory_demand()
    }

    /// Notes that the free part of `memory` has been checked.
    pub(crate) fn note_memory_look(&mut self, memory: RxMemory) {
        self.nic.note_memory_look(memory);
    }

    /// Moves the frags of `payload` that lie in sparse net_iovs of `memory` together.
    pub(crate) fn collapse(&mut self, memory: RxMemory, payload: &mut FragList, usage: &NiovUsage) {
        self.nic.collapse(memory, payload, usage);
    }
    pub(crate) fn routes(&self) -> &Routes {
        &self.routes
    }

    pub(crate) fn mac(&self) -> MacAddr {
        self.nic.mac()
    }

    /// Returns the counters of dropped packets.
    pub(crate) fn drops(&self) -> &Drops {
        &self.drops
    }

    /// Counts a dropped packet.
    pub(crate) fn count(&mut self, reason: DropReason) {
        self.drops.count(reason);
    }

    /// Counts a segment that a connection dropped, or part of it.
    pub(crate) fn count_segment(&mut self, reason: SegmentDrop) {
        self.drops.count_segment(reason);
    }

    /// Returns how many packets were passed to the NIC.
    pub(crate) fn tx_packets(&self) -> u64 {
        self.tx_packets
    }

    /// Returns the number of known neighbours, and of those being resolved.
    pub(crate) fn neighbors(&self) -> (usize, usize) {
        (self.neighbors.known(), self.neighbors.questions())
    }

    /// Returns what an earlier connection discovered about the path to `peer`.
    pub(crate) fn path(&self, peer: IpAddr, now: Instant) -> Option<PathMtu> {
        self.path_mtus.get(peer, now)
    }

    /// Notes what a connection discovered about the path to `peer`.
    pub(crate) fn note_path(&mut self, peer: IpAddr, path: PathMtu, now: Instant) {
        self.path_mtus.note(peer, path, now);
    }

    /// Sends packets that wait in the NIC's queues.
    pub(crate) fn flush_tx(&mut self, now: Instant) {
        self.tx_waiting = self.nic.flush_tx(now);
    }

    /// Removes a packet that was not sent because a device could not copy its payload; returns the four-tuple of packets in
    /// the other direction.
    pub(crate) fn pop_untransmitted(&mut self) -> Option<(FourTuple, DeviceError)> {
        std::iter::from_fn(|| self.nic.take_failed_tx())
            .find_map(|failed| Some((failed.four_tuple()?.reversed(), failed.error)))
    }

    /// Returns whether packets wait for a busy link that gives no notice when it has room again.
    pub(crate) fn wants_flush(&self) -> bool {
        self.tx_waiting > 0 && !self.nic.is_told_of_room()
    }

    /// Returns whether nothing can be sent until the link gives notice that it has room.
    pub(crate) fn is_held_up(&self) -> bool {
        self.nic.is_told_of_room() && self.nic.tx_room() == 0
    }

    /// Returns the time of the next request for a neighbour, or of the NIC's next work.
    pub(crate) fn next_deadline(&self) -> Option<Instant> {
        let deadlines = [
            self.neighbors.next_deadline(),
            self.claims.next_deadline(),
            self.nic.next_due(),
        ];
        deadlines.into_iter().flatten().min()
    }

    /// Returns the limits for segments to `peer`: the NIC's MTU less the headers of the address family, and the longest
    /// super-packets that the NIC accepts.
    pub(crate) fn link_limits(&self, peer: IpAddr) -> LinkLimits {
        let mss = self.nic.mtu() - headers_for(peer);
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
        let caps = self.nic.link_caps();
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
    pub(crate) fn watch_link(&mut self, now: Instant) {
        let is_up = self.nic.is_up();
        if is_up && !self.was_up {
            self.claims.on_link_up(now);
            // Before the answers to what has arrived.
            self.poll_claims(now);
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

    /// Returns whether the link has ended for good. It stays so while late frames of other shards arrive.
    pub(crate) fn is_gone(&self) -> bool {
        self.was_gone || self.nic.link_state() == LinkState::Gone
    }

    /// Returns true once, when the link has ended for good.
    pub(crate) fn take_gone(&mut self) -> bool {
        let is_gone = self.nic.link_state() == LinkState::Gone;
        is_gone && !std::mem::replace(&mut self.was_gone, true)
    }
}

/// Returns the bytes of IP and TCP header without options.
pub(crate) fn headers_for(peer: IpAddr) -> u16 {
    if peer.is_ipv4() {
        HEADERS_V4
    } else {
        HEADERS_V6
    }
}
