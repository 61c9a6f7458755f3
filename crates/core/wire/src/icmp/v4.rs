//! ICMP for IPv4 (RFC 792).

use super::{Echo, EchoKind, HEADER_LEN, IcmpError, Quoted, store_checksum};
use crate::checksum::{Checksum, checksum};

const ECHO_REPLY: u8 = 0;
const DESTINATION_UNREACHABLE: u8 = 3;
const ECHO_REQUEST: u8 = 8;
const TIME_EXCEEDED: u8 = 11;

/// "Fragmentation needed and DF set" (RFC 792).
const FRAGMENTATION_NEEDED: u8 = 4;

/// An ICMPv4 message that matters to a TCP host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Icmpv4<'a> {
    /// Echo request.
    EchoRequest(Echo<'a>),
    /// Echo reply.
    EchoReply(Echo<'a>),
    /// A packet of ours could not be delivered.
    DestinationUnreachable {
        /// Reason: 0 net, 1 host, 2 protocol, 3 port, 4 fragmentation needed, ...
        code: u8,
        /// With code 4, the MTU of the next hop (RFC 1191 4); `None` if the router left it out.
        mtu: Option<u16>,
        /// The packet, if enough of it was quoted.
        quoted: Option<Quoted>,
    },
    /// The TTL or reassembly time of a packet of ours was exceeded.
    TimeExceeded {
        /// 0 in transit, 1 in reassembly.
        code: u8,
        /// The packet, if enough of it was quoted.
        quoted: Option<Quoted>,
    },
    /// Anything else.
    Other {
        /// Type.
        kind: u8,
        /// Code.
        code: u8,
    },
}

impl<'a> Icmpv4<'a> {
    /// Parses a message (the whole payload of an IPv4 packet) and verifies its checksum.
    ///
    /// # Errors
    /// [`IcmpError::Truncated`], [`IcmpError::BadChecksum`].
    pub fn parse(message: &'a [u8]) -> Result<Self, IcmpError> {
        let &[kind, code, _, _, _, _, mtu0, mtu1] = message
            .first_chunk::<HEADER_LEN>()
            .ok_or(IcmpError::Truncated)?;
        if checksum(message) != 0 {
            return Err(IcmpError::BadChecksum);
        }
        let quoted = || Quoted::parse_v4(&message[HEADER_LEN..]);
        let mtu = u16::from_be_bytes([mtu0, mtu1]);
        Ok(match kind {
            ECHO_REQUEST if code == 0 => Self::EchoRequest(Echo::parse(message)?),
            ECHO_REPLY if code == 0 => Self::EchoReply(Echo::parse(message)?),
            DESTINATION_UNREACHABLE => Self::DestinationUnreachable {
                code,
                mtu: (code == FRAGMENTATION_NEEDED && mtu != 0).then_some(mtu),
                quoted: quoted(),
            },
            TIME_EXCEEDED => Self::TimeExceeded {
                code,
                quoted: quoted(),
            },
            _ => Self::Other { kind, code },
        })
    }
}

impl Echo<'_> {
    /// Writes an ICMPv4 echo message to the start of `out`, returns its length.
    ///
    /// # Panics
    /// If `out` is shorter than [`message_len`](Self::message_len).
    pub fn emit_v4(&self, kind: EchoKind, out: &mut [u8]) -> usize {
        let kind = match kind {
            EchoKind::Request => ECHO_REQUEST,
            EchoKind::Reply => ECHO_REPLY,
        };
        let len = self.emit(kind, out);
        store_checksum(&mut out[..len], Checksum::new());
        len
    }
}
