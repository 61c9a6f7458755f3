//! The memory of a connection: what is promised to its peer, and what it may hold under pressure.

use std::time::Duration;

use netmem::FragList;
use nic::{Nic, RxMemory};
use steer::RxQueueId;
use tcp::{Connection, KeptPayload};
use wire::Instant;

use super::ConnectionSocket;
use crate::path_mtu::headers_for;
use crate::window::{Ask, Promise, Windows};

/// Time after which a connection that holds payload out of order, and delivers little, counts as a hoarder.
/// Longer than an ordinary retransmission timeout (RFC 6298 2.4: at least 1 s).
const HOARD_TIME: Duration = Duration::from_secs(2);

/// Divisor: a connection that delivers `held / 4` in [`HOARD_TIME`] is no hoarder.
const HOARD_DIVISOR: u64 = 4;

/// What a connection may receive.
#[derive(Debug, Default)]
pub(crate) struct ReceiveMemory {
    promise: Promise,
    /// A segment has arrived already. The first one only completes the handshake, and is no probe.
    has_arrived: bool,
    /// Bytes that it had delivered in order when memory was last short.
    delivered_at_shortage: u64,
    /// Time at which it was first seen to hold payload out of order, and bytes delivered by then.
    holds_since: Option<(Instant, u64)>,
    /// It may not hold payload out of order at present.
    is_in_order_only: bool,
}

impl ReceiveMemory {
    /// Returns the queue on which the last segment arrived.
    pub(crate) fn queue(&self) -> RxQueueId {
        self.promise.queue()
    }

    /// Notes that a segment with `len` bytes of payload arrived on `queue`.
    pub(super) fn note_arrival(
        &mut self,
        conn: &Connection<FragList>,
        slot: u32,
        queue: RxQueueId,
        len: usize,
        windows: &mut Windows,
    ) {
        if self.promise.queue() != queue {
            windows.migrate(slot, &mut self.promise, queue);
        }
        if len > 0 {
            windows.note_packet(&mut self.promise, len);
        } else if self.has_arrived && conn.is_rcv_window_shut() && is_receiving(conn) {
            self.promise.note_probe();
        }
        self.has_arrived = true;
    }

    /// Gives the promise back: the peer sends no more.
    pub(crate) fn release(&mut self, slot: u32, windows: &mut Windows) {
        windows.release(slot, &mut self.promise);
    }
}

impl ConnectionSocket {
    /// Grants the connection in `slot` its receive window, while its peer may send payload; otherwise gives the memory back. Returns
    /// whether it may hold payload.
    pub(crate) fn update_window(
        &mut self,
        slot: u32,
        windows: &mut Windows,
        nic: &mut Nic,
    ) -> bool {
        let unread = self.unread();
        let ask = Ask {
            outstanding: self.conn.rcv_outstanding().into(),
            most: u64::from(self.options.tcp.rcv_buf_max).saturating_sub(unread),
            delivered: self.delivered(),
            mss: nic.mtu() - headers_for(self.tuple.src_ip),
        };
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

/// Returns whether the peer may still send payload.
fn is_receiving(conn: &Connection<FragList>) -> bool {
    use tcp::StateKind::{Established, FinWait1, FinWait2, SynReceived, SynSent};
    matches!(
        conn.state(),
        SynSent | SynReceived | Established | FinWait1 | FinWait2
    )
}
