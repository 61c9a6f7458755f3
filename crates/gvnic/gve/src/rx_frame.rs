//! Properties of a frame from the wire, determined once: headers, checksum status, packet type, hash.

use gve_defs::desc_dqo::{RX_CSUM_IP_ERR, RX_CSUM_L4_ERR, RX_IPV6_EX, RX_L3_L4_PROCESSED};
use gve_defs::desc_dqo::{l3_type, l4_type};
use steer::is_split;
use wire::{
    Checksum, ChecksumState, Ipv6Header, Network, ParseError, RxHeaders, Transport, UdpHeader,
    protocol,
};

use crate::stats::DeviceStats;

/// Protocol number of SCTP (RFC 9260).
const SCTP: u8 = 132;

/// Properties of a packet that each of its completions reports.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct PacketFacts {
    /// Index into the map of GET_PTYPE_MAP.
    pub(crate) packet_type: u16,
    /// `RX_` flag bits.
    pub(crate) flags: u8,
    /// `RX_` status bits about checksums.
    pub(crate) status: u8,
    /// RSS hash, 0 if there is none.
    pub(crate) hash: u32,
    /// Split point for a queue with header split; `None` for packets that are never split.
    pub(crate) split_at: Option<u16>,
    /// Payload bytes of the segments of a coalesced packet.
    pub(crate) rsc_seg_len: Option<u16>,
}

/// A packet for a queue: headers and payload.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RxPacket<'a> {
    /// Headers.
    pub(crate) head: &'a [u8],
    /// Payload.
    pub(crate) payload: &'a [u8],
    pub(crate) facts: PacketFacts,
}

impl RxPacket<'_> {
    /// Returns the bytes of the packet.
    pub(crate) const fn len(&self) -> usize {
        self.head.len() + self.payload.len()
    }
}

/// Returns the packet type of a network and a transport layer.
pub(crate) const fn packet_type(l3: u8, l4: u8) -> u16 {
    (l3 as u16) << 3 | l4 as u16
}

/// Returns network and transport layer of the packet types in use, by type.
pub(crate) fn packet_types() -> impl Iterator<Item = (u8, u8)> {
    let l3s = l3_type::UNKNOWN..=l3_type::IPV6;
    l3s.flat_map(|l3| {
        (0..8).map(move |l4| match l4 {
            l4_type::UNKNOWN..=l4_type::SCTP => (l3, l4),
            _ => (l3_type::UNKNOWN, l4_type::UNKNOWN),
        })
    })
}

/// Returns the split point of a packet.
fn split_at(headers: &RxHeaders) -> Option<u16> {
    match is_split(headers) {
        true => u16::try_from(headers.header_len).ok(),
        false => None,
    }
}

/// Returns the properties of a frame with parsed headers. `bytes` is the whole frame.
pub(crate) fn judge(
    headers: &RxHeaders,
    bytes: &[u8],
    known: ChecksumState,
    hash: Option<u32>,
) -> PacketFacts {
    let status = match checksum_of(headers, bytes, known) {
        L4Checksum::Right => RX_L3_L4_PROCESSED,
        L4Checksum::Wrong => RX_L3_L4_PROCESSED | RX_CSUM_L4_ERR,
        L4Checksum::NotLooked => 0,
    };
    PacketFacts {
        packet_type: type_of(headers),
        // The parser follows IPv6 extension headers and knows the final destination, so its checksum status is valid.
        // The flag, which makes Linux verify the checksum itself, is for headers that it did not follow.
        flags: 0,
        status,
        hash: hash.unwrap_or(0),
        split_at: split_at(headers),
        rsc_seg_len: None,
    }
}

/// Returns the properties of a frame with headers that do not parse.
pub(crate) fn facts_of_refused(error: ParseError) -> PacketFacts {
    let (flags, status) = match error {
        ParseError::ExtensionHeaders => (RX_IPV6_EX, 0),
        ParseError::BadIpChecksum => (0, RX_L3_L4_PROCESSED | RX_CSUM_IP_ERR),
        _ => (0, 0),
    };
    PacketFacts {
        flags,
        status,
        ..PacketFacts::default()
    }
}

fn type_of(headers: &RxHeaders) -> u16 {
    let l3 = match headers.network {
        Network::Ipv4(_) => l3_type::IPV4,
        Network::Ipv6(_) => l3_type::IPV6,
        Network::Arp | Network::Other => l3_type::OTHER,
    };
    let l4 = match headers.transport {
        Transport::Tcp(_) => l4_type::TCP,
        Transport::Udp(_) => l4_type::UDP,
        Transport::Other(protocol::ICMP | protocol::ICMPV6) => l4_type::ICMP,
        Transport::Other(SCTP) => l4_type::SCTP,
        Transport::Other(_) | Transport::Fragment | Transport::None => l4_type::OTHER,
    };
    packet_type(l3, l4)
}

/// Status of a transport checksum.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum L4Checksum {
    /// Correct, or still partial because the sender is on this machine.
    Right,
    Wrong,
    /// Not verified: neither TCP nor UDP, or a fragment.
    NotLooked,
}

fn checksum_of(headers: &RxHeaders, bytes: &[u8], known: ChecksumState) -> L4Checksum {
    let Some(l4) = headers.l4_offset() else {
        return L4Checksum::NotLooked;
    };
    match known {
        ChecksumState::Verified | ChecksumState::Partial(_) => return L4Checksum::Right,
        ChecksumState::Unknown => {}
    }
    if let (Network::Ipv4(_), Transport::Udp(UdpHeader { checksum: 0, .. })) =
        (&headers.network, &headers.transport)
    {
        // The sender did not compute one (RFC 768).
        return L4Checksum::Right;
    }
    let end = headers.header_len + headers.payload_len;
    let (Some(segment), Some(mut sum)) = (bytes.get(l4..end), headers.pseudo_header(end - l4))
    else {
        return L4Checksum::NotLooked;
    };
    Checksum::add_bytes(&mut sum, segment);
    match sum.finish() {
        0 => L4Checksum::Right,
        _ => L4Checksum::Wrong,
    }
}

/// Counts VLAN tags and IPv6 extension headers.
pub(crate) fn count(headers: &RxHeaders, stats: &mut DeviceStats) {
    stats.vlan += u64::from(headers.ethernet.vlan.is_some());
    if let Network::Ipv6(ip) = &headers.network {
        let plain = headers.ethernet.header_len() + Ipv6Header::LEN;
        let l3_end = match headers.transport {
            Transport::Tcp(_) | Transport::Udp(_) => headers.l4_offset().unwrap_or(plain),
            _ => headers.header_len,
        };
        let follows = l3_end > plain || ip.next_header == protocol::HOP_BY_HOP;
        stats.ipv6_extensions += u64::from(follows);
    }
}
