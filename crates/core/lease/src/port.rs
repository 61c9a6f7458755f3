//! The frames by which a host gets its addresses, on a socket for them.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use nic::VnetFd;
use wire::{
    ARP_LEN, ArpPacket, ChecksumState, EtherType, EthernetHeader, Icmp, IpRepr, Ipv6Header,
    MacAddr, NeighborSolicitation, Network, RxHeaders, Transport, TxChecksum, UdpHeader,
    VnetHeader, emit_arp_frame, emit_frame_headers, fill_checksum, protocol, solicited_node,
};

use crate::advertisement::Advertisement;
use crate::autoconf;
use crate::client::Output;
use crate::defence::AddressUse;
use crate::message::{Reply, Request};

/// Ports of DHCP (RFC 2131 4.1).
const CLIENT: u16 = 68;
const SERVER: u16 = 67;
/// Longest frame that is read: longer ones are not for a client that says what it can take.
const MAX_FRAME: usize = 2048;
/// Room for Ethernet, IPv4 and UDP headers.
const MAX_HEADERS: usize = 64;

/// A socket of one station for DHCP, router discovery, and what tells that an address is in use.
#[derive(Debug)]
pub struct LeasePort {
    fd: VnetFd,
    mac: MacAddr,
    frame: Box<[u8; MAX_FRAME]>,
}

/// What a received frame says.
#[derive(Debug)]
pub(crate) enum ReceivedFrame {
    /// A message of a server, from that station.
    Reply(Reply, [u8; 6]),
    /// An advertisement of the router with that link-local address.
    Router(Advertisement, Ipv6Addr),
    /// Another station has the address, or is about to take it.
    AddressUse(IpAddr, AddressUse),
    /// Nothing of interest.
    Nothing,
}

impl LeasePort {
    /// Wraps a packet socket with a virtio-net header of 10 bytes.
    pub fn new(socket: OwnedFd, mac: MacAddr) -> Self {
        Self {
            fd: VnetFd::Queue(socket),
            mac,
            frame: Box::new([0; MAX_FRAME]),
        }
    }

    pub(crate) fn mac(&self) -> MacAddr {
        self.mac
    }

    /// Sends a frame of the autoconfiguration. It may be lost, as any frame.
    pub(crate) fn send_v6(&self, output: autoconf::Output) {
        let mut frame = vec![0; MAX_FRAME];
        let len = match output {
            autoconf::Output::Solicitation => self.solicitation(&mut frame),
            autoconf::Output::Probe(target) => {
                let group = solicited_node(target);
                let asked = NeighborSolicitation {
                    target,
                    source_mac: None,
                };
                let to = MacAddr::for_ipv6_multicast(group);
                asked.emit_frame(self.mac, to, Ipv6Addr::UNSPECIFIED, group, &mut frame)
            }
        };
        let frame = frame.get(..len).unwrap_or_default();
        let _ = self.fd.write(VnetHeader::default(), frame);
    }

    /// Writes a router solicitation (RFC 4861 4.1) from the unspecified address; returns its length.
    fn solicitation(&self, frame: &mut [u8]) -> usize {
        const MESSAGE: [u8; 8] = [133, 0, 0, 0, 0, 0, 0, 0];
        const CHECKSUM_OFFSET: usize = 2;
        let all_routers = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 2);
        let to = MacAddr::for_ipv6_multicast(all_routers);
        let ethernet = self.ethernet(to, EtherType::IPV6);
        let ip = IpRepr::v6(Ipv6Addr::UNSPECIFIED, all_routers).with_hop_limit(255);
        let at = emit_frame_headers(&ethernet, &ip, protocol::ICMPV6, MESSAGE.len(), frame);
        let end = at + MESSAGE.len();
        frame[at..end].copy_from_slice(&MESSAGE);
        let mut sum = ip.pseudo_header(protocol::ICMPV6, MESSAGE.len() as u32);
        sum.add_bytes(&MESSAGE);
        let field = at + CHECKSUM_OFFSET;
        frame[field..field + 2].copy_from_slice(&sum.finish().to_be_bytes());
        end
    }

    /// Sends a frame of DHCP. It may be lost, as any frame: the client sends again what is not answered.
    pub(crate) fn send(&self, output: &Output) {
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
    pub(crate) fn receive(&mut self) -> Option<ReceivedFrame> {
        let (len, header) = self.fd.read(&mut self.frame[..]).ok()??;
        let frame = self.frame.get(..len)?;
        let judged = header.offload().checksum;
        Some(understand(frame, judged, self.mac).unwrap_or(ReceivedFrame::Nothing))
    }
}

impl AsFd for LeasePort {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// Parses a frame; `None` if it is malformed, not for a client, or from the station `mac` itself.
pub(crate) fn understand(
    frame: &[u8],
    checksum: ChecksumState,
    mac: MacAddr,
) -> Option<ReceivedFrame> {
    let headers = RxHeaders::parse(frame, frame.len()).ok()?;
    if headers.ethernet.src == mac {
        return None;
    }
    let rest = frame.get(headers.header_len..)?;
    if headers.network == Network::Arp {
        let arp = ArpPacket::parse(rest.get(..ARP_LEN)?).ok()?;
        // A station that asks without an address is about to take the target (RFC 5227 2.1.1).
        let (ip, what) = match arp.sender_ip.is_unspecified() {
            true => (arp.target_ip, AddressUse::Probe),
            false => (arp.sender_ip, AddressUse::Claim),
        };
        return Some(ReceivedFrame::AddressUse(ip.into(), what));
    }
    if let (Network::Ipv6(ip), Transport::Other(protocol::ICMPV6)) =
        (headers.network, headers.transport)
    {
        return understand_v6(&ip, rest.get(..headers.payload_len)?);
    }
    let Transport::Udp(udp) = headers.transport else {
        return None;
    };
    let ports = (udp.src_port, udp.dst_port);
    if ports != (SERVER, CLIENT) || !is_intact(&headers, &udp, frame, checksum) {
        return None;
    }
    let reply = Reply::parse(rest.get(..headers.payload_len)?)?;
    Some(ReceivedFrame::Reply(reply, headers.ethernet.src.0))
}

/// Parses a message of ICMPv6; its checksum is always there, because routers and hosts compute it themselves.
fn understand_v6(ip: &Ipv6Header, message: &[u8]) -> Option<ReceivedFrame> {
    match Icmp::parse_v6(ip, message).ok()? {
        Icmp::NeighborAdvertisement(told) => Some(ReceivedFrame::AddressUse(
            told.target.into(),
            AddressUse::Claim,
        )),
        // Another station is about to take the address (RFC 4862 5.4.3).
        Icmp::NeighborSolicitation(asked) if ip.src.is_unspecified() => Some(
            ReceivedFrame::AddressUse(asked.target.into(), AddressUse::Probe),
        ),
        // RFC 4861 6.1.2: from the link, so not forwarded.
        Icmp::Other {
            kind: Advertisement::KIND,
            code: 0,
        } if ip.hop_limit == 255 && ip.src.is_unicast_link_local() => {
            let told = Advertisement::parse(message)?;
            Some(ReceivedFrame::Router(told, ip.src))
        }
        _ => None,
    }
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
