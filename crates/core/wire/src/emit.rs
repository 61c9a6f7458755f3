//! Complete headers of frames to send.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::arp::{ARP_LEN, ArpPacket};
use crate::checksum::Checksum;
use crate::ethernet::EthernetHeader;
use crate::ipv4::Ipv4Header;
use crate::ipv6::Ipv6Header;
use crate::jumbo::JumboPayload;
use crate::protocol;
use crate::tcp::TcpHeader;
use crate::tx_checksum::TxChecksum;

/// Hop limit and TTL of what we send (IANA "IP Time To Live", RFC 1700).
const DEFAULT_TTL: u8 = 64;

/// The IP header of a packet to send. [`emit`](Self::emit) fills protocol and length in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IpRepr {
    /// IPv4; this stack never sends fragments.
    V4(Ipv4Header),
    /// IPv6.
    V6(Ipv6Header),
}

impl IpRepr {
    /// Returns a header with TTL 64 that forbids fragmentation, `None` if the families differ.
    pub const fn new(src: IpAddr, dst: IpAddr) -> Option<Self> {
        match (src, dst) {
            (IpAddr::V4(src), IpAddr::V4(dst)) => Some(Self::v4(src, dst)),
            (IpAddr::V6(src), IpAddr::V6(dst)) => Some(Self::v6(src, dst)),
            _ => None,
        }
    }

    /// Returns an IPv4 header with TTL 64 that forbids fragmentation.
    pub const fn v4(src: Ipv4Addr, dst: Ipv4Addr) -> Self {
        // An atomic packet may have any identification (RFC 6864 4.1).
        Self::V4(Ipv4Header {
            src,
            dst,
            protocol: 0,
            ttl: DEFAULT_TTL,
            dscp_ecn: 0,
            ident: 0,
            dont_fragment: true,
            more_fragments: false,
            fragment_offset: 0,
            header_len: Ipv4Header::LEN,
            total_len: 0,
        })
    }

    /// Returns an IPv6 header with hop limit 64.
    pub const fn v6(src: Ipv6Addr, dst: Ipv6Addr) -> Self {
        Self::V6(Ipv6Header {
            src,
            dst,
            next_header: 0,
            hop_limit: DEFAULT_TTL,
            traffic_class: 0,
            flow_label: 0,
            payload_len: 0,
        })
    }

    /// Returns the header with these differentiated services and ECN bits (IP_TOS, IPV6_TCLASS).
    #[must_use]
    pub const fn with_tos(mut self, tos: u8) -> Self {
        match &mut self {
            Self::V4(ip) => ip.dscp_ecn = tos,
            Self::V6(ip) => ip.traffic_class = tos,
        }
        self
    }

    /// Returns the header with this TTL or hop limit (IP_TTL, IPV6_UNICAST_HOPS).
    #[must_use]
    pub const fn with_hop_limit(mut self, hops: u8) -> Self {
        match &mut self {
            Self::V4(ip) => ip.ttl = hops,
            Self::V6(ip) => ip.hop_limit = hops,
        }
        self
    }

    /// Returns the header of a packet that routers may fragment (IP_PMTUDISC_DONT). An IPv6 header is unchanged: routers
    /// fragment none of its packets.
    #[must_use]
    pub const fn with_fragmentation(mut self, identification: u16) -> Self {
        if let Self::V4(ip) = &mut self {
            ip.ident = identification;
            ip.dont_fragment = false;
        }
        self
    }

    /// Returns the sum of the pseudo-header for `len` bytes of transport header and payload.
    pub fn pseudo_header(&self, protocol: u8, len: u32) -> Checksum {
        match *self {
            Self::V4(ip) => Checksum::pseudo_v4(ip.src, ip.dst, protocol, len),
            Self::V6(ip) => Checksum::pseudo_v6(ip.src, ip.dst, protocol, len),
        }
    }

    /// Writes the header of a packet with `len` bytes of transport header and payload to the start
    /// of `out`, returns its length.
    ///
    /// In a super-packet too long for its length field, that field is 0 (Linux: BIG TCP). Over IPv4 the headers then
    /// contain no length (`iph_set_totlen`); over IPv6 a hop-by-hop option has it (RFC 2675 2).
    ///
    /// # Panics
    /// If `out` is too short.
    pub fn emit(&self, protocol: u8, len: usize, out: &mut [u8]) -> usize {
        match *self {
            Self::V4(ip) => Ipv4Header {
                protocol,
                total_len: u16::try_from(Ipv4Header::LEN + len).unwrap_or(0),
                ..ip
            }
            .emit(out),
            Self::V6(ip) => {
                let payload_len = u16::try_from(len).ok();
                let at = Ipv6Header {
                    next_header: payload_len.map_or(protocol::HOP_BY_HOP, |_| protocol),
                    payload_len: payload_len.unwrap_or(0),
                    ..ip
                }
                .emit(out);
                match payload_len {
                    Some(_) => at,
                    None => at + JumboPayload::new(protocol, len).emit(&mut out[at..]),
                }
            }
        }
    }
}

/// Returns start and position of the checksum of a TCP frame with `head_len` bytes of headers, of which `tcp` is the last.
pub fn tcp_tx_checksum(head_len: usize, tcp: &TcpHeader) -> TxChecksum {
    TxChecksum {
        // At most 18 bytes of Ethernet, 40 of IPv6 and 8 of its option.
        start: (head_len - tcp.emit_len()) as u16,
        offset: TcpHeader::CHECKSUM_OFFSET as u16,
    }
}

/// Writes Ethernet and IP header of a frame with `len` bytes of transport header and payload to
/// the start of `out`, returns their length.
///
/// # Panics
/// As [`IpRepr::emit`].
pub fn emit_frame_headers(
    ethernet: &EthernetHeader,
    ip: &IpRepr,
    protocol: u8,
    len: usize,
    out: &mut [u8],
) -> usize {
    let at = ethernet.emit(out);
    at + ip.emit(protocol, len, &mut out[at..])
}

/// Writes all headers of a TCP frame with `payload_len` bytes of payload to the start of `out`,
/// returns their length.
///
/// The TCP checksum field is set to the folded sum of the pseudo-header (Linux: CHECKSUM_PARTIAL);
/// the NIC completes it as described by [`tcp_tx_checksum`], or the caller with [`fill_checksum`].
///
/// # Panics
/// If `out` is shorter than the headers.
pub fn emit_tcp_frame_headers(
    ethernet: &EthernetHeader,
    ip: &IpRepr,
    tcp: &TcpHeader,
    payload_len: usize,
    out: &mut [u8],
) -> usize {
    let len = tcp.emit_len() + payload_len;
    let at = emit_frame_headers(ethernet, ip, protocol::TCP, len, out);
    let end = at + tcp.emit(&mut out[at..]);
    // No packet has 2^32 bytes.
    let pseudo = ip.pseudo_header(protocol::TCP, len as u32);
    let field = at + TcpHeader::CHECKSUM_OFFSET;
    out[field..field + 2].copy_from_slice(&pseudo.partial().to_be_bytes());
    end
}

/// Completes a checksum as a NIC with checksum offload does: sums `head` from `what.start`, adds the
/// sum of the payload that follows `head`, and stores the checksum. The field must contain the sum of
/// the pseudo-header.
///
/// `payload` is the payload's [`Checksum::partial`]. A result of 0 is stored as 0xffff, the same number
/// in one's complement: a UDP checksum of 0 means "no checksum" (RFC 768) and is invalid over IPv6
/// (RFC 8200 section 8.1). Linux does the same, for TCP too.
///
/// # Panics
/// If `what` lies outside `head`.
pub fn fill_checksum(head: &mut [u8], payload: u16, what: TxChecksum) {
    let start = usize::from(what.start);
    let field = start + usize::from(what.offset);
    let mut sum = Checksum::new();
    sum.add_bytes(&head[start..]);
    sum.add_partial(payload, head.len() - start);
    let finished = match sum.finish() {
        0 => 0xffff,
        finished => finished,
    };
    head[field..field + 2].copy_from_slice(&finished.to_be_bytes());
}

/// Writes a whole ARP frame to the start of `out`, returns its length (without padding).
///
/// # Panics
/// If `out` is shorter than the frame.
pub fn emit_arp_frame(ethernet: &EthernetHeader, arp: &ArpPacket, out: &mut [u8]) -> usize {
    let at = ethernet.emit(out);
    let end = at + arp.emit(&mut out[at..]);
    debug_assert_eq!(end, at + ARP_LEN);
    end
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::head::Head;
    use crate::{
        EtherType, MacAddr, RxHeaders, TcpFlags, TcpOptions, Timestamps, shorten_big_headers,
    };

    const V4: IpRepr = IpRepr::v4(Ipv4Addr::new(10, 77, 0, 1), Ipv4Addr::new(10, 77, 0, 2));
    const V6: IpRepr = IpRepr::v6(
        Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 1),
        Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 2),
    );

    fn ethernet(ip: &IpRepr, vlan: Option<u16>) -> EthernetHeader {
        let ethertype = match ip {
            IpRepr::V4 { .. } => EtherType::IPV4,
            IpRepr::V6 { .. } => EtherType::IPV6,
        };
        EthernetHeader {
            dst: MacAddr([2; 6]),
            src: MacAddr([4; 6]),
            ethertype,
            vlan,
        }
    }

    fn tcp() -> TcpHeader {
        TcpHeader {
            src_port: 5201,
            dst_port: 40_000,
            seq: 1,
            ack: 2,
            flags: TcpFlags::ACK,
            window: 3,
            urgent: 0,
            options: TcpOptions {
                timestamps: Some(Timestamps { value: 4, echo: 5 }),
                ..TcpOptions::default()
            },
            header_len: 32,
        }
    }

    #[test]
    fn addresses_of_two_families_make_no_header() {
        let (four, six) = (
            IpAddr::V4(Ipv4Addr::LOCALHOST),
            IpAddr::V6(Ipv6Addr::LOCALHOST),
        );
        assert_eq!(IpRepr::new(four, six), None);
        let emitted = |ip: IpRepr| ip.emit(protocol::TCP, 20, &mut [0; 128]);
        assert_eq!(IpRepr::new(four, four).map(emitted), Some(20));
        assert_eq!(IpRepr::new(six, six).map(emitted), Some(40));
    }

    #[test]
    fn the_checksum_field_holds_the_pseudo_header_until_the_nic_comes() {
        for (ip, vlan) in [(V4, None), (V4, Some(1)), (V6, None), (V6, Some(1))] {
            let ethernet = ethernet(&ip, vlan);
            let mut out = [0; 128];
            let len = emit_tcp_frame_headers(&ethernet, &ip, &tcp(), 1000, &mut out);
            let headers = RxHeaders::parse(&out[..len], len + 1000).unwrap();
            assert_eq!((headers.header_len, headers.payload_len), (len, 1000));
            let what = tcp_tx_checksum(len, &tcp());
            assert_eq!(Some(usize::from(what.start)), headers.l4_offset());
            let field = usize::from(what.start + what.offset);
            assert_eq!(Some(field), headers.l4_checksum_offset());
            let stored = u16::from_be_bytes([out[field], out[field + 1]]);
            assert_eq!(stored, ip.pseudo_header(protocol::TCP, 1032).partial());
        }
    }

    #[test]
    fn a_super_packet_too_long_for_ipv4s_length_field_leaves_it_0() {
        let mut out = [0; 128];
        let len = emit_tcp_frame_headers(&ethernet(&V4, None), &V4, &tcp(), 200_000, &mut out);
        let head = &mut out[..len];
        let ip = EthernetHeader::LEN..EthernetHeader::LEN + Ipv4Header::LEN;
        assert_eq!(
            (&head[16..18], crate::checksum(&head[ip])),
            (&[0; 2][..], 0)
        );
        let pseudo = V4.pseudo_header(protocol::TCP, 200_032).partial();
        assert_eq!(head[50..52], pseudo.to_be_bytes());
        let whole = RxHeaders::parse(head, len + 200_000).unwrap();
        assert_eq!((whole.header_len, whole.payload_len), (len, 200_000));
        assert_eq!(shorten_big_headers(head), len);
        let headers = RxHeaders::parse(head, len + 200_000).unwrap();
        assert_eq!(headers.header_len, len);
    }

    #[test]
    fn a_super_packet_too_long_for_ipv6s_length_field_has_a_jumbo_payload_option() {
        let emit = |payload_len| {
            let mut out = vec![0; 128];
            let len =
                emit_tcp_frame_headers(&ethernet(&V6, None), &V6, &tcp(), payload_len, &mut out);
            out.truncate(len);
            out
        };
        // 32 bytes of TCP header; the largest value of the length field, and one more.
        let usual = emit(65_535 - 32);
        assert_eq!(
            (usual.len(), &usual[18..21]),
            (14 + 40 + 32, &[0xff, 0xff, 6][..])
        );
        let mut jumbo = emit(65_536 - 32);
        assert_eq!(jumbo.len(), usual.len() + 8);
        assert_eq!(jumbo[18..21], [0, 0, protocol::HOP_BY_HOP]);
        // RFC 2675 2: TCP follows, no more units, option 0xc2 of 4 bytes, 65,536 + 8.
        assert_eq!(jumbo[54..62], [6, 0, 0xc2, 4, 0, 1, 0, 8]);
        let what = tcp_tx_checksum(jumbo.len(), &tcp());
        assert_eq!((what.start, what.offset), (62, 16));
        let pseudo = V6.pseudo_header(protocol::TCP, 65_536).partial();
        assert_eq!(jumbo[78..80], pseudo.to_be_bytes());
        let frame_len = jumbo.len() + 65_536 - 32;
        let whole = RxHeaders::parse(&jumbo, frame_len).unwrap();
        assert_eq!(
            (whole.header_len, whole.payload_len),
            (jumbo.len(), 65_536 - 32)
        );
        // For segments the option is removed; then only the sum, over another length, differs.
        let len = shorten_big_headers(&mut jumbo);
        assert_eq!(
            (&jumbo[..70], &jumbo[72..len]),
            (&usual[..70], &usual[72..])
        );
        let headers = RxHeaders::parse(&jumbo[..len], frame_len - 8).unwrap();
        assert_eq!(headers.header_len, len);
    }

    #[test]
    fn a_checksum_of_zero_is_stored_as_ffff() {
        let ethernet = ethernet(&V6, None);
        let tcp = tcp();
        let mut out = [0; 128];
        let len = emit_tcp_frame_headers(&ethernet, &V6, &tcp, 2, &mut out);
        let what = tcp_tx_checksum(len, &tcp);
        let field = usize::from(what.start + what.offset);
        let mut without_payload = out;
        fill_checksum(&mut without_payload[..len], 0, what);
        let rest = [without_payload[field], without_payload[field + 1]];

        // A payload of what is missing to 0xffff makes the checksum 0.
        fill_checksum(&mut out[..len], u16::from_be_bytes(rest), what);
        assert_eq!(out[field..field + 2], [0xff, 0xff]);
    }

    proptest! {
        #[test]
        fn headers_that_say_their_length_stay_as_they_are(
            mut head in proptest::collection::vec(any::<u8>(), 0..100),
            kind in 0..3u8,
            payload_len in 0..3000usize,
        ) {
            if kind < 2 {
                let ip = if kind == 0 { V4 } else { V6 };
                head.resize(128, 0);
                let len = emit_tcp_frame_headers(&ethernet(&ip, None), &ip, &tcp(), payload_len, &mut head);
                head.truncate(len);
            }
            let before = head.clone();
            prop_assert_eq!(shorten_big_headers(&mut head), before.len());
            prop_assert_eq!(head, before);
        }
    }

    #[test]
    fn an_arp_frame_is_42_bytes() {
        let request = ArpPacket::request(
            MacAddr([2; 6]),
            [10, 77, 0, 2].into(),
            [10, 77, 0, 1].into(),
        );
        let ethernet = EthernetHeader {
            dst: MacAddr::BROADCAST,
            src: MacAddr([2; 6]),
            ethertype: EtherType::ARP,
            vlan: None,
        };
        let mut out = [0; 64];
        assert_eq!(emit_arp_frame(&ethernet, &request, &mut out), 42);
        let headers = RxHeaders::parse(&out[..42], 42).unwrap();
        assert_eq!(headers.network, crate::Network::Arp);
        assert_eq!(ArpPacket::parse(&out[headers.header_len..]), Ok(request));
    }

    proptest! {
        #[test]
        fn only_ipv4_headers_allow_fragmentation(ident: u16) {
            let bytes = |ip: IpRepr| {
                let mut out = [0; 60];
                let len = ip.emit(protocol::TCP, 20, &mut out);
                out[..len].to_vec()
            };
            prop_assert_eq!(bytes(V6.with_fragmentation(ident)), bytes(V6));
            let packet = [bytes(V4.with_fragmentation(ident)), vec![0; 20]].concat();
            let header = Ipv4Header::parse(Head::new(&packet, packet.len()), 0).unwrap().0;
            prop_assert_eq!((header.dont_fragment, header.ident), (false, ident));
        }

        #[test]
        fn a_finished_checksum_verifies(
            payload in proptest::collection::vec(any::<u8>(), 0..100),
            six: bool,
            seq: u32,
        ) {
            let ip = if six { V6 } else { V4 };
            let ethernet = ethernet(&ip, None);
            let tcp = TcpHeader { seq, ..tcp() };
            let mut out = [0; 128];
            let len = emit_tcp_frame_headers(&ethernet, &ip, &tcp, payload.len(), &mut out);
            let mut sum = Checksum::new();
            sum.add_bytes(&payload);
            fill_checksum(&mut out[..len], sum.partial(), tcp_tx_checksum(len, &tcp));

            let segment = [&out[len - tcp.emit_len()..len], &payload].concat();
            let mut sum = ip.pseudo_header(protocol::TCP, segment.len() as u32);
            sum.add_bytes(&segment);
            prop_assert_eq!(sum.finish(), 0);
        }
    }
}
