//! One acknowledgement, as far as it was taken in.

use wire::Instant;

use crate::options::TimestampClock;
use crate::scoreboard::delivered::Delivered;

/// What one acknowledgement brought, for the parts that judge it.
#[derive(Debug, Clone, Copy)]
pub(super) struct AckEvent {
    /// SND.UNA, with this ACK.
    pub(super) una: u64,
    /// SND.NXT.
    pub(super) nxt: u64,
    /// How far SND.UNA moved.
    pub(super) advanced: u64,
    pub(super) delivered: Delivered,
    /// It reports bytes that arrived twice.
    pub(super) dsack: bool,
    /// A duplicate in the sense of RFC 5681 2.
    pub(super) duplicate: bool,
    /// It echoes a mark of what was in flight.
    pub(super) ece: bool,
    /// Bytes that it delivered and reports as marked.
    pub(super) marked: u64,
    /// It is not older than another one, and something was in flight.
    pub(super) in_time: bool,
    /// The peer's window was 0 over data in flight, and is open now.
    pub(super) reopened: bool,
    /// TSecr.
    pub(super) ts_echo: Option<u32>,
    /// The clock that TSecr is of.
    pub(super) clock: TimestampClock,
    pub(super) now: Instant,
}

impl AckEvent {
    /// Returns whether the ACK was caused by something sent before `sent_at` (RFC 3522, Eifel detection).
    pub(super) fn echo_precedes(&self, sent_at: Instant) -> bool {
        let sent = self.clock.value(sent_at);
        self.ts_echo
            .is_some_and(|echo| echo.wrapping_sub(sent).cast_signed() < 0)
    }
}
