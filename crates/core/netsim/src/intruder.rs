//! A third host on the wire, made by hand, beside two stacks that talk to each other: what an attacker sends while an
//! honest connection runs.

use std::collections::VecDeque;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::BorrowedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use nic::{Link, LinkCaps, LinkReceived, LinkSent, Posted, TxFrame, VnetMeta};
use wire::{EtherType, EthernetHeader, Instant, MacAddr, RxHeaders, TcpFlags};

use crate::pair::Side;
use crate::raw::{RawSegment, tcp_frame};

/// The intruder's hardware address.
const MAC: MacAddr = MacAddr([2, 0, 0, 0, 0, 0xe]);

/// The third host: its frames reach side B only, and it gets what side B sends to its hardware address.
#[derive(Debug, Clone, Default)]
pub struct Intruder(Arc<Mutex<Lanes>>);

#[derive(Debug, Default)]
struct Lanes {
    to_stack: VecDeque<Vec<u8>>,
    from_stack: VecDeque<RxHeaders>,
    /// The next frame that side B receives comes from side A, if there is one.
    is_others_turn: bool,
}

/// A handshake of the intruder with side B that is done.
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
    /// Returns the intruder's address of a family.
    pub fn ip(family_of: IpAddr) -> IpAddr {
        match family_of {
            IpAddr::V4(_) => IpAddr::from([10, 77, 0, 0x66]),
            IpAddr::V6(_) => IpAddr::from([0xfd77, 0, 0, 0, 0, 0, 0, 0x66]),
        }
    }

    /// Puts a frame on the wire to side B.
    pub fn send(&self, frame: Vec<u8>) {
        self.lanes().to_stack.push_back(frame);
    }

    /// Tells side B where the intruder is, so that it need not ask.
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
            let len = asked.emit_frame((MAC, Side::B.mac()), (ours, theirs), &mut frame);
            self.send(frame[..len].to_vec());
        }
    }

    /// Asks side B for a connection from `port` to `to`.
    pub fn send_syn(&self, port: u16, to: SocketAddr) {
        let from = SocketAddr::new(Self::ip(to.ip()), port);
        let syn = RawSegment {
            seq: 1000,
            flags: TcpFlags::SYN,
            ..RawSegment::default()
        };
        self.send(tcp_frame(from, to, &syn));
    }

    /// Takes the SYN-ACK for the connection from `port`, if it has come, and acknowledges it.
    pub fn take_syn_ack(&self, port: u16, to: SocketAddr) -> Option<IntruderConnection> {
        let headers = {
            let mut lanes = self.lanes();
            let is_it = |headers: &RxHeaders| {
                headers.tcp().is_some_and(|tcp| {
                    tcp.dst_port == port && tcp.flags.contains(TcpFlags::SYN | TcpFlags::ACK)
                })
            };
            let at = lanes.from_stack.iter().position(is_it)?;
            lanes.from_stack.remove(at)?
        };
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

    /// Returns how many of the intruder's frames side B has not taken yet.
    pub fn waiting(&self) -> usize {
        self.lanes().to_stack.len()
    }

    /// Takes the headers of the frames that side B sent to the intruder.
    pub fn heard(&self) -> Vec<RxHeaders> {
        self.lanes().from_stack.drain(..).collect()
    }

    /// Returns `link`, side B's end of the wire, with the intruder on it.
    pub(crate) fn on(&self, link: Box<dyn Link>) -> Box<dyn Link> {
        Box::new(Shared {
            link,
            intruder: self.clone(),
        })
    }

    fn lanes(&self) -> MutexGuard<'_, Lanes> {
        // Queues are whole between any two operations, so a panic elsewhere has not harmed them.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Side B's end of the wire, which two hosts send to.
struct Shared {
    link: Box<dyn Link>,
    intruder: Intruder,
}

impl Shared {
    fn receive_intruder(&self, posted: &mut Posted<'_>) -> Option<LinkReceived> {
        *posted.frame = self.intruder.lanes().to_stack.pop_front()?;
        let meta = VnetMeta::default();
        Some(LinkReceived::Frame { meta })
    }
}

impl Link for Shared {
    fn caps(&self) -> LinkCaps {
        self.link.caps()
    }

    fn receive(&mut self, posted: &mut Posted<'_>, now: Instant) -> io::Result<LinkReceived> {
        let is_others_turn = {
            let mut lanes = self.intruder.lanes();
            lanes.is_others_turn = !lanes.is_others_turn;
            lanes.is_others_turn
        };
        if !is_others_turn && let Some(received) = self.receive_intruder(posted) {
            return Ok(received);
        }
        match self.link.receive(posted, now)? {
            LinkReceived::None => Ok(self.receive_intruder(posted).unwrap_or(LinkReceived::None)),
            received => Ok(received),
        }
    }

    fn send(&mut self, frame: &TxFrame<'_>, now: Instant) -> io::Result<LinkSent> {
        let to = EthernetHeader::parse(frame.head).map(|ethernet| ethernet.dst);
        if to != Ok(MAC) {
            return self.link.send(frame, now);
        }
        let mut bytes = Vec::new();
        frame.copy_to(&mut bytes);
        if let Ok(headers) = RxHeaders::parse(&bytes, bytes.len()) {
            self.intruder.lanes().from_stack.push_back(headers);
        }
        Ok(LinkSent::Done)
    }

    fn poll_fd(&self) -> Option<BorrowedFd<'_>> {
        self.link.poll_fd()
    }

    fn next_due(&self) -> Option<Instant> {
        match self.intruder.waiting() {
            0 => self.link.next_due(),
            _ => Some(Instant::ZERO),
        }
    }

    fn is_up(&self) -> bool {
        self.link.is_up()
    }
}
