//! The rate of an honest stream while an attacker uses memory of the same queue.
//!
//! Time is virtual and the wire has a rate, so that the throughput does not depend on the machine.

mod hoard;
mod idle;
mod rebind;
mod small;

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use netmem::NiovSize;
use netsim::{Door as _, Intruder, IntruderConnection, Keep, PairConfig, Pattern, Progress, Side};
use stack::SocketId;

use crate::scenarios::common::PORT;
use crate::scenarios::{Pair, Sink, Source};

/// Bytes of one net_iov.
const NIOV: u64 = 64 << 10;

/// The port on which side B listens for the intruder.
const OPEN_PORT: u16 = 80;

/// Configuration of the honest stream and its memory.
#[derive(Debug, Clone, Copy)]
struct Honest {
    ip: IpAddr,
    memory: usize,
    keep: Keep,
    linear: usize,
    /// Rate and delay of the wire.
    wire: &'static str,
}

impl Honest {
    fn new() -> Self {
        Self {
            ip: Side::B.ipv4(),
            memory: 4 << 20,
            keep: Keep::Nothing,
            linear: 0,
            wire: "rate=1gbit,delay=100us",
        }
    }
}

/// An honest stream from A to B over a wire, and an intruder on that wire.
struct Siege {
    pair: Pair,
    intruder: Intruder,
    source: Source,
    sink: Sink,
    ends: (SocketId, SocketId),
    listener: SocketId,
    attackers: Vec<IntruderConnection>,
    /// The accepted connections of the intruder.
    victims: Vec<SocketId>,
    ip: IpAddr,
}

impl Siege {
    fn new(honest: Honest) -> Self {
        let Honest {
            ip,
            memory,
            keep,
            linear,
            wire,
        } = honest;
        let config = PairConfig {
            impairment: Some(wire.parse().unwrap()),
            linear_bytes: linear,
            host_mem_bytes: 4 << 20,
            ..PairConfig::default()
        };
        let (mut pair, intruder) = Pair::with_intruder(&config);
        let id = pair.bind(Side::B, memory, NiovSize::DEFAULT, &[0]);
        let (receiver, sender) = pair.connect(Side::B, ip, PORT);
        let listener = pair.b.listen(SocketAddr::new(ip, OPEN_PORT), 2048).unwrap();
        let pattern = Pattern::new(7);
        // More than any run sends; the run ends the stream.
        let source = Source::new(sender, pattern, 1 << 40, 8 << 10);
        let sink = Sink::new(receiver, pattern)
            .with_memory(id, pair.dmabuf(Side::B, id))
            .keeping(keep);
        Self {
            pair,
            intruder,
            source,
            sink,
            ends: (receiver, sender),
            listener,
            attackers: Vec::new(),
            victims: Vec::new(),
            ip,
        }
    }

    /// Opens `count` connections of the intruder.
    fn open(&mut self, count: u16) {
        let to = SocketAddr::new(self.ip, OPEN_PORT);
        for port in 0..count {
            let port = 10_000 + port;
            self.intruder.send_syn(port, to);
            let (intruder, mut opened) = (self.intruder.clone(), None);
            self.pair
                .run(|_| {
                    opened = opened.or_else(|| intruder.take_syn_ack(port, to));
                    match opened {
                        Some(_) if intruder.waiting() == 0 => Progress::Done,
                        _ => Progress::Waiting,
                    }
                })
                .unwrap();
            self.attackers.extend(opened);
        }
        while let Ok((id, _)) = self.pair.b.accept(self.listener) {
            self.victims.push(id);
        }
        assert_eq!(self.victims.len(), usize::from(count));
    }

    /// Runs the honest stream for `bytes`, or at most a virtual minute, and calls `attack` once for each net_iov of
    /// received bytes. Returns the rate in bytes per virtual second.
    fn run(&mut self, bytes: u64, attack: impl FnMut(&Intruder, &[IntruderConnection])) -> f64 {
        self.run_until(bytes, Duration::from_secs(60), attack)
    }

    /// As [`Siege::run`], for a given time.
    fn run_for(
        &mut self,
        duration: Duration,
        attack: impl FnMut(&Intruder, &[IntruderConnection]),
    ) -> f64 {
        self.run_until(u64::MAX / 2, duration, attack)
    }

    fn run_until(
        &mut self,
        bytes: u64,
        limit: Duration,
        mut attack: impl FnMut(&Intruder, &[IntruderConnection]),
    ) -> f64 {
        let Self {
            pair,
            intruder,
            source,
            sink,
            attackers,
            ..
        } = self;
        let (start, first) = (pair.now(), sink.report().bytes());
        let deadline = start + limit;
        let mut next = first;
        pair.run(|pair| {
            let progress = source.run(&mut pair.a).and(sink.run(&mut pair.b));
            let received = sink.report().bytes();
            if received >= next {
                attack(intruder, attackers);
                next += NIOV;
            }
            match received - first >= bytes || pair.now() >= deadline {
                true => Progress::Done,
                false => progress,
            }
        })
        .unwrap_or_else(|error| panic!("{error:?} after {}", sink.report().bytes()));
        let took = pair.now().saturating_since(start);
        (sink.report().bytes() - first) as f64 / took.as_secs_f64()
    }

    /// Returns the drop counters of B that are not 0.
    fn drops(&self) -> BTreeMap<&'static str, u64> {
        self.pair.b.drops()
    }

    /// Returns how often a packet of B was dropped for `reason`.
    fn dropped(&self, reason: &str) -> u64 {
        self.pair.b.drops().get(reason).copied().unwrap_or(0)
    }

    /// Closes all sockets; all memory must have been given back.
    fn finish(mut self) {
        let (receiver, sender) = self.ends;
        self.sink.release(&mut self.pair.b, 0);
        drop(self.sink);
        self.pair.a.abort(sender).unwrap();
        self.pair.b.abort(receiver).unwrap();
        for id in self.victims {
            self.pair.b.abort(id).unwrap();
        }
        self.pair.b.close(self.listener).unwrap();
        self.pair.finish();
    }
}

/// Checks that an honest stream keeps 80 % of its rate under attack, and has 98 % of it afterwards.
fn assert_bearable(calm: f64, attacked: f64, after: f64) {
    assert!(
        attacked >= 0.8 * calm && after >= 0.98 * calm,
        "{:.1} MB/s before, {:.1} in the attack, {:.1} after it",
        calm / 1e6,
        attacked / 1e6,
        after / 1e6
    );
}
