//! The sender's timers, one of which is armed at a time (linux `icsk_pending`), as decisions: [`SendTimers`] takes what is in
//! flight and answers what a timer that ran out asks for; `timeout.rs` does it.

#[cfg(test)]
mod tests;

use core::time::Duration;

use wire::Instant;

use crate::config::RTO_MIN;
use crate::rack::probe_timeout;
use crate::rtt::RttEstimator;

/// After this time a small segment leaves although the window or the writer holds it back
/// (RFC 9293 3.8.6.2.1 override timeout; linux flushes a corked socket after as long).
const OVERRIDE: Duration = Duration::from_millis(200);

/// What the armed timer is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum SendTimer {
    /// RFC 6298.
    Retransmit,
    /// RFC 8985 7, and the same in a recovery (`Recovery::may_probe`).
    TailProbe,
    /// RFC 8985 6.2 step 5: packets that are not old enough to be lost.
    Reorder,
    /// Nothing is in flight and the peer's window is closed (RFC 9293 3.8.6.1).
    Persist,
    /// Nothing is in flight and a small segment is held back.
    Override,
}

/// What a timer that ran out asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use]
pub(super) enum Expiry {
    /// None ran out.
    NotYet,
    /// Pacing or the end of a wait lets data out, or [`SendTimers::due`] tells what is to be sent.
    Send,
    /// The peer has not acknowledged what is in flight.
    RetransmissionTimeout,
    /// Packets may be old enough to be lost.
    Reorder,
    /// The peer had its chances: the connection is given up.
    GiveUp,
}

/// What a timer or a probe left for [`Sender::poll_data`](super::Sender::poll_data) to send.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum DueSend {
    /// A tail loss probe.
    TailProbe,
    /// A probe of a closed window.
    WindowProbe,
    /// A small segment that waited long enough; Linux sends it as a probe, with PSH.
    Small,
    /// A small segment that its writer does not want to wait any more.
    Flush,
}

/// What is in flight, as far as the timers depend on it.
#[derive(Debug, Clone, Copy)]
pub(super) struct InFlight<'a> {
    pub(super) rtt: &'a RttEstimator,
    /// Bytes between SND.UNA and SND.NXT.
    pub(super) outstanding: u64,
    /// Payload of a full packet.
    pub(super) mss: u16,
    /// New bytes that the peer's window admits.
    pub(super) usable: u64,
    /// When data left last, or a pause was noticed.
    pub(super) last_sent: Instant,
    /// When an ACK last told that something arrived.
    pub(super) heard_at: Instant,
    /// The state of loss recovery allows a probe for an ACK that is overdue.
    pub(super) may_probe: bool,
    /// Longest time without progress (RFC 5482).
    pub(super) user_timeout: Option<Duration>,
}

/// When a peer that makes no progress is given up.
#[derive(Debug, Clone, Copy)]
pub(super) struct GiveUpAfter {
    /// Timeouts or probes in a row, for want of a user timeout (RFC 9293 3.8.3 R2).
    pub(super) tries: u8,
    pub(super) user_timeout: Option<Duration>,
}

/// A time or none, in the eight bytes of a time: an `Option` has sixteen, and each connection has three of these.
#[derive(Debug, Clone, Copy)]
struct MaybeAt(Instant);

impl Default for MaybeAt {
    fn default() -> MaybeAt {
        MaybeAt::from(None)
    }
}

impl From<Option<Instant>> for MaybeAt {
    fn from(at: Option<Instant>) -> MaybeAt {
        MaybeAt(at.unwrap_or(Instant::from_nanos(u64::MAX)))
    }
}

impl MaybeAt {
    fn get(self) -> Option<Instant> {
        (self.0 != MaybeAt::default().0).then_some(self.0)
    }
}

/// The timer that runs.
#[derive(Debug, Clone, Copy)]
struct Armed {
    timer: SendTimer,
    at: Instant,
}

/// How often the peer was asked in vain. A timer that runs out counts, and an ACK begins the count anew.
#[derive(Debug, Default)]
pub(super) struct Attempts {
    /// Retransmission timeouts in a row.
    pub(super) retransmits: u8,
    /// Window probes without an answer.
    pub(super) probes: u8,
    /// Window probes in a row, answered or not: so often the time between them is doubled.
    persist_backoff: u8,
}

/// The armed timer, and the times that the next one follows from. Changed by ACKs, by sending, and by timeouts.
#[derive(Debug, Default)]
pub(super) struct SendTimers {
    armed: Option<Armed>,
    due: Option<DueSend>,
    /// The retransmission timeout counts from here.
    rto_base: Instant,
    /// Pacing, or the wait for a longer super-segment, holds data back until then.
    held_until: MaybeAt,
    /// When RACK wants to look again.
    reorder_at: MaybeAt,
    /// Since when something waits for the peer without progress.
    stalled_since: MaybeAt,
    pub(super) attempts: Attempts,
}

impl SendTimers {
    /// Returns how often the running timeout was doubled.
    pub(super) fn backoff(&self) -> u8 {
        match self.running() {
            Some(SendTimer::Persist) => self.attempts.persist_backoff,
            _ => self.attempts.retransmits,
        }
    }

    /// Returns when a timer runs out, or pacing lets data out.
    pub(super) fn next(&self) -> Option<Instant> {
        let at = self.armed.map(|armed| armed.at);
        at.into_iter().chain(self.held_until.get()).min()
    }

    /// Returns what a timer left to be sent.
    pub(super) fn due(&self) -> Option<DueSend> {
        self.due
    }

    /// Notes that what was due is sent, or that there is nothing to send.
    pub(super) fn clear_due(&mut self) {
        self.due = None;
    }

    /// Lets a small segment leave that waits.
    pub(super) fn flush_small(&mut self) {
        self.due.get_or_insert(DueSend::Flush);
    }

    pub(super) fn set_held_until(&mut self, release: Option<Instant>) {
        self.held_until = release.into();
    }

    pub(super) fn set_reorder(&mut self, at: Option<Instant>) {
        self.reorder_at = at.into();
    }

    /// Notes that SND.UNA moved; `outstanding` bytes are left.
    pub(super) fn on_progress(&mut self, outstanding: u64, now: Instant) {
        self.stalled_since = (outstanding > 0).then_some(now).into();
    }

    /// Starts the clocks with data that leaves when nothing was in flight.
    pub(super) fn on_first_sent(&mut self, now: Instant) {
        self.rto_base = now;
        self.stalled_since = Some(now).into();
    }

    /// Lets the retransmission timeout count from now.
    pub(super) fn restart(&mut self, now: Instant) {
        self.rto_base = now;
    }

    /// Counts a retransmission timeout; the next one counts from now.
    pub(super) fn on_timeout(&mut self, now: Instant) {
        self.attempts.retransmits = self.attempts.retransmits.saturating_add(1);
        self.rto_base = now;
        self.reorder_at = None.into();
    }

    /// Decides what is to be done at `now`; a timer that fires late counts once.
    pub(super) fn on_timer(
        &mut self,
        rtt: &RttEstimator,
        give_up: GiveUpAfter,
        now: Instant,
    ) -> Expiry {
        let Some(Armed { timer, .. }) = self.armed.take_if(|armed| armed.at <= now) else {
            return self.on_release(now);
        };
        let deadline = self.user_deadline(give_up.user_timeout);
        let is_timed_out = deadline.is_some_and(|deadline| deadline <= now);
        if is_timed_out || self.is_given_up(timer, give_up) {
            return Expiry::GiveUp;
        }
        match timer {
            SendTimer::Retransmit => return Expiry::RetransmissionTimeout,
            SendTimer::Reorder => return Expiry::Reorder,
            SendTimer::TailProbe => {
                self.due = Some(DueSend::TailProbe);
                self.rto_base = now;
                self.arm(SendTimer::Retransmit, now + rtt.rto(), deadline);
            }
            SendTimer::Persist => {
                self.due = Some(DueSend::WindowProbe);
                let attempts = &mut self.attempts;
                attempts.probes = attempts.probes.saturating_add(1);
                attempts.persist_backoff = attempts.persist_backoff.saturating_add(1);
            }
            SendTimer::Override => self.due = Some(DueSend::Small),
        }
        Expiry::Send
    }

    fn on_release(&mut self, now: Instant) -> Expiry {
        if self.held_until.0 > now {
            return Expiry::NotYet;
        }
        self.held_until = None.into();
        Expiry::Send
    }

    fn is_given_up(&self, timer: SendTimer, give_up: GiveUpAfter) -> bool {
        let tried = match timer {
            SendTimer::Persist => self.attempts.probes,
            SendTimer::Retransmit => self.attempts.retransmits,
            SendTimer::TailProbe | SendTimer::Reorder | SendTimer::Override => return false,
        };
        give_up.user_timeout.is_none() && tried >= give_up.tries
    }

    /// Returns until when data may wait for progress, as far as the user says (RFC 5482 3).
    fn user_deadline(&self, user_timeout: Option<Duration>) -> Option<Instant> {
        Some(self.stalled_since.get()? + user_timeout?)
    }

    /// Arms the timer that the state calls for.
    pub(super) fn schedule(&mut self, flight: &InFlight<'_>, now: Instant) {
        if flight.outstanding == 0 {
            self.schedule_idle(flight.usable);
            return;
        }
        let rto_at = (self.rto_base + flight.rtt.rto()).max(now);
        let deadline = self.user_deadline(flight.user_timeout);
        if let Some(at) = self.reorder_at.get().filter(|at| *at < rto_at) {
            self.arm(SendTimer::Reorder, at, deadline);
        } else if flight.may_probe && self.due.is_none() && self.attempts.retransmits == 0 {
            let single = flight.outstanding <= u64::from(flight.mss);
            let timeout = probe_timeout(flight.rtt, single.then_some(RTO_MIN));
            let at = flight.last_sent.max(self.rto_base).max(flight.heard_at) + timeout;
            self.arm(SendTimer::TailProbe, at.min(rto_at), deadline);
        } else {
            self.arm(SendTimer::Retransmit, rto_at, deadline);
        }
    }

    /// Nothing is in flight: the timers for what is in flight end, those for what is held back go on until
    /// the window admits `usable` bytes.
    fn schedule_idle(&mut self, usable: u64) {
        self.reorder_at = None.into();
        match self.running() {
            Some(SendTimer::Persist) if usable > 0 => self.attempts.persist_backoff = 0,
            Some(SendTimer::Persist | SendTimer::Override) => return,
            _ => {}
        }
        self.armed = None;
        self.stalled_since = None.into();
    }

    /// Arms a timer for data that waits although nothing is in flight, and could not be sent.
    pub(super) fn arm_held_back(&mut self, flight: &InFlight<'_>, now: Instant) {
        if self.armed.is_some() || flight.outstanding > 0 {
            return;
        }
        if flight.usable == 0 {
            self.stalled_since = self.stalled_since.get().or(Some(now)).into();
            let timeout = flight.rtt.backed_off(self.attempts.persist_backoff);
            let deadline = self.user_deadline(flight.user_timeout);
            self.arm(SendTimer::Persist, now + timeout, deadline);
        } else {
            // As long as a probe of a window would wait (linux `tcp_check_probe_timer`).
            let timeout = flight.rtt.base_rto().max(OVERRIDE);
            let deadline = self.user_deadline(flight.user_timeout);
            self.arm(SendTimer::Override, now + timeout, deadline);
        }
    }

    /// Arms a timer, to fire at `deadline` at the latest.
    fn arm(&mut self, timer: SendTimer, at: Instant, deadline: Option<Instant>) {
        let at = deadline.map_or(at, |deadline| deadline.min(at));
        self.armed = Some(Armed { timer, at });
    }

    fn running(&self) -> Option<SendTimer> {
        self.armed.map(|armed| armed.timer)
    }
}
