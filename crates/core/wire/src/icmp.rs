//! ICMP for IPv4 (RFC 792) and IPv6 (RFC 4443), and neighbor discovery (RFC 4861).

mod ndp;
mod quoted;
mod v4;
mod v6;

pub use ndp::{NeighborAdvertisement, NeighborSolicitation, solicited_node};
pub use quoted::Quoted;

use std::net::Ipv6Addr;

use crate::checksum::Checksum;
use crate::protocol;

/// Reason to reject an ICMP message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum IcmpError {
    /// The message is shorter than its type requires.
    #[error("truncated ICMP message")]
    Truncated,
    /// The checksum is wrong.
    #[error("wrong ICMP checksum")]
    BadChecksum,
    /// A neighbor discovery message breaks a rule of RFC 4861 7.1: hop limit not 255, code not 0,
    /// an option of length 0, a multicast target, ...
    #[error("invalid neighbor discovery message")]
    BadNeighborDiscovery,
}

/// An ICMP message that matters to a TCP host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Icmp<'a> {
    /// Echo request.
    EchoRequest(Echo<'a>),
    /// Echo reply.
    EchoReply(Echo<'a>),
    /// A packet of ours did not arrive.
    Undelivered {
        /// The reason.
        why: Undelivered,
        /// The packet, if enough of it was quoted.
        quoted: Option<Quoted>,
    },
    /// Neighbor solicitation; over IPv6 only.
    NeighborSolicitation(NeighborSolicitation),
    /// Neighbor advertisement; over IPv6 only.
    NeighborAdvertisement(NeighborAdvertisement),
    /// Anything else, router discovery included.
    Other {
        /// Type.
        kind: u8,
        /// Code.
        code: u8,
    },
}

/// Why a packet did not arrive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Undelivered {
    /// It was longer than the MTU of the next link, which a router of IPv4 may leave out (RFC 1191 4).
    TooBig {
        /// That MTU.
        mtu: Option<u32>,
    },
    /// The destination is unreachable.
    Unreachable {
        /// Reason: over IPv4 0 net, 1 host, 2 protocol, 3 port, ...; over IPv6 0 no route, 1 prohibited, 3 address, 4 port, ...
        code: u8,
    },
    /// Its TTL, hop limit or reassembly time was exceeded.
    TimeExceeded,
}

/// Which echo message to send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EchoKind {
    /// Echo request.
    Request,
    /// Echo reply.
    Reply,
}

/// The body of an echo request or reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Echo<'a> {
    /// Identifier, echoed.
    pub ident: u16,
    /// Sequence number, echoed.
    pub seq: u16,
    /// Data, echoed.
    pub data: &'a [u8],
}

/// Bytes before the data of an echo message, and before the quoted packet of an error.
const HEADER_LEN: usize = 8;

impl<'a> Echo<'a> {
    /// Returns the bytes of the whole ICMP message.
    pub const fn message_len(&self) -> usize {
        HEADER_LEN + self.data.len()
    }

    fn parse(message: &'a [u8]) -> Result<Self, IcmpError> {
        let (&[_, _, _, _, a, b, c, d], data) = message
            .split_first_chunk::<HEADER_LEN>()
            .ok_or(IcmpError::Truncated)?;
        Ok(Self {
            ident: u16::from_be_bytes([a, b]),
            seq: u16::from_be_bytes([c, d]),
            data,
        })
    }

    /// Writes the message with checksum 0, returns its length.
    fn emit(&self, kind: u8, out: &mut [u8]) -> usize {
        let Self { ident, seq, data } = *self;
        out[..4].copy_from_slice(&[kind, 0, 0, 0]);
        out[4..6].copy_from_slice(&ident.to_be_bytes());
        out[6..8].copy_from_slice(&seq.to_be_bytes());
        out[HEADER_LEN..self.message_len()].copy_from_slice(data);
        self.message_len()
    }
}

/// Computes and stores the checksum of a message; the checksum field must be 0.
fn store_checksum(message: &mut [u8], mut pseudo: Checksum) {
    pseudo.add_bytes(message);
    message[2..4].copy_from_slice(&pseudo.finish().to_be_bytes());
}

/// Returns the sum of the pseudo-header (RFC 4443 2.3); `len` fits 16 bits, as a payload length.
fn pseudo_header(src: Ipv6Addr, dst: Ipv6Addr, len: usize) -> Checksum {
    let len = u32::try_from(len).unwrap_or(u32::MAX);
    Checksum::pseudo_v6(src, dst, protocol::ICMPV6, len)
}

#[cfg(test)]
mod tests;
