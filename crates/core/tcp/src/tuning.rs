//! Choices that the RFCs leave open, and that stacks make differently: [`Tuning::OWN`] are this stack's, [`Tuning::LINUX`]
//! those of Linux, for comparisons packet by packet.

use core::time::Duration;

/// A super-segment of Linux holds what the pacing rate sends in 2^-10 s, about a millisecond (linux `sk_pacing_shift`).
const PACING_SHIFT: u32 = 10;

/// The longest super-segment of Linux is halved for every 2^9 = 512 us of round-trip time (linux `tcp_tso_rtt_log`).
const TSO_RTT_LOG: u32 = 9;

/// Packets that a super-segment may have on the slowest path (linux `sysctl_tcp_min_tso_segs`).
const LEAST_PACKETS: u8 = 2;

/// Pacing rates of Linux, in hundredths of a window per round trip (linux `tcp_pacing_ss_ratio`, `tcp_pacing_ca_ratio`).
const SLOW_START_RATIO: u64 = 200;
const AVOIDANCE_RATIO: u64 = 120;

/// Shortest time of Linux's reordering timer beyond the reordering window (linux `TCP_TIMEOUT_MIN_US`).
const TIMEOUT_MIN: Duration = Duration::from_millis(2);

/// Unit of Linux's timers (linux `HZ` = 250, the default of distributions).
const JIFFY: Duration = Duration::from_millis(4);

/// Rules by which received data is acknowledged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AckRules {
    /// As soon as the link is empty, or with an answer.
    Drained,
    /// Linux's, segment by segment: quick ACKs, then every second full segment, else after
    /// [`DELAYED_ACK`](crate::config::DELAYED_ACK).
    Linux,
}

/// Lengths of super-segments.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SuperSegments {
    /// As long as the link allows until slow start has ended for the first time, by a loss or a growing round trip; from then on as
    /// many packets as the path carries in a millisecond, at least `least`, and more where the round trip is short (linux
    /// `tcp_tso_autosize`). The more packets, the lower the cost of each; but all of them reach a router at once, whose queue may have
    /// no room for them.
    ByRate {
        /// Packets that a super-segment may have on the slowest path (linux `tcp_min_tso_segs`).
        least: u8,
    },
    /// The same from the beginning on, and at most half of the congestion window (linux `tcp_cwnd_test`) and of the peer's largest
    /// window (`tcp_xmit_size_goal`).
    AutoSized {
        /// As in [`SuperSegments::ByRate`].
        least: u8,
    },
}

/// Choices for all connections of a stack.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Tuning {
    /// When received data is acknowledged.
    pub acks: AckRules,
    /// How long super-segments are.
    pub super_segments: SuperSegments,
    /// Each super-segment has PSH, even if its writer announced more: the peer's GRO passes them on at once (linux
    /// `__tcp_transmit_skb`).
    pub pushes_super_segments: bool,
    /// Writes fill super-segments one after another: the one that exceeds the send buffer is filled, and one that ends half of
    /// the peer's largest window behind the last PSH gets PSH although the write goes on (linux `tcp_sendmsg_locked`,
    /// `forced_push`).
    pub fills_super_segments: bool,
    /// The first window has whole segments, if the receive buffer is larger than one (linux `tcp_select_initial_window`).
    pub whole_first_window: bool,
    /// A segment that begins in order is taken whole, beyond the window, while no payload is unread: a peer may occupy more
    /// memory than it was promised (linux `tcp_sequence`).
    pub takes_beyond_window: bool,
    /// Packets of different super-segments are sent again in different segments (linux `tcp_retransmit_skb`: an skb is one
    /// super-segment).
    pub repeats_super_segments_apart: bool,
    /// Two ACKs of which the first ends inside a packet show that the path reorders (linux `tcp_clean_rtx_queue`: the packet
    /// begins before the first ACK, as if it had arrived late).
    pub takes_split_packets_for_reordering: bool,
    /// The SYN-ACK of a simultaneous open is reported as a duplicate (RFC 2883) of the SYN before it (linux `tcp_data_queue`, to
    /// which the SYN is one byte that was received before).
    pub reports_crossed_syns: bool,
    /// The reordering timer (RFC 8985 6.2 step 5) runs in whole jiffies (linux `tcp_rack_mark_lost`).
    pub reorders_in_jiffies: bool,
    /// Tail loss probes are also sent in loss recovery (as QUIC does, RFC 9002 6.2; RFC 8985 waits for the retransmission
    /// timer).
    pub probes_in_recovery: bool,
    /// What waits for further ACKs, to leave in a longer super-segment, leaves after a millisecond even if none comes. Linux looks at
    /// the time with the next ACK, or the next write. The next ACK of a path that several senders share comes behind those of the
    /// others: without this, the part of the window that waits is the others' part of a queue.
    pub defers_in_time: bool,
}

/// State of a sending connection that the length of its super-segments may depend on.
#[derive(Debug, Clone, Copy)]
pub(crate) struct FlowState {
    /// Payload of a full packet, in bytes, not 0.
    pub(crate) mss: u64,
    /// Longest payload of a super-segment, in bytes.
    pub(crate) longest: u64,
    /// Largest window that the peer ever offered, in bytes.
    pub(crate) max_wnd: u64,
    /// The congestion window, in bytes.
    pub(crate) cwnd: u64,
    /// The slow start threshold, in bytes; `None` before the first loss.
    pub(crate) ssthresh: Option<u64>,
    /// The smoothed round-trip time; `None` before the first sample.
    pub(crate) srtt: Option<Duration>,
    /// The smallest round-trip time of late; `None` before the first sample.
    pub(crate) min_rtt: Option<Duration>,
}

impl Tuning {
    /// This stack's own choices.
    pub const OWN: Tuning = Tuning {
        acks: AckRules::Drained,
        super_segments: SuperSegments::ByRate {
            least: LEAST_PACKETS,
        },
        pushes_super_segments: false,
        fills_super_segments: false,
        whole_first_window: false,
        takes_beyond_window: false,
        repeats_super_segments_apart: false,
        takes_split_packets_for_reordering: false,
        reports_crossed_syns: false,
        reorders_in_jiffies: false,
        probes_in_recovery: true,
        defers_in_time: true,
    };

    /// Those of Linux: the same packets, at the same times.
    pub const LINUX: Tuning = Tuning {
        acks: AckRules::Linux,
        super_segments: SuperSegments::AutoSized {
            least: LEAST_PACKETS,
        },
        pushes_super_segments: true,
        fills_super_segments: true,
        whole_first_window: true,
        takes_beyond_window: true,
        repeats_super_segments_apart: true,
        takes_split_packets_for_reordering: true,
        reports_crossed_syns: true,
        reorders_in_jiffies: true,
        probes_in_recovery: false,
        defers_in_time: false,
    };

    /// Returns the most packets of one super-segment, at least 1.
    pub(crate) fn packets_at_once(&self, flow: &FlowState) -> u64 {
        let most = (flow.longest / flow.mss).max(1);
        let size = match self.super_segments {
            SuperSegments::ByRate { .. } if flow.ssthresh.is_none() => most,
            SuperSegments::ByRate { least } => flow.by_rate(least),
            SuperSegments::AutoSized { least } => flow.by_rate(least).min(flow.half_of_windows()),
        };
        size.clamp(1, most)
    }

    /// Returns the first window of a connection, in bytes, that announces segments of `mss` bytes: at most `space`. `buffer`
    /// is the size of its receive buffer.
    pub(crate) fn first_window(&self, space: u32, buffer: u32, mss: u16) -> u32 {
        let mss = u32::from(mss).max(1);
        match self.whole_first_window && buffer > mss {
            true => space.min(buffer / mss * mss),
            false => space,
        }
    }

    /// Returns how long the reordering timer runs until `wait` is over.
    pub(crate) fn reordering_timer(&self, wait: Duration) -> Duration {
        if !self.reorders_in_jiffies {
            return wait;
        }
        let micros = (wait + TIMEOUT_MIN).as_micros();
        let jiffies = micros.div_ceil(JIFFY.as_micros());
        JIFFY * u32::try_from(jiffies).unwrap_or(u32::MAX)
    }
}

impl FlowState {
    /// Returns how many packets the path carries in a millisecond, at least `least`, and more where the round trip is short.
    fn by_rate(&self, least: u8) -> u64 {
        let micros = |time: Duration| u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
        let near = self.min_rtt.map_or(0, micros) >> TSO_RTT_LOG;
        let by_distance = match u32::try_from(near) {
            // The rate does not matter: that spares a division per segment.
            Ok(0) => return self.longest / self.mss,
            Ok(near) => self.longest.checked_shr(near).unwrap_or(0),
            Err(_) => 0,
        };
        let by_rate = self.pacing_rate() >> PACING_SHIFT;
        ((by_rate + by_distance) / self.mss).max(least.into())
    }

    /// Returns half of the congestion window or of the peer's largest one, in packets, at least 1.
    fn half_of_windows(&self) -> u64 {
        (self.cwnd.min(self.max_wnd) / self.mss / 2).max(1)
    }

    /// Returns the rate at which a paced connection would send, in bytes per second.
    fn pacing_rate(&self) -> u64 {
        let srtt = self.srtt.map_or(0, |srtt| srtt.as_nanos());
        let in_slow_start = self
            .ssthresh
            .is_none_or(|ssthresh| self.cwnd < ssthresh / 2);
        let ratio = match in_slow_start {
            true => SLOW_START_RATIO,
            false => AVOIDANCE_RATIO,
        };
        // No overflow: a window has at most 30 bits.
        let per_window = self.cwnd * ratio / 100 * 1_000_000_000;
        per_window / u64::try_from(srtt).unwrap_or(u64::MAX).max(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MSS: u64 = 1448;

    fn flow(rtt: Duration, cwnd_packets: u64) -> FlowState {
        FlowState {
            mss: MSS,
            longest: 45 * MSS,
            max_wnd: 20 * MSS,
            cwnd: cwnd_packets * MSS,
            ssthresh: Some(0),
            srtt: Some(rtt),
            min_rtt: Some(rtt),
        }
    }

    #[test]
    fn a_super_segment_takes_a_millisecond_of_the_path() {
        let far = Duration::from_micros(20_480);
        for (cwnd, packets) in [(10, 2), (175, 10), (525, 30), (1700, 45)] {
            assert_eq!(
                Tuning::OWN.packets_at_once(&flow(far, cwnd)),
                packets,
                "{cwnd}"
            );
        }
    }

    #[test]
    fn before_the_first_slow_start_has_ended_it_is_as_long_as_the_link_allows() {
        let first = FlowState {
            ssthresh: None,
            ..flow(Duration::from_millis(100), 10)
        };
        assert_eq!(Tuning::OWN.packets_at_once(&first), 45);
        assert_eq!(Tuning::LINUX.packets_at_once(&first), 2);
    }

    #[test]
    fn on_a_short_path_it_is_as_long_as_the_link_allows_whatever_the_windows_are() {
        let near = flow(Duration::from_micros(511), 10);
        assert_eq!(Tuning::OWN.packets_at_once(&near), 45);
        assert_eq!(Tuning::LINUX.packets_at_once(&near), 5);
        let longer = flow(Duration::from_micros(1024), 10);
        assert_eq!(Tuning::OWN.packets_at_once(&longer), 22);
    }

    #[test]
    fn a_link_that_takes_no_super_segments_gets_single_packets() {
        for rtt in [Duration::from_micros(10), Duration::from_millis(10)] {
            let single = FlowState {
                longest: 1,
                ..flow(rtt, 100)
            };
            assert_eq!(Tuning::OWN.packets_at_once(&single), 1);
        }
    }
}
