//! The ECN field of IP headers (RFC 3168 5), CE marking, and CWR, the one TCP flag that segmentation treats differently.

use crate::ethernet::{EtherType, EthernetHeader};
use crate::ipv4::Ipv4Header;
use crate::tcp::TcpFlags;

/// Offset of the control bits in a TCP header (RFC 9293 3.1).
const TCP_FLAGS: usize = 13;
/// Offset of type of service in an IPv4 header (RFC 791 3.1).
const IPV4_TOS: usize = 1;
/// Offset of the checksum in an IPv4 header.
const IPV4_CHECKSUM: usize = 10;

/// The two low bits of IPv4's type of service and IPv6's traffic class.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Ecn {
    /// The transport is not ECN-capable: a congested router drops the packet.
    #[default]
    NotEct = 0,
    /// ECN-capable transport, the codepoint of L4S (RFC 9331).
    Ect1 = 1,
    /// ECN-capable transport.
    Ect0 = 2,
    /// Congestion experienced: a router marked the packet instead of dropping it.
    Ce = 3,
}

impl Ecn {
    /// Bits of the ECN field in a type of service or traffic class.
    pub const MASK: u8 = 3;

    /// Returns the ECN field of a type of service or traffic class.
    pub const fn from_tos(tos: u8) -> Self {
        match tos & Self::MASK {
            0 => Self::NotEct,
            1 => Self::Ect1,
            2 => Self::Ect0,
            _ => Self::Ce,
        }
    }

    /// Returns the two bits.
    pub const fn bits(self) -> u8 {
        self as u8
    }

    /// Returns true for ECT(0), ECT(1) and CE.
    pub const fn is_ect(self) -> bool {
        !matches!(self, Self::NotEct)
    }
}

/// Result of [`mark_ce`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Marking {
    /// The packet has [`Ecn::Ce`] now.
    Marked,
    /// The packet is not ECN-capable: a router drops it instead (RFC 3168 5).
    NotCapable,
    /// The frame holds no IP packet.
    NotIp,
}

/// Sets CE in the IP packet of an Ethernet frame, as a congested router does, and updates the IPv4 header checksum.
pub fn mark_ce(frame: &mut [u8]) -> Marking {
    let Ok(ethernet) = EthernetHeader::parse(frame) else {
        return Marking::NotIp;
    };
    let Some(packet) = frame.get_mut(ethernet.header_len()..) else {
        return Marking::NotIp;
    };
    match (ethernet.ethertype, packet) {
        (EtherType::IPV4, packet) if packet.len() >= Ipv4Header::LEN => mark_ipv4(packet),
        // Four bits of version, eight of traffic class, twenty of flow label (RFC 8200 3).
        (EtherType::IPV6, [first, second, ..]) => {
            if !Ecn::from_tos(*first << 4 | *second >> 4).is_ect() {
                return Marking::NotCapable;
            }
            *second |= Ecn::MASK << 4;
            Marking::Marked
        }
        _ => Marking::NotIp,
    }
}

/// Marks an IPv4 packet of at least [`Ipv4Header::LEN`] bytes.
fn mark_ipv4(packet: &mut [u8]) -> Marking {
    let tos = packet[IPV4_TOS];
    if !Ecn::from_tos(tos).is_ect() {
        return Marking::NotCapable;
    }
    let marked = tos | Ecn::MASK;
    packet[IPV4_TOS] = marked;
    // Incremental update of the checksum (RFC 1624 3).
    let field = [packet[IPV4_CHECKSUM], packet[IPV4_CHECKSUM + 1]];
    let sum = u32::from(!u16::from_be_bytes(field)) + u32::from(marked - tos);
    let folded = (sum & 0xffff) + (sum >> 16);
    packet[IPV4_CHECKSUM..IPV4_CHECKSUM + 2].copy_from_slice(&(!folded as u16).to_be_bytes());
    Marking::Marked
}

/// Returns whether CWR is set in a super-packet with its TCP header at offset `l4` of `frame`. Segmentation keeps CWR in
/// the first segment only (RFC 3168 6.1.2; VIRTIO_NET_HDR_GSO_ECN, linux `SKB_GSO_TCP_ECN`).
pub fn has_cwr(frame: &[u8], l4: usize) -> bool {
    let flags = l4.checked_add(TCP_FLAGS).and_then(|at| frame.get(at));
    flags.is_some_and(|&flags| TcpFlags::from_bits_retain(flags.into()).contains(TcpFlags::CWR))
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, Ipv6Addr};

    use proptest::prelude::*;

    use super::*;
    use crate::{IpRepr, MacAddr, Network, RxHeaders, emit_frame_headers, protocol};

    fn frame(ip: IpRepr, vlan: Option<u16>) -> Vec<u8> {
        let ethertype = match ip {
            IpRepr::V4 { .. } => EtherType::IPV4,
            IpRepr::V6 { .. } => EtherType::IPV6,
        };
        let ethernet = EthernetHeader {
            dst: MacAddr([2; 6]),
            src: MacAddr([4; 6]),
            ethertype,
            vlan,
        };
        let mut out = [0; 64];
        let len = emit_frame_headers(&ethernet, &ip, protocol::ICMP, 0, &mut out);
        out[..len].to_vec()
    }

    fn tos(frame: &[u8]) -> u8 {
        let headers = RxHeaders::parse(frame, frame.len()).expect("a right checksum");
        match headers.network {
            Network::Ipv4(ip) => ip.dscp_ecn,
            Network::Ipv6(ip) => ip.traffic_class,
            other => panic!("{other:?}"),
        }
    }

    proptest! {
        #[test]
        fn a_mark_changes_two_bits_and_leaves_a_right_header(
            before: u8,
            six: bool,
            vlan in proptest::option::of(0u16..4096),
            ident: u16,
        ) {
            let ip = match six {
                true => IpRepr::v6(Ipv6Addr::LOCALHOST, Ipv6Addr::LOCALHOST),
                false => IpRepr::v4(Ipv4Addr::LOCALHOST, Ipv4Addr::from_bits(ident.into()))
                    .with_hop_limit(1)
                    .with_fragmentation(ident),
            };
            let mut frame = frame(ip.with_tos(before), vlan);
            let marking = mark_ce(&mut frame);
            if Ecn::from_tos(before).is_ect() {
                prop_assert_eq!(marking, Marking::Marked);
                prop_assert_eq!(tos(&frame), before | Ecn::MASK);
            } else {
                prop_assert_eq!(marking, Marking::NotCapable);
                prop_assert_eq!(tos(&frame), before);
            }
        }

        #[test]
        fn any_bytes_can_be_offered(mut bytes in proptest::collection::vec(any::<u8>(), 0..64)) {
            mark_ce(&mut bytes);
        }
    }

    #[test]
    fn the_codepoints_are_those_of_rfc_3168() {
        for (bits, ecn) in [Ecn::NotEct, Ecn::Ect1, Ecn::Ect0, Ecn::Ce]
            .into_iter()
            .enumerate()
        {
            assert_eq!(usize::from(ecn.bits()), bits);
            assert_eq!(Ecn::from_tos(0xfc | ecn.bits()), ecn);
        }
    }

    #[test]
    fn cwr_is_found_where_the_tcp_header_is() {
        let mut frame = [0; 60];
        frame[34 + 13] = 0x90;
        assert!(has_cwr(&frame, 34));
        assert!(!has_cwr(&frame, 33) && !has_cwr(&frame, 47) && !has_cwr(&frame, usize::MAX));
    }

    #[test]
    fn frames_other_than_ip_are_not_changed() {
        let mut arp = vec![0xff; 42];
        arp[12..14].copy_from_slice(&[0x08, 0x06]);
        assert_eq!(mark_ce(&mut arp), Marking::NotIp);
        assert_eq!(mark_ce(&mut []), Marking::NotIp);
    }
}
