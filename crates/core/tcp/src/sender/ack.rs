//! An acknowledgement comes in (linux `tcp_ack`).

use core::time::Duration;

use netmem::Payload;
use wire::{Instant, SackBlocks};

use super::recovery::Phase;
use super::{AckKind, AckOutcome, IncomingAck, Sender, WRITABLE_PART};
use crate::accecn::Progress;
use crate::congestion::Acked;
use crate::options::TimestampClock;
use crate::rack::{ProbeSign, ProbeVerdict};
use crate::scoreboard::Delivered;
use crate::seqnum::SeqNum;

/// Most packets that may overtake one (linux `tcp_max_reordering`).
const REORDERING_MAX: u32 = 300;

/// What one acknowledgement brought, for the parts that judge it.
#[derive(Debug, Clone, Copy)]
pub(super) struct AckEvent {
    /// How far SND.UNA moved.
    pub(super) advanced: u64,
    pub(super) delivered: Delivered,
    /// It reports bytes that arrived twice.
    pub(super) dsack: bool,
    /// A duplicate in the sense of RFC 5681 2.
    pub(super) duplicate: bool,
    /// It echoes a mark of what was in flight.
    pub(super) ece: bool,
    /// It is not older than another one, and something was in flight.
    in_time: bool,
    /// The peer's window was 0 over data in flight, and is open now.
    reopened: bool,
    /// TSecr.
    pub(super) ts_echo: Option<u32>,
    pub(super) now: Instant,
}

impl AckEvent {
    /// Returns whether the ACK was caused by something sent before `sent_at` (RFC 3522, Eifel detection).
    pub(super) fn echo_precedes(&self, clock: TimestampClock, sent_at: Instant) -> bool {
        let sent = clock.value(sent_at);
        self.ts_echo
            .is_some_and(|echo| echo.wrapping_sub(sent).cast_signed() < 0)
    }
}

impl<P: Payload> Sender<P> {
    /// Takes in an acknowledgement; what it frees is dropped, what it lets out is for [`Sender::poll_data`].
    pub fn on_ack(&mut self, ack: &IncomingAck<'_>, now: Instant) -> AckOutcome {
        if self.is_one_way(ack) {
            self.snd_wl1 = self.snd_wl1.latest(ack.seq);
            return AckOutcome {
                kind: AckKind::Duplicate,
                newly_acked: 0,
                writable: false,
            };
        }
        self.expects_more = false;
        let kind = self.classify(ack);
        let mut outcome = AckOutcome {
            kind,
            newly_acked: 0,
            writable: false,
        };
        if matches!(kind, AckKind::TooOld | AckKind::Future) {
            return outcome;
        }
        let (acked_before, room_before) = (self.acked_offset(), self.room());
        let mut event = self.take_in(ack, now);
        self.count_delivered(ack, &mut event);
        self.judge(&event);

        outcome.newly_acked = (self.acked_offset() - acked_before) as usize;
        let enough = self.limits.snd_buf_max / WRITABLE_PART;
        outcome.writable = room_before < enough && self.room() >= enough;
        outcome
    }

    /// Returns whether the ACK says nothing: the peer only sends, we have sent nothing and have nothing to send.
    /// A receiver meets one of these per segment (linux `tcp_rcv_established`, header prediction).
    fn is_one_way(&self, ack: &IncomingAck<'_>) -> bool {
        self.all_acked()
            && ack.ack == self.snd_una()
            && ack.window == self.snd_wnd
            && ack.sack.is_empty()
            // Pure ACKs may be marked, too.
            && self.reports.is_none()
    }

    fn classify(&self, ack: &IncomingAck<'_>) -> AckKind {
        let offset = self.offset_of(ack.ack);
        let una = self.snd_una.cast_signed();
        if offset > self.snd_nxt.cast_signed() {
            AckKind::Future
        } else if offset > una {
            AckKind::New
        } else if offset < una - i64::from(self.max_snd_wnd) {
            AckKind::TooOld
        } else {
            AckKind::Duplicate
        }
    }

    /// Updates what is outstanding and the window.
    fn take_in(&mut self, ack: &IncomingAck<'_>, now: Instant) -> AckEvent {
        let una_before = self.snd_una;
        // An old ACK may lie before the stream.
        let offset = self.offset_of(ack.ack);
        let in_order = offset >= una_before.cast_signed();
        let mut event = AckEvent {
            advanced: 0,
            delivered: self.board.begin_ack(),
            dsack: false,
            duplicate: false,
            // Of an ACK that was overtaken, and without data in flight, it says nothing new (linux `tcp_ack`).
            in_time: in_order && self.board.outstanding() > 0,
            ece: ack.ece && self.cwr.is_enabled() && in_order && self.board.outstanding() > 0,
            reopened: false,
            ts_echo: ack.ts_echo,
            now,
        };
        if self.sack && !ack.sack.is_empty() {
            event.dsack = self.take_in_sacks(ack.sack, offset, &mut event.delivered);
        }
        if offset > una_before.cast_signed() {
            self.snd_una = offset.cast_unsigned();
            event.advanced = self.snd_una - una_before;
            self.board.ack_to(self.snd_una, &mut event.delivered);
            if !self.sack && event.delivered.acked_retransmission {
                // It may all have waited for the retransmission: nothing shows that an original arrived just now.
                event.delivered.lowest_original = None;
            }
            self.queue.release(self.acked_offset());
        }
        let was_shut = self.snd_wnd == 0;
        let window_changed = in_order && self.update_window(ack);
        event.reopened = was_shut && self.snd_wnd > 0 && self.board.outstanding() > 0;
        event.duplicate = event.advanced == 0
            && in_order
            && !ack.has_data
            && !window_changed
            && self.board.outstanding() > 0;
        self.timers.on_answer();
        if event.advanced > 0 || self.snd_wnd == 0 {
            // A peer that took its window back and refuses what is in flight is not dead either.
            self.timers.forget_retransmits();
        }
        event
    }

    /// Marks what the peer reports; returns whether the first block is a D-SACK (RFC 2883 4).
    fn take_in_sacks(&mut self, sack: &SackBlocks, ack: i64, delivered: &mut Delivered) -> bool {
        let mut dsack = false;
        let second = sack
            .iter()
            .nth(1)
            .map(|(left, right)| self.offsets(left, right));
        let oldest = self.snd_una.cast_signed() - i64::from(self.max_snd_wnd);
        for (index, (left, right)) in sack.iter().enumerate() {
            let (start, end) = self.offsets(left, right);
            let sent = start < end && start >= oldest.max(0) && end <= self.snd_nxt.cast_signed();
            if !sent {
                continue;
            }
            let within_second = second.is_some_and(|(left, right)| left <= start && end <= right);
            if index == 0 && (start < ack || within_second) {
                dsack = true;
                self.counters.dsack_dups = self.counters.dsack_dups.saturating_add(1);
                self.recovery
                    .on_dsack(start.cast_unsigned(), end.cast_unsigned());
                continue;
            }
            let start = start.max(self.snd_una.cast_signed());
            if start < end {
                self.board
                    .sack(start.cast_unsigned(), end.cast_unsigned(), delivered);
            }
        }
        dsack
    }

    fn offsets(&self, left: u32, right: u32) -> (i64, i64) {
        let offset = |seq| self.offset_of(SeqNum(seq));
        (offset(left), offset(right))
    }

    /// Takes the window over unless an older segment brings it (RFC 9293 3.10.7.4); returns whether it changed.
    fn update_window(&mut self, ack: &IncomingAck<'_>) -> bool {
        if ack.seq.before(self.snd_wl1) {
            return false;
        }
        self.snd_wl1 = ack.seq;
        let changed = self.snd_wnd != ack.window;
        self.snd_wnd = ack.window;
        self.max_snd_wnd = self.max_snd_wnd.max(ack.window);
        changed
    }

    /// Draws the conclusions: round-trip time, losses, windows, timers.
    fn judge(&mut self, event: &AckEvent) {
        let rtt = self.sample_rtt(event);
        if self.sack {
            self.judge_by_rack(event);
        }
        let acked = Acked {
            bytes: self.delivered_bytes(event),
            srtt: self.rtt.srtt(),
            rtt,
            snd_una: self.snd_una,
            snd_nxt: self.snd_nxt,
            mss: self.mss(),
            now: event.now,
        };
        self.recover(event, &acked);
        if event.reopened {
            self.on_reopened(event);
        }
        self.update_pacing();
        self.after_ack(event.advanced, event.now);
    }

    /// Ends the backoff of a peer that withdrew its window over data in flight and opens it again: the timeouts in
    /// between were probes of the closed window (RFC 9293 3.8.6), and what they repeated was refused, not lost. Without
    /// this the data would wait for the doubled timer, for up to two minutes.
    fn on_reopened(&mut self, event: &AckEvent) {
        if !self.rtt.end_backoff() {
            return;
        }
        self.timers.on_head_retransmitted(event.now);
        if event.advanced == 0 && self.recovery.phase() == Phase::Loss {
            self.board.mark_head_timed_out();
        }
    }

    /// Counts what arrived, and what of it was marked.
    fn count_delivered(&mut self, ack: &IncomingAck<'_>, event: &mut AckEvent) {
        let (bytes, mss) = (self.delivered_bytes(event), self.mss());
        let packets = match self.sack {
            true => event.delivered.packets,
            false => u32::try_from(bytes.div_ceil(u64::from(mss.max(1)))).unwrap_or(u32::MAX),
        };
        self.counters.delivered = self.counters.delivered.wrapping_add(packets);
        if event.ece {
            self.counters.delivered_ce = self.counters.delivered_ce.wrapping_add(packets);
        }
        let progress = Progress {
            packets,
            bytes,
            mss,
            sent: self.counters.bytes_sent,
            exact: self.sack || !self.recovery.is_repairing(),
        };
        // An ACK without progress may be older than others, and its counts with it (RFC 9768 3.2.2.5.1).
        let is_news = event.advanced > 0 || event.delivered.sacked > 0 || ack.ts_progress;
        if let (Some(reports), Some(ace), true) = (&mut self.reports, ack.ace, is_news) {
            let marked = reports.on_ack(ace, ack.accecn, &progress);
            self.counters.delivered_ce = reports.ce_packets();
            event.ece = marked > 0 && event.in_time;
        }
    }

    /// Measures the round trip (RFC 6298 3, RFC 7323 4); returns the time of the newest packet acknowledged.
    fn sample_rtt(&mut self, event: &AckEvent) -> Option<Duration> {
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

    fn judge_by_rack(&mut self, event: &AckEvent) {
        let (clock, min_rtt) = (self.clock, self.rtt.min_rtt().unwrap_or_default());
        let ambiguous = |sent_at| {
            let early = event.now.saturating_since(sent_at) < min_rtt;
            early || event.echo_precedes(clock, sent_at)
        };
        self.rack
            .on_delivered(&event.delivered, ambiguous, event.now);
        if let Some(from) = event.delivered.reordered_from {
            let packets = self.board.highest_sacked().saturating_sub(from);
            let packets = packets.div_ceil(self.mss().max(1).into());
            let packets = u32::try_from(packets)
                .unwrap_or(REORDERING_MAX)
                .min(REORDERING_MAX);
            self.counters.reordering = self.counters.reordering.max(packets);
        }
        if event.delivered.reordered() {
            self.counters.reord_seen = self.counters.reord_seen.saturating_add(1);
        }
        if event.dsack {
            self.rack.on_dsack(self.snd_una, self.snd_nxt);
        }
        self.judge_tail_probe(event);
    }

    fn judge_tail_probe(&mut self, event: &AckEvent) {
        let Some(probe) = self.recovery.tail_probe() else {
            return;
        };
        let sign = match event.dsack {
            true => ProbeSign::Dsack,
            false if event.duplicate && event.delivered.sacked == 0 => ProbeSign::Duplicate,
            false => ProbeSign::None,
        };
        match probe.judge(self.snd_una, sign) {
            ProbeVerdict::Open => {}
            ProbeVerdict::Needless => self.recovery.end_tail_probe(),
            ProbeVerdict::RepairedLoss => {
                self.recovery.end_tail_probe();
                self.reduce_once();
            }
        }
    }
}
