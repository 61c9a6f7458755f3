//! Congestion window and pacing, and the confirmation of reductions by CWR.

use core::time::Duration;

use wire::Instant;

use crate::config::EcnMode;
use crate::congestion::{Control, Prior};
use crate::ecn::echo::CwrAnswer;
use crate::pacing::{Gain, Pacer};
use crate::settings::CongestionKind;

/// Changed by ACKs, losses, marks and timeouts, as loss recovery decides; and by what leaves, for pacing.
#[derive(Debug)]
pub(super) struct Rate {
    pub(super) congestion: Control,
    pub(super) pacer: Pacer,
    pub(super) cwr: CwrAnswer,
}

impl Rate {
    /// Returns the state before the handshake; `seed` differs between connections.
    pub(super) fn new(kind: CongestionKind, pacing: bool, seed: u64) -> Rate {
        Rate {
            congestion: Control::new(kind, seed),
            pacer: Pacer::new(pacing || kind.needs_pacing()),
            cwr: CwrAnswer::default(),
        }
    }

    /// Starts with a window of `cwnd` bytes on a path with the round trip `srtt`, and with what the SYNs agreed on about marks.
    pub(super) fn open(&mut self, cwnd: u64, srtt: Option<Duration>, ecn: EcnMode) {
        self.congestion.open(cwnd, srtt);
        self.cwr = CwrAnswer::new(ecn);
    }

    /// Changes the congestion control; the window stays.
    pub(super) fn change(&mut self, kind: CongestionKind, seed: u64, srtt: Option<Duration>) {
        self.congestion.change(kind, seed, srtt);
        if kind.needs_pacing() {
            self.pacer.enable();
        }
    }

    /// Charges what leaves; with it `in_flight` bytes are in flight.
    pub(super) fn on_sent(&mut self, bytes: u64, in_flight: u64, mss: u16, now: Instant) {
        self.congestion.on_sent(bytes, in_flight, now);
        self.pacer.on_sent(bytes, mss, now);
    }

    /// Answers a loss: sets the slow start threshold and tells the peer. Returns what [`Rate::undo`] goes back to; the
    /// window itself is left to recovery.
    pub(super) fn reduce(&mut self, mss: u16) -> Prior {
        self.cwr.on_reduced();
        self.congestion.on_loss(mss)
    }

    /// Answers a mark, as [`Rate::reduce`]. It is not taken back.
    pub(super) fn answer_mark(&mut self, mss: u16) {
        self.cwr.on_reduced();
        self.congestion.on_mark(mss);
    }

    /// Takes a reduction back: there was no congestion.
    pub(super) fn undo(&mut self, prior: Prior) {
        self.congestion.undo(prior);
        self.cwr.on_undone();
    }

    /// Adapts pacing to the window and the round trip, or to the model of the path.
    pub(super) fn update_pacing(&mut self, srtt: Option<Duration>) {
        match &self.congestion {
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
}
