//! Carries out what the timers ([`SendTimers`](super::timers::SendTimers)) ask for.

use netmem::Payload;
use wire::Instant;

use super::Sender;
use super::recovery::Phase;
use super::timers::{Expiry, GiveUpAfter, InFlight};
use crate::context::Context;
use crate::error::TcpError;

impl<P: Payload> Sender<P> {
    /// Returns when [`Sender::on_timer`] or [`Sender::poll_data`] (pacing) has something to do.
    pub fn next_timer(&self) -> Option<Instant> {
        self.timers.next()
    }

    /// Does what is due at `now`; [`Sender::poll_data`] may have a segment to send then. A timer that fires late does its work
    /// once.
    ///
    /// # Errors
    /// [`TcpError::TimedOut`]: the peer does not answer any more.
    pub fn on_timer(&mut self, cx: &Context<'_>) -> Result<(), TcpError> {
        let give_up = GiveUpAfter {
            tries: cx.shared().timers.data_retries,
            user_timeout: self.user_timeout(cx.settings),
        };
        match self.timers.on_timer(&self.flight.rtt, give_up, cx.now) {
            Expiry::NotYet | Expiry::Send => {}
            Expiry::GiveUp => return Err(TcpError::TimedOut),
            Expiry::RetransmissionTimeout => self.on_retransmission_timeout(cx),
            Expiry::Reorder => self.on_reorder_timeout(cx),
        }
        Ok(())
    }

    fn on_retransmission_timeout(&mut self, cx: &Context<'_>) {
        let now = cx.now;
        self.enter_loss(now);
        self.counters.total_rto = self.counters.total_rto.saturating_add(1);
        self.flight.rtt.back_off();
        self.timers.on_timeout(now);
        let (outstanding, timeouts) = (
            self.flight.board.outstanding(),
            self.timers.attempts.retransmits,
        );
        if let Some(smaller) = self.packets.on_timeout(outstanding, timeouts, now) {
            self.retransmit_larger_than(smaller);
        }
        self.schedule(cx);
    }

    /// Adjusts the timers to an ACK that moved SND.UNA by `advanced`.
    pub(super) fn after_ack(&mut self, advanced: u64, cx: &Context<'_>) {
        let now = cx.now;
        if advanced > 0 {
            self.timers
                .on_progress(self.flight.board.outstanding(), now);
            if !self.recovery.is_impatient() {
                self.timers.restart(now);
            }
            self.packets.path.on_progress(self.space.una());
            if self.recovery.phase() == Phase::Open {
                self.packets.try_larger(self.space.nxt(), now);
            }
        }
        self.schedule(cx);
    }

    /// Arms the timer that the state calls for.
    pub(super) fn schedule(&mut self, cx: &Context<'_>) {
        let flight = InFlight {
            may_probe: self.may_probe(cx),
            user_timeout: self.user_timeout(cx.settings),
            ..self.flight.facts(self.mss(), self.space.usable())
        };
        self.timers.schedule(&flight, cx.now);
    }

    /// Arms a timer for data that waits although nothing is in flight: [`Sender::poll_data`] found nothing to send.
    pub(super) fn arm_held_back(&mut self, cx: &Context<'_>) {
        let flight = InFlight {
            user_timeout: self.user_timeout(cx.settings),
            ..self.flight.facts(self.mss(), self.space.usable())
        };
        self.timers.arm_held_back(&flight, cx.now);
    }

    fn may_probe(&self, cx: &Context<'_>) -> bool {
        let sacked = self.flight.board.sacked();
        let in_recovery = cx.shared().tuning.probes_in_recovery;
        self.flight.has_sack() && self.recovery.may_probe(sacked, in_recovery)
    }
}
