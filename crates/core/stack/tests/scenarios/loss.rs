//! Loss, reordering, duplication, corruption and jitter with many seeds: every byte is right, and every net_iov is
//! given back.

use std::time::Duration;

use super::common::{PORT, drops};
use super::{Pair, Sink, Source};
use netmem::NiovSize;
use netsim::{Door as _, Keep, PairConfig, Pattern, Side};
use nic::Impairment;

/// Parameters of one run.
#[derive(Debug, Clone, Copy)]
struct Case {
    seed: u64,
    impairment: Impairment,
    memory: usize,
    niov: usize,
    chunk: usize,
    keep: Keep,
    ipv6: bool,
    linear: usize,
    ecn: tcp::EcnPolicy,
}

/// Statistics of the frames of one or several runs.
#[derive(Debug, Default)]
struct Fate {
    /// How many frames more were sent than arrived.
    lost: i64,
    /// How many arrived with a wrong checksum.
    corrupt: u64,
    /// How many the wire marked (congestion experienced).
    marked: u64,
    /// How often a sender reduced its window because of a mark.
    reductions: u64,
    /// The smallest round trip of the sender of each run.
    round_trips: Vec<Duration>,
}

impl Fate {
    fn add(&mut self, other: Self) {
        let Self {
            lost,
            corrupt,
            marked,
            reductions,
            round_trips,
        } = other;
        self.lost += lost;
        self.corrupt += corrupt;
        self.marked += marked;
        self.reductions += reductions;
        self.round_trips.extend(round_trips);
    }
}

impl Case {
    /// Derives all parameters except the impairment from a seed.
    fn new(seed: u64, impairment: &str) -> Self {
        let pick = |bits: u32, choices: &[usize]| choices[(seed >> bits) as usize % choices.len()];
        Self {
            seed,
            impairment: impairment.parse().unwrap(),
            memory: pick(0, &[256 << 10, 1 << 20, 4 << 20]),
            niov: pick(1, &[4096, 65_536]),
            chunk: pick(2, &[100, 1448, 9000, 65_536]),
            keep: [Keep::Nothing, Keep::Tokens(10), Keep::Nothing][seed as usize % 3],
            ipv6: seed.is_multiple_of(5),
            linear: pick(3, &[0, 0, 0, 64]),
            ecn: match impairment.contains("ce=") {
                true => [tcp::EcnPolicy::Request, tcp::EcnPolicy::Accurate][seed as usize % 2],
                false => tcp::EcnPolicy::Accept,
            },
        }
    }

    /// Runs the transfer to its end, and checks every byte.
    #[expect(
        clippy::too_many_lines,
        reason = "one scenario, read from top to bottom"
    )]
    fn run(&self) -> Fate {
        let config = PairConfig {
            seed: self.seed,
            impairment: Some(self.impairment),
            linear_bytes: self.linear,
            tcp: tcp::Config {
                ecn: tcp::EcnConfig {
                    policy: self.ecn,
                    ..tcp::EcnConfig::default()
                },
                ..tcp::Config::default()
            },
            ..PairConfig::default()
        };
        let mut pair = Pair::new(&config);
        let id = pair.bind(
            Side::B,
            self.memory,
            NiovSize::new(self.niov).unwrap(),
            &[0],
        );
        let ip = if self.ipv6 {
            Side::B.ipv6()
        } else {
            Side::B.ipv4()
        };
        let (receiver, sender) = pair.connect(Side::B, ip, PORT);
        let total = 150_000;
        let (there, back) = (Pattern::new(self.seed), Pattern::new(!self.seed));
        let mut source = Source::new(sender, there, total, self.chunk);
        let mut reply = Source::new(receiver, back, 20_000, 3000);
        let mut sink = Sink::new(receiver, there)
            .with_memory(id, pair.dmabuf(Side::B, id))
            .keeping(self.keep);
        let mut answer = Sink::new(sender, back);
        let (mut reductions, mut round_trip) = (0, Duration::MAX);
        let ran = pair.run(|pair| {
            // Read during the run: a connection that has ended has no statistics.
            let infos = [pair.a.info(sender), pair.b.info(receiver)];
            let [a, b] = infos.map(|info| info.ok().flatten());
            let both = [&a, &b]
                .into_iter()
                .flatten()
                .map(|info| info.ecn_reductions);
            reductions = reductions.max(both.sum());
            if let Some(info) = a.filter(|info| !info.min_rtt.is_zero()) {
                round_trip = round_trip.min(info.min_rtt);
            }
            let sent = source.run(&mut pair.a).and(answer.run(&mut pair.a));
            sent.and(sink.run(&mut pair.b)).and(reply.run(&mut pair.b))
        });
        let report = sink.report();
        assert!(
            ran.is_ok(),
            "{ran:?} {self:?} {report:?} {:?} {:?}",
            drops(&pair.a),
            drops(&pair.b)
        );
        assert_eq!(
            (report.bytes(), answer.report().bytes()),
            (total, 20_000),
            "{self:?}"
        );
        assert_eq!(report.readable_bytes, 0, "{self:?}");
        assert_eq!(drops(&pair.b).get("rx_no_buffers"), None, "{self:?}");
        // Packets in flight arrive.
        pair.run_for(Duration::from_millis(100));
        let ends = [&pair.a, &pair.b];
        let sent: u64 = ends
            .iter()
            .map(|end| end.look(|stack| stack.nic().tx_stats().frames))
            .sum();
        let arrived: u64 = ends
            .iter()
            .map(|end| end.stats().rx_packets + end.look(|stack| stack.nic().drops().total()))
            .sum();
        let corrupt = ends
            .iter()
            .map(|end| end.look(|stack| stack.nic().drops().get(nic::DropReason::RxBadChecksum)))
            .sum();
        // One conditioner, at side A, treats both directions.
        let wire = pair.a.look(|stack| stack.nic().link().impairment_stats());
        let wire = wire.expect("the wire is impaired");
        sink.release(&mut pair.b, 0);
        drop((sink, answer));
        pair.a.close(sender).unwrap();
        pair.b.close(receiver).unwrap();
        pair.finish();
        Fate {
            lost: sent as i64 - arrived as i64,
            corrupt,
            marked: wire.rx.marked + wire.tx.marked,
            reductions,
            round_trips: vec![round_trip],
        }
    }
}

/// Runs all seeds; returns the sum of their statistics.
fn sweep(impairment: &str, seeds: std::ops::Range<u64>) -> Fate {
    let mut sum = Fate::default();
    for seed in seeds {
        let case = Case::new(seed, impairment);
        match std::panic::catch_unwind(|| case.run()) {
            Ok(fate) => sum.add(fate),
            Err(_) => panic!("seed {seed} of {impairment}: {case:?}"),
        }
    }
    sum
}

#[test]
fn one_percent_loss() {
    let Fate { lost, .. } = sweep("loss=1%", 0..30);
    assert!(lost > 40, "{lost} frames were lost");
}

#[test]
fn five_percent_loss() {
    let Fate { lost, .. } = sweep("loss=5%", 100..130);
    assert!(lost > 200, "{lost} frames were lost");
}

#[test]
fn reordering() {
    let Fate { lost, .. } = sweep("reorder=5%,delay=1ms", 200..230);
    assert!(lost.abs() < 30, "reordering loses nothing: {lost}");
}

#[test]
fn duplication() {
    let Fate { lost, .. } = sweep("dup=5%", 300..330);
    assert!(lost < -200, "{lost} fewer frames were sent than arrived");
}

#[test]
fn corruption() {
    let Fate { corrupt, .. } = sweep("corrupt=3%", 400..430);
    assert!(corrupt > 100, "{corrupt} frames were corrupt");
}

#[test]
fn jitter() {
    let constant = sweep("delay=20ms", 500..505);
    let varied = sweep("delay=20ms,jitter=10ms", 500..520);
    let there_and_back = Duration::from_millis(40);
    // Without jitter no round trip is shorter than both delays; with it some frames are faster, each run's others.
    let is_constant = |rtt: &&Duration| **rtt >= there_and_back;
    assert!(constant.round_trips.iter().all(|rtt| is_constant(&rtt)));
    let faster = varied.round_trips.iter().filter(|rtt| !is_constant(rtt));
    assert!(faster.count() >= 18, "{varied:?}");
    let mut distinct = varied.round_trips.clone();
    distinct.sort();
    distinct.dedup();
    assert!(distinct.len() >= 15, "{varied:?}");
    assert_eq!(varied.lost, 0, "jitter loses nothing");
}

#[test]
fn all_together() {
    let Fate { corrupt, .. } = sweep(
        "loss=2%,reorder=2%,dup=2%,corrupt=2%,delay=5ms,jitter=2ms",
        600..640,
    );
    assert!(corrupt > 100, "{corrupt} frames were corrupt");
}

#[test]
fn marks() {
    let fate = sweep("ce=5%,delay=1ms", 900..920);
    assert!(fate.marked > 50, "{fate:?}");
    assert!(fate.reductions > 10, "senders heard of them: {fate:?}");
    // Packets that cannot be marked are dropped: ACKs without payload and SYNs.
    assert!(fate.lost > 0, "{fate:?}");
}

#[test]
fn marks_and_losses() {
    let fate = sweep(
        "ce=10%,loss=2%,reorder=2%,dup=2%,corrupt=1%,delay=2ms,jitter=1ms",
        920..940,
    );
    assert!(fate.marked > 100 && fate.reductions > 20, "{fate:?}");
}

#[test]
fn a_slow_link_with_a_short_queue() {
    let _ = sweep("rate=10mbit,limit=20,delay=2ms", 700..710);
}

#[test]
fn half_of_everything_is_lost_and_it_still_gets_through() {
    let _ = sweep("loss=30%", 800..805);
}

#[test]
fn a_cable_that_is_pulled_and_put_back_costs_nothing_but_time() {
    for seed in 0..5 {
        let mut pair = Pair::new(&PairConfig {
            seed,
            ..PairConfig::default()
        });
        let id = pair.bind(Side::B, 1 << 20, NiovSize::DEFAULT, &[0]);
        let (receiver, sender) = pair.connect(Side::B, Side::B.ipv4(), PORT);
        let pattern = Pattern::new(seed);
        let mut source = Source::new(sender, pattern, 1_000_000, 9000);
        let mut sink = Sink::new(receiver, pattern).with_memory(id, pair.dmabuf(Side::B, id));
        let (mut pulled, mut plugged) = (None, false);
        pair.run(|pair| {
            let progress = source.run(&mut pair.a).and(sink.run(&mut pair.b));
            if pulled.is_none() && sink.report().bytes() > 200_000 * (seed + 1) / 2 {
                pair.cable().pull();
                pulled = Some(pair.now());
            }
            if !plugged
                && pulled.is_some_and(|at| pair.now().saturating_since(at) > Duration::from_secs(7))
            {
                pair.cable().plug();
                plugged = true;
            }
            progress
        })
        .unwrap();
        assert!(plugged, "seed {seed}");
        assert_eq!(sink.report().device_bytes, 1_000_000);
        drop(sink);
        pair.a.close(sender).unwrap();
        pair.b.close(receiver).unwrap();
        pair.finish();
    }
}
