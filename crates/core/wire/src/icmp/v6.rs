//! ICMP for IPv6 (RFC 4443).

use std::net::Ipv6Addr;

use super::{
    Echo, EchoKind, HEADER_LEN, IcmpError, NeighborAdvertisement, NeighborSolicitation, Quoted,
    ndp, pseudo_header, store_checksum,
};
use crate::ipv6::Ipv6Header;

const DESTINATION_UNREACHABLE: u8 = 1;
const PACKET_TOO_BIG: u8 = 2;
const TIME_EXCEEDED: u8 = 3;
const ECHO_REQUEST: u8 = 128;
const ECHO_REPLY: u8 = 129;

/// An ICMPv6 message that matters to a TCP host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Icmpv6<'a> {
    /// Echo request.
    EchoRequest(Echo<'a>),
    /// Echo reply.
    EchoReply(Echo<'a>),
    /// A packet of ours could not be delivered.
    DestinationUnreachable {
        /// Reason: 0 no route, 1 prohibited, 3 address, 4 port, ...
        code: u8,
        /// The packet, if enough of it was quoted.
        quoted: Option<Quoted>,
    },
    /// A packet of ours was longer than the MTU of the next link.
    PacketTooBig {
        /// MTU of that link.
        mtu: u32,
        /// The packet, if enough of it was quoted.
        quoted: Option<Quoted>,
    },
    /// The hop limit or reassembly time of a packet of ours was exceeded.
    TimeExceeded {
        /// 0 in transit, 1 in reassembly.
        code: u8,
        /// The packet, if enough of it was quoted.
        quoted: Option<Quoted>,
    },
    /// Neighbor solicitation.
    NeighborSolicitation(NeighborSolicitation),
    /// Neighbor advertisement.
    NeighborAdvertisement(NeighborAdvertisement),
    /// Anything else, router discovery included.
    Other {
        /// Type.
        kind: u8,
        /// Code.
        code: u8,
    },
}

impl<'a> Icmpv6<'a> {
    /// Parses the message of a packet with header `ip` (all bytes after the extension headers) and
    /// verifies its checksum and, for neighbor discovery, the rules of RFC 4861 7.1.
    ///
    /// # Errors
    /// [`IcmpError::Truncated`], [`IcmpError::BadChecksum`], [`IcmpError::BadNeighborDiscovery`].
    pub fn parse(ip: &Ipv6Header, message: &'a [u8]) -> Result<Self, IcmpError> {
        let &[kind, code, _, _, m0, m1, m2, m3] = message
            .first_chunk::<HEADER_LEN>()
            .ok_or(IcmpError::Truncated)?;
        let mut sum = pseudo_header(ip.src, ip.dst, message.len());
        sum.add_bytes(message);
        if sum.finish() != 0 {
            return Err(IcmpError::BadChecksum);
        }
        let quoted = || Quoted::parse_v6(&message[HEADER_LEN..]);
        Ok(match kind {
            ECHO_REQUEST if code == 0 => Self::EchoRequest(Echo::parse(message)?),
            ECHO_REPLY if code == 0 => Self::EchoReply(Echo::parse(message)?),
            DESTINATION_UNREACHABLE => Self::DestinationUnreachable {
                code,
                quoted: quoted(),
            },
            PACKET_TOO_BIG => Self::PacketTooBig {
                mtu: u32::from_be_bytes([m0, m1, m2, m3]),
                quoted: quoted(),
            },
            TIME_EXCEEDED => Self::TimeExceeded {
                code,
                quoted: quoted(),
            },
            ndp::SOLICITATION => {
                Self::NeighborSolicitation(NeighborSolicitation::parse(ip, message)?)
            }
            ndp::ADVERTISEMENT => {
                Self::NeighborAdvertisement(NeighborAdvertisement::parse(ip, message)?)
            }
            _ => Self::Other { kind, code },
        })
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
