//! What peers were promised of each queue's memory.
//!
//! A window advertised to a peer is a promise that the bytes will find room. In the kernel nobody
//! adds the promises of several connections up against the memory of the queue they share, so
//! tokens that come home late end in packets dropped at the NIC. Here the promises of all
//! connections of a queue never add up to more than the queue's memory can still take, whole
//! net_iovs and their gaps counted (`nic::RxSpace`):
//!
//! - *dynamic threshold* (Choudhury and Hahne 1998): a connection may be promised up to half of
//!   what nobody else was promised. One busy connection gets half the memory, two a third each, and
//!   a newcomer always finds some.
//! - *growth by use*: a new connection starts with a small promise that grows with what it
//!   delivered in order, always ahead of slow start, so that hundreds of idle connections do not sit on
//!   promises they never use.
//! - *reserve*: an eighth of the memory is given only to connections that ask, by sending or
//!   probing, and would otherwise get less than four segments. Idle ones are promised nothing when
//!   memory is scarce: their peers find a shut window, ask, and get one.
//! - *never retreating*: what was promised stays promised (RFC 9293 3.8.6: a receiver should not
//!   shrink its window).
//! - *packing*: small packets take more memory than they bring payload; a connection whose packets
//!   are small is promised less of the same memory.
//!
//! The one exception: thousands of peers that were promised something and stay silent must not shut
//! out the few that speak. A connection whose peer probed a shut window twice in vain while more
//! than half of the memory was in fact free gets its part of the slack that the NIC's figure leaves
//! besides, and four segments in any case. Should all the silent ones then speak at once, a packet
//! may be dropped, and counted.

mod packing;
#[cfg(test)]
mod tests;

use std::collections::VecDeque;

use packing::Packing;

/// One in how many parts of the memory is kept for connections that ask and would otherwise get less
/// than [`FLOOR_SEGMENTS`].
const RESERVE_PART: u64 = 8;

/// Probes in vain, with half of the memory free, after which a connection counts as shut out.
const SHUT_OUT_PROBES: u8 = 2;

/// One in how many parts of the memory, beyond the NIC's figure, is the NIC's own reserve
/// (`nic::RxSpace`; it is a part of all memory, of which the figure is about three quarters).
const SLACK_PART: u64 = 8;

/// Segments that the reserve lets a connection have. Two would do to keep ACKs going (RFC 9293
/// 3.8.6.3), but silly window avoidance on both sides makes a peer wait for its timer when one of
/// two is left; with four it never does.
const FLOOR_SEGMENTS: u64 = 4;

/// First promise to a connection, in bytes of payload (linux: `tcp_rmem[1] / 2`, 64 KiB).
pub const INITIAL_PROMISE: u64 = 64 << 10;

/// One in how many parts of what is left a new connection is promised at most: many may come, and
/// what an idle one was promised it keeps.
const INITIAL_PART: u64 = 16;

/// One in how many parts of a small queue's memory a SYN-ACK promises at most.
const HANDSHAKE_PART: u64 = 256;

/// One in how many parts of what is left all half-open connections together are promised at most.
const HALF_OPEN_PART: u64 = 4;

/// What a connection tells when it asks for a window.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Ask {
    /// Bytes advertised and not arrived: the floor below which a promise cannot go.
    pub(crate) outstanding: u64,
    /// Bytes it could use at most, its receive buffer's limit less what lies unread.
    pub(crate) most: u64,
    /// Payload bytes it ever delivered in order. What came out of order, or twice, earns nothing.
    pub(crate) delivered: u64,
    /// Its segment size.
    pub(crate) mss: u16,
}

/// One connection's promise.
#[derive(Debug)]
pub(crate) struct Promise {
    /// Index of the queue.
    queue: usize,
    /// Memory set aside, in bytes of the NIC's figure.
    memory: u64,
    packing: Packing,
    /// Got less than it could have used for want of memory, and waits in the queue's list.
    starved: bool,
    /// The peer sent something since the promise was last raised: it wants to send.
    asked: bool,
    /// It did so although its window is shut, and nobody has looked at that yet.
    probed: bool,
    /// Probes that got nothing although memory was free.
    denied: u8,
    /// Payload out of order was given up: until so many bytes were delivered in order, memory is set aside
    /// for a few segments only, whatever the peer was promised.
    revoked_until: Option<u64>,
}

impl Promise {
    /// Returns an empty promise on `queue`.
    pub(crate) fn new(queue: usize) -> Self {
        Self {
            queue,
            memory: 0,
            packing: Packing::new(),
            starved: false,
            asked: false,
            probed: false,
            denied: 0,
            revoked_until: None,
        }
    }

    /// Returns the queue whose memory is promised.
    pub(crate) fn queue(&self) -> usize {
        self.queue
    }

    /// Notes a packet with `len` bytes of payload that took some of the memory.
    pub(crate) fn note_packet(&mut self, len: usize) {
        self.packing.note(len);
        self.asked = true;
    }

    /// Notes that the peer speaks although its window is shut: it asks for one.
    pub(crate) fn note_probe(&mut self) {
        self.asked = true;
        self.probed = true;
    }

    /// Returns whether the peer is shut out by others that do not use what they were promised.
    fn is_shut_out(&mut self) -> bool {
        self.denied += u8::from(std::mem::take(&mut self.probed) && self.denied < SHUT_OUT_PROBES);
        self.denied >= SHUT_OUT_PROBES
    }
}

#[derive(Debug, Default)]
struct Queue {
    /// The most that was ever free: all of the queue's memory.
    total: u64,
    /// Sum over the connections' promises, in bytes of memory.
    promised: u64,
    /// What was free when the starved were last considered.
    seen_free: u64,
    /// Slots of connections that got less than they could use, each once.
    starved: VecDeque<u32>,
    /// How many of them are still to be visited since memory came home, or a promise ended.
    to_visit: usize,
}

/// The promises of all queues.
#[derive(Debug)]
pub(crate) struct Windows {
    queues: Vec<Queue>,
}

impl Windows {
    pub(crate) fn new(queues: usize) -> Self {
        Self {
            queues: (0..queues).map(|_| Queue::default()).collect(),
        }
    }

    /// Returns a queue; queues may be added while the stack runs, and are no more than a number of
    /// 16 bits can name.
    fn queue(&mut self, index: usize) -> Option<&mut Queue> {
        if index >= self.queues.len() && u16::try_from(index).is_ok() {
            self.queues.resize_with(index + 1, Queue::default);
        }
        self.queues.get_mut(index)
    }

    /// Returns the memory promised on `queue`, in bytes.
    pub(crate) fn promised(&self, queue: usize) -> u64 {
        self.queues.get(queue).map_or(0, |queue| queue.promised)
    }

    /// Returns how many bytes beyond those that arrived the connection in `slot` may advertise,
    /// when the memory of its queue can still take `free` bytes of payload.
    ///
    /// The promise is set aside at once; it holds until [`Windows::grant`] is asked again or the
    /// promise is released.
    pub(crate) fn grant(&mut self, slot: u32, promise: &mut Promise, free: u64, ask: Ask) -> u64 {
        let Some(queue) = self.queues.get_mut(promise.queue) else {
            return ask.outstanding;
        };
        let others = queue.promised - promise.memory;
        queue.total = queue.total.max(free);
        let unpromised = free.saturating_sub(others);
        let spare = unpromised.saturating_sub(queue.total / RESERVE_PART);
        let wanted = wanted(ask, spare).min(ask.most).max(ask.outstanding);
        let floor = FLOOR_SEGMENTS * promise.packing.memory_for(ask.mss.into());
        let fair = spare / 2;
        let may = if fair >= floor {
            promise.denied = 0;
            fair
        } else if !promise.asked {
            0
        } else if free >= queue.total / 2 && promise.is_shut_out() {
            let with_slack = free.saturating_add(queue.total / SLACK_PART);
            floor.max(with_slack.saturating_sub(others) / 2)
        } else {
            floor.min(unpromised)
        };
        let allowed = promise.packing.payload_for(may);
        let granted = wanted.min(allowed).max(ask.outstanding);
        promise.asked &= granted == ask.outstanding;
        promise.revoked_until = promise.revoked_until.filter(|&until| ask.delivered < until);
        // Small packets that wait can be moved together: their cost counts only as far as the connection
        // has earned memory, so that a byte per packet does not set the memory of everybody else aside.
        let earned = wanted.min(may).max(granted);
        let set_aside = promise.packing.memory_for(granted).min(earned);
        promise.memory = match promise.revoked_until {
            Some(_) => set_aside.min(FLOOR_SEGMENTS * u64::from(ask.mss)),
            None => set_aside,
        };
        queue.promised = others + promise.memory;
        if allowed < wanted && !promise.starved {
            promise.starved = true;
            queue.starved.push_back(slot);
        }
        granted
    }

    /// Notes that a connection gave up what it held out of order, and may send that again: memory for it
    /// is not set aside again before it has delivered up to `until` bytes in order.
    ///
    /// The peer's window stays as it is (RFC 9293 3.8.6). What it sends next in order finds room, because
    /// what connections hold out of order never takes the last of it.
    pub(crate) fn revoke(&mut self, promise: &mut Promise, until: u64) {
        promise.revoked_until = promise.revoked_until.max(Some(until));
    }

    /// Gives back what was promised to a connection that ends or moves.
    pub(crate) fn release(&mut self, slot: u32, promise: &mut Promise) {
        let Some(queue) = self.queues.get_mut(promise.queue) else {
            return;
        };
        queue.promised -= promise.memory;
        if promise.starved {
            promise.starved = false;
            queue.starved.retain(|&other| other != slot);
        }
        queue.to_visit = match std::mem::take(&mut promise.memory) {
            0 => queue.to_visit.min(queue.starved.len()),
            // What was promised here others may have now, without waiting for memory to come home.
            _ => queue.starved.len(),
        };
    }

    /// Moves a promise to the queue on which the connection's packets arrive now.
    ///
    /// The peer was told, so the promise goes along even if the other queue has less room: it may
    /// then hold promises it cannot keep, until they are used up.
    pub(crate) fn migrate(&mut self, slot: u32, promise: &mut Promise, queue: usize) {
        let memory = promise.memory;
        self.release(slot, promise);
        promise.queue = queue;
        if let Some(queue) = self.queue(queue) {
            promise.memory = memory;
            queue.promised += memory;
        }
    }

    /// Returns what the SYN-ACK to a new connection may promise, if the memory of `queue` can still
    /// take `free` bytes and there are `half_open` others.
    ///
    /// Nothing is set aside for half-open connections, so all of them together are promised little,
    /// and those who come too many nothing: they learn of their window when the handshake is done.
    /// What is promised should do for the first burst of slow start, ten segments.
    pub(crate) fn newcomer(&mut self, queue: usize, free: u64, mss: u16, half_open: usize) -> u32 {
        let Some(queue) = self.queue(queue) else {
            return 0;
        };
        queue.total = queue.total.max(free);
        let unpromised = free.saturating_sub(queue.promised);
        let spare = unpromised.saturating_sub(queue.total / RESERVE_PART);
        let floor = FLOOR_SEGMENTS * u64::from(mss);
        // The connection keeps what its handshake promised: no more than it would start with.
        let promise = (queue.total / HANDSHAKE_PART)
            .min(spare / INITIAL_PART)
            .min(INITIAL_PROMISE)
            // Of a link with the largest MTU there is, four segments are more than that.
            .max(floor);
        let all = promise.saturating_mul(half_open as u64 + 1);
        if all <= spare / HALF_OPEN_PART {
            promise as u32
        } else {
            0
        }
    }

    /// Returns whether connections wait for memory of `queue`.
    pub(crate) fn has_starved(&self, queue: usize) -> bool {
        self.queues
            .get(queue)
            .is_some_and(|queue| !queue.starved.is_empty())
    }

    /// Notes how much memory of `queue` is free: more than before means that some came home, and
    /// whoever got too little is to be asked again.
    pub(crate) fn note_free(&mut self, queue: usize, free: u64) {
        if let Some(queue) = self.queues.get_mut(queue) {
            if free > queue.seen_free {
                queue.to_visit = queue.starved.len();
            }
            queue.seen_free = free;
        }
    }

    /// Returns whether [`Windows::next_starved`] has anything to return.
    pub(crate) fn any_to_visit(&self) -> bool {
        self.queues.iter().any(|queue| queue.to_visit > 0)
    }

    /// Takes the connection off the list that waited longest for memory of `queue`; it goes back to
    /// the end when it is granted too little again.
    pub(crate) fn next_starved(&mut self, queue: usize) -> Option<u32> {
        let queue = self.queues.get_mut(queue)?;
        queue.to_visit = queue.to_visit.checked_sub(1)?;
        queue.starved.pop_front()
    }

    /// Marks a promise as taken off the list by [`Windows::next_starved`].
    pub(crate) fn visited(promise: &mut Promise) {
        promise.starved = false;
    }

    /// Notes that `queue` got other memory: how much is seen anew.
    pub(crate) fn restarted(&mut self, queue: usize) {
        if let Some(queue) = self.queues.get_mut(queue) {
            queue.total = 0;
            queue.to_visit = queue.starved.len();
        }
    }

    /// Returns how many queues there are.
    pub(crate) fn queues(&self) -> usize {
        self.queues.len()
    }
}

/// Returns what a connection has earned: a start, and twice what it ever delivered in order.
///
/// Slow start doubles per round trip from ten segments on, so this is ahead of any sender's
/// congestion window.
fn wanted(ask: Ask, spare: u64) -> u64 {
    let initial = INITIAL_PROMISE
        .min(spare / INITIAL_PART)
        .max(FLOOR_SEGMENTS * u64::from(ask.mss));
    initial.saturating_add(ask.delivered.saturating_mul(2))
}
