//! An acknowledgement comes in (linux `tcp_ack`).

use netmem::Payload;
use wire::Instant;

use super::Sender;
use super::event::AckEvent;
use super::incoming::{AckKind, IncomingAck};
use super::recovery::Phase;
use super::space::WindowUpdate;
use crate::congestion::{Acked, Delivery};
use crate::context::Context;
use crate::ecn::accecn::DeliveryReport;
use crate::rack::ProbeVerdict;

impl<P: Payload> Sender<P> {
    /// Takes in an acknowledgement; what it frees is dropped, what it lets out is for [`Sender::poll_data`].
    pub fn on_ack(&mut self, ack: &IncomingAck<'_>, cx: &Context<'_>) -> AckKind {
        if self.is_one_way(ack) {
            self.space.note_seq(ack.seq);
            return AckKind::Duplicate;
        }
        self.queue.forget_more();
        let kind = self.space.classify(ack.ack);
        if matches!(kind, AckKind::New | AckKind::Duplicate) {
            let mut event = self.take_in(ack, cx.now);
            self.count_delivered(ack, &mut event);
            self.judge(&event, cx);
        }
        kind
    }

    /// Returns whether the ACK says nothing: the peer only sends, we have sent nothing and have nothing to send.
    /// A receiver gets such an ACK with each segment (linux `tcp_rcv_established`, header prediction).
    fn is_one_way(&self, ack: &IncomingAck<'_>) -> bool {
        self.all_acked()
            && self.space.repeats(ack)
            && ack.sack.is_empty()
            // Pure ACKs may be marked, too.
            && self.reports.is_none()
    }

    /// Updates what is outstanding and the window.
    fn take_in(&mut self, ack: &IncomingAck<'_>, now: Instant) -> AckEvent {
        let una_before = self.space.una();
        // An old ACK may lie before the stream.
        let offset = self.space.offset_of(ack.ack);
        let in_order = offset >= una_before.cast_signed();
        // Of an ACK that was overtaken, and without data in flight, it says nothing new (linux `tcp_ack`).
        let in_time = in_order && self.flight.board.outstanding() > 0;
        let mut event = AckEvent {
            una: una_before,
            nxt: self.space.nxt(),
            advanced: 0,
            delivered: self.flight.board.begin_ack(),
            dsack: false,
            duplicate: false,
            ece: ack.ece && self.rate.cwr.is_enabled() && in_time,
            marked: 0,
            in_time,
            reopened: false,
            ts_echo: ack.ts_echo,
            clock: self.flight.clock,
            now,
        };
        self.take_in_sack(ack, offset, &mut event);
        if offset > una_before.cast_signed() {
            event.una = offset.cast_unsigned();
            event.advanced = self.space.advance_una(event.una);
            self.flight.ack_to(event.una, &mut event.delivered);
            self.queue.release(self.acked_offset());
        }
        let update = match in_order {
            true => self.space.update_window(ack),
            false => WindowUpdate::Unchanged,
        };
        let is_waiting = self.flight.board.outstanding() > 0;
        event.reopened = update == WindowUpdate::Reopened && is_waiting;
        let is_repetition = event.advanced == 0 && update == WindowUpdate::Unchanged;
        event.duplicate = is_repetition && in_order && !ack.has_data && is_waiting;
        self.timers.attempts.probes = 0;
        if event.advanced > 0 || self.space.wnd() == 0 {
            // A peer that withdrew its window and refuses what is in flight is not dead either.
            self.timers.attempts.retransmits = 0;
        }
        event
    }

    /// Marks what the peer reports by SACK; `offset` is the acknowledgement number's.
    fn take_in_sack(&mut self, ack: &IncomingAck<'_>, offset: i64, event: &mut AckEvent) {
        if !self.flight.has_sack() || ack.sack.is_empty() {
            return;
        }
        let delivered = &mut event.delivered;
        let dsack = self
            .flight
            .on_sack(ack.sack, offset, &self.space, delivered);
        if let Some(twice) = dsack {
            event.dsack = true;
            self.counters.dsack_dups = self.counters.dsack_dups.saturating_add(1);
            self.recovery.on_dsack(twice);
        }
    }

    /// Draws the conclusions: round-trip time, losses, windows, timers.
    fn judge(&mut self, event: &AckEvent, cx: &Context<'_>) {
        let rtt = self.flight.sample_rtt(event);
        if self.flight.has_sack() {
            self.judge_by_rack(event, cx);
        }
        let srtt = self.flight.rtt.srtt();
        let acked = Acked {
            bytes: self.flight.delivered_bytes(event, self.mss()),
            srtt,
            rtt,
            snd_una: event.una,
            snd_nxt: event.nxt,
            mss: self.mss(),
            now: event.now,
        };
        self.rate.congestion.note_marks(&acked, event.marked);
        self.recover(event, &acked, cx);
        self.rate.congestion.on_delivery(&Delivery {
            acked,
            newest: event.delivered.newest(),
            min_rtt: self.flight.rtt.min_rtt(),
            in_flight: self.flight.pipe(),
        });
        if event.reopened {
            self.on_reopened(event);
        }
        self.rate.update_pacing(srtt);
        self.after_ack(event.advanced, cx);
    }

    /// Ends the backoff of a peer that withdrew its window over data in flight and opens it again: the timeouts in
    /// between were probes of the closed window (RFC 9293 3.8.6), and what they repeated was refused, not lost. Without
    /// this the data would wait for the doubled timer, for up to two minutes.
    fn on_reopened(&mut self, event: &AckEvent) {
        if !self.flight.rtt.end_backoff() {
            return;
        }
        self.timers.restart(event.now);
        if event.advanced == 0 && self.recovery.phase() == Phase::Loss {
            self.flight.board.mark_head_timed_out();
        }
    }

    /// Counts what arrived, and what of it was marked.
    fn count_delivered(&mut self, ack: &IncomingAck<'_>, event: &mut AckEvent) {
        let mss = self.mss();
        let bytes = self.flight.delivered_bytes(event, mss);
        let packets = match self.flight.has_sack() {
            true => event.delivered.packets,
            false => u32::try_from(bytes.div_ceil(u64::from(mss.max(1)))).unwrap_or(u32::MAX),
        };
        self.counters.delivered = self.counters.delivered.wrapping_add(packets);
        if event.ece {
            self.counters.delivered_ce = self.counters.delivered_ce.wrapping_add(packets);
            event.marked = bytes;
        }
        let report = DeliveryReport {
            packets,
            bytes,
            mss,
            sent: self.counters.bytes_sent,
            exact: self.flight.has_sack() || !self.recovery.is_repairing(),
        };
        // An ACK without progress may be older than others, and its counts with it (RFC 9768 3.2.2.5.1).
        let is_news = event.advanced > 0 || event.delivered.sacked > 0 || ack.ts_progress;
        if let (Some(reports), Some(ace), true) = (&mut self.reports, ack.ace, is_news) {
            let marked = reports.on_ack(ace, ack.accecn, &report);
            self.counters.delivered_ce = reports.ce_packets();
            event.ece = marked > 0 && event.in_time;
            event.marked = bytes.min(u64::from(marked) * u64::from(mss));
        }
    }

    fn judge_by_rack(&mut self, event: &AckEvent, cx: &Context<'_>) {
        self.flight.update_rack(event);
        if let Some(from) = event.delivered.reordered_from {
            let packets = self.flight.overtaken_by(from, self.mss());
            self.counters.reordering = self.counters.reordering.max(packets);
            self.counters.reord_seen = self.counters.reord_seen.saturating_add(1);
        }
        if event.delivered.split && cx.shared().tuning.takes_split_packets_for_reordering {
            self.flight.rack.on_needless_recovery();
            self.counters.reord_seen = self.counters.reord_seen.saturating_add(1);
        }
        match self.recovery.judge_probe(event) {
            ProbeVerdict::Open | ProbeVerdict::Needless => {}
            ProbeVerdict::RepairedLoss => self.reduce_once(),
        }
    }
}
