//! The start of our own packet, as quoted in an ICMP error.

use std::net::IpAddr;

use crate::head::Head;
use crate::ipv4::Ipv4Header;
use crate::ipv6::ExtensionHeaders;
use crate::ipv6::Ipv6Header;
use crate::protocol;
use crate::rx_headers::FourTuple;

/// The packet that an ICMP error quotes. It is not trusted: a receiver first checks that `seq` is
/// among the sequence numbers in flight (RFC 5927 4.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Quoted {
    /// Source of the quoted packet: our address.
    pub src: IpAddr,
    /// Its destination.
    pub dst: IpAddr,
    /// Its transport protocol.
    pub protocol: u8,
    /// First two bytes of its transport header.
    pub src_port: u16,
    /// Next two bytes.
    pub dst_port: u16,
    /// Next four bytes: TCP's sequence number.
    pub seq: u32,
}

impl Quoted {
    /// Returns the four-tuple of packets that answer the quoted one, if it is of TCP.
    pub fn answers(&self) -> Option<FourTuple> {
        (self.protocol == protocol::TCP).then_some(FourTuple {
            src_ip: self.dst,
            dst_ip: self.src,
            src_port: self.dst_port,
            dst_port: self.src_port,
        })
    }

    /// Parses a quoted IPv4 packet, `None` if it is too short or not a first fragment.
    pub(super) fn parse_v4(packet: &[u8]) -> Option<Self> {
        let ip = Ipv4Header::parse_quoted(packet).ok()?;
        if ip.fragment_offset != 0 {
            return None;
        }
        Self::new(
            ip.src.into(),
            ip.dst.into(),
            ip.protocol,
            packet.get(ip.header_len..)?,
        )
    }

    /// Parses a quoted IPv6 packet, `None` if it is too short or a fragment.
    pub(super) fn parse_v6(packet: &[u8]) -> Option<Self> {
        let ip = Ipv6Header::parse(packet).ok()?;
        let head = Head::new(packet, packet.len());
        let extensions = ExtensionHeaders::walk(ip.next_header, head, Ipv6Header::LEN).ok()?;
        if extensions.fragment {
            return None;
        }
        let transport = packet.get(extensions.end..)?;
        Self::new(
            ip.src.into(),
            ip.dst.into(),
            extensions.transport,
            transport,
        )
    }

    fn new(src: IpAddr, dst: IpAddr, protocol: u8, transport: &[u8]) -> Option<Self> {
        let &[a, b, c, d, s0, s1, s2, s3] = transport.first_chunk::<8>()?;
        Some(Self {
            src,
            dst,
            protocol,
            src_port: u16::from_be_bytes([a, b]),
            dst_port: u16::from_be_bytes([c, d]),
            seq: u32::from_be_bytes([s0, s1, s2, s3]),
        })
    }
}
