//! Memory under pressure: what a connection has held and delivered, and what it may hold.

use std::time::Duration;

use nic::{Nic, RxMemory};
use tcp::KeptPayload;
use wire::Instant;

use super::ConnectionSocket;

/// Time after which a connection that holds payload out of order, and delivers little, counts as a hoarder.
/// Longer than an ordinary retransmission timeout (RFC 6298 2.4: at least 1 s).
const HOARD_TIME: Duration = Duration::from_secs(2);

/// Divisor: a connection that delivers `held / 4` in [`HOARD_TIME`] is no hoarder.
const HOARD_DIVISOR: u64 = 4;

/// State of a connection under pressure.
#[derive(Debug, Default)]
pub(crate) struct Relief {
    /// Bytes that it had delivered in order when memory was last short.
    delivered_at_shortage: u64,
    /// Time at which it was first seen to hold payload out of order, and bytes delivered by then.
    holds_since: Option<(Instant, u64)>,
    /// It may not hold payload out of order at present.
    is_in_order_only: bool,
}

impl ConnectionSocket {
    /// Allows it to hold payload out of order again if three eighths of the memory are free.
    pub(crate) fn relax(&mut self, nic: &Nic, memory: RxMemory) {
        if self.relief.is_in_order_only && nic.memory_level(memory).has_free(3, 8) {
            self.relief.is_in_order_only = false;
            self.conn.set_kept_payload(KeptPayload::All);
        }
    }

    /// Returns whether it has held payload out of order for [`HOARD_TIME`] and delivered little in that time.
    pub(crate) fn is_hoarder(&mut self, now: Instant) -> bool {
        let (held, delivered) = (self.conn.out_of_order_len() as u64, self.delivered());
        if held == 0 {
            self.relief.holds_since = None;
            return false;
        }
        let (since, before) = *self.relief.holds_since.get_or_insert((now, delivered));
        if now.saturating_since(since) < HOARD_TIME {
            return false;
        }
        let is_hoarder = delivered.saturating_sub(before) < held / HOARD_DIVISOR;
        if !is_hoarder {
            self.relief.holds_since = Some((now, delivered));
        }
        is_hoarder
    }

    /// Returns the bytes delivered in order since memory was last short.
    pub(crate) fn delivered_since_shortage(&self) -> u64 {
        self.delivered() - self.relief.delivered_at_shortage
    }

    /// Notes that memory is short.
    pub(crate) fn note_shortage(&mut self) {
        self.relief.delivered_at_shortage = self.delivered();
    }

    /// Keeps it from holding payload out of order, until [`ConnectionSocket::relax`].
    pub(crate) fn hold_in_order_only(&mut self) {
        self.conn.set_kept_payload(KeptPayload::InOrder);
        self.relief.is_in_order_only = true;
        self.relief.holds_since = None;
    }

    /// Notes that it holds nothing out of order, if that is so.
    pub(crate) fn note_order(&mut self) {
        if self.conn.out_of_order_len() == 0 {
            self.relief.holds_since = None;
        }
    }
}
