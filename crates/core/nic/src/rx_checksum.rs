//! Judging transport checksums on behalf of a stack that cannot read payload.

use netmem::DmaPort;
use wire::{Checksum, ChecksumState, Network, RxHeaders, Transport, UdpHeader};

use crate::features::VerifyChecksums;
use crate::fill::Piece;

/// What is known about a packet's transport checksum.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ChecksumVerdict {
    /// Has none, or none this NIC knows.
    NoChecksum,
    /// Taken on trust.
    Trusted,
    /// Must be computed.
    Compute,
}

/// Decides whether the checksum has to be computed.
pub(crate) fn judge(
    headers: &RxHeaders,
    link: ChecksumState,
    policy: VerifyChecksums,
) -> ChecksumVerdict {
    match headers.transport {
        Transport::Tcp(_) => {}
        // No checksum (RFC 768); over IPv6 that is not allowed (RFC 8200 8.1) and the sum will not fit.
        Transport::Udp(UdpHeader { checksum: 0, .. })
            if matches!(headers.network, Network::Ipv4(_)) =>
        {
            return ChecksumVerdict::NoChecksum;
        }
        Transport::Udp(_) => {}
        Transport::Other(_) | Transport::Fragment | Transport::None => {
            return ChecksumVerdict::NoChecksum;
        }
    }
    match (policy, link) {
        (VerifyChecksums::None, _)
        | (_, ChecksumState::Partial(_))
        | (VerifyChecksums::Untrusted, ChecksumState::Verified) => ChecksumVerdict::Trusted,
        (VerifyChecksums::All, ChecksumState::Verified) | (_, ChecksumState::Unknown) => {
            ChecksumVerdict::Compute
        }
    }
}

/// Returns true if the transport header and payload, all of `pieces` in order, sum up right.
pub(crate) fn is_right(headers: &RxHeaders, pieces: &[Piece<'_>], port: &DmaPort) -> bool {
    let Some(l4) = headers.l4_offset() else {
        return false;
    };
    let Some(mut sum) = headers.pseudo_header(headers.header_len + headers.payload_len - l4) else {
        return false;
    };
    let mut at = 0;
    for piece in pieces {
        let partial = match piece {
            Piece::Host(bytes) => {
                let mut part = Checksum::new();
                part.add_bytes(bytes);
                part.partial()
            }
            Piece::Span(span) => port.checksum(*span),
        };
        sum.add_partial(partial, at % 2 != 0);
        at += piece.len();
    }
    sum.finish() == 0
}
