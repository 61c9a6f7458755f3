//! What the two SYNs agree on (RFC 7323, RFC 2018, RFC 9293 3.7.1).

use wire::Instant;

/// The options that hold for the life of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Negotiated {
    /// Payload bytes that a packet to the peer may carry: the smaller of its MSS and ours, less the options that
    /// every segment carries.
    pub snd_mss: u16,
    /// Shift of the windows that the peer sends.
    pub snd_wscale: u8,
    /// Shift of the windows that we send.
    pub rcv_wscale: u8,
    /// Both sides offered SACK.
    pub sack: bool,
    /// Both sides offered timestamps.
    pub timestamps: bool,
}

/// The clock of outgoing timestamps: milliseconds (RFC 7323 5.4 allows 1 ms to 1 s), from an offset of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct TimestampClock {
    offset: u32,
}

impl TimestampClock {
    /// Returns the clock that shows `offset` at [`Instant::ZERO`].
    #[must_use]
    pub const fn new(offset: u32) -> TimestampClock {
        TimestampClock { offset }
    }

    /// Returns the TSval for `now`.
    #[must_use]
    pub const fn value(self, now: Instant) -> u32 {
        ((now.as_nanos() / 1_000_000) as u32).wrapping_add(self.offset)
    }
}
