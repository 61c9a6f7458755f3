//! The promises of one queue: what is set aside, what is left, and who waits for more.

use super::promise::{Ask, FLOOR_SEGMENTS, Promise};
use crate::slot_heap::SlotHeap;

/// Divisor: reserve = total / 8.
pub(super) const RESERVE_DIVISOR: u64 = 8;

/// Divisor: slack = total / 8. The NIC keeps so much memory back (`nic::RxSpace`): an eighth of all memory, of
/// which `total` is about three quarters.
pub(super) const SLACK_DIVISOR: u64 = 8;

/// Divisor: with less than `total / 8` left, no connection is promised more than an equal part.
const SCARCE_DIVISOR: u64 = 8;

/// A connection that got too little is considered again when its window can be twice as large, and others then have as
/// much memory left as it has: three times what it has must be free. An update that does not double the window is not sent
/// (`tcp::RecvWindow::is_update_due`).
pub(super) const WORTHWHILE_FACTOR: u64 = 3;

/// What the window of one connection may take.
#[derive(Debug, Clone, Copy)]
pub(super) struct Allowance {
    /// Bytes of memory.
    pub(super) memory: u64,
    /// Memory of [`FLOOR_SEGMENTS`].
    pub(super) floor: u64,
    /// The equal part is less than half of what is left.
    pub(super) is_equal_part: bool,
    /// More memory for all would make it more.
    pub(super) may_grow: bool,
}

/// When a connection that got less than it can use is considered again, compared field by field.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Turn {
    /// Memory that must not be promised to anyone.
    needs: u64,
    /// Of connections that need the same, the one that was considered least recently comes first.
    number: u64,
}

impl Turn {
    /// Returns the last turn of connections that need at most `unpromised`.
    fn up_to(unpromised: u64) -> Self {
        Self {
            needs: unpromised,
            number: u64::MAX,
        }
    }
}

/// Promises to connections that were last active in the same period.
#[derive(Debug, Default, Clone, Copy)]
struct Share {
    /// Memory set aside.
    memory: u64,
    /// Number of connections.
    connections: u64,
}

/// Promises to the connections of one kind.
#[derive(Debug, Default)]
pub(super) struct Promises {
    /// To those that were last active in this period.
    now: Share,
    /// To those that were last active in the period before.
    before: Share,
    /// Slots of those that got less than they can use because memory was short.
    pub(super) starved: SlotHeap<Turn>,
}

impl Promises {
    /// Returns the memory set aside for those that are not idle.
    pub(super) fn set_aside(&self) -> u64 {
        self.now.memory + self.before.memory
    }

    /// Returns the number of those that are not idle.
    fn connections(&self) -> u64 {
        self.now.connections + self.before.connections
    }

    /// Returns the share of a connection which was last active in `active_in`; `None` if it is idle.
    fn share_of(&mut self, active_in: Option<u64>, period: u64) -> Option<&mut Share> {
        match period - active_in? {
            0 => Some(&mut self.now),
            1 => Some(&mut self.before),
            _ => None,
        }
    }

    /// Begins a new period; `passed` have passed since the last one began.
    fn advance(&mut self, passed: u64) {
        self.before = match passed {
            1 => self.now,
            _ => Share::default(),
        };
        self.now = Share::default();
    }
}

/// The promises of one queue.
#[derive(Debug, Default)]
pub(super) struct QueuePromises {
    /// Maximum that was ever free: all of the queue's memory.
    pub(super) total: u64,
    /// To peers that have sent.
    pub(super) active: Promises,
    /// To peers that have never sent.
    pub(super) silent: Promises,
    /// Free memory when it was last noted.
    pub(super) seen_free: u64,
    /// Number of the next turn.
    next_turn: u64,
}

impl QueuePromises {
    /// Returns the promises of the kind that `promise` is.
    fn kind(&mut self, promise: &Promise) -> &mut Promises {
        match promise.has_sent {
            true => &mut self.active,
            false => &mut self.silent,
        }
    }

    /// Returns the free memory that is not promised to peers that have sent.
    fn unpromised(&self) -> u64 {
        self.seen_free.saturating_sub(self.active.set_aside())
    }

    /// Returns the free memory that may be promised to a peer that has never sent.
    fn unpromised_to_silent(&self) -> u64 {
        self.unpromised().saturating_sub(self.silent.set_aside())
    }

    /// Returns the free memory that may be promised to the peer of `promise`.
    pub(super) fn unpromised_to(&self, promise: &Promise) -> u64 {
        match promise.has_sent {
            true => self.unpromised(),
            false => self.unpromised_to_silent(),
        }
    }

    /// Returns the memory that is kept for connections that ask and would otherwise get less than [`FLOOR_SEGMENTS`].
    pub(super) fn reserve(&self) -> u64 {
        self.total / RESERVE_DIVISOR
    }

    /// Notes what the connection in `slot` asks, whose promise is in no share, and that `free` bytes are free.
    pub(super) fn note_asking(&mut self, slot: u32, promise: &mut Promise, ask: Ask, free: u64) {
        if !promise.has_sent && (promise.asked || ask.delivered > 0) {
            self.delist(slot, promise);
            promise.has_sent = true;
        }
        self.seen_free = free;
        self.total = self.total.max(free);
    }

    /// Returns what `promise` may have, which is in no share, if `spare` bytes are left beyond the reserve: the rules of
    /// [`Windows::grant`](super::Windows::grant).
    pub(super) fn allowance(&self, promise: &mut Promise, spare: u64, mss: u16) -> Allowance {
        let floor = FLOOR_SEGMENTS * promise.packing.memory_for(mss.into());
        let part = self.equal_part(promise, spare);
        let fair = part.min(spare / 2);
        let memory = if fair >= floor {
            promise.denied = 0;
            fair
        } else if !promise.asked {
            0
        } else if self.seen_free >= self.total / 2 && promise.is_shut_out() {
            let with_slack = self.seen_free.saturating_add(self.total / SLACK_DIVISOR);
            floor.max(with_slack.saturating_sub(self.active.set_aside()) / 2)
        } else {
            floor.min(self.unpromised_to(promise))
        };
        Allowance {
            memory,
            floor,
            is_equal_part: fair == part,
            may_grow: fair < part || fair < floor,
        }
    }

    /// Returns the equal part of `promise`, if `spare` bytes are left and these are scarce: the part that
    /// each would have if all connections that are not idle had the same and a quarter were left. The memory that is in use
    /// for a moment would otherwise be as much as all that is left.
    fn equal_part(&self, promise: &Promise, spare: u64) -> u64 {
        if spare >= self.total / SCARCE_DIVISOR {
            return u64::MAX;
        }
        let others = match promise.has_sent {
            true => self.active.connections(),
            false => self.active.connections() + self.silent.connections(),
        };
        (self.total - self.reserve()) / 4 * 3 / (others + 1)
    }

    /// Enters a connection that got too little into the list, behind those that need the same. Its window takes `window` bytes, its
    /// floor `floor`. It is considered again when it can have a worthwhile part of what is not promised, and more than now.
    pub(super) fn enlist(&mut self, slot: u32, promise: &Promise, window: u64, floor: u64) {
        let needs = match promise.asked && window < floor {
            true => floor.saturating_sub(promise.memory),
            false => (2 * floor)
                .max(WORTHWHILE_FACTOR.saturating_mul(window))
                .saturating_add(self.reserve()),
        };
        let needs = needs.max(self.unpromised_to(promise) + 1);
        let number = self.next_turn;
        self.next_turn += 1;
        let turn = Turn { needs, number };
        self.kind(promise).starved.set(slot, Some(turn));
    }

    /// Removes a connection from the list.
    pub(super) fn delist(&mut self, slot: u32, promise: &Promise) {
        self.kind(promise).starved.set(slot, None);
    }

    /// Returns whether the connection in `slot` is in the list.
    pub(super) fn is_listed(&self, slot: u32, promise: &Promise) -> bool {
        let kind = match promise.has_sent {
            true => &self.active,
            false => &self.silent,
        };
        kind.starved.key(slot).is_some()
    }

    /// Returns whether a connection of the list can have a worthwhile part of the memory.
    pub(super) fn any_due(&self) -> bool {
        let is_due = |promises: &Promises, unpromised| {
            let first = promises.starved.first();
            first.is_some_and(|turn| turn <= Turn::up_to(unpromised))
        };
        is_due(&self.active, self.unpromised()) || is_due(&self.silent, self.unpromised_to_silent())
    }

    /// Removes the first such connection from the list, one whose peer has sent before others.
    pub(super) fn pop_due(&mut self) -> Option<u32> {
        let due = Turn::up_to(self.unpromised());
        if let Some(slot) = self.active.starved.pop_until(due) {
            return Some(slot);
        }
        let due = Turn::up_to(self.unpromised_to_silent());
        self.silent.starved.pop_until(due)
    }

    /// Returns the share that `promise` counts in; `None` if it is idle.
    fn share_of(&mut self, promise: &Promise, period: u64) -> Option<&mut Share> {
        self.kind(promise).share_of(promise.active_in, period)
    }

    /// Takes `promise` out of its share; returns its memory.
    pub(super) fn take(&mut self, promise: &mut Promise, period: u64) -> u64 {
        let memory = std::mem::take(&mut promise.memory);
        if let Some(share) = self.share_of(promise, period) {
            share.memory -= memory;
            share.connections -= 1;
        }
        memory
    }

    /// Sets `memory` aside for `promise`, which is in no share.
    pub(super) fn put(&mut self, promise: &mut Promise, memory: u64, period: u64) {
        promise.memory = memory;
        if let Some(share) = self.share_of(promise, period) {
            share.memory += memory;
            share.connections += 1;
        }
    }

    /// Begins a new period; `passed` have passed since the last one began.
    pub(super) fn advance(&mut self, passed: u64) {
        self.active.advance(passed);
        self.silent.advance(passed);
    }
}
