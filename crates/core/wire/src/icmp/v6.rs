//! ICMP for IPv6 (RFC 4443).

use std::net::Ipv6Addr;

use super::{
    Echo, EchoKind, HEADER_LEN, IcmpError, NeighborAdvertisement, NeighborSolicitation, Quoted,
    ndp, store_checksum,
};
use crate::{Checksum, Ipv6Header, protocol};

const DESTINATION_UNREACHABLE: u8 = 1;
const PACKET_TOO_BIG: u8 = 2;
const TIME_EXCEEDED: u8 = 3;
const ECHO_REQUEST: u8 = 128;
const ECHO_REPLY: u8 = 129;

/// An ICMPv6 message that matters to a TCP host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Icmpv6<'a> {
    /// Someone asks whether we are there.
    EchoRequest(Echo<'a>),
    /// Someone answers.
    EchoReply(Echo<'a>),
    /// A packet of ours could not be delivered.
    DestinationUnreachable {
        /// Why: 0 no route, 1 prohibited, 3 address, 4 port, ...
        code: u8,
        /// Which packet, if enough of it was quoted.
        quoted: Option<Quoted>,
    },
    /// A packet of ours did not fit the next link.
    PacketTooBig {
        /// MTU of that link.
        mtu: u32,
        /// Which packet, if enough of it was quoted.
        quoted: Option<Quoted>,
    },
    /// A packet of ours lived too long.
    TimeExceeded {
        /// 0 in transit, 1 in reassembly.
        code: u8,
        /// Which packet, if enough of it was quoted.
        quoted: Option<Quoted>,
    },
    /// Someone asks for a hardware address.
    NeighborSolicitation(NeighborSolicitation),
    /// Someone tells a hardware address.
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
    /// Parses a message that came under `ip` (all of the packet after the extension headers) and
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

/// ICMPv6 sums a pseudo-header (RFC 4443 2.3); `len` fits, for it came from or goes into 16 bits.
pub(super) fn pseudo_header(src: Ipv6Addr, dst: Ipv6Addr, len: usize) -> Checksum {
    let len = u32::try_from(len).unwrap_or(u32::MAX);
    Checksum::pseudo_v6(src, dst, protocol::ICMPV6, len)
}
