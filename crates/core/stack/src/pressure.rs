//! Memory under pressure: what connections give up so that payload in order always finds room.
//!
//! What a connection keeps of a queue's memory is counted in net_iovs, as whole as they are kept: a byte
//! that waits for its turn keeps 64 KiB from everybody else. Three steps, each only if the one before did
//! not do (ARCHITECTURE.md, "Memory under pressure"):
//!
//! 1. *collapse*: with less than three quarters of the memory free, what waits in sparse net_iovs is
//!    moved together. Nothing is lost.
//! 2. *hoarders*: with less than a quarter free, connections that hold payload out of order and have
//!    delivered next to nothing for two seconds give it up.
//! 3. *prune*: when memory is short, payload out of order is given up until a quarter is free, highest
//!    numbers first, from connections that keep the most beyond what they delivered. They hold nothing out
//!    of order until memory is plentiful.
//!
//! Nothing of this is done or counted per packet. A connection enters the list of those that hold payload
//! when a burst leaves some with it.

use std::time::Duration;

use netmem::NiovSize;
use nic::{MemoryDemand, Nic, NiovUsage, RxMemory};
use tcp::{Hold, SegmentDrop};
use wire::Instant;

use crate::Stack;
use crate::network::Network;
use crate::socket::ConnectionSocket;
use crate::socket::sockets::Sockets;

/// Shortest and longest time between two looks at memory that is not short. A look that freed nothing
/// doubles it: memory that is in use for good reason is not looked at again and again.
const LOOK_INTERVAL: std::ops::RangeInclusive<Duration> =
    Duration::from_millis(1)..=Duration::from_millis(100);

/// Payloads that one such look visits at most; the next one goes on with the next connections.
const LOOK_PAYLOADS: usize = 32 * 1024;

/// How long a connection may hold payload out of order and deliver less than a part of it before it counts
/// as a hoarder. Longer than a few retransmission timeouts of a path without trouble (RFC 6298 2.4: 1 s at
/// first).
const HOARD_TIME: Duration = Duration::from_secs(2);

/// Divisor of what a connection holds out of order: delivering as much in [`HOARD_TIME`] is no hoarding.
const HOARD_PARTS: u64 = 4;

/// What is remembered between two looks.
#[derive(Debug)]
pub(crate) struct Pressure {
    /// Slots of connections that may hold payload.
    holders: Vec<u32>,
    next_look: Instant,
    interval: Duration,
    usage: NiovUsage,
}

impl Default for Pressure {
    fn default() -> Self {
        Self {
            holders: Vec::new(),
            next_look: Instant::ZERO,
            interval: *LOOK_INTERVAL.start(),
            usage: NiovUsage::default(),
        }
    }
}

impl Pressure {
    /// Notes that a burst may have left payload with the connection in `slot`. Each stands in the list once;
    /// [`Stack::forget_holders`] bounds it.
    pub(crate) fn note_holder(&mut self, slot: u32, connection: &mut ConnectionSocket) {
        if !connection.marks.is_holder && connection.unread() > 0 {
            connection.marks.is_holder = true;
            self.holders.push(slot);
        }
    }
}

/// What a connection did under pressure so far.
#[derive(Debug, Default)]
pub(crate) struct PressureMarks {
    /// Stands in the list of holders.
    is_holder: bool,
    /// Bytes it had delivered in order when memory was short last.
    delivered_at_shortage: u64,
    /// When it was first seen to hold payload out of order, and what it had delivered by then.
    holds_since: Option<(Instant, u64)>,
    /// Holds nothing out of order for the time being.
    is_in_order_only: bool,
}

/// Which connections give up what they hold out of order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Victims {
    /// Those that delivered next to nothing for [`HOARD_TIME`].
    Hoarders,
    /// All, in the order of what they keep beyond what they delivered.
    All,
}

impl Stack {
    /// Forgets connections that are closed or hold nothing, when the list has become long.
    pub(crate) fn forget_holders(&mut self) {
        let (holders, sockets) = (&mut self.pressure.holders, &mut self.sockets);
        if holders.len() > 2 * sockets.len() + 64 {
            holders.retain(|&slot| is_holder(sockets, slot));
        }
    }

    /// Has connections give up memory if there is too little.
    pub(crate) fn relieve_memory(&mut self, now: Instant) {
        let demand = self.network.nic_mut().take_memory_demand();
        if self.pressure.holders.is_empty()
            || demand == MemoryDemand::None && now < self.pressure.next_look
        {
            return;
        }
        let (mut any_tried, mut any_freed) = (false, false);
        for memory in self.network.nic().rx_memories() {
            let level = self.network.nic().memory_level(memory);
            if level.has_free(3, 4) {
                self.network.nic_mut().note_memory_look(memory);
                continue;
            }
            any_tried = true;
            let limit = match demand {
                MemoryDemand::Short => usize::MAX,
                MemoryDemand::None | MemoryDemand::Look => LOOK_PAYLOADS,
            };
            self.collapse(memory, limit);
            any_freed |= self.network.nic().memory_level(memory).free_bytes > level.free_bytes;
            if self.network.nic().memory_level(memory).is_short() {
                any_freed |= self.prune(memory, Victims::All, now);
            } else if !self.network.nic().memory_level(memory).has_free(1, 4) {
                any_freed |= self.prune(memory, Victims::Hoarders, now);
            }
            self.network.nic_mut().note_memory_look(memory);
        }
        let (shortest, longest) = (*LOOK_INTERVAL.start(), *LOOK_INTERVAL.end());
        self.pressure.interval = match any_tried && !any_freed {
            false => shortest,
            true => (self.pressure.interval * 2).min(longest),
        };
        self.pressure.next_look = now + self.pressure.interval;
    }

    /// Moves what waits in sparse net_iovs of `memory` together, at connections with up to `limit` payloads.
    fn collapse(&mut self, memory: RxMemory, limit: usize) {
        let Self {
            pressure,
            sockets,
            network,
            ..
        } = self;
        let nic = network.nic_mut();
        let Pressure { holders, usage, .. } = pressure;
        holders.retain(|&slot| is_holder(sockets, slot));
        usage.clear();
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
    }

    /// Has `victims` give up payload out of order that lies in `memory`; returns whether that freed any.
    fn prune(&mut self, memory: RxMemory, victims: Victims, now: Instant) -> bool {
        let Self {
            pressure,
            sockets,
            network,
            windows,
            ..
        } = self;
        let mut ranked = Vec::new();
        for &slot in &pressure.holders {
            let Some(mut connection) = sockets.connection_at(slot) else {
                continue;
            };
            let is_hoarder = connection.is_hoarder(now);
            if victims == Victims::Hoarders && !is_hoarder {
                continue;
            }
            let kept = kept_bytes(&connection, memory, network.nic(), &mut pressure.usage);
            if kept > 0 {
                ranked.push((connection.kept_beyond_delivered(kept, victims), slot));
            }
        }
        ranked.sort_unstable_by_key(|&(excess, _)| std::cmp::Reverse(excess));
        let before = network.nic().memory_level(memory).free_bytes;
        for (_, slot) in ranked {
            if is_relieved(network.nic(), memory, victims) {
                break;
            }
            if let Some(mut connection) = sockets.connection_at(slot) {
                let pruned = prune_one(&mut connection, (memory, victims), network);
                let until = connection.delivered() + pruned;
                windows.revoke(&mut connection.promise, until);
            }
        }
        network.nic().memory_level(memory).free_bytes > before
    }
}

impl ConnectionSocket {
    /// Returns the payload bytes that ever became readable in order.
    pub(crate) fn delivered(&self) -> u64 {
        self.read + self.conn.readable_len() as u64
    }

    /// Lets it hold payload out of order again if memory is plentiful.
    pub(crate) fn relax(&mut self, nic: &Nic, memory: RxMemory) {
        let is_plentiful = |nic: &Nic| nic.memory_level(memory).has_free(3, 8);
        if self.marks.is_in_order_only && is_plentiful(nic) {
            self.marks.is_in_order_only = false;
            self.conn.set_hold(Hold::All);
        }
    }

    /// Returns whether it has held payload out of order for long and delivered next to nothing meanwhile.
    fn is_hoarder(&mut self, now: Instant) -> bool {
        let (held, delivered) = (self.conn.out_of_order_len() as u64, self.delivered());
        if held == 0 {
            self.marks.holds_since = None;
            return false;
        }
        let (since, before) = *self.marks.holds_since.get_or_insert((now, delivered));
        if now.saturating_since(since) < HOARD_TIME {
            return false;
        }
        let is_hoarder = delivered.saturating_sub(before) < held / HOARD_PARTS;
        if !is_hoarder {
            self.marks.holds_since = Some((now, delivered));
        }
        is_hoarder
    }

    /// Returns how many bytes of memory it keeps beyond those it delivered since memory was short last.
    fn kept_beyond_delivered(&mut self, kept: u64, victims: Victims) -> u64 {
        let delivered = self.delivered();
        let lately = delivered.saturating_sub(self.marks.delivered_at_shortage);
        if victims == Victims::All {
            self.marks.delivered_at_shortage = delivered;
        }
        kept.saturating_sub(lately)
    }
}

/// Returns whether a connection in `slot` holds payload; one that does not leaves the list.
fn is_holder(sockets: &mut Sockets, slot: u32) -> bool {
    let Some(mut connection) = sockets.connection_at(slot) else {
        return false;
    };
    // A slot that stands there twice, because a closed connection had it before, counts once at most.
    let has_payload = connection.unread() > 0;
    connection.marks.is_holder &= has_payload;
    if connection.conn.out_of_order_len() == 0 {
        connection.marks.holds_since = None;
    }
    connection.marks.is_holder
}

/// Returns how many bytes of `memory` a connection keeps by what it holds out of order, whole net_iovs.
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

/// Returns whether `memory` has as much free as pruning is for.
fn is_relieved(nic: &Nic, memory: RxMemory, victims: Victims) -> bool {
    let level = nic.memory_level(memory);
    match victims {
        Victims::Hoarders => level.has_free(1, 2),
        Victims::All => level.has_free(1, 4),
    }
}

/// Has one connection give up what it holds out of order until `memory` is relieved; returns how many
/// bytes that were.
fn prune_one(
    connection: &mut ConnectionSocket,
    (memory, victims): (RxMemory, Victims),
    network: &mut Network,
) -> u64 {
    let held = connection.conn.out_of_order_len();
    while !is_relieved(network.nic(), memory, victims) {
        let Some(payload) = connection.conn.prune() else {
            break;
        };
        network.nic_mut().recycle(payload);
        network.count_segment(SegmentDrop::OfoQueuePrune);
    }
    connection.conn.set_hold(Hold::InOrder);
    connection.marks.is_in_order_only = true;
    connection.marks.holds_since = None;
    (held - connection.conn.out_of_order_len()) as u64
}
