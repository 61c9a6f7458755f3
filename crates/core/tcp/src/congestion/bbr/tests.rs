//! A connection on a model of a path: a bottleneck with a queue, a propagation delay, and random losses.

use std::collections::VecDeque;

use super::*;
use crate::congestion::delivery::DeliveryMeter;

const MSS: u16 = 1500;

/// A path: packets wait in a queue of `queue` bytes, leave at `rate` bytes per second, and are acknowledged after `delay`.
struct Path {
    rate: f64,
    delay: Duration,
    queue: u64,
    /// One packet of so many is lost on the way; 0: none.
    loses_one_of: u64,
    random: u64,
    /// When the bottleneck is free again.
    free_at: Instant,
    /// Packets on their way: when their ACK comes, when they were sent, whether they arrive.
    on_way: VecDeque<(Instant, Instant, bool)>,
}

impl Path {
    fn new(rate: f64, delay_ms: u64, queue: u64, loses_one_of: u64) -> Path {
        Path {
            rate,
            delay: Duration::from_millis(delay_ms),
            queue,
            loses_one_of,
            random: 0x2545_f491_4f6c_dd1d,
            free_at: Instant::from_millis(0),
            on_way: VecDeque::new(),
        }
    }

    fn send(&mut self, now: Instant) {
        let waiting = self.free_at.saturating_since(now).as_secs_f64() * self.rate;
        let is_dropped = waiting as u64 + u64::from(MSS) > self.queue + u64::from(MSS);
        if !is_dropped {
            let time = Duration::from_secs_f64(f64::from(MSS) / self.rate);
            self.free_at = self.free_at.max(now) + time;
        }
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        let is_lost = self.loses_one_of > 0 && self.random.is_multiple_of(self.loses_one_of);
        let acked_at = self.free_at.max(now) + self.delay;
        self.on_way
            .push_back((acked_at, now, !is_dropped && !is_lost));
    }
}

/// A sender that always has data.
struct Sender {
    bbr: Bbr,
    meter: DeliveryMeter,
    in_flight: u64,
    lost: u64,
    next_send: Instant,
    /// The longest round trip and the smallest window of the second half.
    longest: Duration,
    phases: Vec<&'static str>,
}

fn name(phase: Phase) -> &'static str {
    match phase {
        Phase::Startup => "startup",
        Phase::Drain { .. } => "drain",
        Phase::Down => "down",
        Phase::Cruise => "cruise",
        Phase::Refill => "refill",
        Phase::Up => "up",
        Phase::ProbeRtt { .. } => "probe-rtt",
    }
}

/// Sends for `seconds`; returns the sender and the bytes delivered in the second half.
fn run(path: &mut Path, seconds: u64) -> (Sender, u64) {
    let mut bbr = Bbr::new(7);
    bbr.open(10 * u64::from(MSS), Some(path.delay));
    let mut sender = Sender {
        bbr,
        meter: DeliveryMeter::default(),
        in_flight: 0,
        lost: 0,
        next_send: Instant::from_millis(0),
        longest: Duration::ZERO,
        phases: Vec::new(),
    };
    let mut now = Instant::from_millis(0);
    let half = Instant::from_millis(seconds * 500);
    let end = Instant::from_millis(seconds * 1000);
    let mut at_half = 0;
    while now < end {
        let can_send = sender.in_flight + u64::from(MSS) <= sender.bbr.cwnd();
        if !can_send {
            sender.bbr.on_limited_by_window();
        }
        let next_ack = path.on_way.front().map_or(end, |(at, ..)| *at);
        if can_send && sender.next_send <= next_ack {
            now = now.max(sender.next_send);
            sender.meter.on_sent(MSS.into(), sender.in_flight, now);
            sender.in_flight += u64::from(MSS);
            path.send(now);
            let pause = f64::from(MSS) / sender.bbr.pacing_rate() as f64;
            sender.next_send = now + Duration::from_secs_f64(pause);
            continue;
        }
        now = now.max(next_ack);
        let Some((_, sent_at, arrives)) = path.on_way.pop_front() else {
            break;
        };
        sender.take(sent_at, arrives, now);
        if now <= half {
            at_half = sender.meter.delivered();
        }
    }
    let delivered = sender.meter.delivered() - at_half;
    (sender, delivered)
}

impl Sender {
    fn take(&mut self, sent_at: Instant, arrives: bool, now: Instant) {
        self.in_flight -= u64::from(MSS);
        if !arrives {
            self.lost += u64::from(MSS);
            self.meter.on_lost(MSS.into());
            return;
        }
        let rtt = now.saturating_since(sent_at);
        self.longest = self.longest.max(rtt);
        let min_rtt = self.bbr.min_rtt.get();
        let sample = self
            .meter
            .on_delivered(MSS.into(), Some(sent_at), min_rtt, now);
        let ack = PathAck {
            sample,
            acked: MSS.into(),
            lost: std::mem::take(&mut self.lost),
            delivered: self.meter.delivered(),
            in_flight: self.in_flight,
            rtt: Some(rtt),
            mss: MSS,
            now,
        };
        self.bbr.on_ack(&ack);
        let phase = name(self.bbr.phase);
        if self.phases.last() != Some(&phase) {
            self.phases.push(phase);
        }
    }
}

/// The share of the path's rate that the second half of `seconds` used.
fn utilisation(path: &mut Path, seconds: u64) -> (Sender, f64) {
    let (sender, delivered) = run(path, seconds);
    let possible = path.rate * seconds as f64 / 2.0;
    (sender, delivered as f64 / possible)
}

#[test]
fn a_clean_path_is_filled_with_little_queue() {
    // 12.5 MB/s, 40 ms, a queue of four times what the path holds.
    let mut path = Path::new(12_500_000.0, 40, 2_000_000, 0);
    let (sender, used) = utilisation(&mut path, 20);
    assert!(used > 0.95, "{used}");
    assert_eq!(
        &sender.phases[..4],
        ["startup", "drain", "cruise", "refill"]
    );
    for phase in ["refill", "up", "probe-rtt"] {
        assert!(
            sender.phases.contains(&phase),
            "{phase}: {:?}",
            sender.phases
        );
    }
    let bandwidth = sender.bbr.bandwidth.get();
    assert!(
        (0.95..1.05).contains(&(bandwidth / path.rate)),
        "{bandwidth}"
    );
    assert_eq!(
        sender.bbr.min_rtt.get().map(|rtt| rtt.as_millis()),
        Some(40)
    );
    // A loss-based controller fills the queue: 200 ms.
    assert!(
        sender.longest < Duration::from_millis(170),
        "{:?}",
        sender.longest
    );
}

#[test]
fn random_losses_cost_a_fifth_at_most() {
    for delay_ms in [1, 20, 100] {
        for (loses_one_of, least) in [(1000, 0.91), (100, 0.86), (20, 0.80)] {
            let rate = 12_500_000.0;
            let queue = rate as u64 * delay_ms / 500;
            let mut path = Path::new(rate, delay_ms, queue, loses_one_of);
            let (_, used) = utilisation(&mut path, 20);
            assert!(used > least, "{delay_ms} ms, one of {loses_one_of}: {used}");
        }
    }
}

#[test]
fn random_losses_do_not_end_startup_before_the_path_is_full() {
    let mut path = Path::new(12_500_000.0, 100, 2_500_000, 20);
    let (sender, _) = run(&mut path, 2);
    assert_ne!(sender.bbr.phase, Phase::Startup);
    let found = sender.bbr.bandwidth.get() / path.rate;
    assert!(found > 0.85, "{found}");
}

#[test]
fn losses_of_a_full_queue_are_not_by_chance() {
    for delay_ms in [1, 10, 100] {
        for share in [0.05, 0.2, 0.5] {
            let rate = 12_500_000.0;
            let queue = (rate * delay_ms as f64 / 1000.0 * share) as u64;
            let mut path = Path::new(rate, delay_ms, queue, 0);
            let (sender, _) = run(&mut path, 20);
            let tolerated = sender.bbr.chance.tolerated();
            assert!(
                tolerated < 0.025,
                "{delay_ms} ms, queue {share}: {tolerated}"
            );
        }
    }
}

#[test]
fn a_shallow_queue_is_respected() {
    // A tenth of what the path holds.
    let mut path = Path::new(12_500_000.0, 40, 50_000, 0);
    let (sender, used) = utilisation(&mut path, 20);
    assert!(used > 0.7, "{used}");
    let delivered = sender.meter.delivered();
    assert!(sender.bbr.bounds.long_term.is_some(), "{:?}", sender.bbr);
    assert!(delivered > 0);
}

#[test]
fn a_path_that_gets_faster_is_found_to_be() {
    let mut path = Path::new(1_250_000.0, 20, 200_000, 0);
    let (_, slow) = utilisation(&mut path, 10);
    assert!(slow > 0.9, "{slow}");
    let mut path = Path::new(125_000_000.0, 5, 2_000_000, 0);
    let (_, fast) = utilisation(&mut path, 4);
    assert!(fast > 0.9, "{fast}");
}

#[test]
fn the_window_never_falls_below_four_segments() {
    let mut path = Path::new(100_000.0, 1, 3_000, 10);
    let (sender, _) = run(&mut path, 5);
    assert!(sender.bbr.cwnd() >= MIN_SEGMENTS * u64::from(MSS));
}

#[test]
fn a_reduction_that_was_none_is_taken_back() {
    let mut path = Path::new(12_500_000.0, 40, 2_000_000, 0);
    let (mut sender, _) = run(&mut path, 3);
    let before = sender.bbr.cwnd();
    let saved = sender.bbr.on_losses();
    sender.bbr.set_cwnd(2 * u64::from(MSS));
    sender.bbr.bounds.short_term = Some(3000);
    sender.bbr.undo(saved);
    assert_eq!(sender.bbr.cwnd(), before);
    assert_eq!(sender.bbr.bounds.short_term, None);
}
