//! Ethernet II with at most one 802.1Q tag.

use std::fmt;
use std::str::FromStr;

use zerocopy::byteorder::network_endian::U16;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::parse_error::ParseError;

/// A 48-bit hardware address.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct MacAddr(pub [u8; 6]);

impl MacAddr {
    /// All ones: every station on the link.
    pub const BROADCAST: Self = Self([0xff; 6]);

    /// True if the group bit is set (broadcast included).
    pub const fn is_multicast(self) -> bool {
        self.0[0] & 1 != 0
    }

    /// True if it can be the address of one station: the group bit is clear, and it is not all zero.
    pub const fn is_unicast(self) -> bool {
        let [a, b, c, d, e, f] = self.0;
        !self.is_multicast() && a | b | c | d | e | f != 0
    }

    /// Returns the address that an IPv6 multicast group maps to (RFC 2464 7).
    pub const fn for_ipv6_multicast(group: std::net::Ipv6Addr) -> Self {
        let octets = group.octets();
        Self([0x33, 0x33, octets[12], octets[13], octets[14], octets[15]])
    }
}

impl fmt::Display for MacAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d, e, g] = self.0;
        write!(f, "{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{g:02x}")
    }
}

impl fmt::Debug for MacAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// The text is not six two-digit hexadecimal numbers joined by colons.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not a hardware address: expected six hexadecimal bytes like 02:00:00:00:00:01")]
pub struct MacAddrParseError;

impl FromStr for MacAddr {
    type Err = MacAddrParseError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let mut octets = [0; 6];
        let mut parts = text.split(':');
        for octet in &mut octets {
            let part = parts.next().ok_or(MacAddrParseError)?;
            if part.len() != 2 || !part.bytes().all(|b| b.is_ascii_hexdigit()) {
                return Err(MacAddrParseError);
            }
            *octet = u8::from_str_radix(part, 16).map_err(|_| MacAddrParseError)?;
        }
        match parts.next() {
            None => Ok(Self(octets)),
            Some(_) => Err(MacAddrParseError),
        }
    }
}

/// Protocol of the frame's payload. Any number that a peer sends is a valid value.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct EtherType(pub u16);

impl EtherType {
    /// IPv4 (RFC 894).
    pub const IPV4: Self = Self(0x0800);
    /// ARP (RFC 826).
    pub const ARP: Self = Self(0x0806);
    /// One 802.1Q tag follows.
    pub const VLAN: Self = Self(0x8100);
    /// IPv6 (RFC 2464).
    pub const IPV6: Self = Self(0x86dd);
}

impl fmt::Debug for EtherType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "EtherType({:#06x})", self.0)
    }
}

/// An Ethernet header with an optional 802.1Q tag.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EthernetHeader {
    /// Destination.
    pub dst: MacAddr,
    /// Source.
    pub src: MacAddr,
    /// Protocol of the payload (the type after the tag, if there is one).
    pub ethertype: EtherType,
    /// Tag control information (3 bits priority, 1 bit drop-eligible, 12 bits VLAN id).
    pub vlan: Option<u16>,
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct Raw {
    dst: [u8; 6],
    src: [u8; 6],
    ethertype: U16,
}
const _: () = assert!(size_of::<Raw>() == EthernetHeader::LEN);

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct RawTag {
    control: U16,
    ethertype: U16,
}
const _: () = assert!(size_of::<RawTag>() == EthernetHeader::TAGGED_LEN - EthernetHeader::LEN);

impl EthernetHeader {
    /// Bytes of a header without a tag.
    pub const LEN: usize = 14;
    /// Bytes of a header with one tag.
    pub const TAGGED_LEN: usize = 18;

    /// Returns the bytes this header takes on the wire.
    pub const fn header_len(&self) -> usize {
        match self.vlan {
            None => Self::LEN,
            Some(_) => Self::TAGGED_LEN,
        }
    }

    /// Returns the header length that the first [`LEN`](Self::LEN) bytes of a frame announce.
    #[inline]
    pub(crate) fn announced_len(untagged: &[u8]) -> usize {
        match untagged.ends_with(&EtherType::VLAN.0.to_be_bytes()) {
            true => Self::TAGGED_LEN,
            false => Self::LEN,
        }
    }

    /// Parses the header at the start of `frame`.
    ///
    /// # Errors
    /// [`ParseError::Truncated`] if `frame` ends before the header does.
    #[inline(always)]
    pub fn parse(frame: &[u8]) -> Result<Self, ParseError> {
        let (raw, rest) = Raw::ref_from_prefix(frame).map_err(|_| ParseError::Truncated)?;
        let mut header = Self {
            dst: MacAddr(raw.dst),
            src: MacAddr(raw.src),
            ethertype: EtherType(raw.ethertype.get()),
            vlan: None,
        };
        if header.ethertype == EtherType::VLAN {
            let (tag, _) = RawTag::ref_from_prefix(rest).map_err(|_| ParseError::Truncated)?;
            header.vlan = Some(tag.control.get());
            header.ethertype = EtherType(tag.ethertype.get());
        }
        Ok(header)
    }

    /// Writes the header to the start of `out`, returns its length.
    ///
    /// # Panics
    /// If `out` is shorter than [`header_len`](Self::header_len).
    pub fn emit(&self, out: &mut [u8]) -> usize {
        let Self {
            dst,
            src,
            ethertype,
            vlan,
        } = *self;
        let len = self.header_len();
        let first = if vlan.is_some() {
            EtherType::VLAN
        } else {
            ethertype
        };
        out[..6].copy_from_slice(&dst.0);
        out[6..12].copy_from_slice(&src.0);
        out[12..14].copy_from_slice(&first.0.to_be_bytes());
        if let Some(control) = vlan {
            out[14..16].copy_from_slice(&control.to_be_bytes());
            out[16..18].copy_from_slice(&ethertype.0.to_be_bytes());
        }
        len
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEADER: EthernetHeader = EthernetHeader {
        dst: MacAddr([2, 0, 0, 0, 0, 1]),
        src: MacAddr([2, 0, 0, 0, 0, 2]),
        ethertype: EtherType::IPV6,
        vlan: None,
    };

    #[test]
    fn headers_with_and_without_tag_survive_the_round_trip() {
        for (vlan, len) in [(None, 14), (Some(0xe123), 18)] {
            let header = EthernetHeader { vlan, ..HEADER };
            let mut out = [0; 18];
            assert_eq!(header.emit(&mut out), len);
            assert_eq!(header.header_len(), len);
            assert_eq!(EthernetHeader::parse(&out[..len]), Ok(header));
            assert_eq!(
                EthernetHeader::parse(&out[..len - 1]),
                Err(ParseError::Truncated)
            );
        }
    }

    #[test]
    fn a_tag_lies_between_the_addresses_and_the_type() {
        let mut out = [0; 18];
        EthernetHeader {
            vlan: Some(5),
            ..HEADER
        }
        .emit(&mut out);
        assert_eq!(out[12..], [0x81, 0x00, 0, 5, 0x86, 0xdd]);
    }

    #[test]
    fn an_address_is_read_as_it_is_written() {
        let address = MacAddr([0x02, 0xab, 0, 0x0c, 0xff, 0x10]);
        assert_eq!(address.to_string(), "02:ab:00:0c:ff:10");
        assert_eq!(address.to_string().parse(), Ok(address));
        assert_eq!("02:AB:00:0C:FF:10".parse(), Ok(address));
    }

    #[test]
    fn text_that_is_not_an_address_is_refused() {
        for text in [
            "",
            "02",
            "02:00:00:00:00",
            "02:00:00:00:00:01:02",
            "2:0:0:0:0:1",
            "+2:00:00:00:00:01",
            "02:00:00:00:00:0g",
            "02-00-00-00-00-01",
            "02:00:00:00:00:001",
        ] {
            assert_eq!(text.parse::<MacAddr>(), Err(MacAddrParseError), "{text:?}");
        }
    }

    #[test]
    fn the_group_bit_makes_an_address_multicast() {
        assert!(MacAddr::BROADCAST.is_multicast());
        assert!(MacAddr([1, 0, 0, 0, 0, 0]).is_multicast());
        assert!(!HEADER.dst.is_multicast());
        assert!(HEADER.dst.is_unicast() && MacAddr([0, 0, 0, 0, 0, 1]).is_unicast());
        for other in [
            MacAddr::BROADCAST,
            MacAddr([1, 0, 0, 0, 0, 0]),
            MacAddr([0; 6]),
        ] {
            assert!(!other.is_unicast(), "{other}");
        }
        let group = "ff02::1:ff12:3456".parse().unwrap();
        assert_eq!(
            MacAddr::for_ipv6_multicast(group).to_string(),
            "33:33:ff:12:34:56"
        );
    }
}
