//! Super-packets too long for the length field of their IP header (Linux: BIG TCP).

use zerocopy::byteorder::network_endian::U32;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::ethernet::{EtherType, EthernetHeader};
use crate::ipv4::Ipv4Header;
use crate::ipv6::Ipv6Header;
use crate::parse_error::ParseError;
use crate::protocol;

/// Type of the jumbo payload option; its high bits forbid skipping it as unknown (RFC 2675 2).
const JUMBO_PAYLOAD: u8 = 0xc2;

/// A hop-by-hop header with only a jumbo payload option (RFC 2675 2). The length field of the preceding IPv6 header is 0.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(crate) struct JumboPayload {
    next_header: u8,
    /// Length of the header in units of 8 bytes, without the first 8.
    units: u8,
    option: u8,
    option_len: u8,
    /// Bytes after the IPv6 header, this header included.
    payload_len: U32,
}
const _: () = assert!(size_of::<JumboPayload>() == JumboPayload::LEN);

impl JumboPayload {
    pub(crate) const LEN: usize = 8;

    /// Returns the header for `len` following bytes of protocol `next_header`.
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

    /// Parses a header that has only the option; returns the protocol after it, and the bytes after the IPv6 header.
    ///
    /// # Errors
    /// [`ParseError::Truncated`]; [`ParseError::ExtensionHeaders`] for another header, and for a length that the IPv6 header
    /// could say (RFC 2675 3).
    pub(crate) fn parse(header: &[u8]) -> Result<(u8, usize), ParseError> {
        let (header, _) = Self::read_from_prefix(header).map_err(|_| ParseError::Truncated)?;
        let len = header.payload_len.get();
        match (header.units, header.option, header.option_len) {
            (0, JUMBO_PAYLOAD, 4) if len > u32::from(u16::MAX) => {
                Ok((header.next_header, len as usize))
            }
            _ => Err(ParseError::ExtensionHeaders),
        }
    }

    /// Writes the header to the start of `out`, returns its length.
    ///
    /// # Panics
    /// If `out` is shorter than the header.
    pub(crate) fn emit(&self, out: &mut [u8]) -> usize {
        out[..Self::LEN].copy_from_slice(self.as_bytes());
        Self::LEN
    }
}

/// Returns the header bytes of each segment of a super-packet with headers `head`: those of `head` without a jumbo
/// payload option.
pub fn segment_headers_len(head: &[u8]) -> usize {
    let option = EthernetHeader::parse(head)
        .ok()
        .filter(|ethernet| ethernet.ethertype == EtherType::IPV6)
        .and_then(|ethernet| head.get(ethernet.header_len()..))
        .and_then(jumbo_payload)
        .map_or(0, |_| JumboPayload::LEN);
    head.len() - option
}

/// Changes the headers of a super-packet too long for its length field so that [`RxHeaders::parse`] accepts them for
/// segmentation: removes a jumbo payload option and sets the length field to its maximum. Leaves other headers
/// unchanged. Returns their new length.
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

/// Returns the first two headers of `packet` if the second one has its length.
fn jumbo_payload(packet: &[u8]) -> Option<(Ipv6Header, JumboPayload)> {
    let ip = Ipv6Header::parse(packet).ok()?;
    let (jumbo, _) = JumboPayload::read_from_prefix(packet.get(Ipv6Header::LEN..)?).ok()?;
    let is_jumbo = ip.next_header == protocol::HOP_BY_HOP
        && ip.payload_len == 0
        && (jumbo.units, jumbo.option, jumbo.option_len) == (0, JUMBO_PAYLOAD, 4);
    is_jumbo.then_some((ip, jumbo))
}

/// Removes the option from the headers at the start of `packet`; returns the number of bytes removed.
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
