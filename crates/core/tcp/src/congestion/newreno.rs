//! Additive increase and halving (RFC 5681 3.1, counting bytes as RFC 3465 does).

use super::input::Growth;

/// Divisor of the window after a loss (RFC 5681 equation 4).
const DECREASE_DIVISOR: u64 = 2;

/// State of NewReno's congestion avoidance.
#[derive(Debug, Clone, Default)]
pub(super) struct NewReno {
    /// Bytes acknowledged since the window last grew.
    acked: u64,
}

impl NewReno {
    /// Returns by how much the window grows: one segment for each window of bytes acknowledged.
    pub(super) fn on_ack(&mut self, cwnd: u64, growth: &Growth) -> u64 {
        self.acked += growth.acked;
        let windows = self.acked / cwnd.max(1);
        self.acked -= windows * cwnd.max(1);
        windows * u64::from(growth.mss)
    }

    /// Returns the window after a loss.
    pub(super) fn on_loss(&mut self, cwnd: u64) -> u64 {
        self.acked = 0;
        cwnd / DECREASE_DIVISOR
    }
}
