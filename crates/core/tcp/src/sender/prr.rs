//! Proportional rate reduction (RFC 9937): the congestion window while losses are repaired, or after a mark.

/// Proportional rate reduction (RFC 9937 6).
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Prr {
    delivered: u64,
    out: u64,
    /// RecoverFS.
    recover_flight: u64,
}

/// What the proportional reduction depends on.
#[derive(Debug, Clone, Copy)]
pub(super) struct PrrInput {
    /// Bytes that the ACK delivered.
    pub(super) delivered: u64,
    /// The ACK made progress, and shows no further loss: a window below the slow start threshold grows towards it (SafeACK).
    pub(super) is_safe: bool,
    /// Bytes believed to be in the network.
    pub(super) pipe: u64,
    pub(super) ssthresh: u64,
    pub(super) mss: u64,
}

impl Prr {
    pub(super) fn new(recover_flight: u64) -> Prr {
        Prr {
            recover_flight,
            ..Prr::default()
        }
    }

    /// Charges what leaves.
    pub(super) fn on_sent(&mut self, bytes: u64) {
        self.out += bytes;
    }

    /// Returns the congestion window that the reduction gives: what is in the network and what the ACK lets out (RFC 9937
    /// 6.2); `None` for an ACK that delivered nothing.
    pub(super) fn window(&mut self, input: &PrrInput) -> Option<u64> {
        let PrrInput {
            delivered,
            is_safe,
            pipe,
            ssthresh,
            mss,
        } = *input;
        if delivered == 0 {
            return None;
        }
        self.delivered += delivered;
        let mut send = if pipe > ssthresh {
            let share = u128::from(self.delivered) * u128::from(ssthresh);
            let share = share.div_ceil(u128::from(self.recover_flight.max(1)));
            // In whole segments, because a part of one does not leave (linux `tcp_cwnd_reduction`).
            let segments = share.div_ceil(u128::from(mss.max(1)));
            u64::try_from(segments.saturating_mul(mss.into()))
                .unwrap_or(u64::MAX)
                .saturating_sub(self.out)
        } else {
            let extra = if is_safe { mss } else { 0 };
            let bound = self.delivered.saturating_sub(self.out).max(delivered);
            (bound + extra).min(ssthresh - pipe)
        };
        if self.out == 0 {
            // The fast retransmission itself.
            send = send.max(mss);
        }
        Some(pipe + send)
    }
}
