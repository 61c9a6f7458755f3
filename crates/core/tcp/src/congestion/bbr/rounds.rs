//! What is judged once in a round trip: whether the path is full, and what it loses.

use super::bounds::Latest;
use crate::congestion::delivery::DeliverySample;

/// Growth of the bandwidth in a round that shows that the path is not full yet, and rounds without it that show that it is.
const FULL_GROWTH: f64 = 1.25;
const FULL_ROUNDS: u8 = 3;

/// Rounds in which all that was in flight at their beginning is delivered (draft 5.5.1).
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Rounds {
    pub(super) count: u64,
    /// Bytes delivered at the end of the running one.
    pub(super) end: u64,
    /// This ACK begins one.
    pub(super) begins: bool,
}

impl Rounds {
    pub(super) fn start(&mut self, delivered: u64) {
        self.end = delivered;
    }

    pub(super) fn on_sample(&mut self, sample: &DeliverySample, delivered: u64) {
        self.begins = sample.prior_delivered >= self.end;
        if self.begins {
            self.start(delivered);
            self.count += 1;
        }
    }
}

/// Whether more bandwidth is found (draft 5.3.1.2).
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct FullPipe {
    /// It was full once.
    pub(super) reached: bool,
    /// It is full as far as the running search tells.
    pub(super) now: bool,
    pub(super) bandwidth: f64,
    pub(super) rounds: u8,
}

impl FullPipe {
    /// Begins a search above `bandwidth`.
    pub(super) fn search_above(&mut self, bandwidth: f64) {
        *self = FullPipe {
            reached: self.reached,
            bandwidth,
            ..FullPipe::default()
        };
    }

    pub(super) fn on_sample(&mut self, sample: &DeliverySample, round_begins: bool) {
        if self.now || !round_begins || sample.limited {
            return;
        }
        if sample.rate >= self.bandwidth * FULL_GROWTH {
            self.search_above(sample.rate);
            return;
        }
        self.rounds += 1;
        self.now = self.rounds >= FULL_ROUNDS;
        self.reached |= self.now;
    }
}

/// The losses of the running round trip (draft 5.5.10.3).
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct LossRound {
    /// Bytes delivered at its end.
    pub(super) end: u64,
    /// ACKs that showed losses.
    pub(super) events: u32,
    /// This ACK ends it.
    pub(super) ends: bool,
    pub(super) latest: Latest,
}
