//! A third station on the wire that attacks side B while the two sides talk to each other, with hand-written frames.

use std::net::{IpAddr, SocketAddr};

use wire::{EtherType, EthernetHeader, RxHeaders, TcpFlags};

use crate::pair::Side;
use crate::raw::{RawSegment, tcp_frame};
use crate::third_station::{MAC, ThirdStation};

/// The intruder: only side B receives its frames, and it receives the frames that side B sends to its hardware address.
#[derive(Debug, Clone)]
pub struct Intruder(ThirdStation);

/// A connection of the intruder with side B, after the handshake.
#[derive(Debug, Clone, Copy)]
pub struct IntruderConnection {
    from: SocketAddr,
    to: SocketAddr,
    /// Sequence number of the first byte that the intruder sends.
    pub first: u32,
    /// Acknowledgement number of everything that side B has sent.
    ack: u32,
}

impl Intruder {
    pub(crate) fn new(station: ThirdStation) -> Self {
        Self(station)
    }

    /// Returns the intruder's address of a family.
    pub fn ip(family_of: IpAddr) -> IpAddr {
        match family_of {
            IpAddr::V4(_) => IpAddr::from([10, 77, 0, 0x66]),
            IpAddr::V6(_) => IpAddr::from([0xfd77, 0, 0, 0, 0, 0, 0, 0x66]),
        }
    }

    /// Puts a frame on the wire to side B.
    pub fn send(&self, frame: Vec<u8>) {
        self.0.send(frame);
    }

    /// Enters the intruder's hardware address into side B's neighbour table.
    pub fn introduce(&self) {
        let ethernet = EthernetHeader {
            dst: Side::B.mac(),
            src: MAC,
            ethertype: EtherType::ARP,
            vlan: None,
        };
        let mut frame = vec![0; 128];
        if let (IpAddr::V4(ours), IpAddr::V4(theirs)) = (Self::ip(Side::B.ipv4()), Side::B.ipv4()) {
            let arp = wire::ArpPacket::request(MAC, ours, theirs);
            let len = wire::emit_arp_frame(&ethernet, &arp, &mut frame);
            self.send(frame[..len].to_vec());
        }
        if let (IpAddr::V6(ours), IpAddr::V6(theirs)) = (Self::ip(Side::B.ipv6()), Side::B.ipv6()) {
            let asked = wire::NeighborSolicitation {
                target: theirs,
                source_mac: Some(MAC),
            };
            let len = asked.emit_frame(MAC, Side::B.mac(), ours, theirs, &mut frame);
            self.send(frame[..len].to_vec());
        }
    }

    /// Sends a SYN from `port` to `to`.
    pub fn send_syn(&self, port: u16, to: SocketAddr) {
        let from = SocketAddr::new(Self::ip(to.ip()), port);
        let syn = RawSegment {
            seq: 1000,
            flags: TcpFlags::SYN,
            ..RawSegment::default()
        };
        self.send(tcp_frame(from, to, &syn));
    }

    /// Takes the SYN-ACK for the connection from `port`, if it has arrived, and acknowledges it.
    pub fn take_syn_ack(&self, port: u16, to: SocketAddr) -> Option<IntruderConnection> {
        let headers = self.0.take_first(|headers| {
            headers.tcp().is_some_and(|tcp| {
                tcp.dst_port == port && tcp.flags.contains(TcpFlags::SYN | TcpFlags::ACK)
            })
        })?;
        let connection = IntruderConnection {
            from: SocketAddr::new(Self::ip(to.ip()), port),
            to,
            first: 1001,
            ack: headers.tcp()?.seq.wrapping_add(1),
        };
        self.send_bytes(&connection, 0, &[]);
        Some(connection)
    }

    /// Sends `payload` as the bytes from `offset` of the connection's stream on.
    pub fn send_bytes(&self, connection: &IntruderConnection, offset: u32, payload: &[u8]) {
        let segment = RawSegment {
            seq: connection.first.wrapping_add(offset),
            ack: connection.ack,
            payload,
            ..RawSegment::default()
        };
        self.send(tcp_frame(connection.from, connection.to, &segment));
    }

    /// Returns how many of the intruder's frames side B has not received yet.
    pub fn waiting(&self) -> usize {
        self.0.unreceived()
    }

    /// Takes the headers of the frames that side B sent to the intruder.
    pub fn heard(&self) -> Vec<RxHeaders> {
        self.0.take_all()
    }
}
