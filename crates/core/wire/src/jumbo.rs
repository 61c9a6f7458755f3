//! Super-packets that are longer than the length field of their IP header can say (Linux: BIG TCP).

use zerocopy::byteorder::network_endian::U32;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::{EtherType, EthernetHeader, Ipv4Header, Ipv6Header, protocol};

/// Type of the jumbo payload option: not to be skipped by who does not know it (RFC 2675 2).
const JUMBO_PAYLOAD: u8 = 0xc2;

/// A hop-by-hop header with nothing but a jumbo payload option (RFC 2675 2). The length field of the IPv6 header in front
/// of it is 0.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(crate) struct JumboPayload {
    next_header: u8,
    /// In units of 8 bytes, the first of them not counted.
    units: u8,
    option: u8,
    option_len: u8,
    /// Bytes after the IPv6 header, this one included.
    payload_len: U32,
}
const _: () = assert!(size_of::<JumboPayload>() == JumboPayload::LEN);

impl JumboPayload {
    pub(crate) const LEN: usize = 8;

    /// Returns the header for `len` bytes of `next_header` behind it.
    pub(crate) fn new(next_header: u8, len: usize) -> Self {
        Self {
            next_header,
            units: 0,
            option: JUMBO_PAYLOAD,
            option_len: 4,
            // No packet has 2^32 bytes.
            payload_len: ((Self::LEN + len) as u32).into(),
        }
    }

    /// Writes the header to the start of `out`, returns its length.
    ///
    /// # Panics
    /// If `out` is shorter than that.
    pub(crate) fn emit(&self, out: &mut [u8]) -> usize {
        out[..Self::LEN].copy_from_slice(self.as_bytes());
        Self::LEN
    }
}

/// Returns how long the headers of each segment are of a super-packet that begins with `head`: a jumbo payload option is
/// none of them.
pub fn segment_headers_len(head: &[u8]) -> usize {
    let option = EthernetHeader::parse(head)
        .ok()
        .filter(|ethernet| ethernet.ethertype == EtherType::IPV6)
        .and_then(|ethernet| head.get(ethernet.header_len()..))
        .and_then(jumbo_payload)
        .map_or(0, |_| JumboPayload::LEN);
    head.len() - option
}

/// Makes of the headers of a super-packet that is longer than its length field can say headers that [`RxHeaders::parse`]
/// takes, to cut it: they say the longest length that they can. Returns how long they are now. Others stay as they are.
///
/// [`RxHeaders::parse`]: crate::RxHeaders::parse
pub fn shorten_big_headers(head: &mut [u8]) -> usize {
    let len = head.len();
    let Ok(ethernet) = EthernetHeader::parse(head) else {
        return len;
    };
    let ip = head.get_mut(ethernet.header_len()..).unwrap_or_default();
    match ethernet.ethertype {
        EtherType::IPV4 => {
            Ipv4Header::set_missing_total_len(ip);
            len
        }
        EtherType::IPV6 => len - remove_jumbo_payload(ip),
        _ => len,
    }
}

/// Returns the two headers that `packet` begins with, if its length is in the second one.
fn jumbo_payload(packet: &[u8]) -> Option<(Ipv6Header, JumboPayload)> {
    let ip = Ipv6Header::parse(packet).ok()?;
    let (jumbo, _) = JumboPayload::read_from_prefix(packet.get(Ipv6Header::LEN..)?).ok()?;
    let is_jumbo = ip.next_header == protocol::HOP_BY_HOP
        && ip.payload_len == 0
        && (jumbo.units, jumbo.option, jumbo.option_len) == (0, JUMBO_PAYLOAD, 4);
    is_jumbo.then_some((ip, jumbo))
}

/// Takes the option out of the headers that begin with `packet`; returns by how many bytes they are shorter now.
fn remove_jumbo_payload(packet: &mut [u8]) -> usize {
    let Some((ip, jumbo)) = jumbo_payload(packet) else {
        return 0;
    };
    Ipv6Header {
        next_header: jumbo.next_header,
        payload_len: u16::MAX,
        ..ip
    }
    .emit(packet);
    packet.copy_within(Ipv6Header::LEN + JumboPayload::LEN.., Ipv6Header::LEN);
    JumboPayload::LEN
}
