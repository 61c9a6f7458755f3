//! Linux's choices where this stack has others, for comparisons with Linux packet by packet. No other module of this crate
//! uses this one.

mod acks;

use core::time::Duration;

use acks::LinuxAcks;

use crate::config::AckConfig;
use crate::policy::{AckStyle, FlowState, OwnPolicy, Policy};

/// A super-segment holds what the pacing rate sends in 2^-10 s, about a millisecond (linux `sk_pacing_shift`).
const PACING_SHIFT: u32 = 10;

/// The longest super-segment is halved for every 2^9 = 512 us of round-trip time (linux `tcp_tso_rtt_log`).
const TSO_RTT_LOG: u32 = 9;

/// Pacing rates, in hundredths of a window per round trip (linux `tcp_pacing_ss_ratio`, `tcp_pacing_ca_ratio`).
const SLOW_START_RATIO: u128 = 200;
const AVOIDANCE_RATIO: u128 = 120;

/// Shortest time of the reordering timer beyond the reordering window (linux `TCP_TIMEOUT_MIN_US`).
const TIMEOUT_MIN: Duration = Duration::from_millis(2);

/// Unit of Linux's timers (linux `HZ` = 250, the default of distributions).
const JIFFY: Duration = Duration::from_millis(4);

/// Policy of a stack that sends the same packets as Linux, at the same times.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Linux {
    /// Rules by which received data is acknowledged.
    pub acks: Acks,
    /// Packets that a super-segment may have on the slowest path, at least 1 (linux `tcp_min_tso_segs`).
    pub min_tso_segs: u8,
}

/// Rules by which received data is acknowledged.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Acks {
    /// Linux's, segment by segment: quick ACKs, then every second full segment, else after
    /// [`DELAYED_ACK`](crate::config::DELAYED_ACK).
    #[default]
    Linux,
    /// This stack's: as soon as the link is empty.
    Drained,
}

impl Default for Linux {
    fn default() -> Linux {
        Linux {
            acks: Acks::Linux,
            min_tso_segs: 2,
        }
    }
}

impl Policy for Linux {
    fn ack_style(&self, config: &AckConfig) -> Box<dyn AckStyle> {
        match self.acks {
            Acks::Linux => Box::new(LinuxAcks::default()),
            Acks::Drained => OwnPolicy.ack_style(config),
        }
    }

    /// As many as the path carries in a millisecond, but at least [`Linux::min_tso_segs`] (linux `tcp_tso_autosize`), and at
    /// most half of the congestion window (`tcp_cwnd_test`) and of the peer's largest window (`tcp_xmit_size_goal`).
    fn packets_at_once(&self, flow: &FlowState) -> u64 {
        let FlowState {
            mss,
            longest,
            max_wnd,
            cwnd,
            ..
        } = *flow;
        let micros = |time: Duration| u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
        let near = flow.min_rtt.map_or(0, micros) >> TSO_RTT_LOG;
        let by_distance = longest
            .checked_shr(u32::try_from(near).unwrap_or(u32::MAX))
            .unwrap_or(0);
        let by_rate = pacing_rate(flow).map_or(longest, |rate| rate >> PACING_SHIFT);
        let half_window = (cwnd / mss / 2).max(1);
        (by_rate.saturating_add(by_distance) / mss)
            .max(self.min_tso_segs.into())
            .min(half_window)
            .min((max_wnd / mss / 2).max(1))
            .min(flow.most_packets())
    }

    /// PSH makes the peer's GRO pass them on at once (linux `__tcp_transmit_skb`).
    fn pushes_super_segments(&self) -> bool {
        true
    }

    /// As `forced_push`.
    fn pushes_within_writes(&self, unpushed: u64, max_wnd: u32) -> bool {
        unpushed > u64::from(max_wnd / 2)
    }

    /// As `tcp_sendmsg_locked`.
    fn fills_super_segments(&self) -> bool {
        true
    }

    /// Whole segments, if the buffer is larger than one (`tcp_select_initial_window`).
    fn first_window(&self, space: u32, buffer: u32, mss: u16) -> u32 {
        let mss = u32::from(mss).max(1);
        match buffer > mss {
            true => space.min(buffer / mss * mss),
            false => space,
        }
    }

    /// As `tcp_sequence`.
    fn takes_beyond_window(&self) -> bool {
        true
    }

    /// As `tcp_retransmit_skb`: an skb is one super-segment.
    fn repeats_super_segments_apart(&self) -> bool {
        true
    }

    /// As `tcp_clean_rtx_queue`: the packet begins before the first ACK, as if it had arrived late.
    fn takes_split_packets_for_reordering(&self) -> bool {
        true
    }

    /// As `tcp_data_queue`, to which the SYN is one byte that was received before.
    fn reports_crossed_syns(&self) -> bool {
        true
    }

    /// `TCP_TIMEOUT_MIN_US` more, in whole jiffies (`tcp_rack_mark_lost`).
    fn reordering_timer(&self, wait: Duration) -> Duration {
        let micros = (wait + TIMEOUT_MIN).as_micros();
        let jiffies = micros.div_ceil(JIFFY.as_micros());
        JIFFY * u32::try_from(jiffies).unwrap_or(u32::MAX)
    }

    fn probes_in_recovery(&self) -> bool {
        false
    }
}

/// Returns the rate at which a paced connection would send, in bytes per second; `None` before the first sample.
fn pacing_rate(flow: &FlowState) -> Option<u64> {
    let srtt = flow.srtt?.as_nanos().max(1);
    let in_slow_start = flow
        .ssthresh
        .is_none_or(|ssthresh| flow.cwnd < ssthresh / 2);
    let ratio = if in_slow_start {
        SLOW_START_RATIO
    } else {
        AVOIDANCE_RATIO
    };
    let rate = u128::from(flow.cwnd) * ratio * 1_000_000_000 / 100 / srtt;
    Some(u64::try_from(rate).unwrap_or(u64::MAX))
}
