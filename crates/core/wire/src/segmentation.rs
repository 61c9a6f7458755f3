//! Headers of the segments of a super-packet. Every NIC here that segments uses this code; it does not touch payload.

use crate::checksum::{Checksum, checksum};
use crate::ipv6::Ipv6Header;
use crate::protocol;
use crate::rx_headers::{Network, RxHeaders, Transport};
use crate::tcp::{TcpFlags, TcpHeader};
use crate::tx_checksum::TxChecksum;

/// Offset of the TCP sequence number in its header (RFC 9293 3.1).
const TCP_SEQ: usize = 4;
/// Offset of the TCP control bits.
const TCP_FLAGS: usize = 13;
/// Offset of the UDP length (RFC 768).
const UDP_LENGTH: usize = 4;
/// Offset of the IPv4 total length (RFC 791 3.1).
const IPV4_TOTAL_LEN: usize = 2;
/// Offset of the IPv4 identification.
const IPV4_IDENT: usize = 4;
/// Offset of the IPv4 header checksum.
const IPV4_CHECKSUM: usize = 10;
/// Offset of the IPv6 payload length (RFC 8200 3).
const IPV6_PAYLOAD_LEN: usize = 4;

impl RxHeaders {
    /// Returns start and position of the checksum of a TCP or UDP packet; `None` for others.
    pub fn tx_checksum(&self) -> Option<TxChecksum> {
        let (start, field) = (self.l4_offset()?, self.l4_checksum_offset()?);
        Some(TxChecksum {
            // Both lie in headers of at most MAX_HEADER_LEN bytes.
            start: start as u16,
            offset: (field - start) as u16,
        })
    }

    /// Returns the sum of the pseudo-header of a TCP or UDP packet with `len` bytes of transport header and payload;
    /// `None` for other packets, and for an impossible length.
    pub fn pseudo_header(&self, len: usize) -> Option<Checksum> {
        let protocol = match self.transport {
            Transport::Tcp(_) => protocol::TCP,
            Transport::Udp(_) => protocol::UDP,
            Transport::Other(_) | Transport::Fragment | Transport::None => return None,
        };
        let len = u32::try_from(len).ok()?;
        match &self.network {
            Network::Ipv4(ip) => Some(Checksum::pseudo_v4(ip.src, ip.dst, protocol, len)),
            Network::Ipv6(ip) => Some(Checksum::pseudo_v6(ip.src, ip.dst, protocol, len)),
            Network::Arp | Network::Other => None,
        }
    }
}

/// Generator of the headers of a super-packet's segments, from copies of its own headers.
///
/// For TCP and UDP over IP (linux net/ipv4/tcp_offload.c `tcp_gso_segment`, udp_offload.c `__udp_gso_segment`).
#[derive(Clone, Copy, Debug)]
pub struct SegmentHeaders {
    headers: RxHeaders,
    checksum: TxChecksum,
    /// Sequence number of the next segment.
    seq: u32,
    /// Number of segments generated so far.
    cut: u16,
}

impl SegmentHeaders {
    /// Returns a generator for the packet with these headers; `None` unless it is TCP or UDP.
    pub fn new(headers: &RxHeaders) -> Option<Self> {
        Some(Self {
            headers: *headers,
            checksum: headers.tx_checksum()?,
            seq: headers.tcp().map_or(0, |tcp| tcp.seq),
            cut: 0,
        })
    }

    /// Returns start and position of the checksum, the same in every segment.
    pub const fn checksum(&self) -> TxChecksum {
        self.checksum
    }

    /// Changes `head`, a copy of the super-packet's headers, to the headers of the next segment, which has `len` bytes
    /// of payload and is followed by `rest` more bytes. Sets the checksum field to the sum of the pseudo-header.
    ///
    /// Fields outside `head` are not written; `head` is then not a copy of these headers.
    pub fn write_next(&mut self, head: &mut [u8], len: usize, rest: usize) {
        self.write_ip(head, len);
        let l4 = usize::from(self.checksum.start);
        let l4_len = (head.len() + len).saturating_sub(l4);
        match self.headers.transport {
            Transport::Tcp(tcp) => self.write_tcp(head, tcp.flags, rest),
            _ => put(head, l4 + UDP_LENGTH, l4_len),
        }
        let pseudo = self.headers.pseudo_header(l4_len).unwrap_or_default();
        let field = l4 + usize::from(self.checksum.offset);
        put(head, field, pseudo.partial().into());
        // Modulo 2^32, as sequence numbers are.
        self.seq = self.seq.wrapping_add(len as u32);
        self.cut = self.cut.wrapping_add(1);
    }

    fn write_ip(&self, head: &mut [u8], len: usize) {
        let at = self.headers.ethernet.header_len();
        let ip_len = (head.len() + len).saturating_sub(at);
        match &self.headers.network {
            Network::Ipv4(ip) => {
                put(head, at + IPV4_TOTAL_LEN, ip_len);
                // The identification increases by one per segment (linux net/ipv4/af_inet.c `inet_gso_segment`).
                let ident = ip.ident.wrapping_add(self.cut);
                put(head, at + IPV4_IDENT, ident.into());
                put(head, at + IPV4_CHECKSUM, 0);
                let sum = head.get(at..at + ip.header_len).map_or(0, checksum);
                put(head, at + IPV4_CHECKSUM, sum.into());
            }
            Network::Ipv6(_) => {
                let payload_len = ip_len.saturating_sub(Ipv6Header::LEN);
                put(head, at + IPV6_PAYLOAD_LEN, payload_len);
            }
            Network::Arp | Network::Other => {}
        }
    }

    fn write_tcp(&self, head: &mut [u8], mut flags: TcpFlags, rest: usize) {
        let l4 = usize::from(self.checksum.start);
        if rest > 0 {
            flags -= TcpFlags::PSH | TcpFlags::FIN;
        }
        if self.cut > 0 {
            // CWR is set in the first segment only (RFC 3168 6.1.2). A sender that uses the flag as part of AccECN's
            // counter must not set it in super-packets.
            flags -= TcpFlags::CWR;
        }
        if let Some(field) = head.get_mut(l4 + TCP_FLAGS) {
            *field = flags.low_byte();
        }
        if let Some(field) = head.get_mut(l4 + TCP_SEQ..l4 + TCP_SEQ + 4) {
            field.copy_from_slice(&self.seq.to_be_bytes());
        }
    }
}

/// Writes a 16-bit field; a value that does not fit cannot come from a frame of at most 64 KiB.
fn put(head: &mut [u8], at: usize, value: usize) {
    let value = u16::try_from(value).unwrap_or(u16::MAX);
    if let Some(field) = head.get_mut(at..at + 2) {
        field.copy_from_slice(&value.to_be_bytes());
    }
}

const _: () = assert!(TcpHeader::CHECKSUM_OFFSET == 16 && TCP_FLAGS < TcpHeader::LEN);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        EtherType, EthernetHeader, IpRepr, Ipv4Header, MacAddr, TcpOptions, UdpHeader,
        emit_frame_headers, emit_tcp_frame_headers, fill_checksum,
    };
    use std::net::{Ipv4Addr, Ipv6Addr};

    const V4: IpRepr = match IpRepr::v4(Ipv4Addr::new(10, 0, 0, 1), Ipv4Addr::new(10, 0, 0, 2)) {
        IpRepr::V4(ip) => IpRepr::V4(Ipv4Header {
            ident: u16::MAX,
            ..ip
        }),
        v6 => v6,
    };

    fn v6() -> IpRepr {
        IpRepr::v6(
            Ipv6Addr::new(0xfd77, 0, 0, 0, 0, 0, 0, 1),
            Ipv6Addr::new(0xfd77, 0, 0, 0, 0, 0, 0, 2),
        )
    }

    fn ethernet(ip: &IpRepr, vlan: Option<u16>) -> EthernetHeader {
        EthernetHeader {
            dst: MacAddr([2, 0, 0, 0, 0, 2]),
            src: MacAddr([2, 0, 0, 0, 0, 1]),
            ethertype: match ip {
                IpRepr::V4 { .. } => EtherType::IPV4,
                IpRepr::V6 { .. } => EtherType::IPV6,
            },
            vlan,
        }
    }

    /// Headers of a super-packet with 3,000 bytes of payload: FIN, PSH, CWR, and a sequence number that wraps.
    fn tcp_super(ip: &IpRepr, vlan: Option<u16>) -> Vec<u8> {
        let tcp = TcpHeader {
            src_port: 1,
            dst_port: 2,
            seq: u32::MAX - 1000,
            ack: 7,
            flags: TcpFlags::ACK | TcpFlags::PSH | TcpFlags::FIN | TcpFlags::CWR,
            window: 100,
            urgent: 0,
            options: TcpOptions::default(),
            header_len: TcpHeader::LEN,
        };
        let mut head = vec![0; 128];
        let len = emit_tcp_frame_headers(&ethernet(ip, vlan), ip, &tcp, 3000, &mut head);
        head.truncate(len);
        head
    }

    /// Cuts a packet with `total` bytes of payload, checks the invariants of every segment, and returns their headers.
    fn cut(head: &[u8], total: usize, size: usize) -> Vec<RxHeaders> {
        let headers = RxHeaders::parse(head, head.len() + total).unwrap();
        let mut segments = SegmentHeaders::new(&headers).unwrap();
        let (mut rest, mut all) = (total, Vec::new());
        while rest > 0 {
            let len = rest.min(size);
            rest -= len;
            let mut copy = head.to_vec();
            segments.write_next(&mut copy, len, rest);
            // The payload is zeros and adds nothing to the sum.
            fill_checksum(&mut copy, 0, segments.checksum());
            let parsed = RxHeaders::parse(&copy, copy.len() + len).unwrap();
            assert_eq!(parsed.payload_len, len);
            let l4 = parsed.l4_offset().unwrap();
            let mut sum = parsed.pseudo_header(copy.len() - l4 + len).unwrap();
            sum.add_bytes(&copy[l4..]);
            assert_eq!(sum.finish(), 0, "the checksum is right");
            all.push(parsed);
        }
        all
    }

    #[test]
    fn tcp_segments_follow_one_another_and_end_as_the_whole_did() {
        for (ip, vlan) in [(V4, None), (V4, Some(3)), (v6(), None), (v6(), Some(3))] {
            let segments = cut(&tcp_super(&ip, vlan), 3000, 1400);
            let tcp: Vec<_> = segments.iter().map(|s| *s.tcp().unwrap()).collect();
            let seqs: Vec<_> = tcp.iter().map(|tcp| tcp.seq).collect();
            assert_eq!(
                seqs,
                [u32::MAX - 1000, 399, 1799],
                "past the end of numbers"
            );
            assert_eq!(tcp[0].flags, TcpFlags::ACK | TcpFlags::CWR);
            assert_eq!(tcp[1].flags, TcpFlags::ACK);
            assert_eq!(tcp[2].flags, TcpFlags::ACK | TcpFlags::PSH | TcpFlags::FIN);
        }
    }

    #[test]
    fn each_ipv4_segment_has_the_next_identification() {
        let segments = cut(&tcp_super(&V4, None), 3000, 1400);
        let idents: Vec<_> = segments
            .iter()
            .map(|segment| match segment.network {
                Network::Ipv4(ip) => ip.ident,
                _ => panic!("IPv4 went in"),
            })
            .collect();
        assert_eq!(idents, [u16::MAX, 0, 1]);
    }

    #[test]
    fn udp_segments_have_lengths_of_their_own() {
        for ip in [V4, v6()] {
            let mut head = vec![0; 128];
            let len = UdpHeader::LEN + 3000;
            let at = emit_frame_headers(&ethernet(&ip, None), &ip, protocol::UDP, len, &mut head);
            let udp = UdpHeader {
                src_port: 1,
                dst_port: 2,
                length: len as u16,
                checksum: 0,
            };
            let end = at + udp.emit(&mut head[at..]);
            head.truncate(end);
            let lengths: Vec<_> = cut(&head, 3000, 1400)
                .iter()
                .map(|segment| match segment.transport {
                    Transport::Udp(udp) => udp.length,
                    _ => panic!("UDP went in"),
                })
                .collect();
            assert_eq!(lengths, [1408, 1408, 208]);
        }
    }

    #[test]
    fn only_tcp_and_udp_are_cut() {
        let mut head = vec![0; 128];
        let at = emit_frame_headers(&ethernet(&V4, None), &V4, protocol::ICMP, 100, &mut head);
        let headers = RxHeaders::parse(&head[..at], at + 100).unwrap();
        assert!(SegmentHeaders::new(&headers).is_none());
    }

    #[test]
    fn a_head_that_is_no_copy_is_not_written_past_its_end() {
        let head = tcp_super(&V4, None);
        let headers = RxHeaders::parse(&head, head.len() + 3000).unwrap();
        for len in 0..head.len() {
            let mut short = head[..len].to_vec();
            SegmentHeaders::new(&headers)
                .unwrap()
                .write_next(&mut short, 1400, 1600);
            assert_eq!(short.len(), len);
        }
    }
}
