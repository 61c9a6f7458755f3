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
//!   quarters of the memory. Otherwise connections that sent one burst would keep memory for the rest of their windows, which the one
//!   that sends now needs: with a thousand of them, 0.51 s of CPU time per GB at 10 Gbit/s instead of 0.26. Such a window is
//!   rounded down to whole packets of the sender ([`whole_packets`]).
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
//!   ([`queue::WORTHWHILE_FACTOR`]): the one that needs the least memory first, and of equals the one that waited longest.
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
mod promise;
mod queue;
#[cfg(test)]
mod tests;

use steer::RxQueueId;
use wire::Instant;

use promise::FLOOR_SEGMENTS;
pub use promise::INITIAL_PROMISE;
pub(crate) use promise::{Ask, Promise};
use queue::{Allowance, QueuePromises};

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
        let Some(queue) = self.queues.get_mut(promise.queue.index()) else {
            return;
        };
        let memory = queue.take(promise, period);
        promise.active_in = Some(period);
        queue.put(promise, memory, period);
    }

    /// Returns a queue, which is added if it does not exist: queues may be added while the stack runs.
    fn queue(&mut self, queue: RxQueueId) -> &mut QueuePromises {
        let index = queue.index();
        if index >= self.queues.len() {
            self.queues.resize_with(index + 1, QueuePromises::default);
        }
        &mut self.queues[index]
    }

    /// Returns the bytes of memory set aside for active connections on `queue` whose peers have sent.
    pub(crate) fn promised(&self, queue: RxQueueId) -> u64 {
        self.queues
            .get(queue.index())
            .map_or(0, |queue| queue.active.set_aside())
    }

    /// Returns how many bytes beyond those received the connection in `slot` may advertise, when the memory of its
    /// queue can still take `free` bytes of payload. The memory is set aside at once, until the next call or
    /// [`Windows::release`].
    ///
    /// The first rule that applies says how much memory the window may take. *Left* is what is free and not promised to others, less the
    /// reserve; the *floor* is the memory of four segments.
    ///
    /// | Connection | Window |
    /// |---|---|
    /// | idle, the peer has not asked, and has a segment of window or never sent | as it is; nothing is set aside |
    /// | half of what is left, and its equal part if memory is scarce, are a floor or more | the smaller of the two |
    /// | the peer has not asked since the last grant | nothing new |
    /// | the peer has probed twice in vain while half of the memory is free | half of what is left with the NIC's reserve, at least a floor |
    /// | the peer has asked | a floor, from the reserve, as far as it is not promised |
    ///
    /// It takes no more than it has earned ([`Ask::earned`]) and can use, and never gives back what was advertised. An equal part ends where a
    /// packet of the sender does. A connection that could use more is considered again at its turn.
    pub(crate) fn grant(&mut self, slot: u32, promise: &mut Promise, free: u64, ask: Ask) -> u64 {
        let period = self.period;
        let Some(queue) = self.queues.get_mut(promise.queue.index()) else {
            return ask.outstanding;
        };
        if promise.is_at_rest(period, ask) {
            return ask.outstanding;
        }
        queue.take(promise, period);
        queue.note_asking(slot, promise, ask, free);
        let spare = queue.unpromised_to(promise).saturating_sub(queue.reserve());
        let initial = INITIAL_PROMISE.min(spare / INITIAL_DIVISOR);
        let wanted = ask.earned(initial).max(ask.outstanding);
        let Allowance {
            memory: may,
            floor,
            is_equal_part,
            may_grow,
        } = queue.allowance(promise, spare, ask.mss);
        let allowed = promise.packing.payload_for(may);
        let granted = match is_equal_part {
            true => whole_packets(wanted.min(allowed), promise.longest, ask.mss),
            false => wanted.min(allowed),
        };
        let granted = granted.max(ask.outstanding);
        promise.note_granted(granted, period, ask);
        let memory = promise.memory_for(granted, wanted.min(may), ask.mss);
        queue.put(promise, memory, period);
        if allowed < wanted && may_grow {
            let window = promise.packing.memory_for(granted);
            queue.enlist(slot, promise, window, floor);
        } else {
            queue.delist(slot, promise);
        }
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
        let Some(queue) = self.queues.get_mut(promise.queue.index()) else {
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
    pub(crate) fn migrate(&mut self, slot: u32, promise: &mut Promise, queue: RxQueueId) {
        let (memory, active_in) = (promise.memory, promise.active_in);
        self.release(slot, promise);
        promise.queue = queue;
        promise.active_in = active_in;
        let period = self.period;
        self.queue(queue).put(promise, memory, period);
    }

    /// Returns the window of the SYN-ACK to a new connection, if the memory of `queue` can still take `free` bytes
    /// and there are `half_open` other half-open connections.
    ///
    /// No memory is set aside for half-open connections, so all of them together are promised little. Beyond that
    /// limit the window is 0 until the handshake is done. The window should be enough for the first burst of slow
    /// start, ten segments.
    pub(crate) fn newcomer(
        &mut self,
        queue: RxQueueId,
        free: u64,
        mss: u16,
        half_open: usize,
    ) -> u32 {
        let queue = self.queue(queue);
        queue.total = queue.total.max(free);
        let promised = queue.active.set_aside() + queue.silent.set_aside();
        let unpromised = free.saturating_sub(promised);
        let spare = unpromised.saturating_sub(queue.reserve());
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
    pub(crate) fn has_starved(&self, queue: RxQueueId) -> bool {
        self.queues.get(queue.index()).is_some_and(|queue| {
            !queue.active.starved.is_empty() || !queue.silent.starved.is_empty()
        })
    }

    /// Returns whether the connection in `slot` waits for more memory.
    pub(crate) fn is_starved(&self, slot: u32, promise: &Promise) -> bool {
        let queue = self.queues.get(promise.queue.index());
        queue.is_some_and(|queue| queue.is_listed(slot, promise))
    }

    /// Notes the free memory of `queue`.
    pub(crate) fn note_free(&mut self, queue: RxQueueId, free: u64) {
        if let Some(queue) = self.queues.get_mut(queue.index()) {
            queue.seen_free = free;
        }
    }

    /// Returns whether [`Windows::next_starved`] will return a connection.
    pub(crate) fn any_to_visit(&self) -> bool {
        self.queues.iter().any(QueuePromises::any_due)
    }

    /// Removes the first connection of the list that can have a worthwhile part of `queue`. [`Windows::grant`] enters it
    /// again if it still gets too little.
    pub(crate) fn next_starved(&mut self, queue: RxQueueId) -> Option<u32> {
        self.queues.get_mut(queue.index())?.pop_due()
    }

    /// Notes that `queue` has other memory now, of unknown size.
    pub(crate) fn restarted(&mut self, queue: RxQueueId) {
        if let Some(queue) = self.queues.get_mut(queue.index()) {
            queue.total = 0;
        }
    }

    /// Returns the queues.
    pub(crate) fn queues(&self) -> impl Iterator<Item = RxQueueId> + use<> {
        (0..self.queues.len() as u16).map(RxQueueId)
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
