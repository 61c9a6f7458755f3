//! Congestion window and pacing, and the confirmation of reductions by CWR.

use core::time::Duration;

use crate::config::EcnMode;
use crate::congestion::{Congestion, Prior};
use crate::ecn::echo::CwrAnswer;
use crate::pacing::{Gain, Pacer};
use crate::settings::CongestionKind;

/// Changed by ACKs, losses, marks and timeouts, as loss recovery decides; and by what leaves, for pacing.
#[derive(Debug)]
pub(super) struct Rate {
    pub(super) congestion: Congestion,
    pub(super) pacer: Pacer,
    pub(super) cwr: CwrAnswer,
}

impl Rate {
    pub(super) fn new(kind: CongestionKind, pacer: Pacer) -> Rate {
        Rate {
            congestion: Congestion::new(kind),
            pacer,
            cwr: CwrAnswer::default(),
        }
    }

    /// Starts with a window of `cwnd` bytes, and with what the SYNs agreed on about marks.
    pub(super) fn open(&mut self, cwnd: u64, ecn: EcnMode) {
        self.congestion.set_cwnd(cwnd);
        self.cwr = CwrAnswer::new(ecn == EcnMode::Classic);
    }

    /// Answers congestion: sets the slow start threshold and tells the peer. Returns what [`Rate::undo`] goes back to; the
    /// window itself is left to recovery.
    pub(super) fn reduce(&mut self, mss: u16) -> Prior {
        self.cwr.on_reduced();
        self.congestion.on_loss(mss)
    }

    /// Ends a reduction: the window is the slow start threshold.
    pub(super) fn end_reduction(&mut self) {
        let cwnd = self.congestion.cwnd();
        self.congestion
            .set_cwnd(self.congestion.ssthresh().unwrap_or(cwnd));
    }

    /// Takes a reduction back: there was no congestion.
    pub(super) fn undo(&mut self, prior: Prior) {
        self.congestion.undo(prior);
        self.cwr.on_undone();
    }

    /// Adapts pacing to the window and the round trip.
    pub(super) fn update_pacing(&mut self, srtt: Option<Duration>) {
        let gain = match self.congestion.in_slow_start() {
            true => Gain::SLOW_START,
            false => Gain::AVOIDANCE,
        };
        self.pacer.on_window(self.congestion.cwnd(), srtt, gain);
    }
}
