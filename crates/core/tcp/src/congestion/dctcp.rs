//! DCTCP (RFC 8257): a mark reduces the window by half the share of bytes that are marked, where other controllers answer any mark as
//! a loss. Queues stay short if all flows on them do so, and the switches mark from a short queue on.
//!
//! Without marks it is NewReno: it grows as that does, and answers a loss in the same way (RFC 8257 3.4).

use super::input::{Acked, Growth};
use super::newreno::NewReno;

/// Weight of the last window in the share of marked bytes (RFC 8257 4.2 g).
const GAIN: f64 = 1.0 / 16.0;

/// State of DCTCP's congestion avoidance.
#[derive(Debug, Clone)]
pub(super) struct Dctcp {
    reno: NewReno,
    /// Share of bytes that are marked, averaged over windows (DCTCP.Alpha).
    alpha: f64,
    /// Bytes acknowledged in the running window, and how many of them were marked (DCTCP.BytesAcked, DCTCP.BytesMarked).
    acked: u64,
    marked: u64,
    /// The window ends when more than this is acknowledged (DCTCP.WindowEnd).
    window_end: u64,
}

impl Default for Dctcp {
    /// Before anything is known the first mark halves the window (RFC 8257 3.3).
    fn default() -> Dctcp {
        Dctcp {
            reno: NewReno::default(),
            alpha: 1.0,
            acked: 0,
            marked: 0,
            window_end: 0,
        }
    }
}

impl Dctcp {
    /// Takes an ACK of `acked` bytes of which `marked` were marked; updates the share at the end of a window (RFC 8257 3.3).
    pub(super) fn note_marks(&mut self, acked: &Acked, marked: u64) {
        self.acked += acked.bytes;
        self.marked += marked.min(acked.bytes);
        if acked.snd_una <= self.window_end {
            return;
        }
        if self.acked > 0 {
            let share = self.marked as f64 / self.acked as f64;
            self.alpha = self.alpha * (1.0 - GAIN) + share * GAIN;
        }
        self.acked = 0;
        self.marked = 0;
        self.window_end = acked.snd_nxt;
    }

    /// Returns by how much the window grows.
    pub(super) fn on_ack(&mut self, cwnd: u64, growth: &Growth) -> u64 {
        self.reno.on_ack(cwnd, growth)
    }

    /// Returns the window after a mark.
    pub(super) fn on_mark(&mut self, cwnd: u64) -> u64 {
        self.reno = NewReno::default();
        (cwnd as f64 * (1.0 - self.alpha / 2.0)) as u64
    }

    /// Returns the window after a loss.
    pub(super) fn on_loss(&mut self, cwnd: u64) -> u64 {
        self.reno.on_loss(cwnd)
    }
}

#[cfg(test)]
mod tests {
    use wire::Instant;

    use super::*;

    /// Takes a window of 100 ACKs of a kilobyte each, of which the first `marked` are marked.
    fn window(dctcp: &mut Dctcp, number: u64, marked: u64) {
        for ack in 1..=100 {
            let una = number * 100_000 + ack * 1000;
            let acked = Acked {
                bytes: 1000,
                srtt: None,
                rtt: None,
                snd_una: una,
                snd_nxt: una + 100_000,
                mss: 1000,
                now: Instant::ZERO,
            };
            dctcp.note_marks(&acked, if ack <= marked { 1000 } else { 0 });
        }
    }

    #[test]
    fn the_first_mark_halves_the_window_and_later_ones_by_their_share() {
        let mut dctcp = Dctcp::default();
        assert_eq!(dctcp.on_mark(1_000_000), 500_000);
        for number in 0..200 {
            window(&mut dctcp, number, 10);
        }
        assert!((dctcp.alpha - 0.1).abs() < 1e-3, "{}", dctcp.alpha);
        let window = dctcp.on_mark(1_000_000);
        assert!((949_000..951_000).contains(&window), "{window}");
        assert_eq!(dctcp.on_loss(1_000_000), 500_000);
    }

    #[test]
    fn the_share_moves_by_a_sixteenth_in_each_window() {
        let mut dctcp = Dctcp::default();
        // The first ACK ends the window before: nothing was in flight.
        window(&mut dctcp, 0, 0);
        let first = dctcp.alpha;
        window(&mut dctcp, 1, 0);
        assert!((dctcp.alpha - first * 15.0 / 16.0).abs() < 1e-9);
        for number in 2..100 {
            window(&mut dctcp, number, 0);
        }
        assert!(dctcp.alpha < 0.01, "{}", dctcp.alpha);
        for number in 100..300 {
            window(&mut dctcp, number, 100);
        }
        assert!(dctcp.alpha > 0.99, "{}", dctcp.alpha);
    }

    #[test]
    fn more_marked_bytes_than_acknowledged_ones_are_not_believed() {
        let mut dctcp = Dctcp::default();
        let acked = Acked {
            bytes: 10,
            srtt: None,
            rtt: None,
            snd_una: 1,
            snd_nxt: 2,
            mss: 1000,
            now: Instant::ZERO,
        };
        dctcp.note_marks(&acked, u64::MAX);
        assert!(dctcp.alpha <= 1.0);
    }
}
