//! The sender's timers, one of which is armed at a time (linux `icsk_pending`).

use core::time::Duration;

use netmem::Payload;
use wire::Instant;

use super::recovery::Phase;
use super::{Sender, TimerOutcome};
use crate::error::TcpError;
use crate::rack::probe_timeout;

/// After this time a small segment leaves although the window or the writer holds it back
/// (RFC 9293 3.8.6.2.1 override timeout; linux flushes a corked socket after as long).
const OVERRIDE: Duration = Duration::from_millis(200);

/// A time that does not come.
const NEVER: Instant = Instant::from_nanos(u64::MAX);

/// What the armed timer is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Timer {
    /// RFC 6298.
    Retransmit,
    /// RFC 8985 7, and the same in a recovery ([`Sender::may_probe`]).
    TailProbe,
    /// RFC 8985 6.2 step 5: packets that are not old enough to be lost.
    Reorder,
    /// Nothing is in flight and the peer's window is closed (RFC 9293 3.8.6.1).
    Persist,
    /// Nothing is in flight and a small segment is held back.
    Override,
}

/// What a timer or a probe left for [`Sender::poll_data`] to send.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Due {
    /// A tail loss probe.
    TailProbe,
    /// A probe of a closed window.
    WindowProbe,
    /// A small segment that waited long enough; Linux sends it as a probe, with PSH.
    Small,
    /// A small segment that its writer does not want to wait any more.
    Flush,
}

/// The armed timer and the facts its time follows from.
#[derive(Debug)]
pub(super) struct Timers {
    armed: Option<Timer>,
    /// When it fires; [`NEVER`] if none is armed. The same holds for the times below.
    at: Instant,
    due: Option<Due>,
    /// The retransmission timeout counts from here.
    rto_base: Instant,
    /// When an ACK last told that something arrived.
    heard_at: Instant,
    /// Pacing holds data back until then.
    paced_until: Instant,
    /// When RACK wants to look again.
    reorder_at: Instant,
    /// Since when something waits for the peer without progress.
    stalled_since: Instant,
    /// Retransmission timeouts in a row.
    retransmits: u8,
    /// Window probes without an answer.
    probes: u8,
    /// Window probes in a row, answered or not.
    persist_backoff: u8,
}

impl Default for Timers {
    fn default() -> Timers {
        Timers {
            armed: None,
            at: NEVER,
            due: None,
            rto_base: Instant::ZERO,
            heard_at: Instant::ZERO,
            paced_until: NEVER,
            reorder_at: NEVER,
            stalled_since: NEVER,
            retransmits: 0,
            probes: 0,
            persist_backoff: 0,
        }
    }
}

impl Timers {
    pub(super) fn retransmits(&self) -> u8 {
        self.retransmits
    }

    pub(super) fn probes(&self) -> u8 {
        self.probes
    }

    /// Returns how often the running timeout was doubled.
    pub(super) fn backoff(&self) -> u8 {
        match self.armed {
            Some(Timer::Persist) => self.persist_backoff,
            _ => self.retransmits,
        }
    }

    /// Takes what a timer left to be sent.
    pub(super) fn take_due(&mut self) -> Option<Due> {
        self.due.take()
    }

    /// Lets a small segment leave that waits.
    pub(super) fn flush_small(&mut self) {
        self.due.get_or_insert(Due::Flush);
    }

    pub(super) fn due(&self) -> Option<Due> {
        self.due
    }

    pub(super) fn set_paced_until(&mut self, release: Option<Instant>) {
        self.paced_until = release.unwrap_or(NEVER);
    }

    pub(super) fn set_reorder(&mut self, at: Option<Instant>) {
        self.reorder_at = at.unwrap_or(NEVER);
    }

    /// Notes that the peer is alive.
    pub(super) fn on_answer(&mut self) {
        self.probes = 0;
    }

    /// Notes that an ACK told of something that arrived.
    pub(super) fn on_news(&mut self, now: Instant) {
        self.heard_at = now;
    }

    /// Starts the count of timeouts anew.
    pub(super) fn forget_retransmits(&mut self) {
        self.retransmits = 0;
    }

    /// Starts the clocks with a sending when nothing was in flight.
    pub(super) fn on_first_sent(&mut self, now: Instant) {
        self.rto_base = now;
        self.stalled_since = now;
    }

    /// Restarts the retransmission timer: the first unacknowledged range left again.
    pub(super) fn on_head_retransmitted(&mut self, now: Instant) {
        self.rto_base = now;
    }
}

impl<P: Payload> Sender<P> {
    /// Returns when [`Sender::on_timer`] or [`Sender::poll_data`] (pacing) has something to do.
    pub fn next_timer(&self) -> Option<Instant> {
        let at = self.timers.at.min(self.timers.paced_until);
        (at != NEVER).then_some(at)
    }

    /// Does what is due at `now`. A timer that fires late does its work once.
    pub fn on_timer(&mut self, now: Instant) -> TimerOutcome {
        let Some(timer) = self.timers.armed.filter(|_| self.timers.at <= now) else {
            return self.on_release(now);
        };
        self.disarm();
        let waits = matches!(timer, Timer::Retransmit | Timer::Persist);
        if self.is_timed_out(now) || (waits && self.is_given_up(timer)) {
            return TimerOutcome::Abort(TcpError::TimedOut);
        }
        match timer {
            Timer::Retransmit => self.on_retransmission_timeout(now),
            Timer::TailProbe => {
                self.timers.due = Some(Due::TailProbe);
                self.timers.rto_base = now;
                self.arm(Timer::Retransmit, self.rto_at(now));
            }
            Timer::Reorder => self.on_reorder_timeout(now),
            Timer::Persist => {
                self.timers.due = Some(Due::WindowProbe);
                self.timers.probes = self.timers.probes.saturating_add(1);
                self.timers.persist_backoff = self.timers.persist_backoff.saturating_add(1);
            }
            Timer::Override => self.timers.due = Some(Due::Small),
        }
        TimerOutcome::Retransmit
    }

    fn on_release(&mut self, now: Instant) -> TimerOutcome {
        if self.timers.paced_until > now {
            return TimerOutcome::Nothing;
        }
        self.timers.paced_until = NEVER;
        TimerOutcome::Retransmit
    }

    fn on_retransmission_timeout(&mut self, now: Instant) {
        self.enter_loss(now);
        self.counters.total_rto = self.counters.total_rto.saturating_add(1);
        self.rtt.back_off();
        self.timers.retransmits = self.timers.retransmits.saturating_add(1);
        self.suspect_black_hole(now);
        self.timers.rto_base = now;
        self.timers.reorder_at = NEVER;
        self.schedule(now);
    }

    fn on_reorder_timeout(&mut self, now: Instant) {
        let losses = self.detect_losses(now);
        if losses.bytes > 0 {
            if self.recovery.phase() != Phase::Recovery
                && (!self.recovery.is_repairing() || losses.retransmission)
            {
                self.enter_recovery(0);
            }
            if self.recovery.phase() == Phase::Recovery {
                self.reduce(u64::from(self.mss()), 0);
            }
        }
        self.schedule(now);
    }

    /// Returns whether the peer had its chances, for want of a user timeout (RFC 9293 3.8.3 R2).
    fn is_given_up(&self, timer: Timer) -> bool {
        let tries = match timer {
            Timer::Persist => self.timers.probes,
            _ => self.timers.retransmits,
        };
        self.limits.user_timeout_ms.is_none() && tries >= self.shared.timers.data_retries
    }

    /// Returns whether data waited for longer than the user wants to (RFC 5482 3).
    fn is_timed_out(&self, now: Instant) -> bool {
        self.user_deadline().is_some_and(|deadline| deadline <= now)
    }

    fn user_deadline(&self) -> Option<Instant> {
        let timeout = self.limits.user_timeout_ms?;
        let since = self.timers.stalled_since;
        (since != NEVER).then(|| since + Duration::from_millis(timeout.get().into()))
    }

    /// Adjusts the timers to an ACK that moved SND.UNA by `advanced`.
    pub(super) fn after_ack(&mut self, advanced: u64, now: Instant) {
        if advanced > 0 {
            let waiting = self.board.outstanding() > 0;
            self.timers.stalled_since = if waiting { now } else { NEVER };
            if !self.recovery.is_impatient() {
                self.timers.rto_base = now;
            }
            self.try_larger_packets(now);
        }
        self.schedule(now);
    }

    /// Arms the timer that the state calls for.
    pub(super) fn schedule(&mut self, now: Instant) {
        if self.board.outstanding() == 0 {
            self.schedule_idle();
            return;
        }
        let rto_at = self.rto_at(now);
        if self.timers.reorder_at < rto_at {
            self.arm(Timer::Reorder, self.timers.reorder_at);
        } else if self.may_probe() {
            let mss = u64::from(self.mss());
            let single = self.board.outstanding() <= mss;
            let timeout = probe_timeout(&self.rtt, single.then_some(self.rtt.rto_min()));
            let Timers {
                rto_base, heard_at, ..
            } = self.timers;
            let at = self.last_sent.max(rto_base).max(heard_at) + timeout;
            self.arm(Timer::TailProbe, at.min(rto_at));
        } else {
            self.arm(Timer::Retransmit, rto_at);
        }
    }

    /// Nothing is in flight: the timers for what is in flight end, those for what is held back go on until
    /// the window opens.
    fn schedule_idle(&mut self) {
        self.timers.reorder_at = NEVER;
        match self.timers.armed {
            Some(Timer::Persist) if self.window_end() > self.snd_nxt => {
                self.disarm();
                self.timers.persist_backoff = 0;
                self.timers.stalled_since = NEVER;
            }
            Some(Timer::Persist | Timer::Override) => {}
            _ => {
                self.disarm();
                self.timers.stalled_since = NEVER;
            }
        }
    }

    /// Arms a timer for data that waits although nothing is in flight: [`Sender::poll_data`] found nothing to send.
    pub(super) fn arm_held_back(&mut self, now: Instant) {
        if self.timers.armed.is_some() || self.board.outstanding() > 0 {
            return;
        }
        if self.window_end() <= self.snd_nxt {
            self.timers.stalled_since = self.timers.stalled_since.min(now);
            let timeout = self.rtt.backed_off(self.timers.persist_backoff);
            self.arm(Timer::Persist, now + timeout);
        } else {
            // As long as a probe of a window would wait (linux `tcp_check_probe_timer`).
            self.arm(Timer::Override, now + self.rtt.base_rto().max(OVERRIDE));
        }
    }

    /// Returns whether a probe shall ask for an ACK that is overdue, before the retransmission timer does.
    ///
    /// RFC 8985 7.2 (and linux) probes only while nothing is known to be missing, and leaves recovery to RACK. But a
    /// receiver that got the one packet that was missing says so in a single ACK for all there is, and RACK hears nothing
    /// more if that ACK is lost: the connection would stand still for 200 ms or longer. One probe for each silence asks
    /// again, as QUIC does in every state (RFC 9002 6.2).
    fn may_probe(&self) -> bool {
        let silence = match self.recovery.phase() {
            Phase::Open | Phase::Cwr => {
                self.board.sacked() == 0 && self.recovery.tail_probe().is_none()
            }
            Phase::Recovery => {
                self.shared.policy.probes_in_recovery() && !self.recovery.is_probed()
            }
            Phase::Disorder | Phase::Loss => false,
        };
        silence && self.sack && self.timers.due.is_none() && self.timers.retransmits == 0
    }

    fn rto_at(&self, now: Instant) -> Instant {
        (self.timers.rto_base + self.rtt.rto()).max(now)
    }

    fn arm(&mut self, timer: Timer, at: Instant) {
        let at = self.user_deadline().map_or(at, |deadline| deadline.min(at));
        self.timers.armed = Some(timer);
        self.timers.at = at;
    }

    fn disarm(&mut self) {
        self.timers.armed = None;
        self.timers.at = NEVER;
    }
}
