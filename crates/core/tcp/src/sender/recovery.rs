//! Loss recovery: from suspicion to repair and back, or to the discovery that nothing was lost
//! (linux `tcp_fastretrans_alert`).
//!
//! With SACK, losses are found by RACK; without, by duplicate ACKs (RFC 6582). Either way the window is reduced
//! proportionally (RFC 9937) while ACKs come, and to one segment when they do not. A mark that the peer echoes
//! reduces it in the same way (RFC 3168 6.1.2), with nothing to repair.

use netmem::Payload;
use wire::Instant;

use super::Sender;
use super::ack::AckEvent;
use crate::congestion::{Acked, Prior};
use crate::info::CaState;
use crate::rack::{DUP_THRESHOLD, Patience, TailProbe};
use crate::scoreboard::{Judge, Losses};

/// Where the sender stands (linux `enum tcp_ca_state`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum Phase {
    /// All is well.
    #[default]
    Open,
    /// Something arrived out of order; limited transmit (RFC 3042) follows from the smaller pipe.
    Disorder,
    /// The peer echoed a mark: the window shrinks, nothing is lost. Held until something sent after the reduction is
    /// acknowledged, for CWR to reach the peer.
    Cwr,
    /// Losses are being repaired as ACKs come in.
    Recovery,
    /// The retransmission timer ran out, or the path's MTU shrank.
    Loss,
}

/// Is the timeout spurious? (RFC 5682 2.1 and 3.1)
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum Frto {
    /// Not asking, or answered.
    #[default]
    Off,
    /// Step 1: the first segment was sent again.
    Asked,
    /// Step 2b: new data instead of more retransmissions.
    SendNew,
}

/// What must turn out needless for a reduction to be taken back (linux `undo_marker`, `undo_retrans`).
#[derive(Debug)]
struct Undo {
    /// What to go back to; `None` once the peer echoed a mark: there was congestion (linux `prior_ssthresh` = 0).
    prior: Option<Prior>,
    /// The losses were inferred from what arrived, and not from a timeout.
    inferred: bool,
    /// D-SACKs of bytes below it do not count.
    marker: u64,
    /// Bytes sent again and not yet reported as duplicates.
    unproven: u64,
    /// When the first of them was sent.
    first_sent: Option<Instant>,
    /// The episode is over; once this is acknowledged, D-SACKs come too late.
    expires: Option<u64>,
}

/// Proportional rate reduction (RFC 9937 6).
#[derive(Debug, Clone, Copy, Default)]
struct Prr {
    delivered: u64,
    out: u64,
    /// RecoverFS.
    recover_flight: u64,
}

/// What is only needed while the window shrinks or losses are repaired, and a round trip longer.
#[derive(Debug)]
struct Episode {
    prr: Prr,
    /// `None`: a mark was the reason, and it is not taken back.
    undo: Option<Undo>,
}

/// State of loss recovery.
#[derive(Debug, Default)]
pub(super) struct Recovery {
    /// The last episode ends when this is acknowledged: RecoveryPoint; 0 before the first one.
    point: u64,
    episode: Option<Box<Episode>>,
    /// Bytes that duplicate ACKs stand for, without SACK.
    reno_sacked: u32,
    phase: Phase,
    frto: Frto,
    /// Partial ACKs of this recovery, without SACK.
    partial_acks: u8,
    tail_probe: Option<TailProbe>,
    /// A probe left in this recovery, and nothing arrived since.
    probed: bool,
}

impl Recovery {
    pub(super) fn phase(&self) -> Phase {
        self.phase
    }

    pub(super) fn ca_state(&self) -> CaState {
        match self.phase {
            Phase::Open => CaState::Open,
            Phase::Disorder => CaState::Disorder,
            Phase::Cwr => CaState::Cwr,
            Phase::Recovery => CaState::Recovery,
            Phase::Loss => CaState::Loss,
        }
    }

    /// Returns where the running or the last episode ends.
    pub(super) fn point(&self) -> u64 {
        self.point
    }

    pub(super) fn reno_sacked(&self) -> u64 {
        self.reno_sacked.into()
    }

    pub(super) fn tail_probe(&self) -> Option<TailProbe> {
        self.tail_probe
    }

    pub(super) fn begin_tail_probe(&mut self, probe: TailProbe) {
        self.tail_probe = Some(probe);
    }

    pub(super) fn end_tail_probe(&mut self) {
        self.tail_probe = None;
    }

    /// Returns whether this recovery's silence was answered with a probe already.
    pub(super) fn is_probed(&self) -> bool {
        self.probed
    }

    /// Notes a probe in recovery.
    pub(super) fn note_probe(&mut self) {
        self.probed = true;
    }

    /// Returns whether new data goes before retransmissions (RFC 5682 step 2b).
    pub(super) fn prefers_new_data(&self) -> bool {
        self.frto == Frto::SendNew
    }

    /// Gives up asking: there was no new data to send.
    pub(super) fn stop_frto(&mut self) {
        self.frto = Frto::Off;
    }

    /// Returns whether the retransmission timer runs on although the ACK moves on: without SACK, recovery repairs one
    /// packet per round trip, and a timeout helps more than that (RFC 6582 3.2 step 3, 4: the impatient variant).
    pub(super) fn is_impatient(&self) -> bool {
        self.phase == Phase::Recovery && self.partial_acks > 1
    }

    /// Returns whether losses are being repaired.
    pub(super) fn is_repairing(&self) -> bool {
        matches!(self.phase, Phase::Recovery | Phase::Loss)
    }

    /// Charges what left.
    pub(super) fn on_sent(&mut self, bytes: u64) {
        if let Some(episode) = &mut self.episode {
            episode.prr.out += bytes;
        }
    }

    /// Charges what left again.
    pub(super) fn on_retransmitted(&mut self, bytes: u64, now: Instant) {
        self.on_sent(bytes);
        if let Some(undo) = self.undo_mut() {
            undo.unproven += bytes;
            undo.first_sent.get_or_insert(now);
        }
    }

    /// Notes that the peer got `[start, end)` twice.
    pub(super) fn on_dsack(&mut self, start: u64, end: u64) {
        if let Some(undo) = self.undo_mut()
            && end > undo.marker
        {
            undo.unproven = undo.unproven.saturating_sub(end - start);
        }
    }

    fn begin(&mut self, phase: Phase, point: u64) {
        self.phase = phase;
        self.point = point;
        self.partial_acks = 0;
        self.tail_probe = None;
        self.probed = false;
        self.frto = Frto::Off;
    }

    fn end(&mut self, sacked: u64, snd_nxt: u64) {
        self.phase = if sacked > 0 {
            Phase::Disorder
        } else {
            Phase::Open
        };
        self.frto = Frto::Off;
        self.reno_sacked = 0;
        if let Some(undo) = self.undo_mut() {
            undo.expires = Some(snd_nxt);
        }
    }

    fn undo_mut(&mut self) -> Option<&mut Undo> {
        self.episode.as_deref_mut()?.undo.as_mut()
    }

    /// There is congestion: whatever turns out about losses, the window stays reduced.
    fn forbid_undo(&mut self) {
        if let Some(undo) = self.undo_mut() {
            undo.prior = None;
        }
    }

    /// Returns whether duplicate ACKs may begin an episode: something was acknowledged that was sent after the last
    /// one (RFC 6582 3.2 step 2), or that one was about a mark and had nothing to repair.
    fn may_count_duplicates(&self, snd_una: u64) -> bool {
        self.point == 0 || snd_una > self.point || self.phase == Phase::Cwr
    }
}

impl<P: Payload> Sender<P> {
    /// Returns the bytes believed to be in the network.
    pub(super) fn pipe(&self) -> u64 {
        self.board
            .pipe()
            .saturating_sub(self.recovery.reno_sacked())
    }

    /// Returns how many bytes an ACK delivered; without SACK a duplicate stands for one segment
    /// (linux `tcp_add_reno_sack`).
    pub(super) fn delivered_bytes(&self, event: &AckEvent) -> u64 {
        let mss = u64::from(self.mss());
        match (self.sack, event.duplicate) {
            (true, _) => event.delivered.bytes,
            (false, true) => mss,
            (false, false) if event.advanced == 0 => 0,
            // Duplicates stood for part of it already.
            (false, false) => event
                .advanced
                .saturating_sub(self.recovery.reno_sacked())
                .max(mss.min(event.advanced)),
        }
    }

    /// Moves the state machine on.
    pub(super) fn recover(&mut self, event: &AckEvent, acked: &Acked) {
        self.expire_undo();
        if event.ece {
            self.recovery.forbid_undo();
        }
        if event.delivered.bytes > 0 {
            self.recovery.probed = false;
            self.timers.on_news(event.now);
        }
        match self.recovery.phase {
            Phase::Open | Phase::Disorder => self.on_ack_in_order(event, acked),
            Phase::Cwr => self.on_ack_in_cwr(event, acked),
            Phase::Recovery => self.on_ack_in_recovery(event, acked),
            Phase::Loss => self.on_ack_in_loss(event, acked),
        }
    }

    fn on_ack_in_order(&mut self, event: &AckEvent, acked: &Acked) {
        self.count_duplicates(event);
        if event.dsack && self.all_needless() {
            self.undo();
        }
        if self.finds_losses(event) {
            self.enter_recovery(acked.bytes);
            if event.ece {
                self.recovery.forbid_undo();
            }
            self.reduce(acked.bytes, 0);
            return;
        }
        if event.ece {
            self.enter_cwr(event, acked);
            return;
        }
        let disorder = self.board.sacked() + self.recovery.reno_sacked() > 0;
        self.recovery.phase = if disorder {
            Phase::Disorder
        } else {
            Phase::Open
        };
        if event.advanced > 0 || (self.rack.reordering_seen() && event.delivered.sacked > 0) {
            self.congestion.on_ack(acked);
        }
    }

    /// Returns whether something is lost, by RACK or by duplicate ACKs.
    fn finds_losses(&mut self, event: &AckEvent) -> bool {
        let _ = self.detect_losses(event.now);
        let duplicates = self.recovery.reno_sacked / u32::from(self.mss().max(1));
        let counted =
            duplicates >= DUP_THRESHOLD && self.recovery.may_count_duplicates(self.snd_una);
        if counted {
            self.board.mark_head_lost();
        }
        self.board.lost() > 0
    }

    fn on_ack_in_cwr(&mut self, event: &AckEvent, acked: &Acked) {
        if self.snd_una > self.recovery.point {
            self.leave_reduced();
            self.recovery.phase = Phase::Open;
            self.recovery.episode = None;
            self.on_ack_in_order(event, acked);
            return;
        }
        self.count_duplicates(event);
        if self.finds_losses(event) {
            self.enter_recovery(acked.bytes);
            self.reduce(acked.bytes, 0);
        } else {
            self.shrink(event, acked);
        }
    }

    /// Sets cwnd for an ACK that reports no loss: one that makes progress lets the window catch up with ssthresh.
    fn shrink(&mut self, event: &AckEvent, acked: &Acked) {
        let safe = event.advanced > 0;
        self.reduce(acked.bytes, if safe { self.mss().into() } else { 0 });
    }

    fn on_ack_in_recovery(&mut self, event: &AckEvent, acked: &Acked) {
        if event.advanced > 0 && self.snd_una >= self.recovery.point {
            self.finish_recovery(event);
            if event.ece && !self.recovery.is_repairing() {
                self.enter_cwr(event, acked);
            }
            return;
        }
        self.count_duplicates(event);
        if self.hole_filled_by_original(event) || (event.dsack && self.all_needless()) {
            self.undo();
            self.recovery.end(self.board.sacked(), self.snd_nxt);
            return;
        }
        let partial = event.advanced > 0 && !self.sack;
        let newly_lost = if partial {
            self.recovery.partial_acks = self.recovery.partial_acks.saturating_add(1);
            // The next hole starts where the ACK stopped (RFC 6582 3.2 step 3).
            self.board.mark_head_lost()
        } else {
            self.detect_losses(event.now).bytes > 0
        };
        // SafeACK: progress, and no sign of further loss.
        let safe = event.advanced > 0 && !newly_lost;
        self.reduce(acked.bytes, if safe { self.mss().into() } else { 0 });
        if partial && newly_lost {
            // It must leave now (RFC 6582 3.2 step 3): there may be no other ACK to let it out.
            let enough = self.pipe() + u64::from(self.mss());
            self.congestion.set_cwnd(self.congestion.cwnd().max(enough));
        }
    }

    fn on_ack_in_loss(&mut self, event: &AckEvent, acked: &Acked) {
        if event.advanced > 0 && (self.all_needless() || self.delayed(event)) {
            self.undo_timeout();
            return;
        }
        if self.recovery.frto != Frto::Off && self.ask_frto(event) {
            return;
        }
        if self.snd_una >= self.recovery.point {
            self.recovery.end(self.board.sacked(), self.snd_nxt);
            self.rack.on_recovery_end();
            self.on_ack_in_order(event, acked);
            return;
        }
        if event.advanced > 0 || self.snd_nxt > self.recovery.point {
            // What F-RTO sent is not lost, so that its duplicates clock out retransmissions.
            self.count_duplicates(event);
        }
        if self.detect_losses(event.now).retransmission {
            // A second sign of congestion (RFC 5681 4.3).
            self.enter_recovery(acked.bytes);
            self.reduce(acked.bytes, 0);
            return;
        }
        if event.advanced > 0 || event.delivered.bytes > 0 {
            self.congestion.on_ack(acked);
        }
    }

    /// Goes on with F-RTO (RFC 5682 3.1); returns whether nothing else is to be done with this ACK.
    fn ask_frto(&mut self, event: &AckEvent) -> bool {
        let original = event
            .delivered
            .lowest_original
            .is_some_and(|end| end <= self.recovery.point);
        if original {
            // Step 3b: what was sent before the timeout arrives.
            self.undo_timeout();
            return true;
        }
        if self.snd_nxt > self.recovery.point {
            if event.delivered.sacked > 0 || event.duplicate {
                // Step 3a: only what was sent after the timeout arrives.
                self.recovery.frto = Frto::Off;
            } else {
                self.recovery.frto = Frto::Asked;
            }
        } else if event.advanced > 0 && self.snd_una < self.recovery.point {
            let can_send = self.unsent() > 0 && self.window_end() > self.snd_nxt;
            self.recovery.frto = if can_send { Frto::SendNew } else { Frto::Off };
            self.recovery.point = self.snd_nxt;
        }
        false
    }

    /// Begins the repair of losses (RFC 6675 5 step 4, RFC 9937 6.1).
    pub(super) fn enter_recovery(&mut self, newly_delivered: u64) {
        self.counters.recoveries = self.counters.recoveries.saturating_add(1);
        if self.recovery.phase == Phase::Cwr {
            // The window shrinks already, once per round trip is enough (linux `tcp_enter_recovery`).
            self.recovery.phase = Phase::Recovery;
            self.recovery.partial_acks = 0;
            let undo = self.undo_to(None);
            if let Some(episode) = &mut self.recovery.episode {
                episode.undo = Some(undo);
            }
            return;
        }
        self.recovery.begin(Phase::Recovery, self.snd_nxt);
        self.begin_episode(self.prr(newly_delivered));
    }

    /// Answers an echoed mark as a loss, without anything to repair (RFC 3168 6.1.2, linux `tcp_enter_cwr`).
    fn enter_cwr(&mut self, event: &AckEvent, acked: &Acked) {
        self.recovery.begin(Phase::Cwr, self.snd_nxt);
        self.begin_episode(self.prr(acked.bytes));
        if let Some(episode) = &mut self.recovery.episode {
            episode.undo = None;
        }
        self.counters.ecn_reductions = self.counters.ecn_reductions.saturating_add(1);
        self.shrink(event, acked);
    }

    /// Returns a proportional reduction that has not begun; the ACK that causes it delivered `newly_delivered` bytes.
    fn prr(&self, newly_delivered: u64) -> Prr {
        let known = self.board.sacked() + self.recovery.reno_sacked();
        let flight = (self.board.outstanding() + newly_delivered).saturating_sub(known);
        Prr {
            delivered: 0,
            out: 0,
            recover_flight: flight.max(u64::from(self.mss)),
        }
    }

    fn finish_recovery(&mut self, event: &AckEvent) {
        if self.all_needless() || self.delayed(event) {
            self.undo();
        } else {
            self.leave_reduced();
        }
        self.recovery.end(self.board.sacked(), self.snd_nxt);
        self.rack.on_recovery_end();
        let _ = self.detect_losses(event.now);
        if self.board.lost() > 0 {
            // Lost behind the recovery point: the next episode.
            self.enter_recovery(0);
            self.reduce(u64::from(self.mss()), 0);
        }
    }

    /// Sets cwnd to what is in the network and what an ACK lets out that delivered `delivered` bytes, with `extra`
    /// when recovery may catch up with ssthresh (RFC 9937 6.2).
    pub(super) fn reduce(&mut self, delivered: u64, extra: u64) {
        let (pipe, mss) = (self.pipe(), u64::from(self.mss()));
        let (Some(episode), Some(ssthresh)) =
            (&mut self.recovery.episode, self.congestion.ssthresh())
        else {
            return;
        };
        if delivered == 0 {
            return;
        }
        let prr = &mut episode.prr;
        prr.delivered += delivered;
        let mut send = if pipe > ssthresh {
            let share = u128::from(prr.delivered) * u128::from(ssthresh);
            let share = share.div_ceil(u128::from(prr.recover_flight.max(1)));
            u64::try_from(share)
                .unwrap_or(u64::MAX)
                .saturating_sub(prr.out)
        } else {
            let bound = prr.delivered.saturating_sub(prr.out).max(delivered);
            (bound + extra).min(ssthresh - pipe)
        };
        if prr.out == 0 {
            // The fast retransmission itself.
            send = send.max(mss);
        }
        self.congestion.set_cwnd(pipe + send);
    }

    /// Enters the state that follows a retransmission timeout (RFC 5681 3.1, RFC 8985 6.3, linux `tcp_enter_loss`).
    pub(super) fn enter_loss(&mut self, now: Instant) {
        let (phase, repeated) = (self.recovery.phase, self.timers.retransmits() > 0);
        let fresh = matches!(phase, Phase::Open | Phase::Disorder);
        self.cwr.on_reduced();
        if fresh || self.snd_una >= self.recovery.point || (phase == Phase::Loss && !repeated) {
            self.begin_episode(Prr::default());
        }
        if self.board.head_sacked() {
            self.board.forget_sacks();
        }
        self.mark_timed_out(now);
        self.recovery.reno_sacked = 0;
        self.recovery.begin(Phase::Loss, self.snd_nxt);
        if fresh || phase == Phase::Cwr || repeated {
            self.recovery.frto = Frto::Asked;
        }
        self.congestion
            .set_cwnd(self.pipe() + u64::from(self.mss()));
    }

    /// Marks what a timeout makes lost: the first packet, and with RACK whatever else had time to arrive.
    fn mark_timed_out(&mut self, now: Instant) {
        let patience = self.rack.rtt() + self.rack.reordering_window(&self.rtt, Patience::None);
        let by_rack = self.sack && self.rack.latest().is_some();
        self.board
            .mark_lost_where(|sent_at, _| !by_rack || sent_at + patience <= now);
        self.board.mark_head_timed_out();
    }

    /// Sends again what no longer fits a packet of the path, without reducing the window
    /// (linux `tcp_simple_retransmit`).
    pub(super) fn retransmit_larger_than(&mut self, mss: u16) {
        let before = self.board.lost();
        self.board
            .mark_lost_where(|_, packet| packet > u32::from(mss));
        if self.board.lost() > before && self.recovery.phase != Phase::Loss {
            self.recovery.begin(Phase::Loss, self.snd_nxt);
            self.recovery.episode = None;
        }
    }

    /// Asks RACK for losses; remembers when to ask again.
    pub(super) fn detect_losses(&mut self, now: Instant) -> Losses {
        self.timers.set_reorder(None);
        let quiet = self.recovery.phase == Phase::Open && self.board.sacked() == 0;
        let Some(latest) = self.rack.latest().filter(|_| self.sack && !quiet) else {
            return Losses::default();
        };
        let window = self.rack.rtt() + self.rack.reordering_window(&self.rtt, self.patience());
        let judge = Judge {
            latest,
            window,
            now,
        };
        let losses = self.board.detect_lost(judge);
        if losses.undecided {
            self.timers.set_reorder(Some(latest.sent_at + window));
        }
        losses
    }

    /// Returns whether a hole may still be reordering, on a path that was never seen to reorder.
    fn patience(&self) -> Patience {
        if self.recovery.is_repairing() || self.board.sacked_packets() >= DUP_THRESHOLD {
            Patience::None
        } else {
            Patience::Some
        }
    }

    /// Lets duplicate ACKs stand for segments that arrived, where there is no SACK.
    fn count_duplicates(&mut self, event: &AckEvent) {
        if self.sack {
            return;
        }
        let mss = u64::from(self.mss());
        if event.duplicate {
            // The hole itself is not among them.
            let most = self.board.outstanding().saturating_sub(mss);
            self.recovery.reno_sacked = (self.recovery.reno_sacked() + mss).min(most) as u32;
        } else if event.advanced > 0 {
            let repeated = event.advanced.saturating_sub(mss);
            self.recovery.reno_sacked = match self.recovery.phase {
                Phase::Recovery => self.recovery.reno_sacked().saturating_sub(repeated) as u32,
                _ => 0,
            };
        }
    }

    /// Tells congestion control of the losses, and remembers how to take it back.
    fn begin_episode(&mut self, prr: Prr) {
        let prior = self.congestion.on_loss(self.mss);
        self.cwr.on_reduced();
        let undo = Some(self.undo_to(Some(prior)));
        self.recovery.episode = Some(Box::new(Episode { prr, undo }));
    }

    fn undo_to(&self, prior: Option<Prior>) -> Undo {
        Undo {
            prior,
            inferred: self.recovery.phase == Phase::Recovery,
            marker: self.snd_una,
            unproven: self.board.retrans(),
            first_sent: None,
            expires: None,
        }
    }

    /// Answers a loss that is repaired already.
    pub(super) fn reduce_once(&mut self) {
        if !self.recovery.is_repairing() {
            self.begin_episode(Prr::default());
            self.recovery.episode = None;
            self.leave_reduced();
            if self.recovery.phase == Phase::Cwr {
                self.recovery.phase = Phase::Open;
            }
        }
    }

    fn leave_reduced(&mut self) {
        let (cwnd, ssthresh) = (self.congestion.cwnd(), self.congestion.ssthresh());
        self.congestion.set_cwnd(ssthresh.unwrap_or(cwnd));
    }

    fn expire_undo(&mut self) {
        let expires = self.undo_state().and_then(|undo| undo.expires);
        if expires.is_some_and(|end| self.snd_una > end) {
            self.recovery.episode = None;
        }
    }

    fn undo_state(&self) -> Option<&Undo> {
        self.recovery.episode.as_deref()?.undo.as_ref()
    }

    /// Returns whether all that was sent again was reported as a duplicate (RFC 3708).
    fn all_needless(&self) -> bool {
        self.undo_state()
            .is_some_and(|undo| undo.first_sent.is_some() && undo.unproven == 0)
    }

    /// Returns whether the ACK answers the original and not its retransmission (RFC 3522).
    fn delayed(&self, event: &AckEvent) -> bool {
        let first_sent = self.undo_state().and_then(|undo| undo.first_sent);
        first_sent.is_some_and(|sent_at| event.echo_precedes(self.clock, sent_at))
    }

    /// Returns whether a partial ACK shows that the hole closed by itself (linux `tcp_try_undo_partial`).
    fn hole_filled_by_original(&self, event: &AckEvent) -> bool {
        event.advanced > 0 && self.board.retrans() == 0 && self.delayed(event)
    }

    /// Takes the reduction back.
    fn undo(&mut self) {
        self.board.unmark_lost();
        self.counters.undone = self.counters.undone.saturating_add(1);
        let Some(undo) = self
            .recovery
            .episode
            .take()
            .and_then(|episode| episode.undo)
        else {
            return;
        };
        if let Some(prior) = undo.prior {
            self.congestion.undo(prior);
            self.cwr.on_undone();
        }
        if undo.inferred {
            self.rack.on_needless_recovery();
        }
    }

    fn undo_timeout(&mut self) {
        self.undo();
        self.recovery.end(self.board.sacked(), self.snd_nxt);
        self.timers.forget_retransmits();
    }
}
