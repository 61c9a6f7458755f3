//! ICMP for IPv6 (RFC 4443).

use std::net::Ipv6Addr;

use super::{
    Echo, EchoKind, HEADER_LEN, Icmp, IcmpError, NeighborAdvertisement, NeighborSolicitation,
    Quoted, Undelivered, ndp, pseudo_header, store_checksum,
};
use crate::ipv6::Ipv6Header;

const DESTINATION_UNREACHABLE: u8 = 1;
const PACKET_TOO_BIG: u8 = 2;
const TIME_EXCEEDED: u8 = 3;
const ECHO_REQUEST: u8 = 128;
const ECHO_REPLY: u8 = 129;

impl<'a> Icmp<'a> {
    /// Parses the message of a packet with header `ip` (all bytes after the extension headers) and
    /// verifies its checksum and, for neighbor discovery, the rules of RFC 4861 7.1.
    ///
    /// # Errors
    /// [`IcmpError::Truncated`], [`IcmpError::BadChecksum`], [`IcmpError::BadNeighborDiscovery`].
    pub fn parse_v6(ip: &Ipv6Header, message: &'a [u8]) -> Result<Self, IcmpError> {
        let &[kind, code, _, _, m0, m1, m2, m3] = message
            .first_chunk::<HEADER_LEN>()
            .ok_or(IcmpError::Truncated)?;
        let mut sum = pseudo_header(ip.src, ip.dst, message.len());
        sum.add_bytes(message);
        if sum.finish() != 0 {
            return Err(IcmpError::BadChecksum);
        }
        let why = match (kind, code) {
            (ECHO_REQUEST, 0) => return Ok(Self::EchoRequest(Echo::parse(message)?)),
            (ECHO_REPLY, 0) => return Ok(Self::EchoReply(Echo::parse(message)?)),
            (DESTINATION_UNREACHABLE, code) => Undelivered::Unreachable { code },
            (PACKET_TOO_BIG, _) => Undelivered::TooBig {
                mtu: Some(u32::from_be_bytes([m0, m1, m2, m3])),
            },
            (TIME_EXCEEDED, _) => Undelivered::TimeExceeded,
            (ndp::SOLICITATION, _) => {
                let asked = NeighborSolicitation::parse(ip, message)?;
                return Ok(Self::NeighborSolicitation(asked));
            }
            (ndp::ADVERTISEMENT, _) => {
                let told = NeighborAdvertisement::parse(ip, message)?;
                return Ok(Self::NeighborAdvertisement(told));
            }
            _ => return Ok(Self::Other { kind, code }),
        };
        let quoted = Quoted::parse_v6(&message[HEADER_LEN..]);
        Ok(Self::Undelivered { why, quoted })
    }
}

impl Echo<'_> {
    /// Writes an ICMPv6 echo message for a packet from `src` to `dst` to the start of `out`,
    /// returns its length.
    ///
    /// # Panics
    /// If `out` is shorter than [`message_len`](Self::message_len).
    pub fn emit_v6(&self, kind: EchoKind, src: Ipv6Addr, dst: Ipv6Addr, out: &mut [u8]) -> usize {
        let kind = match kind {
            EchoKind::Request => ECHO_REQUEST,
            EchoKind::Reply => ECHO_REPLY,
        };
        let len = self.emit(kind, out);
        store_checksum(&mut out[..len], pseudo_header(src, dst, len));
        len
    }
}
