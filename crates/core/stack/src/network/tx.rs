//! Packets on their way out: headers, the neighbour's address, the NIC.

use std::net::IpAddr;

use netmem::{FragList, Payload};
use nic::{HeadBuf, TxPacket};
use tcp::{Control, Segment, SeqNum};
use wire::{
    ArpPacket, Ecn, EtherType, EthernetHeader, FourTuple, Instant, IpRepr, MacAddr,
    NeighborSolicitation, TcpFlags, TcpHeader, emit_arp_frame, emit_tcp_frame_headers,
    solicited_node, tcp_tx_checksum,
};

use super::Network;
use crate::drops::DropReason;
use crate::neighbor::{Hold, NeighborAction, Purpose};
use crate::socket::SocketId;
use crate::socket::sockopt::Options;

/// A packet that waits for its neighbour's address.
#[derive(Debug)]
pub(crate) struct Waiting {
    packet: TxPacket,
    /// Socket to notify if resolution fails, and the sequence number of its segment.
    owner: Option<(SocketId, SeqNum)>,
}

/// What a segment belongs to.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Speaker {
    /// A connection, notified if its neighbour cannot be found.
    Connection(SocketId),
    /// No connection: the segment answers one that anybody may have sent, from this station if its
    /// frame is at hand.
    Answer(Option<MacAddr>),
}

impl Speaker {
    const fn purpose(self) -> Purpose {
        match self {
            Self::Connection(_) => Purpose::Connection,
            Self::Answer(from) => Purpose::Answer { from },
        }
    }
}

/// How a segment leaves.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Egress {
    /// Whose MAC address the frame bears.
    pub(crate) next_hop: IpAddr,
    /// Differentiated services of the IP header; the ECN field is the segment's.
    pub(crate) tos: u8,
    /// Routers that may pass it on (IP_TTL); `None`: as many as usual.
    pub(crate) hop_limit: Option<u8>,
}

impl Egress {
    /// Returns the way of an ordinary packet.
    pub(crate) const fn to(next_hop: IpAddr) -> Self {
        Self {
            next_hop,
            tos: 0,
            hop_limit: None,
        }
    }
}

impl Network {
    /// Returns the header of a frame from us.
    pub(crate) fn ethernet(&self, dst: MacAddr, ethertype: EtherType) -> EthernetHeader {
        EthernetHeader {
            dst,
            src: self.mac(),
            ethertype,
            vlan: None,
        }
    }

    /// Sends the answer to a segment that belongs to no connection.
    pub(crate) fn send_control(
        &mut self,
        tuple: &FourTuple,
        from: Option<MacAddr>,
        segment: Segment<FragList>,
        now: Instant,
    ) {
        let speaker = Speaker::Answer(from);
        match self.routes.next_hop(tuple.src_ip) {
            Ok(next_hop) => self.send_segment(tuple, Egress::to(next_hop), speaker, segment, now),
            Err(_) => self.drops.count(DropReason::NoRoute),
        }
    }

    /// Sends a segment of a handshake that a listener with these options leads; `from`: as for
    /// [`Speaker::Answer`].
    pub(crate) fn send_syn_ack(
        &mut self,
        tuple: &FourTuple,
        from: Option<MacAddr>,
        options: &Options,
        segment: Segment<FragList>,
        now: Instant,
    ) {
        let egress = |next_hop| Egress {
            next_hop,
            tos: options.tos,
            hop_limit: options.hop_limit,
        };
        let speaker = Speaker::Answer(from);
        match self.routes.next_hop(tuple.src_ip) {
            Ok(next_hop) => self.send_segment(tuple, egress(next_hop), speaker, segment, now),
            Err(_) => self.drops.count(DropReason::NoRoute),
        }
    }

    /// Sends a segment of the connection `tuple` (named as its received packets are).
    pub(crate) fn send_segment(
        &mut self,
        tuple: &FourTuple,
        egress: Egress,
        speaker: Speaker,
        segment: Segment<FragList>,
        now: Instant,
    ) {
        let (next_hop, purpose) = (egress.next_hop, speaker.purpose());
        let known = self.hardware_address(next_hop, purpose, now);
        let owner = match speaker {
            Speaker::Connection(owner) => Some((owner, segment.seq)),
            Speaker::Answer(_) => None,
        };
        let Some(packet) = emit_headers(
            self.mac(),
            known.unwrap_or_default(),
            tuple,
            segment,
            egress,
        ) else {
            return self.drops.count(DropReason::NoRoute);
        };
        match known {
            Some(_) => self.transmit(packet, now),
            None => self.hold(next_hop, Waiting { packet, owner }, purpose, now),
        }
    }

    /// Sends an answer, to a frame from the station `from`, that lacks nothing but the destination's MAC address.
    pub(crate) fn output(
        &mut self,
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
            Some(mac) => self.transmit(addressed(packet, mac), now),
            None => self.hold(
                next_hop,
                Waiting {
                    packet,
                    owner: None,
                },
                purpose,
                now,
            ),
        }
    }

    /// Returns the hardware address of a host on the link if it is known. Our own is: the NIC takes back what is sent
    /// to it.
    fn hardware_address(
        &mut self,
        next_hop: IpAddr,
        purpose: Purpose,
        now: Instant,
    ) -> Option<MacAddr> {
        match (self.routes.is_ours(next_hop), self.point_to_point) {
            (true, _) => Some(self.mac()),
            (false, Some(peer)) => Some(peer),
            (false, None) => self.neighbors.lookup(next_hop, purpose, now),
        }
    }

    /// Sends a frame that is all head.
    pub(crate) fn send_frame(&mut self, head: HeadBuf, now: Instant) {
        self.transmit(
            TxPacket {
                head,
                payload: FragList::default(),
                checksum: None,
                gso_size: 0,
            },
            now,
        );
    }

    /// Sends what waited for `mac`.
    pub(crate) fn send_waited(&mut self, mac: MacAddr, waited: Vec<Waiting>, now: Instant) {
        for Waiting { packet, .. } in waited {
            self.transmit(addressed(packet, mac), now);
        }
    }

    /// Hands a packet to the NIC, which counts what it cannot take.
    fn transmit(&mut self, packet: TxPacket, now: Instant) {
        self.tx_packets += 1;
        // A packet that is lost here is lost like one on the link; the NIC has counted it under its
        // reason.
        let _ = self.nic.transmit(packet, now);
    }

    fn hold(&mut self, next_hop: IpAddr, waiting: Waiting, purpose: Purpose, now: Instant) {
        match (
            self.neighbors.hold(next_hop, waiting, purpose, now),
            purpose,
        ) {
            (Hold::Waits, _) => {}
            (Hold::GaveWay(_), Purpose::Connection) => {
                self.drops.count(DropReason::NeighborQueueFull);
            }
            (Hold::GaveWay(_), Purpose::Answer { .. }) => {
                self.drops.count(DropReason::NeighborAnswersFull);
            }
            (Hold::NotAsked(_), _) => self.drops.count(DropReason::NeighborAskLimited),
        }
        self.poll_neighbors(now);
    }

    /// Asks for neighbours that are due to be asked for, and gives up those that never answered: see
    /// [`Network::pop_failed`].
    pub(crate) fn poll_neighbors(&mut self, now: Instant) {
        while let Some(action) = self.neighbors.poll(now) {
            match action {
                NeighborAction::Solicit { ip, known } => self.solicit(ip, known, now),
                NeighborAction::Unreachable { held, .. } => {
                    for Waiting { owner, .. } in held {
                        self.drops.count(DropReason::NeighborFailed);
                        self.failed.extend(owner);
                    }
                }
            }
        }
    }

    /// Takes a connection whose neighbour did not answer, with the sequence number of the segment that waited for it.
    pub(crate) fn pop_failed(&mut self) -> Option<(SocketId, SeqNum)> {
        self.failed.pop_front()
    }

    /// Asks who has `ip`: everybody (or the group of those who may), or just `known` whether it
    /// still has.
    fn solicit(&mut self, ip: IpAddr, known: Option<MacAddr>, now: Instant) {
        let Ok(route) = self.routes.route(ip) else {
            return;
        };
        let mac = self.mac();
        let head = match (ip, route.source) {
            (IpAddr::V4(target), IpAddr::V4(source)) => {
                let ethernet = self.ethernet(known.unwrap_or(MacAddr::BROADCAST), EtherType::ARP);
                let arp = ArpPacket::request(mac, source, target);
                HeadBuf::with(|out| emit_arp_frame(&ethernet, &arp, out))
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
                HeadBuf::with(|out| asked.emit_frame((mac, to_mac), (source, to), out))
            }
            _ => return,
        };
        self.send_frame(head, now);
    }

    /// Tells the link which addresses are ours now: gratuitous ARP (RFC 5227 3), unsolicited
    /// advertisements (RFC 4861 7.2.6).
    pub(crate) fn announce(&mut self, now: Instant) {
        let mac = self.mac();
        let ours: Vec<IpAddr> = self.routes.addresses().collect();
        for ip in ours {
            let head = match ip {
                IpAddr::V4(ip) => {
                    let ethernet = self.ethernet(MacAddr::BROADCAST, EtherType::ARP);
                    HeadBuf::with(|out| {
                        emit_arp_frame(&ethernet, &ArpPacket::request(mac, ip, ip), out)
                    })
                }
                IpAddr::V6(target) => {
                    let all_nodes = std::net::Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1);
                    let macs = (mac, MacAddr::for_ipv6_multicast(all_nodes));
                    let told = wire::NeighborAdvertisement {
                        target,
                        target_mac: Some(mac),
                        router: false,
                        solicited: false,
                        overrides: true,
                    };
                    HeadBuf::with(|out| told.emit_frame(macs, (target, all_nodes), out))
                }
            };
            self.send_frame(head, now);
        }
    }
}

/// Writes all headers of a segment; `None` if the tuple's addresses are of two families.
///
/// The checksum is left to the NIC, which may read the payload.
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
    let Egress {
        next_hop: _,
        tos,
        hop_limit,
    } = egress;
    let ip = IpRepr::new(tuple.dst_ip, tuple.src_ip)?.with_tos(tos & !Ecn::MASK | ecn.bits());
    let ip = hop_limit.map_or(ip, |hops| ip.with_hop_limit(hops));
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
    // A payload that fits one packet is no super-packet.
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

/// Writes the destination into a frame that was made before it was known.
fn addressed(packet: TxPacket, dst: MacAddr) -> TxPacket {
    let head = HeadBuf::with(|out| {
        let bytes = packet.head.as_slice();
        out[..bytes.len()].copy_from_slice(bytes);
        out[..dst.0.len()].copy_from_slice(&dst.0);
        bytes.len()
    });
    TxPacket { head, ..packet }
}
