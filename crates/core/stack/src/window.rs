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

use std::collections::VecDeque;

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

/// Bytes of payload from which on a packet uses memory no worse than the NIC's figure assumes
/// (`nic::RxSpace::bytes`).
const GOOD_PAYLOAD: u64 = 1050;

/// Bytes that a smaller packet takes beside its payload: headroom and alignment to a cache line.
const PLACEMENT_LOSS: u64 = 75;

/// Payload bytes over which the cost of a connection's packets is averaged.
const PACKING_BYTES: u64 = 128 << 10;

/// Packets over which it is averaged.
const PACKING_PACKETS: u32 = 64;

/// How much of the memory a connection's packets take for the payload they bring: 1 for large ones,
/// more for small.
#[derive(Debug, Clone, Copy)]
struct Packing {
    payload: u64,
    memory: u64,
    packets: u32,
}

impl Packing {
    /// Assumes large packets until they tell otherwise.
    const fn new() -> Self {
        Self {
            payload: PACKING_BYTES / 4,
            memory: PACKING_BYTES / 4,
            packets: 0,
        }
    }

    fn note(&mut self, len: usize) {
        let len = len as u64;
        self.payload += len;
        self.memory += packet_cost(len);
        self.packets += 1;
        if self.payload > PACKING_BYTES || self.packets > PACKING_PACKETS {
            self.payload = (self.payload / 2).max(1);
            self.memory = (self.memory / 2).max(1);
            self.packets /= 2;
        }
    }

    /// Returns the memory that `payload` more bytes will take.
    fn memory_for(&self, payload: u64) -> u64 {
        scale(payload, self.memory, self.payload)
    }

    /// Returns the payload that fits into `memory` bytes.
    fn payload_for(&self, memory: u64) -> u64 {
        scale(memory, self.payload, self.memory)
    }
}

/// Memory that a packet with `len` bytes of payload keeps from others, in bytes of the NIC's
/// figure.
fn packet_cost(len: u64) -> u64 {
    len.max((len + PLACEMENT_LOSS) * GOOD_PAYLOAD / (GOOD_PAYLOAD + PLACEMENT_LOSS))
}

/// Returns `value * numerator / denominator`, saturating.
fn scale(value: u64, numerator: u64, denominator: u64) -> u64 {
    if numerator == denominator {
        return value;
    }
    let scaled = u128::from(value) * u128::from(numerator) / u128::from(denominator.max(1));
    u64::try_from(scaled).unwrap_or(u64::MAX)
}

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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::SplitMix;

    const MIB: u64 = 1 << 20;
    const MSS: u16 = 1460;

    fn ask(outstanding: u64, delivered: u64) -> Ask {
        Ask {
            outstanding,
            most: u64::MAX,
            delivered,
            mss: MSS,
        }
    }

    #[test]
    fn a_new_connection_is_promised_little_and_more_with_use() {
        let mut windows = Windows::new(1);
        let mut promise = Promise::new(0);
        let mut grant = |received| windows.grant(0, &mut promise, 64 * MIB, ask(0, received));
        assert_eq!(grant(0), INITIAL_PROMISE);
        assert_eq!(grant(100_000), INITIAL_PROMISE + 200_000);
        let most = grant(1 << 40);
        assert_eq!(most, 28 * MIB, "half of seven eighths");
    }

    #[test]
    fn a_promise_never_retreats() {
        let mut windows = Windows::new(1);
        let mut promise = Promise::new(0);
        let first = windows.grant(0, &mut promise, 8 * MIB, ask(0, 1 << 30));
        let later = windows.grant(0, &mut promise, 0, ask(first, 1 << 30));
        assert_eq!(later, first);
    }

    #[test]
    fn two_busy_connections_get_about_the_same() {
        let mut windows = Windows::new(1);
        let mut a = Promise::new(0);
        let mut b = Promise::new(0);
        let whole = 8 * MIB;
        let (mut granted_a, mut granted_b) = (0, 0);
        for _ in 0..32 {
            granted_a = windows.grant(0, &mut a, whole, ask(0, 1 << 30));
            granted_b = windows.grant(1, &mut b, whole, ask(0, 1 << 30));
        }
        assert!(
            granted_a.abs_diff(granted_b) < granted_a / 16,
            "{granted_a} {granted_b}"
        );
        assert!(granted_a > 2 * MIB);
    }

    #[test]
    fn idle_connections_leave_the_reserve_to_those_that_ask() {
        let mut windows = Windows::new(1);
        let whole = 8 * MIB;
        let mut promises: Vec<_> = (0..300).map(|_| Promise::new(0)).collect();
        let mut last = 0;
        for (slot, promise) in promises.iter_mut().enumerate() {
            last = windows.grant(slot as u32, promise, whole, ask(0, 0));
        }
        assert_eq!(last, 0, "nothing is left for idle ones");
        assert!(windows.promised(0) <= whole - whole / RESERVE_PART);
        let promise = promises.last_mut().unwrap();
        promise.note_probe();
        assert!(windows.grant(299, promise, whole, ask(0, 0)) >= 4 * u64::from(MSS));
        assert!(windows.promised(0) <= whole);
    }

    #[test]
    fn the_end_of_a_connection_is_a_chance_for_those_that_got_too_little() {
        let mut windows = Windows::new(1);
        let whole = 8 * MIB;
        let mut greedy = Promise::new(0);
        windows.grant(0, &mut greedy, whole, ask(whole, 0));
        let mut other = Promise::new(0);
        assert_eq!(windows.grant(1, &mut other, whole, ask(0, 0)), 0);
        // All have been asked since memory came home last.
        windows.note_free(0, whole);
        while windows.next_starved(0).is_some() {}
        Windows::visited(&mut greedy);
        Windows::visited(&mut other);
        assert_eq!(windows.grant(1, &mut other, whole, ask(0, 0)), 0);
        windows.note_free(0, whole);
        assert_eq!(windows.next_starved(0), None);
        // None comes home, and yet there is more to promise.
        windows.release(0, &mut greedy);
        assert!(windows.any_to_visit());
        assert_eq!(windows.next_starved(0), Some(1));
        Windows::visited(&mut other);
        assert!(windows.grant(1, &mut other, whole, ask(0, 0)) > 0);
    }

    #[test]
    fn silent_peers_do_not_shut_out_one_that_speaks_while_memory_is_free() {
        let mut windows = Windows::new(1);
        let (whole, floor) = (8 * MIB, 4 * u64::from(MSS));
        let mut silent = Promise::new(0);
        windows.grant(0, &mut silent, whole, ask(whole, 0));
        let mut one = Promise::new(0);
        assert_eq!(windows.grant(1, &mut one, whole, ask(0, 0)), 0);
        one.note_probe();
        let mut grant = |one: &mut Promise| windows.grant(1, one, whole, ask(0, MIB));
        assert_eq!(grant(&mut one), 0, "one probe in vain is no proof");
        assert_eq!(grant(&mut one), 0, "nor is looking at it twice");
        one.note_probe();
        assert_eq!(grant(&mut one), whole / SLACK_PART / 2);
        // It goes on like that for as long as nothing changes.
        one.note_packet(1460);
        assert!(grant(&mut one) >= floor);
        let mut others: Vec<_> = (2..100).map(|slot| (slot, Promise::new(0))).collect();
        for (slot, promise) in &mut others {
            promise.note_probe();
            windows.grant(*slot, promise, whole, ask(0, MIB));
            promise.note_probe();
            let granted = windows.grant(*slot, promise, whole, ask(0, MIB));
            assert!(granted >= floor, "{granted} for {slot}");
        }
        // With the memory in use there is nothing to be generous with.
        let mut late = Promise::new(0);
        late.note_probe();
        assert_eq!(windows.grant(100, &mut late, whole / 2 - 1, ask(0, MIB)), 0);
    }

    #[test]
    fn an_answer_is_given_once_for_each_time_a_peer_asks() {
        let mut windows = Windows::new(1);
        let (whole, floor) = (8 * MIB, 4 * u64::from(MSS));
        let mut silent = Promise::new(0);
        windows.grant(0, &mut silent, whole, ask(whole, 0));
        let mut one = Promise::new(0);
        one.note_probe();
        // Half of the memory is in use: only what nobody was promised can be given.
        let free = whole / 2 - 1;
        let mut little = Promise::new(0);
        windows.release(0, &mut silent);
        windows.grant(0, &mut silent, whole, ask(free - floor, 0));
        assert_eq!(windows.grant(1, &mut one, free, ask(0, MIB)), floor);
        assert_eq!(
            windows.grant(1, &mut one, free, ask(floor / 2, MIB)),
            floor / 2
        );
        one.note_packet(1460);
        assert_eq!(windows.grant(1, &mut one, free, ask(floor / 2, MIB)), floor);
        little.note_probe();
        assert_eq!(windows.grant(2, &mut little, free, ask(0, MIB)), 0);
    }

    #[test]
    fn newcomers_are_promised_a_burst_and_then_nothing() {
        let mut windows = Windows::new(1);
        assert_eq!(windows.newcomer(0, 64 * MIB, MSS, 0), 64 << 10);
        assert_eq!(windows.newcomer(0, 64 * MIB, MSS, 223), 64 << 10);
        assert_eq!(windows.newcomer(0, 64 * MIB, MSS, 224), 0);
        assert_eq!(windows.newcomer(0, 9 * MIB, MSS, 0), 64 << 10);
        assert_eq!(
            windows.newcomer(0, 8 * MIB, MSS, 0),
            0,
            "that is the reserve"
        );
    }

    #[test]
    fn the_sum_of_promises_never_exceeds_the_memory() {
        for seed in 0..200 {
            let mut random = SplitMix::new(seed);
            let total = 64 * 1024 * (1 + random.next() % 64);
            let mut windows = Windows::new(1);
            let mut promises: Vec<_> = (0..20).map(|_| Promise::new(0)).collect();
            let mut granted = [0_u64; 20];
            let mut free = total;
            for step in 0..500 {
                let slot = (random.next() % 20) as usize;
                let promise = &mut promises[slot];
                match random.next() % 4 {
                    // The peer uses some of its window.
                    0 => {
                        let used = random.next() % (granted[slot] + 1);
                        let memory = promise.packing.memory_for(used);
                        granted[slot] -= used;
                        free -= memory.min(free);
                    }
                    1 => free = total,
                    _ => {}
                }
                let ask = ask(granted[slot], random.next() % (1 << 24));
                let before = windows.promised(0);
                granted[slot] = windows.grant(slot as u32, promise, free, ask);
                let after = windows.promised(0);
                // A grant never makes the sum exceed what is free; it may already exceed it only by
                // rounding.
                assert!(
                    after <= free.max(before),
                    "seed {seed} step {step}: {after} promised, {free} free"
                );
            }
            for (slot, promise) in promises.iter_mut().enumerate() {
                windows.release(slot as u32, promise);
            }
            assert_eq!(
                (windows.promised(0), windows.queues[0].starved.len()),
                (0, 0),
                "seed {seed}"
            );
        }
    }

    #[test]
    fn tiny_packets_shrink_what_is_promised_of_the_same_memory() {
        let mut windows = Windows::new(1);
        let mut promise = Promise::new(0);
        let whole = 8 * MIB;
        let before = windows.grant(0, &mut promise, whole, ask(0, 1 << 30));
        for _ in 0..10_000 {
            promise.note_packet(1);
        }
        let after = windows.grant(0, &mut promise, whole, ask(0, 1 << 30));
        assert!(after < before / 60, "{before} {after}");
        for _ in 0..10_000 {
            promise.note_packet(65_160);
        }
        assert!(windows.grant(0, &mut promise, whole, ask(0, 1 << 30)) >= before);
    }

    #[test]
    fn what_a_pruned_connection_was_promised_is_others_until_it_delivers() {
        let mut windows = Windows::new(1);
        let (whole, floor) = (8 * MIB, 4 * u64::from(MSS));
        let mut pruned = Promise::new(0);
        assert_eq!(windows.grant(0, &mut pruned, whole, ask(whole, 0)), whole);
        let mut other = Promise::new(0);
        assert_eq!(windows.grant(1, &mut other, whole, ask(0, MIB)), 0);
        windows.revoke(&mut pruned, MIB);
        // Its peer still sees the window.
        assert_eq!(windows.grant(0, &mut pruned, whole, ask(whole, 0)), whole);
        assert_eq!(windows.promised(0), floor);
        assert!(windows.grant(1, &mut other, whole, ask(0, MIB)) > MIB);
        windows.release(1, &mut other);
        windows.grant(0, &mut pruned, whole, ask(whole, MIB));
        assert_eq!(windows.promised(0), whole);
    }

    #[test]
    fn a_byte_per_packet_does_not_set_aside_the_memory_of_others() {
        let mut windows = Windows::new(1);
        let whole = 8 * MIB;
        let mut tiny: Vec<_> = (0..5).map(|_| Promise::new(0)).collect();
        for (slot, promise) in tiny.iter_mut().enumerate() {
            windows.grant(slot as u32, promise, whole, ask(0, 0));
            (0..1000).for_each(|_| promise.note_packet(1));
            windows.grant(slot as u32, promise, whole, ask(INITIAL_PROMISE, 0));
        }
        assert_eq!(windows.promised(0), 5 * INITIAL_PROMISE);
    }

    #[test]
    fn starved_connections_are_visited_once_each_in_order_when_memory_comes_home() {
        let mut windows = Windows::new(1);
        let mut promises: Vec<_> = (0..3).map(|_| Promise::new(0)).collect();
        for (slot, promise) in promises.iter_mut().enumerate() {
            assert_eq!(windows.grant(slot as u32, promise, 0, ask(0, 0)), 0);
        }
        assert!(!windows.any_to_visit());
        windows.note_free(0, 1);
        for slot in 0..3 {
            assert!(windows.any_to_visit());
            assert_eq!(windows.next_starved(0), Some(slot));
            let promise = &mut promises[slot as usize];
            Windows::visited(promise);
            assert_eq!(windows.grant(slot, promise, 0, ask(0, 0)), 0);
        }
        assert_eq!(windows.next_starved(0), None);
        windows.note_free(0, 1);
        assert_eq!(windows.next_starved(0), None, "nothing more came home");
        windows.note_free(0, 2);
        windows.release(0, &mut promises[0]);
        assert_eq!(windows.next_starved(0), Some(1));
    }

    #[test]
    fn a_connection_that_moves_takes_its_promise_along() {
        let mut windows = Windows::new(2);
        let mut promise = Promise::new(0);
        windows.grant(0, &mut promise, MIB, ask(0, 1 << 20));
        let promised = windows.promised(0);
        windows.migrate(0, &mut promise, 1);
        assert_eq!((windows.promised(0), windows.promised(1)), (0, promised));
    }
}
