//! IPv4 headers (RFC 791).

use std::net::Ipv4Addr;

use zerocopy::byteorder::network_endian::U16;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::checksum::checksum;
use crate::head::Head;
use crate::parse_error::ParseError;
use crate::protocol;

/// An IPv4 header. Options are ignored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ipv4Header {
    /// Source.
    pub src: Ipv4Addr,
    /// Destination.
    pub dst: Ipv4Addr,
    /// Protocol of the payload (see [`protocol`]).
    pub protocol: u8,
    /// Time to live, in hops.
    pub ttl: u8,
    /// Differentiated services (6 bits) and ECN (2 bits).
    pub dscp_ecn: u8,
    /// Identification, shared by the fragments of one packet.
    pub ident: u16,
    /// Routers must not fragment.
    pub dont_fragment: bool,
    /// This is a fragment and not the last one.
    pub more_fragments: bool,
    /// Offset of this fragment in the packet, in bytes (a multiple of 8).
    pub fragment_offset: u16,
    /// Bytes of header with options: 20 to 60, a multiple of 4.
    pub header_len: usize,
    /// Bytes of header and payload; at least `header_len` once parsed.
    pub total_len: u16,
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct Raw {
    version_ihl: u8,
    dscp_ecn: u8,
    total_len: U16,
    ident: U16,
    flags_offset: U16,
    ttl: u8,
    protocol: u8,
    checksum: U16,
    src: [u8; 4],
    dst: [u8; 4],
}
const _: () = assert!(size_of::<Raw>() == Ipv4Header::LEN);

const DONT_FRAGMENT: u16 = 0x4000;
const MORE_FRAGMENTS: u16 = 0x2000;
const OFFSET_MASK: u16 = 0x1fff;

impl Ipv4Header {
    /// Bytes of a header without options.
    pub const LEN: usize = 20;
    /// Bytes of the longest header.
    pub const MAX_LEN: usize = 60;

    /// Bytes of the longest packet whose length the header can say.
    pub const MAX_PACKET_LEN: usize = u16::MAX as usize;

    /// Returns the header length (20 to 60) that the first byte of a packet announces.
    ///
    /// # Errors
    /// [`ParseError::BadVersion`], [`ParseError::BadHeaderLength`].
    #[inline]
    pub(crate) fn announced_len(version_ihl: u8) -> Result<usize, ParseError> {
        if version_ihl >> 4 != 4 {
            return Err(ParseError::BadVersion);
        }
        let len = usize::from(version_ihl & 0xf) * 4;
        if len < Self::LEN {
            Err(ParseError::BadHeaderLength)
        } else {
            Ok(len)
        }
    }

    /// Parses the header at `at` of a frame and verifies its checksum; returns it, and the frame up to the end of the packet.
    ///
    /// A packet too long for its length field has 0 there, and ends with the frame: a super-packet of TCP (Linux: BIG TCP).
    ///
    /// # Errors
    /// [`ParseError::NeedMore`], [`ParseError::Truncated`], [`ParseError::BadVersion`], [`ParseError::BadHeaderLength`],
    /// [`ParseError::BadTotalLength`], [`ParseError::BadIpChecksum`].
    #[inline(always)]
    pub(crate) fn parse(frame: Head<'_>, at: usize) -> Result<(Self, Head<'_>), ParseError> {
        let header_len = Self::announced_len(frame.slice(at, Self::LEN)?[0])?;
        let header = frame.slice(at, header_len)?;
        let (raw, _) = Raw::ref_from_prefix(header).map_err(|_| ParseError::Truncated)?;
        let total_len = usize::from(raw.total_len.get());
        if total_len < header_len && total_len > 0 {
            return Err(ParseError::BadTotalLength);
        }
        if checksum(header) != 0 {
            return Err(ParseError::BadIpChecksum);
        }
        let ip = Self::from_raw(raw, header_len);
        let packet = match total_len {
            0 if ip.transport() != Some(protocol::TCP) => return Err(ParseError::BadTotalLength),
            0 => frame.big_packet(at, Self::MAX_PACKET_LEN)?,
            len => frame.packet(at, len)?,
        };
        Ok((ip, packet))
    }

    /// Parses a header that an ICMP error quotes. Routers may have changed it, so neither checksum nor
    /// total length is checked (RFC 1812 4.3.2.3).
    pub(crate) fn parse_quoted(packet: &[u8]) -> Result<Self, ParseError> {
        let (raw, _) = Raw::ref_from_prefix(packet).map_err(|_| ParseError::Truncated)?;
        let header_len = Self::announced_len(raw.version_ihl)?;
        Ok(Self::from_raw(raw, header_len))
    }

    #[inline(always)]
    fn from_raw(raw: &Raw, header_len: usize) -> Self {
        let flags_offset = raw.flags_offset.get();
        Self {
            src: raw.src.into(),
            dst: raw.dst.into(),
            protocol: raw.protocol,
            ttl: raw.ttl,
            dscp_ecn: raw.dscp_ecn,
            ident: raw.ident.get(),
            dont_fragment: flags_offset & DONT_FRAGMENT != 0,
            more_fragments: flags_offset & MORE_FRAGMENTS != 0,
            fragment_offset: (flags_offset & OFFSET_MASK) << 3,
            header_len,
            total_len: raw.total_len.get(),
        }
    }

    /// True if this packet is a fragment.
    #[inline]
    pub const fn is_fragment(&self) -> bool {
        self.more_fragments || self.fragment_offset != 0
    }

    /// Returns the protocol of the header that follows; `None` in a fragment, which may have none.
    #[inline]
    pub(crate) const fn transport(&self) -> Option<u8> {
        match self.is_fragment() {
            true => None,
            false => Some(self.protocol),
        }
    }

    /// Replaces a total length of 0 in the IPv4 header at the start of `packet` with the maximum, and updates the header
    /// checksum; leaves everything else unchanged.
    pub(crate) fn set_missing_total_len(packet: &mut [u8]) {
        let Some(Ok(header_len)) = packet.first().map(|&first| Self::announced_len(first)) else {
            return;
        };
        let Some(header) = packet.get_mut(..header_len) else {
            return;
        };
        match Raw::mut_from_prefix(header) {
            Ok((raw, _)) if raw.total_len.get() == 0 => {
                raw.total_len = u16::MAX.into();
                raw.checksum = 0.into();
            }
            _ => return,
        }
        let sum = checksum(header);
        if let Ok((raw, _)) = Raw::mut_from_prefix(header) {
            raw.checksum = sum.into();
        }
    }

    /// Writes the header without options to the start of `out`, with its checksum; returns
    /// [`Ipv4Header::LEN`] and ignores `header_len`.
    ///
    /// # Panics
    /// If `out` is shorter than [`Ipv4Header::LEN`].
    pub fn emit(&self, out: &mut [u8]) -> usize {
        let Self {
            src,
            dst,
            protocol,
            ttl,
            dscp_ecn,
            ident,
            dont_fragment,
            more_fragments,
            fragment_offset,
            header_len: _,
            total_len,
        } = *self;
        let flags = if dont_fragment { DONT_FRAGMENT } else { 0 }
            | if more_fragments { MORE_FRAGMENTS } else { 0 };
        let mut raw = Raw {
            version_ihl: 0x45,
            dscp_ecn,
            total_len: total_len.into(),
            ident: ident.into(),
            flags_offset: (flags | fragment_offset >> 3).into(),
            ttl,
            protocol,
            checksum: 0.into(),
            src: src.octets(),
            dst: dst.octets(),
        };
        raw.checksum = checksum(raw.as_bytes()).into();
        out[..Self::LEN].copy_from_slice(raw.as_bytes());
        Self::LEN
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn arbitrary() -> impl Strategy<Value = Ipv4Header> {
        (
            any::<([u8; 4], [u8; 4], u8, u8, u8)>(),
            any::<(u16, bool, bool)>(),
            0u16..0x2000,
            20u16..,
        )
            .prop_map(
                |((src, dst, protocol, ttl, dscp_ecn), (ident, df, mf), units, total_len)| {
                    Ipv4Header {
                        src: src.into(),
                        dst: dst.into(),
                        protocol,
                        ttl,
                        dscp_ecn,
                        ident,
                        dont_fragment: df,
                        more_fragments: mf,
                        fragment_offset: units * 8,
                        header_len: 20,
                        total_len,
                    }
                },
            )
    }

    proptest! {
        #[test]
        fn headers_survive_the_round_trip(header in arbitrary()) {
            let mut out = [0; 20];
            prop_assert_eq!(header.emit(&mut out), 20);
            let end = usize::from(header.total_len);
            let parsed = Ipv4Header::parse(Head::new(&out, end), 0);
            prop_assert_eq!(parsed.map(|(header, packet)| (header, packet.end)), Ok((header, end)));
            prop_assert_eq!(Ipv4Header::parse_quoted(&out), Ok(header));
        }

        #[test]
        fn any_flipped_bit_is_noticed(header in arbitrary(), at in 0usize..160) {
            let mut out = [0; 20];
            header.emit(&mut out);
            out[at / 8] ^= 1 << (at % 8);
            prop_assert!(Ipv4Header::parse(Head::new(&out, usize::MAX), 0).is_err());
        }
    }

    #[test]
    fn a_header_of_a_known_packet_is_emitted_bit_by_bit() {
        // A common textbook example: its checksum is 0xb861.
        let header = Ipv4Header {
            src: [192, 168, 0, 1].into(),
            dst: [192, 168, 0, 199].into(),
            protocol: 17,
            ttl: 64,
            dscp_ecn: 0,
            ident: 0,
            dont_fragment: true,
            more_fragments: false,
            fragment_offset: 0,
            header_len: 20,
            total_len: 115,
        };
        let mut out = [0; 20];
        header.emit(&mut out);
        let expected = [
            0x45, 0, 0, 0x73, 0, 0, 0x40, 0, 0x40, 0x11, 0xb8, 0x61, 0xc0, 0xa8, 0, 1, 0xc0, 0xa8,
            0, 0xc7,
        ];
        assert_eq!(out, expected);
    }
}
