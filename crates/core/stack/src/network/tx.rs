//! Sending: writes headers, resolves the hardware address of the next hop, passes the packet to the NIC.

use std::net::IpAddr;

use netmem::{FragList, Payload};
use nic::{HeadBuf, Nic, TxPacket};
use tcp::{Control, Segment, SeqNum};
use wire::{
    ArpPacket, Ecn, EtherType, EthernetHeader, FourTuple, Instant, IpRepr, MacAddr,
    NeighborSolicitation, TcpFlags, TcpHeader, emit_tcp_frame_headers, solicited_node,
    tcp_tx_checksum,
};

use super::Network;
use super::egress::{Egress, SegmentOwner};
use super::waiting::WaitingPacket;
use crate::drops::DropReason;
use crate::neighbor::{HoldOutcome, NeighborAction, Purpose};
use crate::socket::id::SocketId;
use crate::socket::sockopt::SocketSettings;

impl Network {
    /// Returns the header of a frame from this NIC.
    pub(crate) fn ethernet(&self, dst: MacAddr, ethertype: EtherType) -> EthernetHeader {
        EthernetHeader {
            dst,
            src: self.mac,
            ethertype,
            vlan: None,
        }
    }

    /// Sends the reply to a segment that belongs to no connection.
    pub(crate) fn send_control(
        &mut self,
        nic: &mut Nic,
        tuple: &FourTuple,
        from: Option<MacAddr>,
        segment: Segment<FragList>,
        now: Instant,
    ) {
        let owner = SegmentOwner::Answer(from);
        match self.routes.next_hop(tuple.src_ip) {
            Ok(next_hop) => {
                self.send_segment(nic, tuple, Egress::to(next_hop), owner, segment, now)
            }
            Err(_) => self.drops.count(DropReason::NoRoute),
        }
    }

    /// Sends a SYN-ACK of a listener with these options; `from` as in [`SegmentOwner::Answer`].
    pub(crate) fn send_syn_ack(
        &mut self,
        nic: &mut Nic,
        tuple: &FourTuple,
        from: Option<MacAddr>,
        options: &SocketSettings,
        segment: Segment<FragList>,
        now: Instant,
    ) {
        let egress = |next_hop| Egress {
            next_hop,
            tos: options.tos,
            hop_limit: options.hop_limit,
            // The initial sequence number is not predictable.
            ident: options.may_fragment.then_some(segment.seq.0 as u16),
        };
        let owner = SegmentOwner::Answer(from);
        match self.routes.next_hop(tuple.src_ip) {
            // It may have been lost since the SYN.
            Ok(_) if !self.routes.may_bind(tuple.dst_ip) => self.drops.count(DropReason::NoRoute),
            Ok(next_hop) => self.send_segment(nic, tuple, egress(next_hop), owner, segment, now),
            Err(_) => self.drops.count(DropReason::NoRoute),
        }
    }

    /// Sends a segment of the connection `tuple` (the four-tuple of received packets: the peer is the source).
    pub(crate) fn send_segment(
        &mut self,
        nic: &mut Nic,
        tuple: &FourTuple,
        egress: Egress,
        owner: SegmentOwner,
        segment: Segment<FragList>,
        now: Instant,
    ) {
        let (next_hop, purpose) = (egress.next_hop, owner.purpose());
        let known = self.hardware_address(next_hop, purpose, now);
        let notified = match owner {
            SegmentOwner::Connection(owner) => Some((owner, segment.seq)),
            SegmentOwner::Answer(_) => None,
        };
        let Some(packet) =
            emit_headers(self.mac, known.unwrap_or_default(), tuple, segment, egress)
        else {
            return self.drops.count(DropReason::NoRoute);
        };
        match known {
            Some(_) => self.transmit(nic, packet, now),
            None => self.hold(
                nic,
                next_hop,
                WaitingPacket {
                    packet,
                    owner: notified,
                },
                purpose,
                now,
            ),
        }
    }

    /// Sends a reply to a frame from the station `from`. The packet is complete except for the destination MAC address.
    pub(crate) fn output(
        &mut self,
        nic: &mut Nic,
        destination: IpAddr,
        from: Option<MacAddr>,
        packet: TxPacket,
        now: Instant,
    ) {
        let purpose = Purpose::Answer { from };
        let Ok(next_hop) = self.routes.next_hop(destination) else {
            return self.drops.count(DropReason::NoRoute);
        };
        match self.hardware_address(next_hop, purpose, now) {
            Some(mac) => self.transmit(nic, addressed(packet, mac), now),
            None => self.hold(
                nic,
                next_hop,
                WaitingPacket {
                    packet,
                    owner: None,
                },
                purpose,
                now,
            ),
        }
    }

    /// Returns the hardware address of a host on the link if it is known. For a local address that is the NIC's own: the
    /// NIC receives what is sent to it.
    fn hardware_address(
        &mut self,
        next_hop: IpAddr,
        purpose: Purpose,
        now: Instant,
    ) -> Option<MacAddr> {
        match (self.routes.is_ours(next_hop), self.point_to_point) {
            (true, _) => Some(self.mac),
            (false, Some(peer)) => Some(peer),
            (false, None) => self.neighbors.lookup(next_hop, purpose, now),
        }
    }

    /// Sends a frame without payload.
    pub(crate) fn send_frame(&mut self, nic: &mut Nic, head: HeadBuf, now: Instant) {
        self.transmit(
            nic,
            TxPacket {
                head,
                payload: FragList::default(),
                checksum: None,
                gso_size: 0,
            },
            now,
        );
    }

    /// Sends the packets that waited for the address `mac`.
    pub(crate) fn send_waited(
        &mut self,
        nic: &mut Nic,
        mac: MacAddr,
        waited: Vec<WaitingPacket>,
        now: Instant,
    ) {
        for WaitingPacket { packet, .. } in waited {
            self.transmit(nic, addressed(packet, mac), now);
        }
    }

    /// Passes a packet to the NIC, which counts the packets that it drops.
    fn transmit(&mut self, nic: &mut Nic, packet: TxPacket, now: Instant) {
        self.tx_packets += 1;
        // A dropped packet is retransmitted like one that is lost on the link.
        let _ = nic.transmit(packet, now);
    }

    fn hold(
        &mut self,
        nic: &mut Nic,
        next_hop: IpAddr,
        waiting: WaitingPacket,
        purpose: Purpose,
        now: Instant,
    ) {
        match (
            self.neighbors.hold(next_hop, waiting, purpose, now),
            purpose,
        ) {
            (HoldOutcome::Waits, _) => {}
            (HoldOutcome::GaveWay(_), Purpose::Connection) => {
                self.drops.count(DropReason::NeighborQueueFull);
            }
            (HoldOutcome::GaveWay(_), Purpose::Answer { .. }) => {
                self.drops.count(DropReason::NeighborAnswersFull);
            }
            (HoldOutcome::NotAsked(_), _) => self.drops.count(DropReason::NeighborAskLimited),
        }
        self.poll_neighbors(nic, now);
    }

    /// Sends the requests for neighbours that are due. Connections with a neighbour that did not answer are queued for
    /// [`Network::pop_failed`].
    pub(crate) fn poll_neighbors(&mut self, nic: &mut Nic, now: Instant) {
        while let Some(action) = self.neighbors.poll(now) {
            match action {
                NeighborAction::Solicit { ip, known } => self.solicit(nic, ip, known, now),
                NeighborAction::Unreachable { held, .. } => {
                    for WaitingPacket { owner, .. } in held {
                        self.drops.count(DropReason::NeighborFailed);
                        self.failed.extend(owner);
                    }
                }
            }
        }
    }

    /// Returns a connection with a neighbour that did not answer, and the sequence number of the segment that waited.
    pub(crate) fn pop_failed(&mut self) -> Option<(SocketId, SeqNum)> {
        self.failed.pop_front()
    }

    /// Sends a request for `ip`: to `known` if it is set, else broadcast or multicast.
    fn solicit(&mut self, nic: &mut Nic, ip: IpAddr, known: Option<MacAddr>, now: Instant) {
        let Ok(route) = self.routes.route(ip) else {
            return;
        };
        let mac = self.mac;
        let head = match (ip, route.source) {
            (IpAddr::V4(target), IpAddr::V4(source)) => {
                let arp = ArpPacket::request(mac, source, target);
                self.arp_frame(known.unwrap_or(MacAddr::BROADCAST), &arp)
            }
            (IpAddr::V6(target), IpAddr::V6(source)) => {
                let group = solicited_node(target);
                let (to_mac, to) = match known {
                    Some(known) => (known, target),
                    None => (MacAddr::for_ipv6_multicast(group), group),
                };
                let asked = NeighborSolicitation {
                    target,
                    source_mac: Some(mac),
                };
                HeadBuf::with(|out| asked.emit_frame(mac, to_mac, source, to, out))
            }
            _ => return,
        };
        self.send_frame(nic, head, now);
    }
}

/// Returns the IP header of a segment; `None` if the addresses are of two families.
fn ip_header(tuple: &FourTuple, egress: Egress, ecn: Ecn) -> Option<IpRepr> {
    let Egress {
        next_hop: _,
        tos,
        hop_limit,
        ident,
    } = egress;
    let ip = IpRepr::new(tuple.dst_ip, tuple.src_ip)?.with_tos(tos & !Ecn::MASK | ecn.bits());
    let ip = hop_limit.map_or(ip, |hops| ip.with_hop_limit(hops));
    Some(ident.map_or(ip, |ident| ip.with_fragmentation(ident)))
}

/// Writes all headers of a segment; `None` if the addresses belong to different families.
///
/// The NIC computes the checksum: only the NIC can read the payload.
fn emit_headers(
    src: MacAddr,
    dst: MacAddr,
    tuple: &FourTuple,
    segment: Segment<FragList>,
    egress: Egress,
) -> Option<TxPacket> {
    let flags = flags(&segment);
    let Segment {
        seq,
        ack,
        control: _,
        fin_after_syn: _,
        push: _,
        ece: _,
        cwr: _,
        ae: _,
        ecn,
        window,
        options,
        payload,
        gso_size,
        packets: _,
    } = segment;
    let ip = ip_header(tuple, egress, ecn)?;
    let ethertype = if tuple.dst_ip.is_ipv4() {
        EtherType::IPV4
    } else {
        EtherType::IPV6
    };
    let ethernet = EthernetHeader {
        dst,
        src,
        ethertype,
        vlan: None,
    };
    let tcp = TcpHeader {
        src_port: tuple.dst_port,
        dst_port: tuple.src_port,
        seq: seq.0,
        ack: ack.map_or(0, |ack| ack.0),
        flags,
        window,
        urgent: 0,
        options,
        header_len: TcpHeader::LEN,
    };
    let head =
        HeadBuf::with(|out| emit_tcp_frame_headers(&ethernet, &ip, &tcp, payload.len(), out));
    let checksum = Some(tcp_tx_checksum(head.as_slice().len(), &tcp));
    // Payload that fits into one packet is not segmented.
    let gso_size = if payload.len() > usize::from(gso_size) {
        gso_size
    } else {
        0
    };
    Some(TxPacket {
        head,
        payload,
        checksum,
        gso_size,
    })
}

/// Returns the flags of a segment.
fn flags(segment: &Segment<FragList>) -> TcpFlags {
    let control = match segment.control {
        Control::None => TcpFlags::empty(),
        Control::Syn => TcpFlags::SYN,
        Control::Fin => TcpFlags::FIN,
        Control::Rst => TcpFlags::RST,
    };
    let when = |flag, is_set| if is_set { flag } else { TcpFlags::empty() };
    control
        | when(TcpFlags::ACK, segment.ack.is_some())
        | when(TcpFlags::PSH, segment.push)
        | when(TcpFlags::ECE, segment.ece)
        | when(TcpFlags::CWR, segment.cwr)
        | when(TcpFlags::AE, segment.ae)
}

/// Writes the destination MAC address into a finished frame.
fn addressed(packet: TxPacket, dst: MacAddr) -> TxPacket {
    let head = HeadBuf::with(|out| {
        let bytes = packet.head.as_slice();
        out[..bytes.len()].copy_from_slice(bytes);
        out[..dst.0.len()].copy_from_slice(&dst.0);
        bytes.len()
    });
    TxPacket { head, ..packet }
}
