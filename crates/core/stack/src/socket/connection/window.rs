//! The receive window of a connection, and whether it may hold payload out of order while memory is short.

use std::time::Duration;

use nic::{Nic, RxMemory};
use tcp::KeptPayload;
use wire::Instant;

use super::ConnectionSocket;
use super::memory::is_receiving;
use crate::path_mtu::headers_for;
use crate::window::{Ask, Windows};

/// Time after which a connection that holds payload out of order, and delivers little, counts as a hoarder.
/// Longer than an ordinary retransmission timeout (RFC 6298 2.4: at least 1 s).
const HOARD_TIME: Duration = Duration::from_secs(2);

/// Divisor: a connection that delivers `held / 4` in [`HOARD_TIME`] is no hoarder.
const HOARD_DIVISOR: u64 = 4;

impl ConnectionSocket {
    /// Grants the connection in `slot` its receive window, while its peer may send payload; otherwise gives the memory back. Returns
    /// whether it may hold payload.
    pub(crate) fn update_window(
        &mut self,
        slot: u32,
        windows: &mut Windows,
        nic: &mut Nic,
    ) -> bool {
        let (unread, ask) = (self.unread(), self.ask(nic));
        let Self {
            conn,
            memory,
            options,
            ..
        } = self;
        if !is_receiving(conn) {
            memory.release(slot, windows);
            return false;
        }
        let queue = memory.promise.queue();
        let free = nic.rx_space(queue).bytes as u64;
        // Payload out of order may be held again.
        if memory.is_in_order_only && nic.memory_level(RxMemory::Queue(queue)).has_free(3, 8) {
            memory.is_in_order_only = false;
            conn.set_kept_payload(KeptPayload::All);
        }
        if free >= u64::from(ask.mss) {
            conn.restore_rcv_window();
        }
        let granted = windows.grant(slot, &mut memory.promise, free, ask);
        let space = granted + conn.out_of_order_len() as u64;
        conn.set_rcv_space(u32::try_from(space).unwrap_or(u32::MAX), &options.tcp);
        unread > 0
    }

    /// Returns what the connection asks when a window is granted.
    fn ask(&self, nic: &Nic) -> Ask {
        Ask {
            outstanding: self.conn.rcv_outstanding().into(),
            most: u64::from(self.options.tcp.rcv_buf_max).saturating_sub(self.unread()),
            delivered: self.delivered(),
            mss: nic.mtu() - headers_for(self.tuple.src_ip),
        }
    }

    /// Returns whether the connection in `slot` must be served because the program has read: an ACK waited for that, or the window was
    /// closed, or payload out of order was refused, or what was unread kept the window from growing to the double. A window that grows
    /// by less is advertised with the next segment, and a connection that waits for memory is served when it can have some.
    pub(crate) fn is_served_after_read(&self, slot: u32, windows: &Windows, nic: &Nic) -> bool {
        self.conn.has_ack_due()
            || self.conn.is_rcv_window_shut()
            || self.memory.is_in_order_only
            || self.ask(nic).may_double() && !windows.is_starved(slot, &self.memory.promise)
    }

    /// Gives the memory back: the peer sends no more.
    pub(crate) fn release_memory(&mut self, slot: u32, windows: &mut Windows) {
        self.memory.release(slot, windows);
    }

    /// Returns whether it has held payload out of order for [`HOARD_TIME`] and delivered little in that time.
    pub(crate) fn is_hoarder(&mut self, now: Instant) -> bool {
        let (held, delivered) = (self.conn.out_of_order_len() as u64, self.delivered());
        if held == 0 {
            self.memory.holds_since = None;
            return false;
        }
        let (since, before) = *self.memory.holds_since.get_or_insert((now, delivered));
        if now.saturating_since(since) < HOARD_TIME {
            return false;
        }
        let is_hoarder = delivered.saturating_sub(before) < held / HOARD_DIVISOR;
        if !is_hoarder {
            self.memory.holds_since = Some((now, delivered));
        }
        is_hoarder
    }

    /// Returns the bytes delivered in order since memory was last short.
    pub(crate) fn delivered_since_shortage(&self) -> u64 {
        self.delivered() - self.memory.delivered_at_shortage
    }

    /// Notes that memory is short.
    pub(crate) fn note_shortage(&mut self) {
        self.memory.delivered_at_shortage = self.delivered();
    }

    /// Notes that `pruned` bytes out of order were given up. It holds none until three eighths of the memory are free.
    pub(crate) fn note_pruned(&mut self, pruned: u64, windows: &mut Windows) {
        self.conn.set_kept_payload(KeptPayload::InOrder);
        let until = self.delivered() + pruned;
        let memory = &mut self.memory;
        memory.is_in_order_only = true;
        memory.holds_since = None;
        windows.revoke(&mut memory.promise, until);
    }

    /// Notes that it holds nothing out of order, if that is so.
    pub(crate) fn note_order(&mut self) {
        if self.conn.out_of_order_len() == 0 {
            self.memory.holds_since = None;
        }
    }
}
