//! The promise to the peer of one connection.

use steer::RxQueueId;

use super::packing::Packing;

/// First promise to a connection, in bytes of payload (linux: `tcp_rmem[1] / 2`, 64 KiB).
pub const INITIAL_PROMISE: u64 = 64 << 10;

/// Unsuccessful probes of a closed window, with half of the memory free, after which a connection gets a part of the slack.
const SHUT_OUT_PROBES: u8 = 2;

/// Segments that the reserve lets a connection have. Two would be enough to keep ACKs going (RFC 9293
/// 3.8.6.3), but with silly window avoidance on both sides the peer waits for its timer when one of two is
/// left; with four it never does.
pub(super) const FLOOR_SEGMENTS: u64 = 4;

/// State of a connection that asks for a window.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Ask {
    /// Bytes advertised and not received: the promise cannot become smaller.
    pub(crate) outstanding: u64,
    /// Maximum that it can use: the limit of its receive buffer less the unread bytes.
    pub(crate) most: u64,
    /// Total payload bytes delivered in order. Bytes out of order, or received twice, do not count.
    pub(crate) delivered: u64,
    /// Maximum segment size.
    pub(crate) mss: u16,
}

impl Ask {
    /// Returns how much the connection has earned and can use: an initial amount, at least a floor, and twice the bytes that it has
    /// delivered in order.
    ///
    /// Slow start begins with ten segments and doubles per round trip, so this is more than any congestion window.
    pub(super) fn earned(self, initial: u64) -> u64 {
        let initial = initial.max(FLOOR_SEGMENTS * u64::from(self.mss));
        let earned = initial.saturating_add(self.delivered.saturating_mul(2));
        earned.min(self.most)
    }

    /// Returns whether a grant may double the window, if enough memory is free. An update that does not is not sent
    /// (`tcp::RecvWindow::is_update_due`).
    pub(crate) fn may_double(self) -> bool {
        self.earned(INITIAL_PROMISE) >= self.outstanding.saturating_mul(2)
    }
}

/// The promise to the peer of one connection.
#[derive(Debug, Default)]
pub(crate) struct Promise {
    pub(super) queue: RxQueueId,
    /// Memory set aside, in bytes of the NIC's figure.
    pub(super) memory: u64,
    pub(super) packing: Packing,
    /// Payload of the longest packet that has arrived, in bytes.
    pub(super) longest: u64,
    /// Number of the period in which it last received something or was promised something new. It counts in the `Share` of
    /// that period. `None` before the first `Windows::grant`, and after `Windows::release`.
    pub(super) active_in: Option<u64>,
    /// The peer has sent something since the promise was last raised: it wants to send.
    pub(super) asked: bool,
    /// The peer has sent payload, or probed.
    pub(super) has_sent: bool,
    /// The peer has probed its closed window since the last `Windows::grant`.
    probed: bool,
    /// Probes that got nothing although memory was free.
    pub(super) denied: u8,
    /// Payload out of order was given up: until so many bytes have been delivered in order, memory is set aside
    /// for four segments only, whatever the promise is.
    pub(super) revoked_until: Option<u64>,
}

impl Promise {
    /// Returns whether it stays as it is: it was neither used nor raised in `period` and the one before, the peer has not asked, and
    /// it is enough.
    pub(super) fn is_at_rest(&self, period: u64, ask: Ask) -> bool {
        let is_idle = self
            .active_in
            .is_some_and(|active_in| period - active_in > 1);
        // The peer does not use the window that it has, or has never sent anything. One that has used up its window
        // gets more without asking: the program may have read, or given tokens back, after a long time.
        let is_enough = ask.outstanding >= ask.mss.into() || ask.delivered == 0;
        is_idle && !self.asked && is_enough
    }

    /// Returns the queue that the promised memory belongs to.
    pub(crate) fn queue(&self) -> RxQueueId {
        self.queue
    }

    /// Notes that the peer has probed its closed window.
    pub(crate) fn note_probe(&mut self) {
        self.asked = true;
        self.probed = true;
    }

    /// Counts a probe since the last call that got nothing; returns whether there were [`SHUT_OUT_PROBES`].
    pub(super) fn is_shut_out(&mut self) -> bool {
        self.denied += u8::from(std::mem::take(&mut self.probed) && self.denied < SHUT_OUT_PROBES);
        self.denied >= SHUT_OUT_PROBES
    }

    /// Notes that the window is `granted` from `period` on.
    pub(super) fn note_granted(&mut self, granted: u64, period: u64, ask: Ask) {
        self.asked &= granted == ask.outstanding;
        if granted > ask.outstanding || self.active_in.is_none() {
            self.active_in = Some(period);
        }
        let until = self.revoked_until;
        self.revoked_until = until.filter(|&until| ask.delivered < until);
    }

    /// Returns the memory to set aside for a window of `granted` bytes, when the connection has earned `earned` bytes of memory.
    ///
    /// Small packets that wait can be moved together: their cost counts only as far as the connection has
    /// earned memory. Otherwise one byte per packet would take all memory from the others.
    pub(super) fn memory_for(&self, granted: u64, earned: u64, mss: u16) -> u64 {
        let memory = self.packing.memory_for(granted).min(earned.max(granted));
        match self.revoked_until {
            Some(_) => memory.min(FLOOR_SEGMENTS * u64::from(mss)),
            None => memory,
        }
    }
}
