//! One direction of an impaired link: frames are pushed in, and popped later, changed or not at all.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::time::Duration;

use wire::{EthernetHeader, Instant, Marking, mark_ce};

use super::impairment::{Impairment, Probability, REORDER_HOLD};

/// Counters of one direction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ConditionerStats {
    /// Frames pushed in.
    pub offered: u64,
    /// Frames popped, duplicates included.
    pub delivered: u64,
    /// Frames lost on purpose, including those larger than the MTU, and those that met congestion and are not
    /// ECN-capable.
    pub lost: u64,
    /// Frames marked "congestion experienced".
    pub marked: u64,
    /// Frames delivered twice.
    pub duplicated: u64,
    /// Frames with a flipped bit.
    pub corrupted: u64,
    /// Frames held back to be overtaken by others.
    pub reordered: u64,
    /// Frames lost because the queue was at its limit.
    pub overflowed: u64,
}

/// Counters of both directions of an [`Impaired`](crate::Impaired) link.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ImpairedStats {
    /// Received frames.
    pub rx: ConditionerStats,
    /// Sent frames.
    pub tx: ConditionerStats,
    /// Sent frames that the inner link refused.
    pub tx_refused: u64,
}

/// One direction of an impaired link.
///
/// It has frames and times as input, and no [`Link`](crate::Link): [`Impaired`](crate::Impaired) has two of them around a
/// link, the tool's `wire` command two between two TAPs. The same seed, frames and times give the same
/// result.
#[derive(Debug)]
pub struct Conditioner {
    impairment: Impairment,
    rng: Pcg32,
    /// Frames in flight, by due time, then in the order they were sent.
    under_way: BinaryHeap<Reverse<UnderWay>>,
    /// Frames that wait to be overtaken: a few at usual rates.
    held: Vec<ReorderedFrame>,
    sent: u64,
    last_due: Instant,
    line_free: Instant,
    spare: Vec<Vec<u8>>,
    stats: ConditionerStats,
}

/// A frame in flight. The first two fields determine the order: no two frames have the same `order`.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct UnderWay {
    due: Instant,
    order: u64,
    frame: Vec<u8>,
}

#[derive(Debug)]
struct ReorderedFrame {
    frame: Vec<u8>,
    overtakers: u32,
    until: Instant,
}

impl Conditioner {
    /// Returns a direction without frames.
    pub fn new(impairment: Impairment) -> Self {
        Self {
            impairment,
            rng: Pcg32::new(impairment.seed),
            under_way: BinaryHeap::new(),
            held: Vec::new(),
            sent: 0,
            last_due: Instant::ZERO,
            line_free: Instant::ZERO,
            spare: Vec::new(),
            stats: ConditionerStats::default(),
        }
    }

    /// Adds a frame that is sent at `now`; the bytes are copied.
    pub fn push(&mut self, frame: &[u8], now: Instant) {
        self.release_held(now);
        self.stats.offered += 1;
        let too_big = |mtu: u16| frame.len() > usize::from(mtu) + EthernetHeader::LEN;
        if self.roll(self.impairment.loss) || self.impairment.mtu.is_some_and(too_big) {
            self.stats.lost += 1;
            return;
        }
        if self.roll(self.impairment.duplicate) {
            self.stats.duplicated += 1;
            self.admit(frame, now);
        }
        self.admit(frame, now);
    }

    /// Moves the next frame that is due at `now` into `out`; returns false if there is none.
    ///
    /// The old allocation of `out` is kept for a later frame: in steady state nothing is allocated.
    pub fn pop(&mut self, now: Instant, out: &mut Vec<u8>) -> bool {
        self.release_held(now);
        match self.under_way.peek() {
            Some(Reverse(first)) if first.due <= now => {}
            _ => return false,
        }
        let Some(Reverse(UnderWay { frame, .. })) = self.under_way.pop() else {
            return false;
        };
        self.spare.push(std::mem::replace(out, frame));
        self.stats.delivered += 1;
        true
    }

    /// Returns when [`pop`](Self::pop) will next return a frame, `None` if there is no frame inside.
    pub fn next_due(&self) -> Option<Instant> {
        let under_way = self.under_way.peek().map(|Reverse(first)| first.due);
        let held = self.held.iter().map(|held| held.until).min();
        under_way.into_iter().chain(held).min()
    }

    /// Returns the number of frames inside.
    pub fn len(&self) -> usize {
        self.under_way.len() + self.held.len()
    }

    /// True if no frame is inside.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the counters.
    pub fn stats(&self) -> ConditionerStats {
        self.stats
    }

    fn admit(&mut self, frame: &[u8], now: Instant) {
        if self.len() >= self.impairment.limit as usize {
            self.stats.overflowed += 1;
            return;
        }
        let mut copy = self.spare.pop().unwrap_or_default();
        copy.clear();
        copy.extend_from_slice(frame);
        if self.roll(self.impairment.ce) && !self.survives_congestion(&mut copy) {
            self.spare.push(copy);
            return;
        }
        if self.waits_too_long(now) && mark_ce(&mut copy) == Marking::Marked {
            self.stats.marked += 1;
        }
        if self.roll(self.impairment.corrupt) && self.flip_a_bit(&mut copy) {
            self.stats.corrupted += 1;
        }
        if self.roll(self.impairment.reorder) {
            self.stats.reordered += 1;
            let overtakers = self.impairment.reorder_gap;
            self.held.push(ReorderedFrame {
                frame: copy,
                overtakers,
                until: now + REORDER_HOLD,
            });
        } else {
            self.send(copy, now);
            self.overtake(now);
        }
    }

    /// Returns whether a frame waits for the line for longer than one may without a mark.
    fn waits_too_long(&self, now: Instant) -> bool {
        let most = self.impairment.ce_threshold;
        most.is_some_and(|most| self.line_free.saturating_since(now) > most)
    }

    /// Marks a frame; returns false if it must be dropped instead.
    fn survives_congestion(&mut self, frame: &mut [u8]) -> bool {
        let marking = mark_ce(frame);
        match marking {
            Marking::Marked => self.stats.marked += 1,
            Marking::NotCapable => self.stats.lost += 1,
            Marking::NotIp => {}
        }
        marking != Marking::NotCapable
    }

    /// Schedules a frame: it is sent when the line is free, and due after the delay.
    fn send(&mut self, frame: Vec<u8>, now: Instant) {
        let mut leaves = now;
        if let Some(rate) = self.impairment.rate {
            leaves = leaves.max(self.line_free) + serialisation(frame.len(), rate);
            self.line_free = leaves;
        }
        let mut due = leaves + self.wobbled_delay();
        if self.impairment.ordered {
            due = due.max(self.last_due);
        }
        self.last_due = due;
        self.sent += 1;
        self.under_way.push(Reverse(UnderWay {
            due,
            order: self.sent,
            frame,
        }));
    }

    /// Counts a frame that overtakes the held ones, and sends those that have been overtaken often enough.
    fn overtake(&mut self, now: Instant) {
        for held in &mut self.held {
            held.overtakers = held.overtakers.saturating_sub(1);
        }
        while let Some(index) = self.held.iter().position(|held| held.overtakers == 0) {
            let held = self.held.remove(index);
            self.send(held.frame, now);
        }
    }

    /// Sends held frames when their maximum time is over.
    fn release_held(&mut self, now: Instant) {
        while let Some(index) = self.held.iter().position(|held| held.until <= now) {
            let held = self.held.remove(index);
            self.send(held.frame, held.until);
        }
    }

    fn wobbled_delay(&mut self) -> Duration {
        let Impairment { delay, jitter, .. } = self.impairment;
        if jitter.is_zero() {
            return delay;
        }
        let width = u64::try_from(jitter.as_nanos())
            .unwrap_or(u64::MAX)
            .saturating_mul(2);
        let offset = Duration::from_nanos(self.rng.below_u64(width.saturating_add(1)));
        (delay + offset).saturating_sub(jitter)
    }

    fn flip_a_bit(&mut self, frame: &mut [u8]) -> bool {
        let Some(body) = frame
            .get_mut(EthernetHeader::LEN..)
            .filter(|body| !body.is_empty())
        else {
            return false;
        };
        let bit = self.rng.below_u64(body.len() as u64 * 8);
        // In range: `bit` is below eight times the length.
        body[(bit / 8) as usize] ^= 1 << (bit % 8);
        true
    }

    fn roll(&mut self, probability: Probability) -> bool {
        probability != Probability::NEVER && self.rng.below(1_000_000) < probability.ppm()
    }
}

fn serialisation(bytes: usize, bits_per_second: u64) -> Duration {
    let bit_ns = (bytes as u64).saturating_mul(8 * 1_000_000_000);
    Duration::from_nanos(bit_ns / bits_per_second.max(1))
}

/// PCG-XSH-RR 64/32 (M. E. O'Neill, "PCG: A Family of Simple Fast Space-Efficient Statistically Good
/// Algorithms for Random Number Generation", 2014). Not for secrets.
#[derive(Debug)]
struct Pcg32 {
    state: u64,
}

impl Pcg32 {
    const MULTIPLIER: u64 = 6_364_136_223_846_793_005;
    const INCREMENT: u64 = 1_442_695_040_888_963_407;

    fn new(seed: u64) -> Self {
        let mut rng = Self {
            state: seed.wrapping_add(Self::INCREMENT),
        };
        rng.next();
        rng
    }

    fn next(&mut self) -> u32 {
        let old = self.state;
        self.state = old
            .wrapping_mul(Self::MULTIPLIER)
            .wrapping_add(Self::INCREMENT);
        // The output is the low half of the shifted state, rotated by its top five bits.
        let shifted = (((old >> 18) ^ old) >> 27) as u32;
        shifted.rotate_right((old >> 59) as u32)
    }

    /// Returns a number below `bound` (Lemire's multiplication; its bias of 2^-32 per value does not matter here).
    fn below(&mut self, bound: u32) -> u32 {
        ((u64::from(self.next()) * u64::from(bound)) >> 32) as u32
    }

    fn below_u64(&mut self, bound: u64) -> u64 {
        let wide = (u64::from(self.next()) << 32) | u64::from(self.next());
        ((u128::from(wide) * u128::from(bound)) >> 64) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn impaired(text: &str) -> Conditioner {
        Conditioner::new(text.parse().expect("a valid impairment"))
    }

    /// Returns a frame that contains its number.
    fn frame(n: u32) -> Vec<u8> {
        let mut frame = vec![0; EthernetHeader::LEN];
        frame.extend_from_slice(&n.to_be_bytes());
        frame
    }

    fn number(frame: &[u8]) -> u32 {
        u32::from_be_bytes(frame[EthernetHeader::LEN..].try_into().expect("four bytes"))
    }

    /// Offers frames 0..n one per `step`, then lets all come out; returns (when, which). When is by a clock of such
    /// steps until the last frame is offered.
    fn run(conditioner: &mut Conditioner, n: u32, step: Duration) -> Vec<(Instant, u32)> {
        let mut out = Vec::new();
        let mut buffer = Vec::new();
        let mut now = Instant::ZERO;
        for i in 0..n {
            conditioner.push(&frame(i), now);
            while conditioner.pop(now, &mut buffer) {
                out.push((now, number(&buffer)));
            }
            now = now + step;
        }
        while let Some(due) = conditioner.next_due() {
            now = now.max(due);
            while conditioner.pop(now, &mut buffer) {
                out.push((now, number(&buffer)));
            }
        }
        assert!(conditioner.is_empty());
        out
    }

    fn numbers(out: &[(Instant, u32)]) -> Vec<u32> {
        out.iter().map(|&(_, n)| n).collect()
    }

    #[test]
    fn without_impairments_frames_pass_at_once_and_in_order() {
        let mut conditioner = impaired("none");
        let out = run(&mut conditioner, 100, Duration::from_micros(1));
        assert_eq!(numbers(&out), (0..100).collect::<Vec<_>>());
        assert!(
            out.iter()
                .all(|&(at, n)| at.as_nanos() == u64::from(n) * 1000)
        );
        assert_eq!(conditioner.stats().delivered, 100);
    }

    #[test]
    fn the_same_seed_gives_the_same_result_and_another_seed_another() {
        let text = "loss=10%,reorder=10%,dup=10%,corrupt=10%,delay=5ms,jitter=2ms";
        let fate = |seed: u64| {
            run(
                &mut impaired(&format!("{text},seed={seed}")),
                500,
                Duration::from_micros(100),
            )
        };
        assert_eq!(fate(7), fate(7));
        assert_ne!(fate(7), fate(8));
    }

    #[test]
    fn packets_larger_than_the_mtu_are_lost() {
        let mut conditioner = impaired("mtu=100");
        let mut out = Vec::new();
        for len in [14 + 100, 14 + 101] {
            conditioner.push(&vec![0; len], Instant::ZERO);
        }
        assert!(conditioner.pop(Instant::ZERO, &mut out));
        assert_eq!(out.len(), 114);
        assert!(!conditioner.pop(Instant::ZERO, &mut out));
        assert_eq!((conditioner.stats().lost, conditioner.len()), (1, 0));
    }

    #[test]
    fn loss_is_about_its_probability_and_counted() {
        let mut conditioner = impaired("loss=10%,seed=3");
        let out = run(&mut conditioner, 10_000, Duration::ZERO);
        let stats = conditioner.stats();
        assert_eq!(out.len() as u64 + stats.lost, 10_000);
        assert!((800..1200).contains(&stats.lost), "{stats:?}");
        assert_eq!(run(&mut impaired("loss=100%"), 10, Duration::ZERO), []);
    }

    #[test]
    fn congestion_marks_ecn_capable_packets_and_drops_others() {
        let mut conditioner = impaired("ce=100%");
        let mut out = Vec::new();
        for (tos, arrives) in [(0, None), (1, Some(3)), (2, Some(3)), (3, Some(3))] {
            let mut ipv6 = frame(6 << 28 | tos << 20);
            ipv6[12..14].copy_from_slice(&[0x86, 0xdd]);
            conditioner.push(&ipv6, Instant::ZERO);
            let arrived = conditioner.pop(Instant::ZERO, &mut out);
            assert_eq!(arrived.then(|| number(&out) >> 20 & 3), arrives, "{tos}");
        }
        // What is not IP meets no router.
        conditioner.push(&frame(1), Instant::ZERO);
        assert!(conditioner.pop(Instant::ZERO, &mut out));
        let stats = conditioner.stats();
        assert_eq!((stats.marked, stats.lost, stats.delivered), (3, 1, 4));
    }

    #[test]
    fn ecn_capable_packets_that_wait_too_long_are_marked_and_others_pass() {
        // 18 bytes take 1 ms: the third waits for 2 ms, and the fourth for 3.
        for (tos, expected) in [(2, [2, 2, 2, 3]), (0, [0; 4])] {
            let mut conditioner = impaired("rate=144kbit,ce_threshold=2ms");
            let mut ipv6 = frame(6 << 28 | tos << 20);
            ipv6[12..14].copy_from_slice(&[0x86, 0xdd]);
            for _ in expected {
                conditioner.push(&ipv6, Instant::ZERO);
            }
            let mut out = Vec::new();
            let marks = expected.map(|_| {
                assert!(conditioner.pop(Instant::from_millis(4), &mut out));
                number(&out) >> 20 & 3
            });
            assert_eq!(marks, expected);
            let marked = expected.iter().filter(|&&ecn| ecn == 3).count();
            assert_eq!(conditioner.stats().marked, marked as u64);
        }
    }

    #[test]
    fn a_duplicate_is_the_same_frame_again() {
        let out = run(&mut impaired("dup=100%"), 3, Duration::ZERO);
        assert_eq!(numbers(&out), [0, 0, 1, 1, 2, 2]);
    }

    #[test]
    fn corruption_flips_exactly_one_bit_past_the_ethernet_header() {
        let mut conditioner = impaired("corrupt=100%");
        let mut out = Vec::new();
        for seed in 0..200 {
            let sent = frame(seed);
            conditioner.push(&sent, Instant::ZERO);
            assert!(conditioner.pop(Instant::ZERO, &mut out));
            assert_eq!(out[..EthernetHeader::LEN], sent[..EthernetHeader::LEN]);
            assert_eq!((number(&out) ^ seed).count_ones(), 1);
        }
        conditioner.push(&[1; EthernetHeader::LEN], Instant::ZERO);
        assert!(conditioner.pop(Instant::ZERO, &mut out));
        assert_eq!(out, [1; EthernetHeader::LEN]);
        assert_eq!(conditioner.stats().corrupted, 200);
    }

    #[test]
    fn a_reordered_frame_is_overtaken_by_gap_frames() {
        let mut conditioner = impaired("reorder=20%,gap=2,seed=5");
        let out = run(&mut conditioner, 1000, Duration::ZERO);
        let stats = conditioner.stats();
        assert!((120..280).contains(&stats.reordered), "{stats:?}");
        let order = numbers(&out);
        assert_ne!(order, (0..1000).collect::<Vec<_>>());
        let mut sorted = order.clone();
        sorted.sort_unstable();
        assert_eq!(sorted, (0..1000).collect::<Vec<_>>());
    }

    #[test]
    fn a_reordered_frame_is_delivered_even_if_nothing_follows() {
        let mut conditioner = impaired("reorder=100%,delay=1ms");
        let out = run(&mut conditioner, 1, Duration::ZERO);
        assert_eq!(
            out,
            [(Instant::ZERO + REORDER_HOLD + Duration::from_millis(1), 0)]
        );
    }

    #[test]
    fn delay_and_rate_add_up() {
        // 18 bytes at 144 kbit/s take 1 ms each.
        let out = run(&mut impaired("delay=5ms,rate=144kbit"), 3, Duration::ZERO);
        let due = [6, 7, 8].map(Instant::from_millis);
        assert_eq!(out, [(due[0], 0), (due[1], 1), (due[2], 2)]);
    }

    #[test]
    fn jitter_stays_in_its_width_and_reorders_unless_ordered() {
        let step = Duration::from_micros(10);
        let out = run(&mut impaired("delay=5ms,jitter=2ms"), 1000, step);
        assert!(!numbers(&out).is_sorted());
        let took = out.iter().map(|&(at, n)| {
            let sent = Instant::from_nanos(u64::from(n) * 10_000);
            at.saturating_since(sent)
        });
        let (least, most) = (took.clone().min().unwrap(), took.clone().max().unwrap());
        let ms = Duration::from_millis;
        assert!(
            least >= ms(3) && most <= ms(7) + step,
            "{least:?} to {most:?}"
        );
        // Nearly all of its width is used, and evenly: a thousand delays that vary.
        assert!(
            least < ms(3) + ms(4) / 50 && most > ms(7) - ms(4) / 50,
            "{least:?} to {most:?}"
        );
        for quarter in 0..4 {
            let range = ms(3 + quarter)..ms(4 + quarter);
            let share = took.clone().filter(|took| range.contains(took)).count();
            assert!((180..320).contains(&share), "{share} of 1000 in {range:?}");
        }
        let out = run(&mut impaired("delay=5ms,jitter=2ms,ordered"), 1000, step);
        assert_eq!(numbers(&out), (0..1000).collect::<Vec<_>>());
    }

    #[test]
    fn the_queue_limit_drops_the_newest_and_counts_them() {
        let mut conditioner = impaired("delay=1ms,limit=10");
        let out = run(&mut conditioner, 25, Duration::ZERO);
        assert_eq!(numbers(&out), (0..10).collect::<Vec<_>>());
        assert_eq!(conditioner.stats().overflowed, 15);
    }

    #[test]
    fn buffers_are_used_again() {
        let mut conditioner = impaired("none");
        let mut out = Vec::new();
        for n in 0..1000 {
            conditioner.push(&frame(n), Instant::ZERO);
            assert!(conditioner.pop(Instant::ZERO, &mut out));
        }
        assert!(conditioner.spare.len() <= 2);
    }
}
