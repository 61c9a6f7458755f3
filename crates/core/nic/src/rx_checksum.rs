//! Verification of transport checksums by the NIC: the stack cannot read payload in device memory.

use netmem::DmaPort;
use wire::{Checksum, ChecksumState, Network, RxHeaders, Transport, UdpHeader};

use crate::features::VerifyChecksums;
use crate::pieces::Piece;

/// What to do about a packet's transport checksum.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ChecksumVerdict {
    /// Nothing: the packet has no checksum, or none that this NIC knows.
    NoChecksum,
    /// Nothing: the link has verified it, or the settings say so.
    Trusted,
    /// Compute it.
    Compute,
}

/// Returns whether the checksum has to be computed.
pub(crate) fn judge(
    headers: &RxHeaders,
    link: ChecksumState,
    policy: VerifyChecksums,
) -> ChecksumVerdict {
    match headers.transport {
        Transport::Tcp(_) => {}
        // No checksum (RFC 768). Not allowed over IPv6 (RFC 8200 8.1): there 0 is verified, and found wrong.
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

/// Returns true if the checksum of transport header and payload, which are `pieces` in order, is correct.
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
        sum.add_partial(partial, at);
        at += piece.len();
    }
    sum.finish() == 0
}
