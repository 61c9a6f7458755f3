//! Receive windows: how much of each queue's memory is promised to peers.
//!
//! A window that is advertised to a peer is a promise that the bytes will find memory. The kernel does not
//! compare the promises of all connections with the memory of their queue, so tokens that come back late
//! end in packets dropped by the NIC. Here the promises of the active connections of a queue never add up
//! to more than its memory can still take, in whole net_iovs and with their gaps (`nic::RxSpace`):
//!
//! - *dynamic threshold* (Choudhury and Hahne 1998): a connection may be promised up to half of the memory
//!   that is not promised to others. One busy connection gets half of the memory, two get a third each, and
//!   there is always some left for a new one.
//! - *equal parts*: when less than an eighth is left, no connection may be promised more than an equal part of three
//!   quarters of the memory. Otherwise those that sent a burst each would keep what they did not use of their windows from
//!   the one that sends now: 0.51 s of CPU time per GB at 10 Gbit/s with a thousand such connections, instead of 0.26. Such
//!   a window ends where a packet of the sender does ([`whole_packets`]).
//! - *growth by use*: the promise to a new connection is small and grows with the bytes delivered in order,
//!   always ahead of slow start.
//! - *idle connections*: a connection that has received nothing for one to two seconds, and was promised
//!   nothing new, keeps its window, but no memory is set aside for it ([`IDLE_PERIOD_MS`]). Otherwise a thousand open
//!   connections with a first window of 64 KiB each would take all of a small binding from a stream. Its next payload
//!   makes it active again, and memory is set aside for its whole window.
//! - *silent connections*: what was promised to peers that have never sent payload limits new promises to such peers
//!   only. Beside 10,000 connections that were just accepted, a busy one runs at 98 % of its rate or more; at 3 % without this.
//! - *reserve*: an eighth of the memory is given only to connections that ask, by sending or probing, and
//!   would otherwise get less than four segments.
//! - *turns*: a connection that got less than it can use is considered again when it can get twice as much
//!   ([`WORTHWHILE_FACTOR`]): the one that needs the least memory first, and of equals the one that waited longest.
//! - *no retreat*: a promise is not taken back (RFC 9293 3.8.6: a receiver should not shrink its window).
//! - *packing*: small packets take more memory than their payload; a connection with small packets is promised
//!   fewer bytes of the same memory.
//!
//! So more may be promised than the memory can take in two cases. Peers of idle and of silent connections may all begin to
//! send at once; each begins with its initial congestion window (RFC 5681 4.1), which the reserve can take
//! for some. And if the peer of a connection has probed a closed window twice without success, while more than half of the
//! memory was free, the connection gets a part of the NIC's reserve, at least four segments. If there is no memory for a
//! packet, it is dropped and counted, and the peer retransmits it.

mod packing;
#[cfg(test)]
mod tests;

use packing::Packing;
use wire::Instant;

use crate::slot_heap::SlotHeap;

/// Divisor: reserve = total / 8, for connections that ask and would otherwise get less than
/// [`FLOOR_SEGMENTS`].
const RESERVE_DIVISOR: u64 = 8;

/// Unsuccessful probes of a closed window, with half of the memory free, after which a connection gets a part of the slack.
const SHUT_OUT_PROBES: u8 = 2;

/// Divisor: slack = total / 8. The NIC keeps so much memory back (`nic::RxSpace`): an eighth of all memory, of
/// which `total` is about three quarters.
const SLACK_DIVISOR: u64 = 8;

/// Divisor: with less than `total / 8` left, no connection is promised more than an equal part.
const SCARCE_DIVISOR: u64 = 8;

/// Segments that the reserve lets a connection have. Two would be enough to keep ACKs going (RFC 9293
/// 3.8.6.3), but with silly window avoidance on both sides the peer waits for its timer when one of two is
/// left; with four it never does.
const FLOOR_SEGMENTS: u64 = 4;

/// A connection that got too little is considered again when its window can be twice as large, and others then have as
/// much memory left as it has: three times what it has must be free. An update that does not double the window is not sent
/// (`tcp::RecvWindow::is_update_due`).
const WORTHWHILE_FACTOR: u64 = 3;

/// First promise to a connection, in bytes of payload (linux: `tcp_rmem[1] / 2`, 64 KiB).
pub const INITIAL_PROMISE: u64 = 64 << 10;

/// Divisor: the first promise is at most a sixteenth of what is left, because many connections may follow.
const INITIAL_DIVISOR: u64 = 16;

/// Divisor: a SYN-ACK promises at most `total / 256` of a small queue.
const HANDSHAKE_DIVISOR: u64 = 256;

/// Divisor: all half-open connections together are promised at most a quarter of what is left.
const HALF_OPEN_DIVISOR: u64 = 4;

/// A connection is idle if it received nothing, and was promised nothing new, in this period and the one before.
/// Not shorter than the minimum retransmission timeout (RFC 6298 2.4: 1 s): after that time without traffic a
/// sender begins with its initial congestion window (RFC 5681 4.1).
const IDLE_PERIOD_MS: u64 = 1000;

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

/// The promise to the peer of one connection.
#[derive(Debug)]
pub(crate) struct Promise {
    /// Index of the queue.
    queue: usize,
    /// Memory set aside, in bytes of the NIC's figure.
    memory: u64,
    packing: Packing,
    /// Payload of the longest packet that has arrived, in bytes.
    longest: u64,
    /// Number of the period in which it last received something or was promised something new. It counts in the [`Share`] of
    /// that period. `None` before the first [`Windows::grant`], and after [`Windows::release`].
    active_in: Option<u64>,
    /// The peer has sent something since the promise was last raised: it wants to send.
    asked: bool,
    /// The peer has sent payload, or probed.
    has_sent: bool,
    /// The peer has probed its closed window since the last [`Windows::grant`].
    probed: bool,
    /// Probes that got nothing although memory was free.
    denied: u8,
    /// Payload out of order was given up: until so many bytes have been delivered in order, memory is set aside
    /// for four segments only, whatever the promise is.
    revoked_until: Option<u64>,
}

impl Promise {
    /// Returns an empty promise on `queue`.
    pub(crate) fn new(queue: usize) -> Self {
        Self {
            queue,
            memory: 0,
            packing: Packing::new(),
            longest: 0,
            active_in: None,
            asked: false,
            has_sent: false,
            probed: false,
            denied: 0,
            revoked_until: None,
        }
    }

    /// Returns whether it was neither used nor raised in `period` and the one before.
    fn is_idle(&self, period: u64) -> bool {
        self.active_in
            .is_some_and(|active_in| period - active_in > 1)
    }

    /// Returns the queue that the promised memory belongs to.
    pub(crate) fn queue(&self) -> usize {
        self.queue
    }

    /// Notes that the peer has probed its closed window.
    pub(crate) fn note_probe(&mut self) {
        self.asked = true;
        self.probed = true;
    }

    /// Counts a probe since the last call that got nothing; returns whether there were [`SHUT_OUT_PROBES`].
    fn is_shut_out(&mut self) -> bool {
        self.denied += u8::from(std::mem::take(&mut self.probed) && self.denied < SHUT_OUT_PROBES);
        self.denied >= SHUT_OUT_PROBES
    }
}

/// When a connection that got less than it can use is considered again, compared field by field.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Turn {
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
struct Promises {
    /// To those that were last active in this period.
    now: Share,
    /// To those that were last active in the period before.
    before: Share,
    /// Slots of those that got less than they can use because memory was short.
    starved: SlotHeap<Turn>,
}

impl Promises {
    /// Returns the memory set aside for those that are not idle.
    fn set_aside(&self) -> u64 {
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
struct QueuePromises {
    /// Maximum that was ever free: all of the queue's memory.
    total: u64,
    /// To peers that have sent.
    active: Promises,
    /// To peers that have never sent.
    silent: Promises,
    /// Free memory when it was last noted.
    seen_free: u64,
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
    fn unpromised_to(&self, promise: &Promise) -> u64 {
        match promise.has_sent {
            true => self.unpromised(),
            false => self.unpromised_to_silent(),
        }
    }

    /// Returns the most that is promised to `promise`, which is in no share, if `spare` bytes are left. If these are scarce: the part that
    /// each would have if all connections that are not idle had the same and a quarter were left. The memory that is in use
    /// for a moment would otherwise be as much as all that is left.
    fn part(&self, promise: &Promise, spare: u64) -> u64 {
        if spare >= self.total / SCARCE_DIVISOR {
            return u64::MAX;
        }
        let others = match promise.has_sent {
            true => self.active.connections(),
            false => self.active.connections() + self.silent.connections(),
        };
        (self.total - self.total / RESERVE_DIVISOR) / 4 * 3 / (others + 1)
    }

    /// Returns how much memory must not be promised to anyone before a connection that got too little is considered again: one whose
    /// window takes `window` bytes, and whose floor takes `floor`.
    fn needs(&self, promise: &Promise, window: u64, floor: u64) -> u64 {
        if promise.asked && window < floor {
            return floor.saturating_sub(promise.memory);
        }
        let needs = (2 * floor).max(WORTHWHILE_FACTOR.saturating_mul(window));
        needs.saturating_add(self.total / RESERVE_DIVISOR)
    }

    /// Enters a connection that got too little into the list, behind those that need the same. It is considered again when
    /// `needs` bytes are not promised, and more than now.
    fn enlist(&mut self, slot: u32, promise: &Promise, needs: u64) {
        let needs = needs.max(self.unpromised_to(promise) + 1);
        let number = self.next_turn;
        self.next_turn += 1;
        let turn = Turn { needs, number };
        self.kind(promise).starved.set(slot, Some(turn));
    }

    /// Removes a connection from the list.
    fn delist(&mut self, slot: u32, promise: &Promise) {
        self.kind(promise).starved.set(slot, None);
    }

    /// Returns whether a connection of the list can have a worthwhile part of the memory.
    fn any_due(&self) -> bool {
        let is_due = |promises: &Promises, unpromised| {
            let first = promises.starved.first();
            first.is_some_and(|turn| turn <= Turn::up_to(unpromised))
        };
        is_due(&self.active, self.unpromised()) || is_due(&self.silent, self.unpromised_to_silent())
    }

    /// Removes the first such connection from the list, one whose peer has sent before others.
    fn pop_due(&mut self) -> Option<u32> {
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
    fn take(&mut self, promise: &mut Promise, period: u64) -> u64 {
        let memory = std::mem::take(&mut promise.memory);
        if let Some(share) = self.share_of(promise, period) {
            share.memory -= memory;
            share.connections -= 1;
        }
        memory
    }

    /// Sets `memory` aside for `promise`, which is in no share.
    fn put(&mut self, promise: &mut Promise, memory: u64, period: u64) {
        promise.memory = memory;
        if let Some(share) = self.share_of(promise, period) {
            share.memory += memory;
            share.connections += 1;
        }
    }

    /// Begins a new period; `passed` have passed since the last one began.
    fn advance(&mut self, passed: u64) {
        self.active.advance(passed);
        self.silent.advance(passed);
    }
}

/// The promises of all queues.
#[derive(Debug)]
pub(crate) struct Windows {
    queues: Vec<QueuePromises>,
    /// Number of the current period of [`IDLE_PERIOD_MS`].
    period: u64,
}

impl Windows {
    pub(crate) fn new(queues: usize) -> Self {
        Self {
            queues: (0..queues).map(|_| QueuePromises::default()).collect(),
            period: 0,
        }
    }

    /// Sets the time: connections without activity become idle.
    pub(crate) fn advance(&mut self, now: Instant) {
        let period = now.as_millis() / IDLE_PERIOD_MS;
        let passed = period.saturating_sub(self.period);
        if passed > 0 {
            self.period = period;
            for queue in &mut self.queues {
                queue.advance(passed);
            }
        }
    }

    /// Notes a packet with `len` bytes of payload on the connection of `promise`.
    pub(crate) fn note_packet(&mut self, promise: &mut Promise, len: usize) {
        promise.packing.note(len);
        promise.longest = promise.longest.max(len as u64);
        promise.asked = true;
        if promise.active_in != Some(self.period) {
            self.note_activity(promise);
        }
    }

    /// Sets the memory of `promise` aside again if it was idle.
    fn note_activity(&mut self, promise: &mut Promise) {
        let period = self.period;
        let Some(queue) = self.queues.get_mut(promise.queue) else {
            return;
        };
        let memory = queue.take(promise, period);
        promise.active_in = Some(period);
        queue.put(promise, memory, period);
    }

    /// Returns a queue, which is added if it does not exist: queues may be added while the stack runs. There are
    /// no more than 16 bits can number.
    fn queue(&mut self, index: usize) -> Option<&mut QueuePromises> {
        if index >= self.queues.len() && u16::try_from(index).is_ok() {
            self.queues.resize_with(index + 1, QueuePromises::default);
        }
        self.queues.get_mut(index)
    }

    /// Returns the bytes of memory set aside for active connections on `queue` whose peers have sent.
    pub(crate) fn promised(&self, queue: usize) -> u64 {
        self.queues
            .get(queue)
            .map_or(0, |queue| queue.active.set_aside())
    }

    /// Returns how many bytes beyond those received the connection in `slot` may advertise, when the memory of its
    /// queue can still take `free` bytes of payload.
    ///
    /// The memory is set aside at once, until the next call or [`Windows::release`]. An idle connection with a window,
    /// or with a peer that has never sent anything, gets nothing new before the peer sends.
    pub(crate) fn grant(&mut self, slot: u32, promise: &mut Promise, free: u64, ask: Ask) -> u64 {
        let period = self.period;
        let Some(queue) = self.queues.get_mut(promise.queue) else {
            return ask.outstanding;
        };
        // The peer does not use the window that it has, or has never sent anything. One that has used up its window
        // gets more without asking: the program may have read, or given tokens back, after a long time.
        let is_enough = ask.outstanding >= ask.mss.into() || ask.delivered == 0;
        if promise.is_idle(period) && !promise.asked && is_enough {
            return ask.outstanding;
        }
        queue.take(promise, period);
        if !promise.has_sent && (promise.asked || ask.delivered > 0) {
            queue.delist(slot, promise);
            promise.has_sent = true;
        }
        queue.seen_free = free;
        queue.total = queue.total.max(free);
        let unpromised = queue.unpromised_to(promise);
        let spare = unpromised.saturating_sub(queue.total / RESERVE_DIVISOR);
        let wanted = wanted(ask, spare).min(ask.most).max(ask.outstanding);
        let floor = FLOOR_SEGMENTS * promise.packing.memory_for(ask.mss.into());
        let part = queue.part(promise, spare);
        let fair = part.min(spare / 2);
        let may = if fair >= floor {
            promise.denied = 0;
            fair
        } else if !promise.asked {
            0
        } else if free >= queue.total / 2 && promise.is_shut_out() {
            let with_slack = free.saturating_add(queue.total / SLACK_DIVISOR);
            floor.max(with_slack.saturating_sub(queue.active.set_aside()) / 2)
        } else {
            floor.min(unpromised)
        };
        let allowed = promise.packing.payload_for(may);
        let granted = match fair == part {
            true => whole_packets(wanted.min(allowed), promise.longest, ask.mss),
            false => wanted.min(allowed),
        };
        let granted = granted.max(ask.outstanding);
        promise.asked &= granted == ask.outstanding;
        if granted > ask.outstanding || promise.active_in.is_none() {
            promise.active_in = Some(period);
        }
        promise.revoked_until = promise.revoked_until.filter(|&until| ask.delivered < until);
        // Small packets that wait can be moved together: their cost counts only as far as the connection has
        // earned memory. Otherwise one byte per packet would take all memory from the others.
        let earned = wanted.min(may).max(granted);
        let window = promise.packing.memory_for(granted);
        let memory = match promise.revoked_until {
            Some(_) => window.min(earned).min(FLOOR_SEGMENTS * u64::from(ask.mss)),
            None => window.min(earned),
        };
        queue.put(promise, memory, period);
        // With an equal part, more memory for all would not change anything.
        if allowed >= wanted || fair == part && part >= floor {
            queue.delist(slot, promise);
            return granted;
        }
        let needs = queue.needs(promise, window, floor);
        queue.enlist(slot, promise, needs);
        granted
    }

    /// Notes that a connection has given up payload out of order, which the peer may send again. Only four segments
    /// of memory are set aside for it until it has delivered `until` bytes in order.
    ///
    /// The window of the peer does not change (RFC 9293 3.8.6). Payload in order still finds memory, because
    /// payload out of order never takes the last of it.
    pub(crate) fn revoke(&mut self, promise: &mut Promise, until: u64) {
        promise.revoked_until = promise.revoked_until.max(Some(until));
    }

    /// Gives back the promise to a connection that ends or moves.
    pub(crate) fn release(&mut self, slot: u32, promise: &mut Promise) {
        let period = self.period;
        let Some(queue) = self.queues.get_mut(promise.queue) else {
            return;
        };
        queue.delist(slot, promise);
        queue.take(promise, period);
        promise.active_in = None;
    }

    /// Moves a promise to the queue on which packets of the connection arrive now.
    ///
    /// The peer keeps its window, even if the other queue has less room: until it is used up, more may be promised
    /// there than the memory can take.
    pub(crate) fn migrate(&mut self, slot: u32, promise: &mut Promise, queue: usize) {
        let (memory, active_in) = (promise.memory, promise.active_in);
        self.release(slot, promise);
        promise.queue = queue;
        promise.active_in = active_in;
        let period = self.period;
        if let Some(queue) = self.queue(queue) {
            queue.put(promise, memory, period);
        }
    }

    /// Returns the window of the SYN-ACK to a new connection, if the memory of `queue` can still take `free` bytes
    /// and there are `half_open` other half-open connections.
    ///
    /// No memory is set aside for half-open connections, so all of them together are promised little. Beyond that
    /// limit the window is 0 until the handshake is done. The window should be enough for the first burst of slow
    /// start, ten segments.
    pub(crate) fn newcomer(&mut self, queue: usize, free: u64, mss: u16, half_open: usize) -> u32 {
        let Some(queue) = self.queue(queue) else {
            return 0;
        };
        queue.total = queue.total.max(free);
        let promised = queue.active.set_aside() + queue.silent.set_aside();
        let unpromised = free.saturating_sub(promised);
        let spare = unpromised.saturating_sub(queue.total / RESERVE_DIVISOR);
        let floor = FLOOR_SEGMENTS * u64::from(mss);
        // The promise cannot be taken back after the handshake: not more than the first grant would be.
        let promise = (queue.total / HANDSHAKE_DIVISOR)
            .min(spare / INITIAL_DIVISOR)
            .min(INITIAL_PROMISE)
            // With the maximum MTU, four segments are more than INITIAL_PROMISE.
            .max(floor);
        let all = promise.saturating_mul(half_open as u64 + 1);
        if all <= spare / HALF_OPEN_DIVISOR {
            promise as u32
        } else {
            0
        }
    }

    /// Returns whether connections wait for more memory of `queue`.
    pub(crate) fn has_starved(&self, queue: usize) -> bool {
        self.queues.get(queue).is_some_and(|queue| {
            !queue.active.starved.is_empty() || !queue.silent.starved.is_empty()
        })
    }

    /// Notes the free memory of `queue`.
    pub(crate) fn note_free(&mut self, queue: usize, free: u64) {
        if let Some(queue) = self.queues.get_mut(queue) {
            queue.seen_free = free;
        }
    }

    /// Returns whether [`Windows::next_starved`] will return a connection.
    pub(crate) fn any_to_visit(&self) -> bool {
        self.queues.iter().any(QueuePromises::any_due)
    }

    /// Removes the first connection of the list that can have a worthwhile part of `queue`. [`Windows::grant`] enters it
    /// again if it still gets too little.
    pub(crate) fn next_starved(&mut self, queue: usize) -> Option<u32> {
        self.queues.get_mut(queue)?.pop_due()
    }

    /// Notes that `queue` has other memory now, of unknown size.
    pub(crate) fn restarted(&mut self, queue: usize) {
        if let Some(queue) = self.queues.get_mut(queue) {
            queue.total = 0;
        }
    }

    /// Returns how many queues there are.
    pub(crate) fn queues(&self) -> usize {
        self.queues.len()
    }
}

/// Returns `window` without the end that a super-packet of `longest` bytes does not fill, if it is two of them or more.
///
/// Senders fill a window to its end, with a short packet that costs as much as a long one. They send no part of a segment of
/// `mss` bytes, so half of one is added to the whole packets: the window field is rounded down (RFC 7323 2.3).
fn whole_packets(window: u64, longest: u64, mss: u16) -> u64 {
    if longest == 0 || window < 2 * longest {
        return window;
    }
    window.min(window / longest * longest + u64::from(mss / 2))
}

/// Returns how much a connection has earned: an initial amount, and twice the bytes that it has delivered in order.
///
/// Slow start begins with ten segments and doubles per round trip, so this is more than any congestion window.
fn wanted(ask: Ask, spare: u64) -> u64 {
    let initial = INITIAL_PROMISE
        .min(spare / INITIAL_DIVISOR)
        .max(FLOOR_SEGMENTS * u64::from(ask.mss));
    initial.saturating_add(ask.delivered.saturating_mul(2))
}
