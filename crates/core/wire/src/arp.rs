//! ARP for IPv4 over Ethernet (RFC 826).

use std::net::Ipv4Addr;

use zerocopy::byteorder::network_endian::U16;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::ethernet::{EtherType, MacAddr};
use crate::parse_error::ParseError;

/// Bytes of an ARP packet for IPv4 over Ethernet.
pub const ARP_LEN: usize = 28;

/// ARP operation. Any number is a valid value; RARP and others are ignored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ArpOperation(pub u16);

impl ArpOperation {
    /// "Who has `target_ip`?"
    pub const REQUEST: Self = Self(1);
    /// "`sender_ip` is at `sender_mac`."
    pub const REPLY: Self = Self(2);
}

/// An ARP packet for IPv4 over Ethernet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ArpPacket {
    /// Request or reply.
    pub op: ArpOperation,
    /// Hardware address of the sender.
    pub sender_mac: MacAddr,
    /// Protocol address of the sender (0.0.0.0 in an address probe, RFC 5227).
    pub sender_ip: Ipv4Addr,
    /// Hardware address of the target (meaningless in a request).
    pub target_mac: MacAddr,
    /// Protocol address of the target.
    pub target_ip: Ipv4Addr,
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct Raw {
    hardware: U16,
    protocol: U16,
    hardware_len: u8,
    protocol_len: u8,
    op: U16,
    sender_mac: [u8; 6],
    sender_ip: [u8; 4],
    target_mac: [u8; 6],
    target_ip: [u8; 4],
}
const _: () = assert!(size_of::<Raw>() == ARP_LEN);

/// "Ethernet" in IANA's ARP hardware types.
const HARDWARE_ETHERNET: u16 = 1;

impl ArpPacket {
    /// Returns a request for the hardware address of `target_ip`.
    pub const fn request(sender_mac: MacAddr, sender_ip: Ipv4Addr, target_ip: Ipv4Addr) -> Self {
        let op = ArpOperation::REQUEST;
        Self {
            op,
            sender_mac,
            sender_ip,
            target_mac: MacAddr([0; 6]),
            target_ip,
        }
    }

    /// Returns the answer to this request by the station `mac`, which owns `target_ip`.
    pub const fn reply(&self, mac: MacAddr) -> Self {
        Self {
            op: ArpOperation::REPLY,
            sender_mac: mac,
            sender_ip: self.target_ip,
            target_mac: self.sender_mac,
            target_ip: self.sender_ip,
        }
    }

    /// Parses the packet at the start of `bytes` (the rest is Ethernet padding).
    ///
    /// # Errors
    /// [`ParseError::Truncated`] if there are fewer than [`ARP_LEN`] bytes, [`ParseError::BadArp`]
    /// if it is not for IPv4 over Ethernet.
    pub fn parse(bytes: &[u8]) -> Result<Self, ParseError> {
        let (raw, _) = Raw::ref_from_prefix(bytes).map_err(|_| ParseError::Truncated)?;
        let kind = (
            raw.hardware.get(),
            raw.protocol.get(),
            raw.hardware_len,
            raw.protocol_len,
        );
        if kind != (HARDWARE_ETHERNET, EtherType::IPV4.0, 6, 4) {
            return Err(ParseError::BadArp);
        }
        Ok(Self {
            op: ArpOperation(raw.op.get()),
            sender_mac: MacAddr(raw.sender_mac),
            sender_ip: raw.sender_ip.into(),
            target_mac: MacAddr(raw.target_mac),
            target_ip: raw.target_ip.into(),
        })
    }

    /// Writes the packet to the start of `out`, returns its length.
    ///
    /// # Panics
    /// If `out` is shorter than [`ARP_LEN`].
    pub fn emit(&self, out: &mut [u8]) -> usize {
        let Self {
            op,
            sender_mac,
            sender_ip,
            target_mac,
            target_ip,
        } = *self;
        let raw = Raw {
            hardware: HARDWARE_ETHERNET.into(),
            protocol: EtherType::IPV4.0.into(),
            hardware_len: 6,
            protocol_len: 4,
            op: op.0.into(),
            sender_mac: sender_mac.0,
            sender_ip: sender_ip.octets(),
            target_mac: target_mac.0,
            target_ip: target_ip.octets(),
        };
        out[..ARP_LEN].copy_from_slice(raw.as_bytes());
        ARP_LEN
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const REQUEST: ArpPacket = ArpPacket::request(
        MacAddr([2, 0, 0, 0, 0, 1]),
        Ipv4Addr::new(10, 77, 0, 1),
        Ipv4Addr::new(10, 77, 0, 2),
    );

    #[test]
    fn a_request_has_the_layout_of_rfc_826() {
        let mut out = [0xee; 30];
        assert_eq!(REQUEST.emit(&mut out), 28);
        let expected = [
            0, 1, 8, 0, 6, 4, 0, 1, 2, 0, 0, 0, 0, 1, 10, 77, 0, 1, 0, 0, 0, 0, 0, 0, 10, 77, 0, 2,
        ];
        assert_eq!(out[..28], expected);
        assert_eq!(ArpPacket::parse(&out), Ok(REQUEST), "padding is ignored");
    }

    #[test]
    fn a_reply_turns_the_request_around() {
        let reply = REQUEST.reply(MacAddr([2, 0, 0, 0, 0, 9]));
        assert_eq!(reply.op, ArpOperation::REPLY);
        assert_eq!(
            (reply.sender_ip, reply.sender_mac.0[5]),
            (REQUEST.target_ip, 9)
        );
        assert_eq!(
            (reply.target_ip, reply.target_mac),
            (REQUEST.sender_ip, REQUEST.sender_mac)
        );
    }

    #[test]
    fn other_kinds_and_short_packets_are_refused() {
        let mut bytes = [0; ARP_LEN];
        REQUEST.emit(&mut bytes);
        assert_eq!(ArpPacket::parse(&bytes[..27]), Err(ParseError::Truncated));
        for (at, value) in [(1, 6), (2, 0x86), (4, 8), (5, 16)] {
            let mut other = bytes;
            other[at] = value;
            assert_eq!(
                ArpPacket::parse(&other),
                Err(ParseError::BadArp),
                "byte {at}"
            );
        }
    }
}
