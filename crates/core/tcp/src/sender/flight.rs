//! What is between this side and the peer, and how long the round trip takes: which packets arrived, which are lost.

use core::time::Duration;

use wire::{Instant, SackBlocks};

use super::event::AckEvent;
use super::recovery::Phase;
use super::send_queue::SendRange;
use super::space::SendSpace;
use super::timers::InFlight;
use crate::options::TimestampClock;
use crate::rack::{DUP_THRESHOLD, Rack, ReorderingWindow};
use crate::rtt::RttEstimator;
use crate::scoreboard::delivered::Delivered;
use crate::scoreboard::{LossCriteria, Losses, Scoreboard};
use crate::seqnum::SeqNum;

/// Most packets that may overtake one (linux `tcp_max_reordering`).
const REORDERING_MAX: u32 = 300;

/// Scoreboard, round-trip time and RACK. Changed by what leaves, by ACKs, and by verdicts about losses.
#[derive(Debug)]
pub(super) struct Flight {
    pub(super) board: Scoreboard,
    pub(super) rtt: RttEstimator,
    pub(super) rack: Rack,
    pub(super) clock: TimestampClock,
    /// When data left last, or a pause was noticed.
    pub(super) last_sent: Instant,
    /// When an ACK last told that something arrived.
    pub(super) heard_at: Instant,
    /// Bytes that duplicate ACKs stand for, without SACK (linux `tcp_add_reno_sack`).
    duplicates: u32,
}

impl Flight {
    pub(super) fn new(rtt: RttEstimator) -> Flight {
        Flight {
            board: Scoreboard::default(),
            rtt,
            rack: Rack::default(),
            clock: TimestampClock::default(),
            last_sent: Instant::ZERO,
            heard_at: Instant::ZERO,
            duplicates: 0,
        }
    }

    /// Takes what the handshake settled.
    pub(super) fn open(&mut self, sack: bool, clock: TimestampClock) {
        if sack {
            self.rack.enable();
        }
        self.clock = clock;
    }

    /// Takes the round trip of the handshake.
    pub(super) fn on_handshake_rtt(&mut self, rtt: Duration, now: Instant) {
        self.rtt.on_sample(rtt);
        self.rtt.note_min(rtt, now);
    }

    pub(super) fn has_sack(&self) -> bool {
        self.rack.is_enabled()
    }

    /// Returns the bytes believed to be in the network.
    pub(super) fn pipe(&self) -> u64 {
        self.board.pipe().saturating_sub(self.duplicates.into())
    }

    /// Returns the bytes that arrived out of order, as far as SACK or duplicate ACKs tell.
    pub(super) fn out_of_order(&self) -> u64 {
        self.board.sacked() + u64::from(self.duplicates)
    }

    /// Returns how many packets duplicate ACKs stand for; `None` with SACK, where they do not count.
    pub(super) fn duplicate_packets(&self, mss: u16) -> Option<u32> {
        (!self.has_sack()).then(|| self.duplicates / u32::from(mss.max(1)))
    }

    /// Returns what the timers must know, with a full packet of `mss` bytes and a window that admits `usable` new ones; no
    /// probe is allowed, and there is no user timeout.
    pub(super) fn facts(&self, mss: u16, usable: u64) -> InFlight<'_> {
        InFlight {
            rtt: &self.rtt,
            outstanding: self.board.outstanding(),
            mss,
            usable,
            last_sent: self.last_sent,
            heard_at: self.heard_at,
            may_probe: false,
            user_timeout: None,
        }
    }

    /// Notes new data that leaves, in packets of `mss` bytes.
    pub(super) fn on_sent(&mut self, range: SendRange, mss: u16, now: Instant) {
        if range.len > 0 {
            self.board.on_sent(range.start, range.len, mss, now);
        }
        if range.fin {
            let fin = range.start + u64::from(range.len);
            self.board.on_sent(fin, 1, mss, now);
        }
    }

    /// Marks what the peer reports to have; returns the range of the first block if it is a D-SACK (RFC 2883 4).
    ///
    /// `ack` is the offset of the acknowledgement, which may lie before the stream.
    pub(super) fn on_sack(
        &mut self,
        sack: &SackBlocks,
        ack: i64,
        space: &SendSpace,
        delivered: &mut Delivered,
    ) -> Option<(u64, u64)> {
        let offsets = |(left, right)| {
            let offset = |seq| space.offset_of(SeqNum(seq));
            (offset(left), offset(right))
        };
        let mut dsack = None;
        let second = sack.iter().nth(1).map(offsets);
        for (index, block) in sack.iter().enumerate() {
            let (start, end) = offsets(block);
            let oldest = space.oldest_ack().max(0);
            if start >= end || start < oldest || end > space.nxt().cast_signed() {
                // Never sent, or far too old.
                continue;
            }
            let within_second = second.is_some_and(|(left, right)| left <= start && end <= right);
            if index == 0 && (start < ack || within_second) {
                dsack = Some((start.cast_unsigned(), end.cast_unsigned()));
                continue;
            }
            let start = start.max(space.una().cast_signed());
            if start < end {
                let (start, end) = (start.cast_unsigned(), end.cast_unsigned());
                self.board.sack(start, end, delivered);
            }
        }
        dsack
    }

    /// Takes everything before `una` for delivered.
    pub(super) fn ack_to(&mut self, una: u64, delivered: &mut Delivered) {
        self.board.ack_to(una, delivered);
        if !self.has_sack() && delivered.acked_retransmission {
            // It may all have waited for the retransmission: nothing shows that an original arrived just now.
            delivered.lowest_original = None;
        }
    }

    /// Returns how many bytes an ACK delivered; without SACK a duplicate stands for one segment.
    pub(super) fn delivered_bytes(&self, event: &AckEvent, mss: u16) -> u64 {
        let mss = u64::from(mss);
        match (self.has_sack(), event.duplicate) {
            (true, _) => event.delivered.bytes,
            (false, true) => mss,
            (false, false) if event.advanced == 0 => 0,
            // Duplicates stood for part of it already.
            (false, false) => event
                .advanced
                .saturating_sub(self.duplicates.into())
                .max(mss.min(event.advanced)),
        }
    }

    /// Measures the round trip (RFC 6298 3, RFC 7323 4); returns the time of the newest packet acknowledged.
    pub(super) fn sample_rtt(&mut self, event: &AckEvent) -> Option<Duration> {
        let delivered = &event.delivered;
        // An ACK that waited for a retransmission says nothing of the packets sent behind it (Karn's algorithm).
        let acked = delivered
            .acked_sent
            .filter(|_| !delivered.acked_retransmission);
        if let Some((oldest, newest)) = acked.or(delivered.sacked_sent) {
            self.rtt.on_sample(event.now.saturating_since(oldest));
            let newest = event.now.saturating_since(newest);
            self.rtt.note_min(newest, event.now);
            return Some(newest);
        }
        if event.advanced > 0
            && let Some(echo) = event.ts_echo
        {
            let millis = self.clock.value(event.now).wrapping_sub(echo);
            if millis.cast_signed() >= 0 {
                self.rtt
                    .on_sample(Duration::from_millis(u64::from(millis.max(1))));
            }
        }
        None
    }

    /// Tells RACK what arrived.
    pub(super) fn update_rack(&mut self, event: &AckEvent) {
        let min_rtt = self.rtt.min_rtt().unwrap_or_default();
        let ambiguous = |sent_at| {
            let early = event.now.saturating_since(sent_at) < min_rtt;
            early || event.echo_precedes(sent_at)
        };
        self.rack
            .on_delivered(&event.delivered, ambiguous, event.now);
        if event.dsack {
            self.rack.on_dsack(event.una, event.nxt);
        }
    }

    /// Returns by how many packets the packet at `from` was overtaken.
    pub(super) fn overtaken_by(&self, from: u64, mss: u16) -> u32 {
        let bytes = self.board.highest_sacked().saturating_sub(from);
        let packets = bytes.div_ceil(mss.max(1).into());
        u32::try_from(packets)
            .unwrap_or(REORDERING_MAX)
            .min(REORDERING_MAX)
    }

    /// Lets a duplicate ACK stand for a segment that arrived, where there is no SACK.
    pub(super) fn count_duplicate(&mut self, event: &AckEvent, phase: Phase, mss: u16) {
        if self.has_sack() {
            return;
        }
        let (mss, duplicates) = (u64::from(mss), u64::from(self.duplicates));
        if event.duplicate {
            // The hole itself is not among them.
            let most = self.board.outstanding().saturating_sub(mss);
            self.duplicates = (duplicates + mss).min(most) as u32;
        } else if event.advanced > 0 {
            let repeated = event.advanced.saturating_sub(mss);
            self.duplicates = match phase {
                Phase::Recovery => duplicates.saturating_sub(repeated) as u32,
                _ => 0,
            };
        }
    }

    /// Asks RACK for losses.
    pub(super) fn detect_losses(&mut self, phase: Phase, now: Instant) -> Losses {
        let quiet = phase == Phase::Open && self.board.sacked() == 0;
        let Some(latest) = self.rack.latest().filter(|_| !quiet) else {
            return Losses::default();
        };
        let window = self.rack.rtt() + self.reordering_window(phase);
        self.board.detect_lost(LossCriteria {
            latest,
            window,
            now,
        })
    }

    /// Returns how long a hole may still be reordering.
    fn reordering_window(&self, phase: Phase) -> Duration {
        let unseen = match phase {
            Phase::Recovery | Phase::Loss => ReorderingWindow::Closed,
            _ if self.board.sacked_packets() >= DUP_THRESHOLD => ReorderingWindow::Closed,
            _ => ReorderingWindow::Open,
        };
        self.rack.reordering_window(&self.rtt, unseen)
    }

    /// Marks what a timeout makes lost: the first packet, and with RACK whatever else had time to arrive.
    pub(super) fn mark_timed_out(&mut self, now: Instant) {
        if self.board.head_sacked() {
            self.board.forget_sacks();
        }
        let window = self.rack.rtt()
            + self
                .rack
                .reordering_window(&self.rtt, ReorderingWindow::Closed);
        let by_rack = self.rack.latest().is_some();
        self.board
            .mark_lost_where(|sent_at, _| !by_rack || sent_at + window <= now);
        self.board.mark_head_timed_out();
        self.duplicates = 0;
    }

    /// Marks packets with more than `mss` bytes as lost; returns whether there were any.
    pub(super) fn mark_larger_lost(&mut self, mss: u16) -> bool {
        let before = self.board.lost();
        self.board
            .mark_lost_where(|_, packet| packet > u32::from(mss));
        self.board.lost() > before
    }

    /// Ends an episode of losses.
    pub(super) fn on_repaired(&mut self) {
        self.duplicates = 0;
        self.rack.on_recovery_end();
    }

    /// Forgets what duplicate ACKs stand for.
    pub(super) fn forget_duplicates(&mut self) {
        self.duplicates = 0;
    }
}
