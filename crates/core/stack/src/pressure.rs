//! Memory under pressure: connections give up payload, so that there is always memory for payload in order.
//!
//! Windows are counted in bytes, memory in net_iovs: if a peer sends one byte, leaves a gap, and sends the next byte, each
//! byte occupies a whole net_iov (64 KiB) until the gap is filled. And a queue may be bound to other memory after windows
//! were advertised. So limits on windows alone do not keep memory free. Each measure is taken only if those before it were
//! not enough:
//!
//! | Less free than | Measure | Costs |
//! |---|---|---|
//! | three quarters | *collapse*: what waits in net_iovs that are filled to less than a quarter is moved to net_iovs that small frags share | a copy of a few bytes, by the NIC; nothing is lost |
//! | a quarter | *hoarders*: a connection that has held payload out of order for two seconds, and delivered less than a quarter of as much meanwhile, gives it up | the peer sends it again |
//! | a sixteenth, or two of the longest packets | *prune*: payload out of order is given up until a quarter is free, highest sequence numbers first. Connections that hold the most beyond what they delivered come first. They hold nothing out of order until three eighths are free | the peer sends it again |
//! | nothing | *withdraw*: a segment in order is dropped and answered by a window of 0 until there is room ([`tcp::Connection::on_unplaced`]) | the peer asks now and then |
//!
//! Only memory that the application has not seen is moved: a frag under a token keeps its offset. Payload that an ACK has covered
//! is never given up. Payload that SACK has reported may be (RFC 2018 8: SACK is advice); no later SACK block names it.
//!
//! None of this costs time per packet. A connection is marked as a holder ([`Mark::Holder`]) at the end of a burst that
//! leaves payload in it, and net_iovs are counted when a mark of the table is reached.
//!
//! Tokens are not limited: each keeps its whole net_iov. A reader that keeps as many tokens as there are net_iovs has
//! all of them, and no other connection of the queue receives anything until it gives some back, as with the kernel. Readers that must not
//! affect each other need separate queues and bindings.

use std::time::Duration;

use netmem::NiovSize;
use nic::{MemoryDemand, Nic, NiovUsage, RxMemory};
use tcp::SegmentDrop;
use wire::Instant;

use crate::drops::Drops;
use crate::socket::agenda::Mark;
use crate::socket::connection::ConnectionSocket;
use crate::socket::sockets::Sockets;
use crate::window::Windows;

/// Minimum and maximum time between two checks of memory that is not short. A check that frees nothing doubles
/// the time, because the memory is in use for good reason.
const CHECK_INTERVAL: std::ops::RangeInclusive<Duration> =
    Duration::from_millis(1)..=Duration::from_millis(100);

/// Maximum number of payloads that one such check visits; the next one continues with the next connections.
const CHECK_PAYLOADS: usize = 32 * 1024;

/// State between two checks of the memory.
#[derive(Debug)]
pub(crate) struct Pressure {
    next_check: Instant,
    interval: Duration,
    usage: NiovUsage,
}

impl Default for Pressure {
    fn default() -> Self {
        Self {
            next_check: Instant::ZERO,
            interval: *CHECK_INTERVAL.start(),
            usage: NiovUsage::default(),
        }
    }
}

impl Pressure {
    /// Sets the time of the next check; a check that freed nothing doubles the interval.
    fn schedule_check(&mut self, was_in_vain: bool, now: Instant) {
        let (shortest, longest) = (*CHECK_INTERVAL.start(), *CHECK_INTERVAL.end());
        self.interval = match was_in_vain {
            false => shortest,
            true => (self.interval * 2).min(longest),
        };
        self.next_check = now + self.interval;
    }
}

/// Connections that give up payload out of order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Victims {
    /// Hoarders only.
    Hoarders,
    /// All, those first that hold the most beyond what they delivered.
    All,
}

/// The memory to be freed, and the connections that may be pruned for it.
#[derive(Debug, Clone, Copy)]
struct PruneTarget {
    memory: RxMemory,
    victims: Victims,
}

impl Pressure {
    /// Moves payload in sparse net_iovs of `memory` together, of connections with up to `limit` payloads in all.
    fn collapse(&mut self, memory: RxMemory, limit: usize, sockets: &mut Sockets, nic: &mut Nic) {
        let usage = &mut self.usage;
        usage.clear();
        find_holders(sockets);
        let mut holders = sockets.take(Mark::Holder);
        let (mut visited, mut payloads) = (0, 0);
        for &slot in holders.iter() {
            if payloads >= limit {
                break;
            }
            visited += 1;
            if let Some(mut connection) = sockets.connection_at(slot) {
                connection.conn.for_each_waiting(|payload| {
                    payloads += 1;
                    nic.measure(memory, payload, usage);
                });
            }
        }
        for &slot in &holders[..visited] {
            if let Some(mut connection) = sockets.connection_at(slot) {
                connection
                    .conn
                    .for_each_waiting(|payload| nic.collapse(memory, payload, usage));
            }
        }
        holders.rotate_left(visited);
        sockets.reuse(Mark::Holder, holders);
    }
}

impl Pressure {
    /// Makes connections give up memory if too little is free.
    pub(crate) fn relieve(
        &mut self,
        windows: &mut Windows,
        sockets: &mut Sockets,
        nic: &mut Nic,
        drops: &mut Drops,
        now: Instant,
    ) {
        let demand = nic.take_memory_demand();
        if !sockets.any(Mark::Holder) || demand == MemoryDemand::None && now < self.next_check {
            return;
        }
        let (mut any_tried, mut any_freed) = (false, false);
        for memory in nic.rx_memories() {
            let level = nic.memory_level(memory);
            if level.has_free(3, 4) {
                nic.note_memory_check(memory);
                continue;
            }
            any_tried = true;
            let limit = match demand {
                MemoryDemand::Short => usize::MAX,
                MemoryDemand::None | MemoryDemand::Check => CHECK_PAYLOADS,
            };
            self.collapse(memory, limit, sockets, nic);
            any_freed |= nic.memory_level(memory).free_bytes > level.free_bytes;
            let level = nic.memory_level(memory);
            let victims = match (level.is_short(), level.has_free(1, 4)) {
                (true, _) => Some(Victims::All),
                (false, false) => Some(Victims::Hoarders),
                (false, true) => None,
            };
            if let Some(victims) = victims {
                let target = PruneTarget { memory, victims };
                any_freed |= self.prune(target, windows, sockets, nic, drops, now);
            }
            nic.note_memory_check(memory);
        }
        self.schedule_check(any_tried && !any_freed, now);
    }

    /// Makes connections give up payload out of order; returns whether that freed any memory.
    fn prune(
        &mut self,
        target: PruneTarget,
        windows: &mut Windows,
        sockets: &mut Sockets,
        nic: &mut Nic,
        drops: &mut Drops,
        now: Instant,
    ) -> bool {
        let PruneTarget { memory, victims } = target;
        let mut ranked = Vec::new();
        let holders = sockets.take(Mark::Holder);
        for &slot in &holders {
            let Some(mut connection) = sockets.connection_at(slot) else {
                continue;
            };
            let is_hoarder = connection.is_hoarder(now);
            if victims == Victims::Hoarders && !is_hoarder {
                continue;
            }
            let kept = kept_bytes(&connection, memory, nic, &mut self.usage);
            if kept > 0 {
                let excess = kept.saturating_sub(connection.delivered_since_shortage());
                if victims == Victims::All {
                    connection.note_shortage();
                }
                ranked.push((excess, slot));
            }
        }
        sockets.reuse(Mark::Holder, holders);
        ranked.sort_unstable_by_key(|&(excess, _)| std::cmp::Reverse(excess));
        let before = nic.memory_level(memory).free_bytes;
        for (_, slot) in ranked {
            if target.is_relieved(nic) {
                break;
            }
            if let Some(mut connection) = sockets.connection_at(slot) {
                let pruned = prune_one(&mut connection, target, nic, drops);
                connection.note_pruned(pruned, windows);
            }
        }
        nic.memory_level(memory).free_bytes > before
    }
}

/// Leaves the mark of holders to the connections that hold payload.
fn find_holders(sockets: &mut Sockets) {
    let mut listed = sockets.take(Mark::Holder);
    for slot in listed.drain(..) {
        if !sockets.clear(Mark::Holder, slot) {
            continue;
        }
        let Some(mut connection) = sockets.connection_at(slot) else {
            continue;
        };
        let has_payload = connection.unread() > 0;
        connection.set_mark(Mark::Holder, has_payload);
        connection.note_order();
    }
    sockets.reuse(Mark::Holder, listed);
}

/// Returns the bytes of `memory`, in whole net_iovs, that a connection holds by payload out of order.
fn kept_bytes(
    connection: &ConnectionSocket,
    memory: RxMemory,
    nic: &Nic,
    usage: &mut NiovUsage,
) -> u64 {
    usage.clear();
    for payload in connection.conn.out_of_order() {
        nic.measure(memory, payload, usage);
    }
    let niov_size = match memory {
        RxMemory::Queue(queue) => nic.queue_info(queue).map(|info| info.niov_size),
        RxMemory::Host => None,
    };
    let niov_size = niov_size.unwrap_or(NiovSize::DEFAULT.bytes());
    (usage.niovs() * niov_size) as u64
}

impl PruneTarget {
    /// Returns whether as much memory is free as pruning aims at.
    fn is_relieved(self, nic: &Nic) -> bool {
        let level = nic.memory_level(self.memory);
        match self.victims {
            Victims::Hoarders => level.has_free(1, 2),
            Victims::All => level.has_free(1, 4),
        }
    }
}

/// Makes one connection give up payload out of order until `target` is relieved; returns the number of bytes.
fn prune_one(
    connection: &mut ConnectionSocket,
    target: PruneTarget,
    nic: &mut Nic,
    drops: &mut Drops,
) -> u64 {
    let held = connection.conn.out_of_order_len();
    while !target.is_relieved(nic) {
        let Some(payload) = connection.conn.prune() else {
            break;
        };
        nic.recycle(payload);
        drops.count_segment(SegmentDrop::OfoQueuePrune);
    }
    (held - connection.conn.out_of_order_len()) as u64
}
