//! ICMP for IPv4 (RFC 792).

use super::{Echo, EchoKind, HEADER_LEN, Icmp, IcmpError, Quoted, Undelivered, store_checksum};
use crate::checksum::{Checksum, checksum};

const ECHO_REPLY: u8 = 0;
const DESTINATION_UNREACHABLE: u8 = 3;
const ECHO_REQUEST: u8 = 8;
const TIME_EXCEEDED: u8 = 11;

/// "Fragmentation needed and DF set" (RFC 792).
const FRAGMENTATION_NEEDED: u8 = 4;

impl<'a> Icmp<'a> {
    /// Parses a message (the whole payload of an IPv4 packet) and verifies its checksum.
    ///
    /// # Errors
    /// [`IcmpError::Truncated`], [`IcmpError::BadChecksum`].
    pub fn parse_v4(message: &'a [u8]) -> Result<Self, IcmpError> {
        let &[kind, code, _, _, _, _, mtu0, mtu1] = message
            .first_chunk::<HEADER_LEN>()
            .ok_or(IcmpError::Truncated)?;
        if checksum(message) != 0 {
            return Err(IcmpError::BadChecksum);
        }
        let mtu = u32::from(u16::from_be_bytes([mtu0, mtu1]));
        let why = match (kind, code) {
            (ECHO_REQUEST, 0) => return Ok(Self::EchoRequest(Echo::parse(message)?)),
            (ECHO_REPLY, 0) => return Ok(Self::EchoReply(Echo::parse(message)?)),
            (DESTINATION_UNREACHABLE, FRAGMENTATION_NEEDED) => Undelivered::TooBig {
                mtu: (mtu != 0).then_some(mtu),
            },
            (DESTINATION_UNREACHABLE, code) => Undelivered::Unreachable { code },
            (TIME_EXCEEDED, _) => Undelivered::TimeExceeded,
            _ => return Ok(Self::Other { kind, code }),
        };
        let quoted = Quoted::parse_v4(&message[HEADER_LEN..]);
        Ok(Self::Undelivered { why, quoted })
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
