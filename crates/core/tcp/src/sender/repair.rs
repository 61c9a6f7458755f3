//! Carries out the decisions of [`Recovery`](super::recovery::Recovery): marks of the scoreboard, the congestion window,
//! counters.

use netmem::Payload;
use wire::Instant;

use super::Sender;
use super::event::AckEvent;
use super::prr::PrrInput;
use super::recovery::{
    EpisodeStart, EpisodeVerdict, Evidence, NewLoss, Phase, Remaining, UndoneReduction,
    WindowReaction,
};
use crate::congestion::Acked;
use crate::context::Context;
use crate::scoreboard::Losses;

impl<P: Payload> Sender<P> {
    /// Moves loss recovery on by an ACK.
    pub(super) fn recover(&mut self, event: &AckEvent, acked: &Acked, cx: &Context<'_>) {
        if event.delivered.bytes > 0 {
            self.flight.heard_at = event.now;
        }
        let left = Remaining {
            sacked: self.flight.board.sacked(),
            retrans: self.flight.board.retrans(),
            can_send_new: self.unsent() > 0 && self.space.usable() > 0,
        };
        match self.recovery.on_ack(event, &left) {
            EpisodeVerdict::Continues => {}
            EpisodeVerdict::EarlierNeedless(undone) => self.undo(undone),
            EpisodeVerdict::LossOver => {
                self.flight.on_repaired();
                self.rate.congestion.end_timeout();
            }
            EpisodeVerdict::CwrOver => self.rate.congestion.end_reduction(),
            EpisodeVerdict::RecoveryOver(undone) => {
                self.finish_recovery(undone, event, acked, cx);
                return;
            }
            EpisodeVerdict::RecoveryNeedless(undone) => {
                self.undo(undone);
                self.flight.forget_duplicates();
                return;
            }
            EpisodeVerdict::TimeoutNeedless(undone) => {
                self.undo(undone);
                self.flight.forget_duplicates();
                self.timers.attempts.retransmits = 0;
                return;
            }
        }
        let evidence = self.look_for_losses(event, cx);
        let reaction = self.recovery.on_evidence(event, &evidence);
        self.react(reaction, event, acked);
    }

    /// Looks for losses after an ACK, by RACK or by duplicate ACKs.
    fn look_for_losses(&mut self, event: &AckEvent, cx: &Context<'_>) -> Evidence {
        let mss = self.mss();
        if self.recovery.counts_duplicates(event) {
            self.flight
                .count_duplicate(event, self.recovery.phase(), mss);
        }
        let losses = self.detect_losses(cx);
        let mut new_loss = NewLoss::of(losses);
        if let Some(duplicates) = self.flight.duplicate_packets(mss)
            && self.recovery.condemns_head(event, duplicates)
            && self.flight.board.mark_head_lost()
        {
            new_loss = NewLoss::NextHole;
        }
        Evidence {
            lost: self.flight.board.lost(),
            new_loss,
            out_of_order: self.flight.out_of_order(),
            reorders: self.flight.rack.reordering_seen(),
        }
    }

    fn react(&mut self, reaction: WindowReaction, event: &AckEvent, acked: &Acked) {
        match reaction {
            WindowReaction::Keep => {}
            WindowReaction::Grow => self.rate.congestion.on_ack(acked),
            WindowReaction::Repair => {
                self.begin_repair(acked.bytes);
                if event.ece {
                    self.recovery.forbid_undo();
                }
                self.reduce(acked.bytes, false);
            }
            WindowReaction::AnswerMark => self.answer_mark(event, acked),
            WindowReaction::Reduce { is_safe } => self.reduce(acked.bytes, is_safe),
            WindowReaction::RepairNextHole => {
                self.reduce(acked.bytes, false);
                // There may be no other ACK to let it out.
                let enough = self.flight.pipe() + u64::from(self.mss());
                self.rate
                    .congestion
                    .set_cwnd(self.rate.congestion.cwnd().max(enough));
            }
        }
    }

    /// Begins to repair losses; the ACK that shows them delivered `delivered` bytes.
    fn begin_repair(&mut self, delivered: u64) {
        let start = self.episode_start(delivered);
        let reduces =
            self.recovery.repair_reduces() || self.rate.congestion.answers_marks_by_less();
        let prior = reduces.then(|| self.rate.reduce(self.packets.mss));
        self.recovery.begin_repair(start, prior);
        self.counters.recoveries = self.counters.recoveries.saturating_add(1);
    }

    /// Answers an echoed mark, with nothing to repair.
    fn answer_mark(&mut self, event: &AckEvent, acked: &Acked) {
        self.recovery.begin_cwr(self.episode_start(acked.bytes));
        self.rate.answer_mark(self.packets.mss);
        self.counters.ecn_reductions = self.counters.ecn_reductions.saturating_add(1);
        self.reduce(acked.bytes, event.advanced > 0);
    }

    /// Returns where an episode begins, by an ACK that delivered `delivered` bytes.
    fn episode_start(&self, delivered: u64) -> EpisodeStart {
        let flight = (self.flight.board.outstanding() + delivered)
            .saturating_sub(self.flight.out_of_order());
        EpisodeStart {
            una: self.space.una(),
            nxt: self.space.nxt(),
            retrans: self.flight.board.retrans(),
            recover_flight: flight.max(self.packets.mss.into()),
        }
    }

    fn finish_recovery(
        &mut self,
        undone: Option<UndoneReduction>,
        event: &AckEvent,
        acked: &Acked,
        cx: &Context<'_>,
    ) {
        match undone {
            Some(undone) => self.undo(undone),
            None => self.rate.congestion.end_reduction(),
        }
        self.flight.on_repaired();
        let _ = self.detect_losses(cx);
        if self.flight.board.lost() > 0 {
            // Lost behind the recovery point: the next episode.
            self.begin_repair(0);
            self.reduce(self.mss().into(), false);
        } else if event.ece {
            self.answer_mark(event, acked);
        } else {
            // It is an ACK after the reduction, too.
            self.rate.congestion.on_ack(acked);
        }
    }

    /// Sets cwnd for an ACK that delivered `delivered` bytes, while a reduction goes on; `is_safe` as in [`PrrInput`].
    fn reduce(&mut self, delivered: u64, is_safe: bool) {
        let Some(ssthresh) = self.rate.congestion.ssthresh() else {
            return;
        };
        let input = PrrInput {
            delivered,
            is_safe,
            pipe: self.flight.pipe(),
            ssthresh,
            mss: self.mss().into(),
        };
        if let Some(cwnd) = self.recovery.reduced_window(&input) {
            self.rate.congestion.set_cwnd(cwnd);
        }
    }

    /// Answers a loss that a tail loss probe has repaired already.
    pub(super) fn reduce_once(&mut self) {
        if !self.recovery.is_repairing() {
            let _ = self.rate.reduce(self.packets.mss);
            self.recovery.drop_episode();
            self.rate.congestion.end_reduction();
        }
    }

    /// The retransmission timer ran out: everything that had time to arrive is lost.
    pub(super) fn enter_loss(&mut self, now: Instant) {
        let start = EpisodeStart {
            recover_flight: 0,
            ..self.episode_start(0)
        };
        let was_marked =
            self.recovery.phase() == Phase::Cwr && self.rate.congestion.answers_marks_by_less();
        let timeouts = self.timers.attempts.retransmits;
        if self.recovery.on_timeout(&start, timeouts) || was_marked {
            let prior = self.rate.reduce(self.packets.mss);
            self.recovery.begin_timeout_episode(&start, prior);
        } else {
            self.rate.cwr.on_reduced();
        }
        self.flight.mark_timed_out(now);
        self.rate
            .congestion
            .set_cwnd(self.flight.pipe() + u64::from(self.mss()));
    }

    /// The reordering timer ran out: packets may be old enough to be lost.
    pub(super) fn on_reorder_timeout(&mut self, cx: &Context<'_>) {
        let new_loss = NewLoss::of(self.detect_losses(cx));
        match self.recovery.on_late_losses(new_loss) {
            WindowReaction::Repair => {
                self.begin_repair(0);
                self.reduce(self.mss().into(), false);
            }
            WindowReaction::Reduce { is_safe } => self.reduce(self.mss().into(), is_safe),
            _ => {}
        }
        self.schedule(cx);
    }

    /// Sends again what no longer fits a packet of the path, without reducing the window
    /// (linux `tcp_simple_retransmit`).
    pub(super) fn retransmit_larger_than(&mut self, mss: u16) {
        if self.flight.mark_larger_lost(mss) {
            self.recovery.repeat_without_reduction(self.space.nxt());
        }
    }

    /// Asks RACK for losses; remembers when to ask again.
    fn detect_losses(&mut self, cx: &Context<'_>) -> Losses {
        let now = cx.now;
        let losses = self.flight.detect_losses(self.recovery.phase(), now);
        let tuning = &cx.shared().tuning;
        let timer = |at: Instant| now + tuning.reordering_timer(at.saturating_since(now));
        self.timers.set_reorder(losses.again_at.map(timer));
        self.rate.congestion.on_lost(losses.bytes);
        losses
    }

    /// Takes a reduction back.
    fn undo(&mut self, undone: UndoneReduction) {
        self.flight.board.unmark_lost();
        self.counters.undone = self.counters.undone.saturating_add(1);
        if let Some(prior) = undone.prior {
            self.rate.undo(prior);
        }
        if undone.inferred {
            self.flight.rack.on_needless_recovery();
        }
    }
}
