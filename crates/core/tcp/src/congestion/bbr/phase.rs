//! The phases of BBR and their gains (draft-ietf-ccwg-bbr 5.3, 5.6.1).

use wire::Instant;

/// What the controller is doing (draft 5.3).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Phase {
    /// Doubles the rate in each round trip until the path is full.
    Startup,
    /// Drains the queue of Startup.
    Drain { since_round: u64 },
    /// Drains the queue of a probe.
    Down,
    /// Sends as fast as the path delivers.
    Cruise,
    /// Fills the path again, before a probe.
    Refill,
    /// Probes for more bandwidth.
    Up,
    /// Keeps the queue drained, until then.
    ProbeRtt { until: Option<ProbeRttEnd> },
}

/// When the queue has been drained for long enough: after this time, and after a round trip.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct ProbeRttEnd {
    pub(super) at: Instant,
    pub(super) round_done: bool,
}

impl Phase {
    pub(super) fn pacing_gain(self) -> f64 {
        match self {
            // 4 ln 2: doubles the rate in each round trip.
            Phase::Startup => 2.773,
            Phase::Drain { .. } => 0.5,
            Phase::Down => 0.9,
            Phase::Up => 1.25,
            Phase::Cruise | Phase::Refill | Phase::ProbeRtt { .. } => 1.0,
        }
    }

    pub(super) fn cwnd_gain(self) -> f64 {
        match self {
            Phase::Up => 2.25,
            Phase::ProbeRtt { .. } => 0.5,
            _ => 2.0,
        }
    }
}

/// What the ACKs that come in now are about (draft 5.3.3.6).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum AckPhase {
    /// Packets from before the probe.
    Starting,
    /// The probe.
    Feedback,
    /// The end of the probe.
    Stopping,
    Other,
}
