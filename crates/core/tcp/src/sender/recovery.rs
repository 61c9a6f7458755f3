//! Loss recovery as decisions: from suspicion to repair and back, or to the discovery that nothing was lost
//! (linux `tcp_fastretrans_alert`).
//!
//! With SACK, losses are found by RACK; without, by duplicate ACKs (RFC 6582). Either way the window is reduced
//! proportionally (RFC 9937) while ACKs come, and to one segment when they do not. A mark that the peer echoes
//! reduces it in the same way (RFC 3168 6.1.2), with nothing to repair.
//!
//! [`Recovery`] takes what an ACK or a timeout tells and answers what is to be done; `repair.rs` does it. For each ACK
//! there are two questions: [`Recovery::on_ack`], whether the episode under way is over or was needless, and then, once
//! losses were looked for, [`Recovery::on_evidence`], what happens to the window.

#[cfg(test)]
mod tests;

use wire::Instant;

use super::event::AckEvent;
use super::prr::{Prr, PrrInput};
use crate::congestion::Prior;
use crate::info::CaState;
use crate::rack::{DUP_THRESHOLD, ProbeSign, ProbeVerdict, TailProbe};
use crate::scoreboard::Losses;

/// Phase of the sender (linux `enum tcp_ca_state`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum Phase {
    /// No loss is suspected.
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

impl From<Phase> for CaState {
    fn from(phase: Phase) -> CaState {
        match phase {
            Phase::Open => CaState::Open,
            Phase::Disorder => CaState::Disorder,
            Phase::Cwr => CaState::Cwr,
            Phase::Recovery => CaState::Recovery,
            Phase::Loss => CaState::Loss,
        }
    }
}

/// State of F-RTO, which finds out whether a timeout was spurious (RFC 5682 2.1 and 3.1).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum Frto {
    /// Not running, or finished.
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

/// State that exists only while the window shrinks or losses are repaired, and one round trip longer.
#[derive(Debug)]
struct Episode {
    prr: Prr,
    /// `None`: a mark was the reason, and it is not taken back.
    undo: Option<Undo>,
}

/// State of loss recovery. Changed by ACKs, timeouts, and what leaves meanwhile.
#[derive(Debug, Default)]
pub(super) struct Recovery {
    /// The last episode ends when this is acknowledged: RecoveryPoint; 0 before the first one.
    pub(super) point: u64,
    episode: Option<Box<Episode>>,
    phase: Phase,
    frto: Frto,
    /// Partial ACKs of this recovery, without SACK.
    partial_acks: u8,
    tail_probe: Option<TailProbe>,
    /// A probe left in this recovery, and nothing arrived since.
    probed: bool,
}

/// What an ACK left in flight, beside the ACK itself.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Remaining {
    /// Bytes reported by SACK.
    pub(super) sacked: u64,
    /// Bytes sent again, of unknown fate.
    pub(super) retrans: u64,
    /// There is new data, and the peer's window admits it.
    pub(super) can_send_new: bool,
}

/// Losses that are known after an ACK.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Evidence {
    /// Bytes believed lost.
    pub(super) lost: u64,
    /// What of them was found just now.
    pub(super) new_loss: NewLoss,
    /// Bytes that arrived out of order.
    pub(super) out_of_order: u64,
    /// The path was seen to reorder.
    pub(super) reorders: bool,
}

/// Losses that were found just now.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum NewLoss {
    #[default]
    None,
    /// Packets that were sent once.
    Original,
    /// The packet where a partial ACK stopped, without SACK (RFC 6582 3.2 step 3).
    NextHole,
    /// A retransmission is among them.
    Retransmission,
}

impl NewLoss {
    /// Returns what RACK found.
    pub(super) fn of(losses: Losses) -> NewLoss {
        match losses.bytes {
            0 => NewLoss::None,
            _ if losses.retransmission => NewLoss::Retransmission,
            _ => NewLoss::Original,
        }
    }
}

/// A reduction that is taken back.
#[derive(Debug, Default)]
#[must_use]
pub(super) struct UndoneReduction {
    /// The congestion control's state before it, if there is one to go back to.
    pub(super) prior: Option<Prior>,
    /// Its losses were inferred from what arrived: the path reorders.
    pub(super) inferred: bool,
}

/// What an ACK means for the episode under way.
#[derive(Debug)]
#[must_use]
pub(super) enum EpisodeVerdict {
    /// It continues, or there is none: losses are to be looked for.
    Continues,
    /// An episode that is over was needless; losses are to be looked for.
    EarlierNeedless(UndoneReduction),
    /// Everything is acknowledged that was sent before the timeout; losses are to be looked for.
    LossOver,
    /// The reduction for a mark is over; losses are to be looked for.
    CwrOver,
    /// Everything is acknowledged that was sent before the repair; it was needless if there is something to undo.
    RecoveryOver(Option<UndoneReduction>),
    /// Nothing had been lost: this ACK is dealt with.
    RecoveryNeedless(UndoneReduction),
    /// Nothing had been lost when the timer ran out: this ACK is dealt with.
    TimeoutNeedless(UndoneReduction),
}

/// What happens to the congestion window.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use]
pub(super) enum WindowReaction {
    /// It stays.
    Keep,
    /// It grows by what was delivered.
    Grow,
    /// Losses are to be repaired, and it shrinks.
    Repair,
    /// It shrinks, for a mark.
    AnswerMark,
    /// It follows the proportional reduction.
    Reduce {
        /// [`PrrInput::is_safe`].
        is_safe: bool,
    },
    /// The same, but the next hole is repeated now, whatever the window (RFC 6582 3.2 step 3).
    RepairNextHole,
}

/// Where an episode begins.
#[derive(Debug, Clone, Copy)]
pub(super) struct EpisodeStart {
    pub(super) una: u64,
    pub(super) nxt: u64,
    /// Bytes sent again before, of unknown fate.
    pub(super) retrans: u64,
    /// Bytes in flight for the proportional reduction; 0 after a timeout, which has none.
    pub(super) recover_flight: u64,
}

impl Recovery {
    pub(super) fn phase(&self) -> Phase {
        self.phase
    }

    /// Returns whether losses are being repaired.
    pub(super) fn is_repairing(&self) -> bool {
        matches!(self.phase, Phase::Recovery | Phase::Loss)
    }

    /// Returns whether new data goes before retransmissions (RFC 5682 step 2b).
    pub(super) fn prefers_new_data(&self) -> bool {
        self.frto == Frto::SendNew
    }

    /// Ends F-RTO if it waits for new data although none was sent up to `nxt` and none can be (RFC 5682 step 2b); returns
    /// whether it did.
    pub(super) fn stop_frto_without_data(&mut self, nxt: u64) -> bool {
        let stops = self.prefers_new_data() && nxt == self.point;
        if stops {
            self.frto = Frto::Off;
        }
        stops
    }

    /// Returns whether the retransmission timer runs on although the ACK moves on: without SACK, recovery repairs one
    /// packet per round trip, and a timeout helps more than that (RFC 6582 3.2 step 3, 4: the impatient variant).
    pub(super) fn is_impatient(&self) -> bool {
        self.phase == Phase::Recovery && self.partial_acks > 1
    }

    /// Returns whether a probe may ask for an ACK that is overdue; `probes_in_recovery` is the stack's choice for silences
    /// in a recovery, `sacked` the bytes reported by SACK.
    ///
    /// RFC 8985 7.2 (and linux) probes only while nothing is known to be missing, and leaves recovery to RACK. But a
    /// receiver that gets the only missing packet reports so in a single ACK for everything, and RACK hears nothing
    /// more if that ACK is lost: the connection would stand still for 200 ms or longer. One probe for each silence asks
    /// again, as QUIC does in every state (RFC 9002 6.2).
    pub(super) fn may_probe(&self, sacked: u64, probes_in_recovery: bool) -> bool {
        match self.phase {
            Phase::Open | Phase::Cwr => sacked == 0 && self.tail_probe.is_none(),
            Phase::Recovery => !self.probed && probes_in_recovery,
            Phase::Disorder | Phase::Loss => false,
        }
    }

    /// Notes that a tail loss probe leaves.
    pub(super) fn on_probe(&mut self, probe: TailProbe) {
        if self.phase == Phase::Recovery {
            // The loss is known and answered already: the probe's own fate says nothing new.
            self.probed = true;
        } else {
            self.tail_probe = Some(probe);
        }
    }

    /// Judges the tail loss probe, if one left.
    pub(super) fn judge_probe(&mut self, event: &AckEvent) -> ProbeVerdict {
        let Some(probe) = self.tail_probe else {
            return ProbeVerdict::Open;
        };
        let sign = match event.dsack {
            true => ProbeSign::Dsack,
            false if event.duplicate && event.delivered.sacked == 0 => ProbeSign::Duplicate,
            false => ProbeSign::None,
        };
        let verdict = probe.judge(event.una, sign);
        if verdict != ProbeVerdict::Open {
            self.tail_probe = None;
        }
        verdict
    }

    /// Charges new data that leaves.
    pub(super) fn on_sent(&mut self, bytes: u64) {
        if let Some(episode) = &mut self.episode {
            episode.prr.on_sent(bytes);
        }
    }

    /// Charges what leaves again.
    pub(super) fn on_retransmitted(&mut self, bytes: u64, now: Instant) {
        self.on_sent(bytes);
        if let Some(undo) = self.undo_mut() {
            undo.unproven += bytes;
            undo.first_sent.get_or_insert(now);
        }
    }

    /// Notes that the peer got `[start, end)` twice.
    pub(super) fn on_dsack(&mut self, (start, end): (u64, u64)) {
        if let Some(undo) = self.undo_mut()
            && end > undo.marker
        {
            undo.unproven = undo.unproven.saturating_sub(end - start);
        }
    }

    /// Decides what an ACK means for the episode under way.
    pub(super) fn on_ack(&mut self, event: &AckEvent, left: &Remaining) -> EpisodeVerdict {
        self.expire_undo(event.una);
        if event.ece {
            self.forbid_undo();
        }
        if event.delivered.bytes > 0 {
            self.probed = false;
        }
        match self.phase {
            Phase::Open | Phase::Disorder if event.dsack && self.all_needless() => {
                EpisodeVerdict::EarlierNeedless(self.take_undo())
            }
            Phase::Open | Phase::Disorder => EpisodeVerdict::Continues,
            Phase::Cwr if event.una > self.point => {
                self.phase = Phase::Open;
                self.episode = None;
                EpisodeVerdict::CwrOver
            }
            Phase::Cwr => EpisodeVerdict::Continues,
            Phase::Recovery => self.on_ack_in_recovery(event, left),
            Phase::Loss => self.on_ack_in_loss(event, left),
        }
    }

    fn on_ack_in_recovery(&mut self, event: &AckEvent, left: &Remaining) -> EpisodeVerdict {
        if event.advanced > 0 && event.una >= self.point {
            let needless = self.all_needless() || self.is_delayed(event);
            let undone = needless.then(|| self.take_undo());
            self.end(left.sacked, event.nxt);
            return EpisodeVerdict::RecoveryOver(undone);
        }
        // A partial ACK of an original shows that the hole closed by itself (linux `tcp_try_undo_partial`).
        let closed = event.advanced > 0 && left.retrans == 0 && self.is_delayed(event);
        if closed || (event.dsack && self.all_needless()) {
            let undone = self.take_undo();
            self.end(left.sacked, event.nxt);
            return EpisodeVerdict::RecoveryNeedless(undone);
        }
        EpisodeVerdict::Continues
    }

    fn on_ack_in_loss(&mut self, event: &AckEvent, left: &Remaining) -> EpisodeVerdict {
        let needless = event.advanced > 0 && (self.all_needless() || self.is_delayed(event));
        if needless || self.frto_finds_original(event, left) {
            let undone = self.take_undo();
            self.end(left.sacked, event.nxt);
            return EpisodeVerdict::TimeoutNeedless(undone);
        }
        if event.una >= self.point {
            self.end(left.sacked, event.nxt);
            return EpisodeVerdict::LossOver;
        }
        EpisodeVerdict::Continues
    }

    /// Goes on with F-RTO (RFC 5682 3.1); returns whether what was sent before the timeout arrives.
    fn frto_finds_original(&mut self, event: &AckEvent, left: &Remaining) -> bool {
        if self.frto == Frto::Off {
            return false;
        }
        let original = event.delivered.lowest_original;
        if original.is_some_and(|end| end <= self.point) {
            // Step 3b.
            return true;
        }
        if event.nxt > self.point {
            let only_new = event.delivered.sacked > 0 || event.duplicate;
            // Step 3a: only what was sent after the timeout arrives.
            self.frto = if only_new { Frto::Off } else { Frto::Asked };
        } else if event.advanced > 0 && event.una < self.point {
            self.frto = match left.can_send_new {
                true => Frto::SendNew,
                false => Frto::Off,
            };
            self.point = event.nxt;
        }
        false
    }

    /// Returns whether a duplicate ACK stands for a segment that arrived, and not for one sent before a timeout.
    pub(super) fn counts_duplicates(&self, event: &AckEvent) -> bool {
        // What F-RTO sent is not lost, so that its duplicates clock out retransmissions.
        self.phase != Phase::Loss || event.advanced > 0 || event.nxt > self.point
    }

    /// Decides whether the first packet is lost without SACK, where `duplicates` packets are known to have arrived behind
    /// it.
    pub(super) fn condemns_head(&mut self, event: &AckEvent, duplicates: u32) -> bool {
        match self.phase {
            Phase::Open | Phase::Disorder | Phase::Cwr => {
                duplicates >= DUP_THRESHOLD && self.may_count_duplicates(event.una)
            }
            Phase::Recovery if event.advanced > 0 => {
                self.partial_acks = self.partial_acks.saturating_add(1);
                // The next hole starts where the ACK stopped (RFC 6582 3.2 step 3).
                true
            }
            Phase::Recovery | Phase::Loss => false,
        }
    }

    /// Returns whether duplicate ACKs may begin an episode: something was acknowledged that was sent after the last
    /// one (RFC 6582 3.2 step 2), or that one was about a mark and had nothing to repair.
    fn may_count_duplicates(&self, una: u64) -> bool {
        self.point == 0 || una > self.point || self.phase == Phase::Cwr
    }

    /// Decides what happens to the window, once losses were looked for.
    pub(super) fn on_evidence(&mut self, event: &AckEvent, evidence: &Evidence) -> WindowReaction {
        match self.phase {
            _ if self.begins_repair(evidence) => WindowReaction::Repair,
            Phase::Open | Phase::Disorder if event.ece => WindowReaction::AnswerMark,
            Phase::Open | Phase::Disorder => {
                self.phase = phase_of(evidence.out_of_order);
                let sacks_count = evidence.reorders && event.delivered.sacked > 0;
                grow_if(event.advanced > 0 || sacks_count)
            }
            Phase::Cwr => WindowReaction::Reduce {
                is_safe: event.advanced > 0,
            },
            Phase::Recovery => match evidence.new_loss {
                NewLoss::NextHole => WindowReaction::RepairNextHole,
                new_loss => WindowReaction::Reduce {
                    is_safe: event.advanced > 0 && new_loss == NewLoss::None,
                },
            },
            Phase::Loss => grow_if(event.advanced > 0 || event.delivered.bytes > 0),
        }
    }

    fn begins_repair(&self, evidence: &Evidence) -> bool {
        match self.phase {
            Phase::Open | Phase::Disorder | Phase::Cwr => evidence.lost > 0,
            Phase::Recovery => false,
            // A second sign of congestion (RFC 5681 4.3).
            Phase::Loss => evidence.new_loss == NewLoss::Retransmission,
        }
    }

    /// Decides what losses mean that the reordering timer found.
    pub(super) fn on_late_losses(&self, new_loss: NewLoss) -> WindowReaction {
        match (self.phase, new_loss) {
            (_, NewLoss::None) => WindowReaction::Keep,
            (Phase::Recovery, _) => WindowReaction::Reduce { is_safe: false },
            (Phase::Loss, NewLoss::Original | NewLoss::NextHole) => WindowReaction::Keep,
            _ => WindowReaction::Repair,
        }
    }

    /// Returns whether a repair reduces the window; a mark has reduced it before (linux `tcp_enter_recovery`: once per
    /// round trip is enough).
    pub(super) fn repair_reduces(&self) -> bool {
        self.phase != Phase::Cwr
    }

    /// Begins to repair losses (RFC 6675 5 step 4, RFC 9937 6.1); `prior` is the state before the reduction, if there was
    /// one and it may be taken back.
    pub(super) fn begin_repair(&mut self, start: EpisodeStart, prior: Option<Prior>) {
        let goes_on = !self.repair_reduces();
        let prr = match self.episode.take() {
            Some(episode) if goes_on => episode.prr,
            _ => Prr::new(start.recover_flight),
        };
        if goes_on {
            self.phase = Phase::Recovery;
            self.partial_acks = 0;
        } else {
            self.begin(Phase::Recovery, start.nxt);
        }
        let undo = Undo {
            inferred: true,
            ..Undo::new(&start, prior)
        };
        let undo = Some(undo);
        self.episode = Some(Box::new(Episode { prr, undo }));
    }

    /// Begins a reduction for a mark, with nothing to repair (RFC 3168 6.1.2, linux `tcp_enter_cwr`).
    pub(super) fn begin_cwr(&mut self, start: EpisodeStart) {
        self.begin(Phase::Cwr, start.nxt);
        let prr = Prr::new(start.recover_flight);
        self.episode = Some(Box::new(Episode { prr, undo: None }));
    }

    /// Enters the phase that follows a retransmission timeout (RFC 5681 3.1, RFC 8985 6.3, linux `tcp_enter_loss`), after
    /// `timeouts` others in a row. Returns whether it is the first sign of this congestion, so that the threshold is reduced.
    #[must_use]
    pub(super) fn on_timeout(&mut self, start: &EpisodeStart, timeouts: u8) -> bool {
        let (phase, is_repeated) = (self.phase, timeouts > 0);
        let fresh = matches!(phase, Phase::Open | Phase::Disorder);
        let reduces = fresh || start.una >= self.point || (phase == Phase::Loss && !is_repeated);
        self.begin(Phase::Loss, start.nxt);
        if fresh || phase == Phase::Cwr || is_repeated {
            self.frto = Frto::Asked;
        }
        reduces
    }

    /// Remembers how to take back the reduction of a timeout.
    pub(super) fn begin_timeout_episode(&mut self, start: &EpisodeStart, prior: Prior) {
        let prr = Prr::default();
        let undo = Some(Undo::new(start, Some(prior)));
        self.episode = Some(Box::new(Episode { prr, undo }));
    }

    /// Begins to repeat packets without a reduction: the path turned out not to carry them, or they were payload of the SYN.
    pub(super) fn repeat_without_reduction(&mut self, nxt: u64) {
        if self.phase != Phase::Loss {
            self.begin(Phase::Loss, nxt);
            self.episode = None;
        }
    }

    /// Forgets the episode under way: its loss is repaired.
    pub(super) fn drop_episode(&mut self) {
        self.episode = None;
        if self.phase == Phase::Cwr {
            self.phase = Phase::Open;
        }
    }

    /// There is congestion: whatever turns out about losses, the window stays reduced.
    pub(super) fn forbid_undo(&mut self) {
        if let Some(undo) = self.undo_mut() {
            undo.prior = None;
        }
    }

    /// Returns the congestion window that the reduction gives: what is in the network and what the ACK lets out (RFC 9937
    /// 6.2); `None` if there is no reduction.
    pub(super) fn reduced_window(&mut self, input: &PrrInput) -> Option<u64> {
        let prr = &mut self.episode.as_mut()?.prr;
        prr.window(input)
    }

    fn begin(&mut self, phase: Phase, point: u64) {
        self.phase = phase;
        self.point = point;
        self.partial_acks = 0;
        self.tail_probe = None;
        self.probed = false;
        self.frto = Frto::Off;
    }

    fn end(&mut self, sacked: u64, nxt: u64) {
        self.phase = phase_of(sacked);
        self.frto = Frto::Off;
        if let Some(undo) = self.undo_mut() {
            undo.expires = Some(nxt);
        }
    }

    fn undo_state(&self) -> Option<&Undo> {
        self.episode.as_deref()?.undo.as_ref()
    }

    fn undo_mut(&mut self) -> Option<&mut Undo> {
        self.episode.as_deref_mut()?.undo.as_mut()
    }

    fn take_undo(&mut self) -> UndoneReduction {
        let undo = self.episode.take().and_then(|episode| episode.undo);
        undo.map_or_else(UndoneReduction::default, |undo| UndoneReduction {
            prior: undo.prior,
            inferred: undo.inferred,
        })
    }

    fn expire_undo(&mut self, una: u64) {
        let expires = self.undo_state().and_then(|undo| undo.expires);
        if expires.is_some_and(|end| una > end) {
            self.episode = None;
        }
    }

    /// Returns whether all that was sent again was reported as a duplicate (RFC 3708).
    fn all_needless(&self) -> bool {
        self.undo_state()
            .is_some_and(|undo| undo.first_sent.is_some() && undo.unproven == 0)
    }

    /// Returns whether the ACK answers the original and not its retransmission (RFC 3522).
    fn is_delayed(&self, event: &AckEvent) -> bool {
        let first_sent = self.undo_state().and_then(|undo| undo.first_sent);
        first_sent.is_some_and(|sent_at| event.echo_precedes(sent_at))
    }
}

impl Undo {
    fn new(start: &EpisodeStart, prior: Option<Prior>) -> Undo {
        Undo {
            prior,
            inferred: false,
            marker: start.una,
            unproven: start.retrans,
            first_sent: None,
            expires: None,
        }
    }
}

/// Returns the phase without an episode.
fn phase_of(out_of_order: u64) -> Phase {
    match out_of_order {
        0 => Phase::Open,
        _ => Phase::Disorder,
    }
}

fn grow_if(grows: bool) -> WindowReaction {
    match grows {
        true => WindowReaction::Grow,
        false => WindowReaction::Keep,
    }
}
