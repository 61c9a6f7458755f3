//! What the rules for ACKs are asked, and what they answer.

use core::time::Duration;

use wire::Instant;

/// Facts from which rules decide.
#[derive(Debug, Clone, Copy)]
pub(crate) struct AckFacts {
    /// Payload bytes of this arrival.
    pub(crate) len: usize,
    /// PSH: the peer's writer may wait for an answer.
    pub(crate) push: bool,
    /// Payload bytes since the last ACK, these included.
    pub(crate) unacked: usize,
    /// Bytes that the peer may still send.
    pub(crate) window: u32,
    /// Size of the peer's full segments, in bytes.
    pub(crate) rcv_mss: u16,
    /// Most bytes of a segment that we have allowed the peer to send.
    pub(crate) mss: u16,
}

/// When an ACK is sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum AckTime {
    /// As decided before.
    Unchanged,
    /// At once.
    Now,
    /// When the segments that were received together have been processed, or at once with other segments.
    AfterBurst,
    /// After this time, or when it would have left anyway.
    Within(Duration),
    /// At this time, or when it would have left anyway.
    By(Instant),
}
