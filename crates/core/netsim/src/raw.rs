//! A peer that sends hand-written frames, for traffic that no correct stack sends.

use std::collections::VecDeque;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use nic::{Link, LinkCaps, LinkReceived, LinkSent, Nic, NicConfig, Posted, TxFrame, VnetMeta};
use stack::{PollUntil, Secret, Stack, StackConfig};
use wire::{
    EtherType, EthernetHeader, Instant, IpRepr, RxHeaders, TcpFlags, TcpHeader, emit_frame_headers,
    emit_tcp_frame_headers, fill_checksum, tcp_tx_checksum,
};

use crate::pair::{STEP, Side};

/// A link to a test.
#[derive(Debug, Clone, Default)]
struct HandLink(Arc<Mutex<Lanes>>);

#[derive(Debug, Default)]
struct Lanes {
    to_stack: VecDeque<Vec<u8>>,
    from_stack: VecDeque<Vec<u8>>,
    is_full: bool,
}

impl HandLink {
    fn lanes(&self) -> MutexGuard<'_, Lanes> {
        // Each lock holder leaves the queues consistent, so a panic elsewhere does not matter.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Link for HandLink {
    fn caps(&self) -> LinkCaps {
        LinkCaps {
            name: "hand",
            // The MTU of the NIC applies.
            mtu: u16::MAX,
            tso: false,
            max_super_packet: nic::MAX_PACKET_LEN,
            max_rx_packet: nic::MAX_PACKET_LEN,
            tx_checksum: false,
            borrows: false,
        }
    }

    fn receive(&mut self, posted: &mut Posted<'_>, _: Instant) -> io::Result<LinkReceived> {
        match self.lanes().to_stack.pop_front() {
            None => Ok(LinkReceived::None),
            Some(frame) => {
                *posted.frame = frame;
                Ok(LinkReceived::Frame {
                    meta: VnetMeta::default(),
                })
            }
        }
    }

    fn send(&mut self, frame: &TxFrame<'_>, _: Instant) -> io::Result<LinkSent> {
        let mut lanes = self.lanes();
        if lanes.is_full {
            return Ok(LinkSent::Busy);
        }
        let mut bytes = Vec::new();
        frame.copy_to(&mut bytes);
        lanes.from_stack.push_back(bytes);
        Ok(LinkSent::Done)
    }

    /// Returns true while the link is full: the test polls the stack after making room.
    fn tells_of_room(&self) -> bool {
        self.lanes().is_full
    }
}

/// One stack (side B), and a test that writes and reads frames at the other end of the wire (as side
/// A).
#[derive(Debug)]
pub struct RawPeer {
    /// The stack.
    pub stack: Stack,
    link: HandLink,
    now: Instant,
}

impl RawPeer {
    /// Returns a stack with side B's addresses.
    ///
    /// # Panics
    /// If memory cannot be allocated.
    pub fn new() -> Self {
        Self::with(|_, _| {})
    }

    /// Returns a stack with side B's addresses, with a configuration that `change` has modified.
    ///
    /// # Panics
    /// If the configuration is invalid, or memory cannot be allocated.
    pub fn with(change: impl FnOnce(&mut NicConfig, &mut StackConfig)) -> Self {
        let mut nic = NicConfig {
            mac: Side::B.mac(),
            ..NicConfig::default()
        };
        let mut config = StackConfig {
            addresses: vec![(Side::B.ipv4(), 24), (Side::B.ipv6(), 64)],
            ..StackConfig::new(Side::B.ipv4(), 24, Secret::from_seed(1))
        };
        change(&mut nic, &mut config);
        let link = HandLink::default();
        let nic = Nic::new(Box::new(link.clone()), nic).expect("a configuration that can be");
        let stack = Stack::new(nic, config).expect("a configuration that can be");
        Self {
            stack,
            link,
            now: Instant::from_millis(1),
        }
    }

    /// Returns the virtual time.
    pub fn now(&self) -> Instant {
        self.now
    }

    /// Sends a frame and polls the stack.
    pub fn send(&mut self, frame: &[u8]) {
        self.link.lanes().to_stack.push_back(frame.to_vec());
        self.poll();
    }

    /// Sends a frame that the stack receives `late` after it read its clock, as if its thread had been descheduled.
    pub fn send_late(&mut self, frame: &[u8], late: Duration) {
        self.link.lanes().to_stack.push_back(frame.to_vec());
        let looked_at = self.now;
        self.now = self.now + late;
        let mut readings = [looked_at].into_iter().chain(std::iter::repeat(self.now));
        self.stack.poll_by(PollUntil::Empty, &mut || {
            readings.next().unwrap_or(looked_at)
        });
    }

    /// Polls the stack until it is idle at the current time.
    pub fn poll(&mut self) {
        while self.stack.poll(self.now).worked {
            self.now = self.now + STEP;
        }
    }

    /// Advances the virtual time by `duration`, polling the stack at its deadlines.
    pub fn run_for(&mut self, duration: Duration) {
        let end = self.now + duration;
        while self.now < end {
            self.poll();
            let next = self.stack.next_deadline().unwrap_or(end);
            self.now = next.max(self.now + STEP).min(end);
        }
        self.poll();
    }

    /// Returns the next frame from the stack.
    pub fn receive(&mut self) -> Option<Vec<u8>> {
        self.link.lanes().from_stack.pop_front()
    }

    /// Makes the link refuse all frames of the stack, or accept them again.
    pub fn fill_link(&mut self, is_full: bool) {
        self.link.lanes().is_full = is_full;
    }

    /// Drops the frames that the stack has sent so far.
    pub fn forget(&mut self) {
        self.link.lanes().from_stack.clear();
    }

    /// Returns the next TCP segment from the stack; answers requests for our MAC address before it.
    pub fn receive_tcp(&mut self) -> Option<(RxHeaders, Vec<u8>)> {
        loop {
            let frame = self.receive()?;
            let headers =
                RxHeaders::parse(&frame, frame.len()).expect("the stack sends frames that parse");
            if headers.tcp().is_some() {
                let payload =
                    frame[headers.header_len..headers.header_len + headers.payload_len].to_vec();
                return Some((headers, payload));
            }
        }
    }

    /// Resolves side A's address in the stack's neighbour table, and drops the frames of that exchange.
    pub fn introduce(&mut self) {
        self.poll();
        for ip in [Side::A.ipv4(), Side::A.ipv6()] {
            let frame = match (ip, Side::B.ipv6()) {
                (IpAddr::V4(ours), _) => {
                    let IpAddr::V4(theirs) = Side::B.ipv4() else {
                        continue;
                    };
                    let ethernet = ethernet(EtherType::ARP);
                    let arp = wire::ArpPacket::request(Side::A.mac(), ours, theirs);
                    let mut frame = vec![0; 64];
                    let len = wire::emit_arp_frame(&ethernet, &arp, &mut frame);
                    frame.truncate(len);
                    frame
                }
                (IpAddr::V6(ours), IpAddr::V6(theirs)) => {
                    let asked = wire::NeighborSolicitation {
                        target: theirs,
                        source_mac: Some(Side::A.mac()),
                    };
                    let mut frame = vec![0; 128];
                    let len =
                        asked.emit_frame(Side::A.mac(), Side::B.mac(), ours, theirs, &mut frame);
                    frame.truncate(len);
                    frame
                }
                _ => continue,
            };
            self.send(&frame);
        }
        self.forget();
    }

    /// Answers every request for side A's MAC address and returns the headers of all other frames.
    ///
    /// # Panics
    /// If the stack sends a frame that does not parse.
    pub fn answer_arp(&mut self) -> Vec<RxHeaders> {
        let mut others = Vec::new();
        while let Some(frame) = self.receive() {
            let headers =
                RxHeaders::parse(&frame, frame.len()).expect("the stack sends frames that parse");
            let arp = wire::ArpPacket::parse(&frame[headers.header_len..]);
            match (headers.network, arp) {
                (wire::Network::Arp, Ok(arp)) if IpAddr::V4(arp.target_ip) == Side::A.ipv4() => {
                    let mut reply = vec![0; 64];
                    let len = wire::emit_arp_frame(
                        &ethernet(EtherType::ARP),
                        &arp.reply(Side::A.mac()),
                        &mut reply,
                    );
                    reply.truncate(len);
                    self.send(&reply);
                }
                _ => others.push(headers),
            }
        }
        others
    }

    /// Sends a TCP segment from `from` to `to`.
    pub fn send_tcp(&mut self, from: SocketAddr, to: SocketAddr, segment: &RawSegment<'_>) {
        let frame = tcp_frame(from, to, segment);
        self.send(&frame);
    }

    /// Sends an IP packet with this payload.
    pub fn send_ip(&mut self, ip: &IpRepr, protocol: u8, payload: &[u8]) {
        let frame = ip_frame(ip, protocol, payload);
        self.send(&frame);
    }
}

impl Default for RawPeer {
    fn default() -> Self {
        Self::new()
    }
}

/// A hand-written segment.
#[derive(Debug, Clone, Copy)]
pub struct RawSegment<'a> {
    /// Sequence number.
    pub seq: u32,
    /// Acknowledgement number, if the ACK flag is set.
    pub ack: u32,
    /// Flags.
    pub flags: TcpFlags,
    /// Window field.
    pub window: u16,
    /// Urgent pointer.
    pub urgent: u16,
    /// Options.
    pub options: wire::TcpOptions,
    /// Payload.
    pub payload: &'a [u8],
}

impl Default for RawSegment<'_> {
    fn default() -> Self {
        Self {
            seq: 0,
            ack: 0,
            flags: TcpFlags::ACK,
            window: 65_535,
            urgent: 0,
            options: wire::TcpOptions::default(),
            payload: &[],
        }
    }
}

/// Returns the frame of a TCP segment from side A's MAC address to side B's, with valid checksums.
pub fn tcp_frame(from: SocketAddr, to: SocketAddr, segment: &RawSegment<'_>) -> Vec<u8> {
    let RawSegment {
        seq,
        ack,
        flags,
        window,
        urgent,
        options,
        payload,
    } = *segment;
    let ip = IpRepr::new(from.ip(), to.ip()).expect("one family");
    let ethertype = if from.is_ipv4() {
        EtherType::IPV4
    } else {
        EtherType::IPV6
    };
    let ethernet = ethernet(ethertype);
    let tcp = TcpHeader {
        src_port: from.port(),
        dst_port: to.port(),
        seq,
        ack,
        flags,
        window,
        urgent,
        options,
        header_len: TcpHeader::LEN,
    };
    let mut frame = vec![0; 160];
    let len = emit_tcp_frame_headers(&ethernet, &ip, &tcp, payload.len(), &mut frame);
    frame.truncate(len);
    let mut sum = wire::Checksum::new();
    sum.add_bytes(payload);
    fill_checksum(&mut frame, sum.partial(), tcp_tx_checksum(len, &tcp));
    frame.extend_from_slice(payload);
    frame
}

/// Returns the frame of an IP packet from side A's MAC address to side B's.
pub fn ip_frame(ip: &IpRepr, protocol: u8, payload: &[u8]) -> Vec<u8> {
    let ethertype = match ip {
        IpRepr::V4 { .. } => EtherType::IPV4,
        IpRepr::V6 { .. } => EtherType::IPV6,
    };
    let mut frame = vec![0; 64];
    let len = emit_frame_headers(
        &ethernet(ethertype),
        ip,
        protocol,
        payload.len(),
        &mut frame,
    );
    frame.truncate(len);
    frame.extend_from_slice(payload);
    frame
}

fn ethernet(ethertype: EtherType) -> EthernetHeader {
    EthernetHeader {
        dst: Side::B.mac(),
        src: Side::A.mac(),
        ethertype,
        vlan: None,
    }
}
