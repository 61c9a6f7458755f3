//! All headers of one received frame, verified once.

use std::net::IpAddr;

use crate::arp::ARP_LEN;
use crate::ecn::Ecn;
use crate::ethernet::{EtherType, EthernetHeader};
use crate::head::Head;
use crate::ipv4::Ipv4Header;
use crate::ipv6::Ipv6Header;
use crate::ipv6::{ExtensionHeaders, MAX_EXTENSION_LEN};
use crate::jumbo::JumboPayload;
use crate::parse_error::ParseError;
use crate::protocol;
use crate::tcp::TcpHeader;
use crate::udp::UdpHeader;

/// Bytes of the longest headers that [`RxHeaders::parse`] accepts: a tagged frame with bounded
/// IPv6 extension headers and all TCP options.
pub const MAX_HEADER_LEN: usize =
    EthernetHeader::TAGGED_LEN + Ipv6Header::LEN + MAX_EXTENSION_LEN + TcpHeader::MAX_LEN;
const _: () = assert!(
    MAX_HEADER_LEN >= EthernetHeader::TAGGED_LEN + Ipv4Header::MAX_LEN + TcpHeader::MAX_LEN
        && MAX_HEADER_LEN >= EthernetHeader::TAGGED_LEN + ARP_LEN
);

/// Network layer of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Network {
    /// ARP; the packet itself is payload (see [`ArpPacket::parse`](crate::ArpPacket::parse)).
    Arp,
    /// IPv4.
    Ipv4(Ipv4Header),
    /// IPv6.
    Ipv6(Ipv6Header),
    /// Something else.
    Other,
}

/// Transport layer of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transport {
    /// TCP.
    Tcp(TcpHeader),
    /// UDP.
    Udp(UdpHeader),
    /// Another protocol by its number; its header is payload here.
    Other(u8),
    /// A fragment of an IP packet; transport bytes, if any, are payload here.
    Fragment,
    /// No transport: not an IP packet, or IPv6 with "no next header".
    None,
}

/// Addresses and ports of a connection, in the direction of one packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FourTuple {
    /// Source address.
    pub src_ip: IpAddr,
    /// Destination address.
    pub dst_ip: IpAddr,
    /// Source port.
    pub src_port: u16,
    /// Destination port.
    pub dst_port: u16,
}

impl FourTuple {
    /// Returns the four-tuple of packets in the other direction.
    pub const fn reversed(self) -> Self {
        let Self {
            src_ip,
            dst_ip,
            src_port,
            dst_port,
        } = self;
        Self {
            src_ip: dst_ip,
            dst_ip: src_ip,
            src_port: dst_port,
            dst_port: src_port,
        }
    }
}

/// The verified headers of one frame. Code that has them does not need the header bytes again.
///
/// `header_len + payload_len` never exceeds the frame; bytes after that are padding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RxHeaders {
    /// Ethernet.
    pub ethernet: EthernetHeader,
    /// ARP or IP.
    pub network: Network,
    /// TCP, UDP or other.
    pub transport: Transport,
    /// Bytes of all headers parsed, from the start of the frame.
    pub header_len: usize,
    /// Bytes after the headers, by the IP length where there is one (padding not counted).
    pub payload_len: usize,
}

impl RxHeaders {
    /// Parses the headers of a frame of `frame_len` bytes; `head` contains its first bytes.
    ///
    /// # Errors
    /// [`ParseError::NeedMore`] if `head` is too short; it never asks for more than
    /// [`MAX_HEADER_LEN`] or `frame_len`. Every other error means that the frame is invalid.
    #[inline]
    pub fn parse(head: &[u8], frame_len: usize) -> Result<Self, ParseError> {
        let head = Head::new(head, frame_len);
        let at = EthernetHeader::announced_len(head.slice(0, EthernetHeader::LEN)?);
        let ethernet = EthernetHeader::parse(head.slice(0, at)?)?;
        let network = match ethernet.ethertype {
            EtherType::IPV4 => {
                let (ip, packet) = Ipv4Header::parse(head, at)?;
                let (l4, protocol) = (at + ip.header_len, ip.transport());
                return Self::parse_transport(ethernet, Network::Ipv4(ip), packet, l4, protocol);
            }
            EtherType::IPV6 => return Self::parse_ipv6(ethernet, head, at),
            EtherType::ARP => Network::Arp,
            _ => Network::Other,
        };
        Ok(Self {
            ethernet,
            network,
            transport: Transport::None,
            header_len: at,
            payload_len: frame_len - at,
        })
    }

    /// Parses the transport header at `at` of an IP packet (protocol `None`: a fragment), and returns it with the headers before.
    //
    // It is inlined into `parse`, as everything from there to the options. Out of line, each header is built on the stack and copied
    // into the enclosing structure; wide copies of fields that were just stored one by one stall on store forwarding, which costs as
    // much as the parsing.
    #[inline(always)]
    fn parse_transport(
        ethernet: EthernetHeader,
        network: Network,
        packet: Head<'_>,
        at: usize,
        protocol: Option<u8>,
    ) -> Result<Self, ParseError> {
        let (transport, header_len, end) = match protocol {
            Some(protocol::TCP) => {
                let tcp = TcpHeader::parse(packet, at)?;
                (Transport::Tcp(tcp), at + tcp.header_len, packet.end)
            }
            Some(protocol::UDP) => {
                let udp = UdpHeader::parse(packet.slice(at, UdpHeader::LEN)?)?;
                // The UDP length, not the IP length, bounds the checksum and the payload.
                let end = at + usize::from(udp.length);
                if end > packet.end {
                    return Err(ParseError::BadUdpLength);
                }
                (Transport::Udp(udp), at + UdpHeader::LEN, end)
            }
            Some(protocol::NO_NEXT_HEADER) if matches!(network, Network::Ipv6(_)) => {
                (Transport::None, at, packet.end)
            }
            Some(other) => (Transport::Other(other), at, packet.end),
            None => (Transport::Fragment, at, packet.end),
        };
        Ok(Self {
            ethernet,
            network,
            transport,
            header_len,
            payload_len: end - header_len,
        })
    }

    /// Parses IPv6, its extension headers and what follows them.
    #[inline(always)]
    fn parse_ipv6(ethernet: EthernetHeader, head: Head<'_>, at: usize) -> Result<Self, ParseError> {
        let ip = Ipv6Header::parse(head.slice(at, Ipv6Header::LEN)?)?;
        if ip.payload_len == 0 && head.is_longer_than(at, Ipv6Header::MAX_PACKET_LEN) {
            return Self::parse_big_ipv6(ethernet, ip, head, at);
        }
        let packet = head.packet(at, Ipv6Header::LEN + usize::from(ip.payload_len))?;
        let extensions = ExtensionHeaders::walk(ip.next_header, packet, at + Ipv6Header::LEN)?;
        let protocol = match extensions.fragment {
            true => None,
            false => Some(extensions.transport),
        };
        Self::parse_transport(
            ethernet,
            Network::Ipv6(ip),
            packet,
            extensions.end,
            protocol,
        )
    }

    /// Parses a super-packet too long for its length field: TCP, after a jumbo payload option, or directly after the IPv6 header
    /// (Linux: BIG TCP; later than v6.18 without the option).
    #[cold]
    fn parse_big_ipv6(
        ethernet: EthernetHeader,
        ip: Ipv6Header,
        head: Head<'_>,
        at: usize,
    ) -> Result<Self, ParseError> {
        let start = at + Ipv6Header::LEN;
        let (packet, l4, kind) = match ip.next_header {
            protocol::HOP_BY_HOP => {
                let (next_header, len) =
                    JumboPayload::parse(head.slice(start, JumboPayload::LEN)?)?;
                let packet = head.packet(start, len)?;
                (packet, start + JumboPayload::LEN, next_header)
            }
            kind => (head, start, kind),
        };
        if kind != protocol::TCP {
            return Err(ParseError::ExtensionHeaders);
        }
        Self::parse_transport(ethernet, Network::Ipv6(ip), packet, l4, Some(kind))
    }

    /// Returns the source address of an IP packet.
    pub const fn src_ip(&self) -> Option<IpAddr> {
        match self.network {
            Network::Ipv4(ip) => Some(IpAddr::V4(ip.src)),
            Network::Ipv6(ip) => Some(IpAddr::V6(ip.src)),
            Network::Arp | Network::Other => None,
        }
    }

    /// Returns the destination address of an IP packet.
    pub const fn dst_ip(&self) -> Option<IpAddr> {
        match self.network {
            Network::Ipv4(ip) => Some(IpAddr::V4(ip.dst)),
            Network::Ipv6(ip) => Some(IpAddr::V6(ip.dst)),
            Network::Arp | Network::Other => None,
        }
    }

    /// Returns the ECN field of the IP header; packets without one are [`Ecn::NotEct`].
    pub const fn ecn(&self) -> Ecn {
        match &self.network {
            Network::Ipv4(ip) => Ecn::from_tos(ip.dscp_ecn),
            Network::Ipv6(ip) => Ecn::from_tos(ip.traffic_class),
            Network::Arp | Network::Other => Ecn::NotEct,
        }
    }

    /// Returns the TCP header of an unfragmented TCP packet.
    pub const fn tcp(&self) -> Option<&TcpHeader> {
        match &self.transport {
            Transport::Tcp(tcp) => Some(tcp),
            _ => None,
        }
    }

    /// Returns source and destination port of an unfragmented TCP or UDP packet.
    pub const fn ports(&self) -> Option<(u16, u16)> {
        match self.transport {
            Transport::Tcp(tcp) => Some((tcp.src_port, tcp.dst_port)),
            Transport::Udp(udp) => Some((udp.src_port, udp.dst_port)),
            Transport::Other(_) | Transport::Fragment | Transport::None => None,
        }
    }

    /// Returns addresses and ports of an unfragmented TCP or UDP packet.
    pub fn four_tuple(&self) -> Option<FourTuple> {
        let (src_port, dst_port) = self.ports()?;
        let (src_ip, dst_ip) = (self.src_ip()?, self.dst_ip()?);
        Some(FourTuple {
            src_ip,
            dst_ip,
            src_port,
            dst_port,
        })
    }

    /// Returns where the TCP or UDP header starts, from the start of the frame.
    pub const fn l4_offset(&self) -> Option<usize> {
        match self.transport {
            Transport::Tcp(tcp) => Some(self.header_len - tcp.header_len),
            Transport::Udp(_) => Some(self.header_len - UdpHeader::LEN),
            Transport::Other(_) | Transport::Fragment | Transport::None => None,
        }
    }

    /// Returns where the TCP or UDP checksum field lies, from the start of the frame.
    pub const fn l4_checksum_offset(&self) -> Option<usize> {
        let field = match self.transport {
            Transport::Tcp(_) => TcpHeader::CHECKSUM_OFFSET,
            _ => UdpHeader::CHECKSUM_OFFSET,
        };
        match self.l4_offset() {
            Some(l4) => Some(l4 + field),
            None => None,
        }
    }
}

#[cfg(test)]
mod tests;
