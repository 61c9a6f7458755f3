//! What congestion control is told.

use core::time::Duration;

use wire::Instant;

/// Largest congestion window: no send window is larger (RFC 7323 2.2).
pub(super) const MAX_CWND: u64 = 1 << 30;

/// Input of congestion avoidance for one ACK.
#[derive(Debug, Clone, Copy)]
pub(super) struct Growth {
    pub(super) acked: u64,
    pub(super) mss: u16,
    pub(super) srtt: Option<Duration>,
    pub(super) now: Instant,
}

/// Input of congestion control for one ACK.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Acked {
    /// Bytes newly delivered.
    pub(crate) bytes: u64,
    /// Smoothed round-trip time.
    pub(crate) srtt: Option<Duration>,
    /// Round-trip time of this ACK, if it could be measured.
    pub(crate) rtt: Option<Duration>,
    pub(crate) snd_una: u64,
    pub(crate) snd_nxt: u64,
    pub(crate) mss: u16,
    pub(crate) now: Instant,
}

/// What limits the data in flight.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FlightLimit {
    /// The congestion window.
    Window,
    /// The peer's window, the application, pacing.
    Other,
}
