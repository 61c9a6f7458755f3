//! The memory of a connection: what is promised to its peer, and what it may hold under pressure.

use netmem::FragList;
use steer::RxQueueId;
use tcp::Connection;
use wire::Instant;

use crate::window::{Promise, Windows};

/// What a connection may receive.
#[derive(Debug, Default)]
pub(super) struct ReceiveMemory {
    pub(super) promise: Promise,
    /// A segment has arrived already. The first one only completes the handshake, and is no probe.
    has_arrived: bool,
    /// Bytes that it had delivered in order when memory was last short.
    pub(super) delivered_at_shortage: u64,
    /// Time at which it was first seen to hold payload out of order, and bytes delivered by then.
    pub(super) holds_since: Option<(Instant, u64)>,
    /// It may not hold payload out of order at present.
    pub(super) is_in_order_only: bool,
}

impl ReceiveMemory {
    /// Returns the queue on which the last segment arrived.
    pub(super) fn queue(&self) -> RxQueueId {
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
    pub(super) fn release(&mut self, slot: u32, windows: &mut Windows) {
        windows.release(slot, &mut self.promise);
    }
}

/// Returns whether the peer may still send payload.
pub(super) fn is_receiving(conn: &Connection<FragList>) -> bool {
    use tcp::StateKind::{Established, FinWait1, FinWait2, SynReceived, SynSent};
    matches!(
        conn.state(),
        SynSent | SynReceived | Established | FinWait1 | FinWait2
    )
}
