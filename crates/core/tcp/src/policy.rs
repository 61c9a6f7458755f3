//! What one stack does and another does differently, and the RFCs leave open.
//!
//! The methods' own bodies are what this stack does. [`crate::linux`] holds what Linux does instead, for comparisons packet
//! by packet.

use core::fmt;
use core::time::Duration;

use crate::ack_policy::WhenDrained;
pub use crate::ack_policy::{AckDelay, AckFacts, AckStyle, AckTime};
use crate::config::AckConfig;
pub use crate::ecn::Haste;

/// Choices for all connections of a stack.
pub trait Policy: fmt::Debug + Send + Sync {
    /// Returns what decides when a new connection acknowledges.
    fn ack_style(&self, config: &AckConfig) -> Box<dyn AckStyle> {
        Box::new(WhenDrained::new(config))
    }

    /// Returns the most packets of one super-segment, at least 1 and at most [`FlowState::most_packets`]: the more, the less
    /// each costs.
    fn packets_at_once(&self, flow: &FlowState) -> u64 {
        flow.most_packets()
    }

    /// Returns whether each super-segment has PSH, whatever its writer said.
    fn pushes_super_segments(&self) -> bool {
        false
    }

    /// Returns whether an ACK that is overdue in a recovery is probed for, too (RFC 9002 6.2 does so in QUIC; RFC 8985
    /// waits for the retransmission timer there).
    fn probes_in_recovery(&self) -> bool {
        true
    }
}

/// The state of a connection that sends, as far as the size of a super-segment depends on it.
#[derive(Debug, Clone, Copy)]
pub struct FlowState {
    /// Payload of a full packet, in bytes, not 0.
    pub mss: u64,
    /// Longest payload that the NIC takes at once, in bytes.
    pub longest: u64,
    /// The congestion window, in bytes.
    pub cwnd: u64,
    /// The slow start threshold, in bytes; `None` before the first loss.
    pub ssthresh: Option<u64>,
    /// The smoothed round-trip time; `None` before the first sample.
    pub srtt: Option<Duration>,
    /// The smallest round-trip time of late; `None` before the first sample.
    pub min_rtt: Option<Duration>,
}

impl FlowState {
    /// Returns how many full packets the NIC takes at once, at least 1.
    #[must_use]
    pub fn most_packets(&self) -> u64 {
        (self.longest / self.mss).max(1)
    }
}

/// This stack's own choices.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct OwnPolicy;

impl Policy for OwnPolicy {}
