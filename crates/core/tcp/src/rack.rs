//! RACK-TLP (RFC 8985): finds losses by time instead of by counting duplicates, and probes for a lost tail.

use core::time::Duration;

use wire::Instant;

use crate::rtt::RttEstimator;
use crate::scoreboard::delivered::Delivered;
use crate::scoreboard::sending::Sending;

/// Packets reported by SACK after which a hole counts as lost at once (RFC 8985 6.2 step 4, RFC 6675 DupThresh).
pub(crate) const DUP_THRESHOLD: u32 = 3;

/// Recoveries after which a widened reordering window returns to its normal size (RFC 8985 6.2 step 4).
const WINDOW_PERSISTS: u8 = 16;

/// Added to the probe timeout, so that delays of timers and the scheduler on a path of microseconds do not cause
/// probes (linux `TCP_TIMEOUT_MIN_US`).
const PROBE_MARGIN: Duration = Duration::from_millis(2);

/// Probe timeout before the first round-trip sample (RFC 8985 7.2).
const PROBE_TIMEOUT_INITIAL: Duration = Duration::from_secs(1);

/// The reordering window on a path on which no reordering was seen (RFC 8985 6.2 step 4).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ReorderingWindow {
    /// A part of the round-trip time.
    Open,
    /// None: in recovery already, or [`DUP_THRESHOLD`] packets were reported.
    Closed,
}

/// The delivered packet that was sent last, and the time to wait for packets sent before it.
#[derive(Debug, Clone, Default)]
pub(crate) struct Rack {
    /// RACK.xmit_ts and RACK.end_seq; the end is 0 before anything was delivered.
    latest: Sending,
    /// RACK.rtt: of the last packet that an ACK delivered.
    rtt: Duration,
    /// RACK.dsack_round: D-SACKs until this offset is acknowledged belong to one round trip.
    dsack_round: u64,
    /// RACK.reo_wnd_mult - 1: the reordering window is (1 + this) * min_rtt / 4.
    widened: u8,
    /// RACK.reo_wnd_persist.
    persists: u8,
    reordering_seen: bool,
    /// The peer reports by SACK what arrived. Without it nothing is ever delivered here.
    enabled: bool,
}

impl Rack {
    /// Lets RACK find losses, and not duplicate ACKs: both sides offered SACK.
    pub(crate) fn enable(&mut self) {
        self.enabled = true;
    }

    /// Returns whether RACK finds losses.
    pub(crate) fn is_enabled(&self) -> bool {
        self.enabled
    }

    /// Adds what an ACK delivered (RFC 8985 6.2 steps 2 and 3).
    ///
    /// `ambiguous` returns for a send time whether the ACK may be for an earlier transmission of the same bytes.
    pub(crate) fn on_delivered(
        &mut self,
        delivered: &Delivered,
        ambiguous: impl Fn(Instant) -> bool,
        now: Instant,
    ) {
        let retransmission = delivered
            .latest_retransmission
            .filter(|sending| !ambiguous(sending.sent_at));
        for sending in [delivered.latest_original, retransmission]
            .into_iter()
            .flatten()
        {
            if sending.is_after(self.latest) {
                self.latest = sending;
            }
        }
        let last = match delivered.last {
            Some((sent_at, true)) if ambiguous(sent_at) => delivered.last_original,
            last => last.map(|(sent_at, _)| sent_at),
        };
        if let Some(sent_at) = last {
            self.rtt = now.saturating_since(sent_at);
        }
        self.reordering_seen |= delivered.reordered();
    }

    /// Widens the reordering window, once per round trip: a retransmission was needless (RFC 8985 6.2 step 4).
    pub(crate) fn on_dsack(&mut self, snd_una: u64, snd_nxt: u64) {
        if snd_una < self.dsack_round {
            return;
        }
        self.dsack_round = snd_nxt;
        self.widened = self.widened.saturating_add(1);
        self.persists = WINDOW_PERSISTS;
    }

    /// Notes that the original of everything that a recovery sent again arrived, late.
    ///
    /// That is reordering, which RFC 8985 6.2 step 3 does not detect: it considers packets sent only once, and these
    /// were sent again before they arrived. Without this, reordering by more than three packets would never be detected.
    pub(crate) fn on_needless_recovery(&mut self) {
        self.reordering_seen = true;
    }

    /// Counts a recovery, after some of which a widened window returns to its normal size.
    pub(crate) fn on_recovery_end(&mut self) {
        self.persists = self.persists.saturating_sub(1);
        if self.persists == 0 {
            self.widened = 0;
        }
    }

    /// Returns the reordering window: how much later than packets sent after it a packet may arrive (RFC 8985 6.2 step 4).
    pub(crate) fn reordering_window(
        &self,
        rtt: &RttEstimator,
        unseen: ReorderingWindow,
    ) -> Duration {
        if unseen == ReorderingWindow::Closed && !self.reordering_seen {
            return Duration::ZERO;
        }
        let quarter = rtt.min_rtt().unwrap_or_default() / 4;
        let window = quarter.saturating_mul(u32::from(self.widened) + 1);
        window.min(rtt.srtt().unwrap_or_default())
    }

    /// Returns the delivered transmission that was sent last; `None` before anything was delivered.
    pub(crate) fn latest(&self) -> Option<Sending> {
        (self.latest.end > 0).then_some(self.latest)
    }

    /// Returns RACK.rtt (RFC 8985 6.2 step 2: of the last packet that the last ACK delivered, whether it was sent last or
    /// not).
    pub(crate) fn rtt(&self) -> Duration {
        self.rtt
    }

    /// Returns whether reordering was seen on this path.
    pub(crate) fn reordering_seen(&self) -> bool {
        self.reordering_seen
    }
}

/// A tail loss probe whose result is not known yet (RFC 8985 7.4).
#[derive(Debug, Clone, Copy)]
pub(crate) struct TailProbe {
    /// TLP.end_seq: SND.NXT behind the probe.
    pub(crate) end: u64,
    /// The probe is a retransmission of the last packet: there was no new data to send.
    pub(crate) retransmission: bool,
}

/// Sign in an ACK that both copies of a probe arrived.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ProbeSign {
    None,
    /// A D-SACK.
    Dsack,
    /// An ACK without data, progress or SACK blocks.
    Duplicate,
}

/// Result of a tail loss probe.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ProbeVerdict {
    /// Not known yet.
    Open,
    /// Nothing was lost.
    Needless,
    /// The probe repaired a loss that was not known: congestion control must react to it.
    RepairedLoss,
}

impl TailProbe {
    /// Judges the probe by an acknowledgement of everything below `ack` (RFC 8985 7.4.2).
    pub(crate) fn judge(self, ack: u64, sign: ProbeSign) -> ProbeVerdict {
        if ack < self.end {
            return ProbeVerdict::Open;
        }
        match sign {
            _ if !self.retransmission => ProbeVerdict::Needless,
            ProbeSign::Dsack => ProbeVerdict::Needless,
            _ if ack > self.end => ProbeVerdict::RepairedLoss,
            ProbeSign::Duplicate => ProbeVerdict::Needless,
            ProbeSign::None => ProbeVerdict::Open,
        }
    }
}

/// Returns how long to wait for an ACK before a tail loss probe (RFC 8985 7.2).
///
/// `single`: one packet is in flight, whose ACK the peer may hold back for `ack_delay`.
pub(crate) fn probe_timeout(rtt: &RttEstimator, single: Option<Duration>) -> Duration {
    match rtt.srtt() {
        Some(srtt) => srtt.saturating_mul(2) + single.unwrap_or(PROBE_MARGIN),
        None => PROBE_TIMEOUT_INITIAL,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::TimerConfig;

    const MIN_RTT: Duration = Duration::from_millis(40);

    fn rtt() -> RttEstimator {
        let mut rtt = RttEstimator::new(&TimerConfig::default());
        rtt.on_sample(Duration::from_millis(100));
        rtt.note_min(MIN_RTT, Instant::ZERO);
        rtt
    }

    fn delivered(original: Option<(u64, u64)>, retransmission: Option<(u64, u64)>) -> Delivered {
        let sending = |(millis, end)| Sending {
            sent_at: Instant::from_millis(millis),
            end,
        };
        Delivered {
            latest_original: original.map(sending),
            latest_retransmission: retransmission.map(sending),
            last: retransmission
                .map(|at| (sending(at).sent_at, true))
                .or(original.map(|at| (sending(at).sent_at, false))),
            last_original: original.map(|at| sending(at).sent_at),
            ..Delivered::default()
        }
    }

    #[test]
    fn the_latest_sending_wins_whatever_arrives_last() {
        let mut rack = Rack::default();
        let at = Instant::from_millis;
        assert_eq!(rack.latest(), None);
        rack.on_delivered(&delivered(Some((5, 300)), None), |_| false, at(25));
        rack.on_delivered(&delivered(Some((4, 200)), None), |_| false, at(30));
        assert_eq!(rack.latest().map(|latest| latest.end), Some(300));
        assert_eq!(
            rack.rtt(),
            Duration::from_millis(26),
            "of the last one told"
        );
        // Sent together: the higher one is the later one.
        rack.on_delivered(&delivered(Some((5, 400)), None), |_| false, at(31));
        assert_eq!(
            (
                rack.latest().map(|latest| latest.end),
                rack.rtt().as_millis()
            ),
            (Some(400), 26)
        );
    }

    #[test]
    fn an_ambiguous_retransmission_does_not_count() {
        let mut rack = Rack::default();
        let both = delivered(Some((5, 300)), Some((20, 100)));
        rack.on_delivered(&both, |_| true, Instant::from_millis(21));
        assert_eq!(rack.latest().map(|latest| latest.end), Some(300));
        rack.on_delivered(&both, |_| false, Instant::from_millis(70));
        assert_eq!(rack.latest().map(|latest| latest.end), Some(100));
    }

    #[test]
    fn an_impatient_sender_waits_for_nothing_until_reordering_is_seen() {
        let (mut rack, rtt) = (Rack::default(), rtt());
        assert_eq!(
            rack.reordering_window(&rtt, ReorderingWindow::Closed),
            Duration::ZERO
        );
        assert_eq!(
            rack.reordering_window(&rtt, ReorderingWindow::Open),
            MIN_RTT / 4
        );
        rack.on_needless_recovery();
        assert_eq!(
            rack.reordering_window(&rtt, ReorderingWindow::Closed),
            MIN_RTT / 4
        );
    }

    #[test]
    fn a_widened_window_shrinks_after_sixteen_recoveries() {
        let (mut rack, rtt) = (Rack::default(), rtt());
        rack.on_dsack(0, 1000);
        rack.on_dsack(1000, 2000);
        for _ in 0..15 {
            rack.on_recovery_end();
            assert_eq!(
                rack.reordering_window(&rtt, ReorderingWindow::Open),
                MIN_RTT * 3 / 4
            );
        }
        rack.on_recovery_end();
        assert_eq!(
            rack.reordering_window(&rtt, ReorderingWindow::Open),
            MIN_RTT / 4
        );
    }

    #[test]
    fn probes_are_judged_as_rfc_8985_says() {
        let probe = |retransmission| TailProbe {
            end: 100,
            retransmission,
        };
        use ProbeSign::{Dsack, Duplicate, None};
        use ProbeVerdict::{Needless, Open, RepairedLoss};
        assert_eq!(probe(true).judge(99, Dsack), Open);
        assert_eq!(probe(false).judge(100, None), Needless);
        assert_eq!(probe(true).judge(100, Dsack), Needless);
        assert_eq!(probe(true).judge(100, Duplicate), Needless);
        assert_eq!(probe(true).judge(100, None), Open);
        assert_eq!(probe(true).judge(101, None), RepairedLoss);
        assert_eq!(probe(true).judge(101, Dsack), Needless);
    }
}
