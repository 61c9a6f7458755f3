//! What the sender of a segment says beside the segment: who it is, and what the IP header has.

use std::net::IpAddr;

use wire::MacAddr;

use crate::neighbor::Purpose;
use crate::socket::id::SocketId;

/// The sender of a segment.
#[derive(Debug, Clone, Copy)]
pub(crate) enum SegmentOwner {
    /// A connection, which is notified if its next hop cannot be resolved.
    Connection(SocketId),
    /// No connection: a reply to a segment whose source may be forged, in a frame from this station (`None`:
    /// unknown).
    Answer(Option<MacAddr>),
}

impl SegmentOwner {
    pub(super) const fn purpose(self) -> Purpose {
        match self {
            Self::Connection(_) => Purpose::Connection,
            Self::Answer(from) => Purpose::Answer { from },
        }
    }
}

/// Next hop and IP header fields of a segment.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Egress {
    /// The host on the link that the frame is sent to.
    pub(crate) next_hop: IpAddr,
    /// Differentiated services field of the IP header. The segment sets the ECN field.
    pub(crate) tos: u8,
    /// TTL or hop limit of the IP header (IP_TTL); `None`: the default.
    pub(crate) hop_limit: Option<u8>,
    /// Identification of a packet that routers may fragment; `None`: they must not. IPv6 has neither.
    pub(crate) ident: Option<u16>,
}

impl Egress {
    /// Returns the fields of a packet without options.
    pub(crate) const fn to(next_hop: IpAddr) -> Self {
        Self {
            next_hop,
            tos: 0,
            hop_limit: None,
            ident: None,
        }
    }
}
