//! The frames of a DHCP client on its socket.

use std::net::Ipv4Addr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use nic::{VnetFd, VnetHeaderLen};
use wire::{
    ARP_LEN, ArpPacket, ChecksumState, EtherType, EthernetHeader, IpRepr, MacAddr, Network,
    RxHeaders, Transport, TxChecksum, UdpHeader, VnetHeader, emit_arp_frame, emit_frame_headers,
    fill_checksum, protocol,
};

use super::client::Output;
use super::message::{Reply, Request};

/// Ports of DHCP (RFC 2131 4.1).
const CLIENT: u16 = 68;
const SERVER: u16 = 67;
/// Longest frame that is read: longer ones are not for a client that says what it can take.
const MAX_FRAME: usize = 2048;
/// Room for Ethernet, IPv4 and UDP headers.
const MAX_HEADERS: usize = 64;

/// A socket for DHCP and ARP of one station.
#[derive(Debug)]
pub(crate) struct LeasePort {
    fd: VnetFd,
    mac: MacAddr,
    frame: Box<[u8; MAX_FRAME]>,
}

/// What a received frame says.
#[derive(Debug)]
pub(super) enum Heard {
    /// A message of a server, from that station.
    Reply(Reply, [u8; 6]),
    /// A station has the address.
    InUse(Ipv4Addr),
    /// Nothing for a client.
    Nothing,
}

impl LeasePort {
    /// Wraps a packet socket with a virtio-net header of 10 bytes.
    pub(crate) fn new(socket: OwnedFd, mac: MacAddr) -> Self {
        Self {
            fd: VnetFd::new(socket, VnetHeaderLen::Ten),
            mac,
            frame: Box::new([0; MAX_FRAME]),
        }
    }

    pub(super) fn mac(&self) -> MacAddr {
        self.mac
    }

    /// Sends a frame. It may be lost, as any frame: the client sends again what is not answered.
    pub(super) fn send(&self, output: &Output) {
        let frame = match output {
            Output::Probe(address) => {
                let probe = ArpPacket::request(self.mac, Ipv4Addr::UNSPECIFIED, *address);
                let ethernet = self.ethernet(MacAddr::BROADCAST, EtherType::ARP);
                let mut frame = vec![0; MAX_HEADERS];
                let len = emit_arp_frame(&ethernet, &probe, &mut frame);
                frame.truncate(len);
                frame
            }
            Output::Broadcast(request) => {
                self.datagram(MacAddr::BROADCAST, Ipv4Addr::BROADCAST, request)
            }
            Output::ToServer(request, lease) => {
                let (server, mac) = lease.server();
                self.datagram(MacAddr(mac), server, request)
            }
        };
        let _ = self.fd.write(VnetHeader::default(), &frame);
    }

    fn ethernet(&self, dst: MacAddr, ethertype: EtherType) -> EthernetHeader {
        EthernetHeader {
            dst,
            src: self.mac,
            ethertype,
            vlan: None,
        }
    }

    fn datagram(&self, to: MacAddr, server: Ipv4Addr, request: &Request) -> Vec<u8> {
        let payload = request.emit();
        let len = UdpHeader::LEN + payload.len();
        let source = request.current.unwrap_or(Ipv4Addr::UNSPECIFIED);
        let ip = IpRepr::v4(source, server);
        let ethernet = self.ethernet(to, EtherType::IPV4);
        let mut frame = vec![0; MAX_HEADERS];
        let at = emit_frame_headers(&ethernet, &ip, protocol::UDP, len, &mut frame);
        let udp = UdpHeader {
            src_port: CLIENT,
            dst_port: SERVER,
            // A message has 300 bytes.
            length: len as u16,
            checksum: ip.pseudo_header(protocol::UDP, len as u32).partial(),
        };
        let end = at + udp.emit(&mut frame[at..]);
        frame.truncate(end);
        frame.extend_from_slice(&payload);
        let what = TxChecksum {
            start: at as u16,
            offset: UdpHeader::CHECKSUM_OFFSET as u16,
        };
        fill_checksum(&mut frame, 0, what);
        frame
    }

    /// Takes a frame that has arrived; `None` if there is none.
    pub(super) fn receive(&mut self) -> Option<Heard> {
        let (len, header) = self.fd.read(&mut self.frame[..]).ok()??;
        let frame = self.frame.get(..len)?;
        let judged = header.offload().checksum;
        Some(understand(frame, judged).unwrap_or(Heard::Nothing))
    }
}

impl AsFd for LeasePort {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// Parses a frame; `None` if it is malformed, or not for a client.
pub(super) fn understand(frame: &[u8], checksum: ChecksumState) -> Option<Heard> {
    let headers = RxHeaders::parse(frame, frame.len()).ok()?;
    let rest = frame.get(headers.header_len..)?;
    if headers.network == Network::Arp {
        let arp = ArpPacket::parse(rest.get(..ARP_LEN)?).ok()?;
        // A station that asks without an address is about to take the target (RFC 5227 2.1.1).
        let claimed = match arp.sender_ip.is_unspecified() {
            true => arp.target_ip,
            false => arp.sender_ip,
        };
        return Some(Heard::InUse(claimed));
    }
    let Transport::Udp(udp) = headers.transport else {
        return None;
    };
    let ports = (udp.src_port, udp.dst_port);
    if ports != (SERVER, CLIENT) || !is_intact(&headers, &udp, frame, checksum) {
        return None;
    }
    let reply = Reply::parse(rest.get(..headers.payload_len)?)?;
    Some(Heard::Reply(reply, headers.ethernet.src.0))
}

/// Returns whether the checksum of a datagram is right, is not needed, or was judged already.
fn is_intact(headers: &RxHeaders, udp: &UdpHeader, frame: &[u8], state: ChecksumState) -> bool {
    if udp.checksum == 0 || !matches!(state, ChecksumState::Unknown) {
        return true;
    }
    let end = headers.header_len + headers.payload_len;
    let datagram = headers.l4_offset().and_then(|at| frame.get(at..end));
    datagram.is_some_and(|datagram| {
        let sum = headers.pseudo_header(datagram.len());
        sum.is_some_and(|mut sum| {
            sum.add_bytes(datagram);
            sum.finish() == 0
        })
    })
}
