//! Choices that the RFCs leave open, and that stacks make differently.
//!
//! The default bodies of the methods are this stack's choices. [`crate::linux`] has Linux's, for comparisons packet by
//! packet.

use core::fmt;
use core::time::Duration;

use crate::ack_policy::WhenDrained;
pub use crate::ack_policy::{AckDelay, AckFacts, AckStyle, AckTime};
use crate::config::AckConfig;
pub use crate::ecn::Haste;

/// Choices for all connections of a stack.
pub trait Policy: fmt::Debug + Send + Sync {
    /// Returns the rules by which a new connection sends ACKs.
    fn ack_style(&self, config: &AckConfig) -> Box<dyn AckStyle> {
        Box::new(WhenDrained::new(config))
    }

    /// Returns the most packets of one super-segment, at least 1 and at most [`FlowState::most_packets`]. The more packets,
    /// the lower the cost of each.
    fn packets_at_once(&self, flow: &FlowState) -> u64 {
        flow.most_packets()
    }

    /// Returns whether each super-segment has PSH, even if its writer announced more.
    fn pushes_super_segments(&self) -> bool {
        false
    }

    /// Returns whether a super-segment that a write has filled gets PSH although the write goes on. `unpushed` bytes were
    /// queued since the last PSH, and `max_wnd` is the largest window that the peer ever offered.
    fn pushes_within_writes(&self, unpushed: u64, max_wnd: u32) -> bool {
        let _ = (unpushed, max_wnd);
        false
    }

    /// Returns whether a write fills the super-segment that it began even if the send buffer is smaller: a send buffer is
    /// then exceeded by less than one super-segment.
    fn fills_super_segments(&self) -> bool {
        false
    }

    /// Returns the first window of a connection, in bytes, that announces segments of `mss` bytes: at most `space`. `buffer`
    /// is the size of its receive buffer.
    fn first_window(&self, space: u32, buffer: u32, mss: u16) -> u32 {
        let _ = (buffer, mss);
        space
    }

    /// Returns whether a segment that begins in order is taken whole, beyond the window, while no payload is unread. Then a
    /// peer may occupy more memory than it was promised.
    fn takes_beyond_window(&self) -> bool {
        false
    }

    /// Returns whether packets of different super-segments are sent again in different segments.
    fn repeats_super_segments_apart(&self) -> bool {
        false
    }

    /// Returns whether two ACKs of which the first ends inside a packet show that the path reorders.
    fn takes_split_packets_for_reordering(&self) -> bool {
        false
    }

    /// Returns whether the SYN-ACK of a simultaneous open is reported as a duplicate (RFC 2883) of the SYN before it.
    fn reports_crossed_syns(&self) -> bool {
        false
    }

    /// Returns how long the reordering timer (RFC 8985 6.2 step 5) runs until `wait` is over.
    fn reordering_timer(&self, wait: Duration) -> Duration {
        wait
    }

    /// Returns whether tail loss probes are also sent in loss recovery (as QUIC does, RFC 9002 6.2; RFC 8985 waits for the
    /// retransmission timer).
    fn probes_in_recovery(&self) -> bool {
        true
    }
}

/// State of a sending connection that the size of its super-segments may depend on.
#[derive(Debug, Clone, Copy)]
pub struct FlowState {
    /// Payload of a full packet, in bytes, not 0.
    pub mss: u64,
    /// Longest payload of a super-segment, in bytes.
    pub longest: u64,
    /// Largest window that the peer ever offered, in bytes.
    pub max_wnd: u64,
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
    /// Returns how many full packets a super-segment can hold, at least 1.
    #[must_use]
    pub fn most_packets(&self) -> u64 {
        (self.longest / self.mss).max(1)
    }
}

/// This stack's own choices.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct OwnPolicy;

impl Policy for OwnPolicy {}
