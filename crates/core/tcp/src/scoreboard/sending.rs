//! One transmission, and the order of transmissions.

use wire::Instant;

/// One transmission of a range: RFC 8985's (xmit_ts, end_seq), by which transmissions are ordered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Sending {
    pub(crate) sent_at: Instant,
    pub(crate) end: u64,
}

impl Sending {
    /// Returns whether this one was sent after `other` (RFC 8985 6.2 RACK_sent_after).
    pub(crate) fn is_after(self, other: Sending) -> bool {
        (self.sent_at, self.end) > (other.sent_at, other.end)
    }
}
