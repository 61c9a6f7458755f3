//! IPv6 headers and extension headers (RFC 8200).

use std::net::Ipv6Addr;

use zerocopy::byteorder::network_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::head::Head;
use crate::parse_error::ParseError;
use crate::protocol;

/// Maximum number of extension headers in one packet (RFC 8504 5.3 lets hosts limit it); more are an error.
pub const MAX_EXTENSION_HEADERS: usize = 8;
/// Maximum bytes of extension headers in one packet (RFC 8504 5.3); more are an error.
pub const MAX_EXTENSION_LEN: usize = 256;

/// The fixed IPv6 header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ipv6Header {
    /// Source.
    pub src: Ipv6Addr,
    /// Destination.
    pub dst: Ipv6Addr,
    /// Protocol after the fixed header: possibly an extension header.
    pub next_header: u8,
    /// Hops left.
    pub hop_limit: u8,
    /// Differentiated services (6 bits) and ECN (2 bits).
    pub traffic_class: u8,
    /// Flow label, 20 bits.
    pub flow_label: u32,
    /// Bytes after the fixed header, extension headers included.
    pub payload_len: u16,
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct Raw {
    version_class_flow: U32,
    payload_len: U16,
    next_header: u8,
    hop_limit: u8,
    src: [u8; 16],
    dst: [u8; 16],
}
const _: () = assert!(size_of::<Raw>() == Ipv6Header::LEN);

impl Ipv6Header {
    /// Bytes of the fixed header.
    pub const LEN: usize = 40;

    /// Bytes of the longest packet whose length the header can say: it does not count itself.
    pub const MAX_PACKET_LEN: usize = Self::LEN + u16::MAX as usize;

    /// Parses the fixed header at the start of `packet`. The caller checks that the payload is as long
    /// as `payload_len` says.
    ///
    /// # Errors
    /// [`ParseError::Truncated`], [`ParseError::BadVersion`].
    #[inline(always)]
    pub fn parse(packet: &[u8]) -> Result<Self, ParseError> {
        let (raw, _) = Raw::ref_from_prefix(packet).map_err(|_| ParseError::Truncated)?;
        let [b0, b1, b2, b3] = raw.version_class_flow.to_bytes();
        if b0 >> 4 != 6 {
            return Err(ParseError::BadVersion);
        }
        Ok(Self {
            src: raw.src.into(),
            dst: raw.dst.into(),
            next_header: raw.next_header,
            hop_limit: raw.hop_limit,
            traffic_class: b0 << 4 | b1 >> 4,
            flow_label: u32::from_be_bytes([0, b1 & 0xf, b2, b3]),
            payload_len: raw.payload_len.get(),
        })
    }

    /// Writes the header to the start of `out`, returns its length.
    ///
    /// # Panics
    /// If `out` is shorter than [`Ipv6Header::LEN`].
    pub fn emit(&self, out: &mut [u8]) -> usize {
        let Self {
            src,
            dst,
            next_header,
            hop_limit,
            traffic_class,
            flow_label,
            payload_len,
        } = *self;
        let class = u32::from(traffic_class) << 20;
        let raw = Raw {
            version_class_flow: (6 << 28 | class | flow_label & 0xf_ffff).into(),
            payload_len: payload_len.into(),
            next_header,
            hop_limit,
            src: src.octets(),
            dst: dst.octets(),
        };
        out[..Self::LEN].copy_from_slice(raw.as_bytes());
        Self::LEN
    }
}

/// Result of parsing the extension headers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ExtensionHeaders {
    /// Protocol after the last parsed header.
    pub transport: u8,
    /// Offset at which that protocol starts.
    pub end: usize,
    /// The packet is a fragment: there is no transport header at `end`.
    pub fragment: bool,
}

impl ExtensionHeaders {
    /// Parses the headers from `first` at offset `start`; stops at the first that is not a known
    /// extension header, and at the fragment header of an actual fragment.
    #[inline]
    pub(crate) fn walk(first: u8, head: Head<'_>, start: usize) -> Result<Self, ParseError> {
        let mut at = start;
        let mut transport = first;
        for position in 0..=MAX_EXTENSION_HEADERS {
            match transport {
                // "Restricted to appear immediately after an IPv6 header only" (RFC 8200 4.1).
                protocol::HOP_BY_HOP if position != 0 => break,
                protocol::HOP_BY_HOP
                | protocol::DESTINATION_OPTIONS
                | protocol::ROUTING
                | protocol::FRAGMENT => {}
                _ => {
                    return Ok(Self {
                        transport,
                        end: at,
                        fragment: false,
                    });
                }
            }
            let [next, units] = head.array::<2>(at)?;
            let len = match transport {
                protocol::FRAGMENT => 8,
                _ => (usize::from(units) + 1) * 8,
            };
            if at + len - start > MAX_EXTENSION_LEN {
                break;
            }
            let header = head.slice(at, len)?;
            at += len;
            match transport {
                protocol::FRAGMENT if !is_atomic_fragment(header) => {
                    return Ok(Self {
                        transport: next,
                        end: at,
                        fragment: true,
                    });
                }
                protocol::FRAGMENT => {}
                protocol::ROUTING => check_routing(header)?,
                _ => check_options(header)?,
            }
            transport = next;
        }
        Err(ParseError::ExtensionHeaders)
    }
}

/// Returns true for offset 0 and no more fragments: a whole packet (RFC 6946).
fn is_atomic_fragment(header: &[u8]) -> bool {
    matches!(header, [_, _, offset, flags, ..] if *offset == 0 && flags & 0xf9 == 0)
}

/// Accepts a routing header with no segments left; this host does not forward (RFC 8200 4.4).
fn check_routing(header: &[u8]) -> Result<(), ParseError> {
    match header {
        [_, _, _, 0, ..] => Ok(()),
        _ => Err(ParseError::ExtensionHeaders),
    }
}

/// Skips unknown options if their type allows it (RFC 8200 4.2); that of a jumbo payload (RFC 2675)
/// does not.
fn check_options(header: &[u8]) -> Result<(), ParseError> {
    let mut options = header.get(2..).unwrap_or_default();
    while let [kind, rest @ ..] = options {
        options = match (kind, rest) {
            (0, rest) => rest,
            (kind, [len, body @ ..]) if kind >> 6 == 0 => body
                .get(usize::from(*len)..)
                .ok_or(ParseError::ExtensionHeaders)?,
            _ => return Err(ParseError::ExtensionHeaders),
        };
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn headers_survive_the_round_trip(
            addresses in any::<([u8; 16], [u8; 16])>(),
            (next_header, hop_limit, traffic_class, payload_len) in any::<(u8, u8, u8, u16)>(),
            flow_label in 0u32..1 << 20,
        ) {
            let header = Ipv6Header {
                src: addresses.0.into(),
                dst: addresses.1.into(),
                next_header,
                hop_limit,
                traffic_class,
                flow_label,
                payload_len,
            };
            let mut out = [0; 40];
            prop_assert_eq!(header.emit(&mut out), 40);
            prop_assert_eq!(Ipv6Header::parse(&out), Ok(header));
            prop_assert_eq!(Ipv6Header::parse(&out[..39]), Err(ParseError::Truncated));
            out[0] ^= 0x20;
            prop_assert_eq!(Ipv6Header::parse(&out), Err(ParseError::BadVersion));
        }
    }

    #[test]
    fn a_flow_label_of_more_than_20_bits_does_not_spill_into_the_class() {
        let header = Ipv6Header {
            src: Ipv6Addr::UNSPECIFIED,
            dst: Ipv6Addr::UNSPECIFIED,
            next_header: 6,
            hop_limit: 64,
            traffic_class: 0xa5,
            flow_label: u32::MAX,
            payload_len: 0,
        };
        let mut out = [0; 40];
        header.emit(&mut out);
        assert_eq!(out[..4], [0x6a, 0x5f, 0xff, 0xff]);
    }
}
