//! Congestion window and pacing, and the confirmation of reductions by CWR.

use core::time::Duration;

use wire::{Ecn, Instant};

use crate::config::EcnMode;
use crate::congestion::{Acked, Control, Delivery, FlightLimit, Prior};
use crate::ecn::echo::CwrAnswer;
use crate::pacing::{Gain, Pacer};
use crate::settings::CongestionKind;

/// Changed by ACKs, losses, marks and timeouts, as loss recovery decides; and by what leaves, for pacing.
#[derive(Debug)]
pub(super) struct Rate {
    control: Control,
    pacer: Pacer,
    cwr: CwrAnswer,
}

impl Rate {
    /// Returns the state before the handshake; `seed` differs between connections.
    pub(super) fn new(kind: CongestionKind, pacing: bool, seed: u64) -> Rate {
        Rate {
            control: Control::new(kind, seed),
            pacer: Pacer::new(pacing || kind.needs_pacing()),
            cwr: CwrAnswer::default(),
        }
    }

    /// Starts with a window of `cwnd` bytes on a path with the round trip `srtt`, and with what the SYNs agreed on about marks.
    pub(super) fn open(&mut self, cwnd: u64, srtt: Option<Duration>, ecn: EcnMode) {
        self.control.open(cwnd, srtt);
        self.cwr = CwrAnswer::new(ecn == EcnMode::Classic);
    }

    /// Changes the congestion control; the window stays.
    pub(super) fn change(&mut self, kind: CongestionKind, seed: u64, srtt: Option<Duration>) {
        self.control.change(kind, seed, srtt);
        if kind.needs_pacing() {
            self.pacer.enable();
        }
    }

    /// Returns the congestion window, in bytes.
    pub(super) fn cwnd(&self) -> u64 {
        self.control.cwnd()
    }

    /// Returns the slow start threshold, in bytes; `None` before the first loss.
    pub(super) fn ssthresh(&self) -> Option<u64> {
        self.control.ssthresh()
    }

    /// Returns whether an echoed mark reduces the window (RFC 3168).
    pub(super) fn is_ecn_enabled(&self) -> bool {
        self.cwr.is_enabled()
    }

    /// Sets the congestion window, in recovery.
    pub(super) fn set_cwnd(&mut self, cwnd: u64) {
        self.control.set_cwnd(cwnd);
    }

    /// Grows the window for an ACK.
    pub(super) fn grow(&mut self, acked: &Acked) {
        self.control.grow(acked);
    }

    /// Takes what any ACK says of the path.
    pub(super) fn on_delivery(&mut self, delivery: &Delivery) {
        self.control.on_delivery(delivery);
    }

    /// Notes bytes that were found to be lost.
    pub(super) fn on_lost(&mut self, bytes: u64) {
        self.control.on_lost(bytes);
    }

    /// Notes that the application has nothing to send behind `in_flight` bytes.
    pub(super) fn on_application_limited(&mut self, in_flight: u64) {
        self.control.on_application_limited(in_flight);
    }

    /// Answers congestion: sets the slow start threshold and tells the peer. Returns what [`Rate::undo`] goes back to; the
    /// window itself is left to recovery.
    pub(super) fn reduce(&mut self, mss: u16) -> Prior {
        self.cwr.on_reduced();
        self.control.on_loss(mss)
    }

    /// Tells the peer of a timeout whose losses have reduced the threshold before.
    pub(super) fn announce_reduction(&mut self) {
        self.cwr.on_reduced();
    }

    /// Ends a reduction: the window is the slow start threshold.
    pub(super) fn end_reduction(&mut self) {
        self.control.end_reduction();
    }

    /// Ends the losses of a timeout.
    pub(super) fn end_timeout(&mut self) {
        self.control.end_timeout();
    }

    /// Takes a reduction back: there was no congestion.
    pub(super) fn undo(&mut self, prior: Prior) {
        self.control.undo(prior);
        self.cwr.on_undone();
    }

    /// Forgets a window that a pause of `idle` has made stale (RFC 5681 4.1), down to `restart_window`.
    pub(super) fn restart(
        &mut self,
        idle: Duration,
        rto: Duration,
        restart_window: u64,
        now: Instant,
    ) {
        self.control.on_idle(idle, rto, restart_window, now);
    }

    /// Notes that `flight` bytes are in flight between `(una, nxt)`, and what kept it from being more.
    pub(super) fn note_flight(&mut self, flight: u64, limit: FlightLimit, span: (u64, u64)) {
        self.control.note_flight(flight, limit, span);
    }

    /// Adapts pacing to the window and the round trip.
    pub(super) fn update_pacing(&mut self, srtt: Option<Duration>) {
        match &self.control {
            Control::ByLoss(congestion) => {
                let gain = match congestion.in_slow_start() {
                    true => Gain::SLOW_START,
                    false => Gain::AVOIDANCE,
                };
                self.pacer.on_window(congestion.cwnd(), srtt, gain);
            }
            Control::ByPath(path) => self.pacer.set_rate(path.pacing_rate()),
        }
    }

    /// Returns how many bytes pacing lets out now.
    pub(super) fn paced_allowance(&self, mss: u16, now: Instant) -> u64 {
        self.pacer.allowance(mss, now)
    }

    /// Returns when pacing lets the next segment out, if not now.
    pub(super) fn paced_release(&self, now: Instant) -> Option<Instant> {
        self.pacer.release(now)
    }

    /// Returns the pacing rate in bytes per second; 0 without pacing.
    pub(super) fn pacing_rate(&self) -> u64 {
        self.pacer.rate()
    }

    /// Charges what leaves against pacing; with it `in_flight` bytes are in flight.
    pub(super) fn on_sent(&mut self, bytes: u64, in_flight: u64, mss: u16, now: Instant) {
        self.control.on_sent(bytes, in_flight, now);
        self.pacer.on_sent(bytes, mss, now);
    }

    /// Returns the ECN field of new data, and whether it carries CWR, once for each reduction (linux `tcp_ecn_send`).
    pub(super) fn mark_new_data(&mut self) -> (Ecn, bool) {
        self.cwr.on_new_data()
    }
}
