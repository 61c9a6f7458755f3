//! Two connections and an impaired link between them, in virtual time: every byte
//! arrives once and in order, and both ends close.

use core::time::Duration;
use std::collections::BTreeMap;
use std::sync::Arc;

use netmem::Payload;
use wire::{Ecn, Instant};

use crate::test_config::{TestConfig, endpoints, test_link};
use crate::test_payload::{Bytes, live_runs};
use crate::test_random::Random;
use crate::test_socket::TestSocket;
use crate::*;

/// Most steps of a run: a run that does not end fails instead of hanging.
const MAX_STEPS: usize = 400_000;

/// Impairments of the link, in thousandths and milliseconds.
#[derive(Debug, Clone, Copy, Default)]
struct Impair {
    loss: u64,
    duplicate: u64,
    reorder: u64,
    jitter: u64,
    /// ECN-capable packets that are marked.
    ce: u64,
}

struct Host {
    conn: TestSocket,
    iss: SeqNum,
    /// Bytes to send, and the number of them that are queued.
    total: usize,
    written: usize,
    read: usize,
    saw_eof: bool,
    /// Bytes of memory for what is unread and what is promised.
    memory: usize,
}

impl Host {
    fn write(&mut self, rng: &mut Random) {
        let want = (self.total - self.written).min(1 + rng.below(20_000) as usize);
        let len = want.min(self.conn.write_room());
        if len > 0 {
            let payload = Bytes::pattern(self.iss + 1 + self.written, len);
            self.conn.send(payload, Push::Now).expect("there is room");
            self.written += len;
        }
        let is_open = matches!(
            self.conn.state(),
            StateKind::Established | StateKind::CloseWait
        );
        if self.written == self.total && is_open {
            self.conn.shutdown_write();
        }
    }

    fn read(&mut self, peer_iss: SeqNum, rng: &mut Random) {
        if rng.chance(600) {
            let max = 1 + rng.below(5000) as usize;
            while let Some(payload) = self.conn.recv_queue().pop(max) {
                let start = peer_iss + 1 + self.read;
                assert!(payload.is_pattern(start), "read {payload:?} at {start:?}");
                self.read += payload.len();
                if rng.chance(200) {
                    break;
                }
            }
        }
        self.saw_eof |= self.conn.is_at_end();
        let free = self.memory.saturating_sub(self.conn.readable_len());
        self.conn.set_rcv_space(free as u32);
        let held = self.conn.readable_len() + self.conn.out_of_order_len();
        assert!(
            held <= self.memory,
            "{held} bytes held in {} of memory",
            self.memory
        );
    }
}

struct Network {
    now: Instant,
    rng: Random,
    impair: Impair,
    hosts: [Host; 2],
    /// Packets in flight: (arrival time, sequence of sending) to (destination, packet).
    flying: BTreeMap<(Instant, u64), (usize, Segment<Bytes>)>,
    serial: u64,
}

impl Network {
    /// Opens a connection between two hosts; the impairments begin afterwards.
    fn new(config: &TestConfig, totals: [usize; 2], impair: Impair, seed: u64) -> Network {
        let mut rng = Random::new(seed);
        let now = Instant::from_millis(1000);
        let isns = IsnGenerator::new([seed as u8; 16]);
        let endpoints = endpoints(9);
        let mut backlog = SynBacklog::new(
            Arc::clone(&config.shared),
            config.settings.rcv_space_initial,
            8,
            isns,
            [1; 16],
        );
        let incoming = Incoming {
            settings: &config.settings,
            link: test_link(config.mss(&config.settings)),
            path_mss: None,
            accept_queue: AcceptQueue::HasRoom,
            iss_floor: None,
        };
        let iss = SeqNum(rng.next() as u32);
        let mut client = TestSocket::connect(config, iss, now);
        let syn = client.poll_send(now).expect("a SYN");
        let ListenOutcome::Reply(syn_ack, None) =
            backlog.on_segment(&endpoints, syn, incoming, now)
        else {
            panic!("no SYN-ACK");
        };
        let server_iss = syn_ack.seq;
        assert!(client.on_segment(syn_ack, now).established);
        let ack = client.poll_send(now).expect("an ACK");
        let ListenOutcome::Accepted(server, _) = backlog.on_segment(&endpoints, ack, incoming, now)
        else {
            panic!("not accepted");
        };
        let memory = config.settings.rcv_space_initial as usize;
        let host = |conn, iss, total| Host {
            conn,
            iss,
            total,
            written: 0,
            read: 0,
            saw_eof: false,
            memory,
        };
        let hosts = [
            host(client, iss, totals[0]),
            host(
                TestSocket::new(*server, config.settings),
                server_iss,
                totals[1],
            ),
        ];
        Network {
            now,
            rng,
            impair,
            hosts,
            flying: BTreeMap::new(),
            serial: 0,
        }
    }

    fn run(&mut self) {
        for _ in 0..MAX_STEPS {
            self.step();
            if self
                .hosts
                .iter()
                .all(|host| host.conn.state() == StateKind::Closed)
            {
                return;
            }
        }
        let states = self
            .hosts
            .each_ref()
            .map(|host| (host.conn.info(), host.written, host.read));
        panic!("not done after {MAX_STEPS} steps: {states:#?}");
    }

    /// Lets both hosts act, then moves to the next arrival or timer.
    fn step(&mut self) {
        for at in 0..2 {
            let peer_iss = self.hosts[1 - at].iss;
            self.hosts[at].write(&mut self.rng);
            self.hosts[at].read(peer_iss, &mut self.rng);
            self.transmit(at);
        }
        let timers = self.hosts.iter().filter_map(|host| host.conn.next_timer());
        let arrival = self.flying.keys().next().map(|&(when, _)| when);
        // A host with a slow reader is polled again soon.
        let look_again = self.now + Duration::from_millis(10);
        let dawdling = self
            .hosts
            .iter()
            .any(|host| host.conn.readable_len() > 0)
            .then_some(look_again);
        let next = timers.chain(arrival).chain(dawdling).min();
        self.now = self.now.max(next.unwrap_or(self.now));
        while let Some(entry) = self
            .flying
            .first_entry()
            .filter(|entry| entry.key().0 <= self.now)
        {
            let (to, packet) = entry.remove();
            let disposition = self.hosts[to].conn.on_segment(packet, self.now);
            if disposition.reply {
                self.transmit(to);
            }
        }
        for at in 0..2 {
            self.hosts[at].conn.on_drained();
            let _ = self.hosts[at].conn.on_timer(self.now);
            self.transmit(at);
        }
    }

    /// Cuts a host's segments into packets, as a NIC would, and puts them on the link.
    fn transmit(&mut self, from: usize) {
        while let Some(mut segment) = self.hosts[from].conn.poll_send(self.now) {
            while segment.gso_size > 0 && segment.payload.len() > usize::from(segment.gso_size) {
                let size = usize::from(segment.gso_size);
                let head = segment.payload.split_off_front(size);
                let packet = Segment {
                    control: Control::None,
                    push: false,
                    gso_size: 0,
                    payload: head,
                    ..segment.clone()
                };
                segment.seq += size;
                // CWR is in the first packet only (RFC 3168 6.1.2); with AccECN, super-segments have no CWR.
                segment.cwr = false;
                self.fly(1 - from, packet);
            }
            self.fly(1 - from, segment);
        }
    }

    fn fly(&mut self, to: usize, mut packet: Segment<Bytes>) {
        let Impair {
            loss,
            duplicate,
            reorder,
            jitter,
            ce,
        } = self.impair;
        if self.rng.chance(loss) {
            return;
        }
        if packet.ecn.is_ect() && self.rng.chance(ce) {
            packet.ecn = Ecn::Ce;
        }
        if self.rng.chance(duplicate) {
            self.launch(to, packet.clone(), jitter);
        }
        let late = if self.rng.chance(reorder) {
            15 + jitter
        } else {
            jitter
        };
        self.launch(to, packet, late);
    }

    fn launch(&mut self, to: usize, packet: Segment<Bytes>, jitter_ms: u64) {
        let jitter = self.rng.below(jitter_ms * 1_000_000);
        let when = self.now + Duration::from_millis(5) + Duration::from_nanos(jitter);
        self.serial += 1;
        self.flying.insert((when, self.serial), (to, packet));
    }
}

fn options() -> TestConfig {
    TestConfig::default().with(|c| {
        c.settings.rcv_buf_max = 6 << 20;
        c.settings.rcv_space_initial = 60_000;
        c.settings.snd_buf_max = 200_000;
    })
}

/// Runs one connection and checks that both streams arrived.
fn exchange(config: &TestConfig, totals: [usize; 2], impair: Impair, seed: u64) -> Instant {
    let mut network = Network::new(config, totals, impair, seed);
    network.run();
    for at in 0..2 {
        let (host, peer) = (&network.hosts[at], &network.hosts[1 - at]);
        let context = format!("seed {seed}, {impair:?}");
        assert_eq!(host.read, peer.total, "{context}");
        assert!(host.saw_eof, "{context}");
        assert_eq!(host.conn.error(), None, "{context}");
    }
    let now = network.now;
    drop(network);
    assert_eq!(live_runs(), 0, "payload left behind, seed {seed}");
    now
}

#[test]
fn a_good_link_carries_both_directions() {
    exchange(&options(), [300_000, 300_000], Impair::default(), 1);
}

#[test]
fn every_impairment_alone_loses_nothing() {
    for (seed, impair) in [
        Impair {
            loss: 10,
            ..Impair::default()
        },
        Impair {
            loss: 50,
            ..Impair::default()
        },
        Impair {
            duplicate: 50,
            ..Impair::default()
        },
        Impair {
            reorder: 50,
            ..Impair::default()
        },
        Impair {
            jitter: 3,
            ..Impair::default()
        },
    ]
    .into_iter()
    .enumerate()
    {
        exchange(&options(), [200_000, 50_000], impair, seed as u64);
    }
}

#[test]
fn all_impairments_together_lose_nothing_whatever_is_negotiated() {
    let impair = Impair {
        loss: 50,
        duplicate: 20,
        reorder: 50,
        jitter: 2,
        ..Impair::default()
    };
    let mut seed = 100;
    for timestamps in [false, true] {
        for sack in [false, true] {
            for window_scaling in [false, true] {
                for congestion in CongestionKind::ALL {
                    let config = options().with(|c| {
                        c.shared_mut().timestamps = timestamps;
                        c.shared_mut().sack = sack;
                        c.shared_mut().window_scaling = window_scaling;
                        c.settings.congestion = congestion;
                    });
                    exchange(&config, [60_000, 60_000], impair, seed);
                    seed += 1;
                }
            }
        }
    }
}

#[test]
fn tiny_windows_and_starved_readers_lose_nothing() {
    let impair = Impair {
        loss: 30,
        duplicate: 10,
        reorder: 30,
        jitter: 1,
        ..Impair::default()
    };
    for seed in 200..212 {
        let config = options().with(|c| {
            c.settings.rcv_space_initial = 3000 + 500 * (seed as u32 - 200);
        });
        exchange(&config, [40_000, 20_000], impair, seed);
    }
}

#[test]
fn many_seeds_lose_nothing() {
    for seed in 1000..1060 {
        let mut rng = Random::new(seed);
        let impair = Impair {
            loss: rng.below(100),
            duplicate: rng.below(50),
            reorder: rng.below(200),
            jitter: rng.below(10),
            ..Impair::default()
        };
        let config = options().with(|c| {
            c.settings.nodelay = rng.chance(500);
            c.shared_mut().pacing = rng.chance(500);
            c.shared_mut().timestamps = rng.chance(700);
            c.shared_mut().sack = rng.chance(800);
            c.link.mss = [536, 1460, 8960][rng.below(3) as usize];
            c.settings.rcv_space_initial = 20_000 + rng.below(200_000) as u32;
        });
        let totals = [rng.below(60_000) as usize, rng.below(60_000) as usize];
        exchange(&config, totals, impair, seed);
    }
}

#[test]
fn many_seeds_with_marks_lose_nothing() {
    for seed in 3000..3060 {
        let mut rng = Random::new(seed);
        let impair = Impair {
            loss: rng.below(40),
            duplicate: rng.below(20),
            reorder: rng.below(50),
            jitter: rng.below(5),
            ce: rng.below(400),
        };
        let config = options().with(|c| {
            c.shared_mut().ecn.policy =
                [EcnPolicy::Request, EcnPolicy::Accurate][(seed % 2) as usize];
            c.shared_mut().ecn.accecn_option = rng.chance(700);
            c.shared_mut().sack = rng.chance(800);
            c.settings.congestion = CongestionKind::ALL[rng.below(4) as usize];
            if rng.chance(500) {
                c.shared_mut().tuning = Tuning::LINUX;
            }
            c.settings.rcv_space_initial = 20_000 + rng.below(200_000) as u32;
        });
        let totals = [rng.below(80_000) as usize, rng.below(80_000) as usize];
        exchange(&config, totals, impair, seed);
    }
}

#[test]
fn a_link_that_marks_and_never_drops_has_nothing_repeated() {
    for ecn in [EcnPolicy::Request, EcnPolicy::Accurate] {
        marks_alone(ecn);
    }
}

fn marks_alone(ecn: EcnPolicy) {
    let config = options().with(|c| {
        c.shared_mut().ecn.policy = ecn;
    });
    let impair = Impair {
        ce: 50,
        ..Impair::default()
    };
    let mut network = Network::new(&config, [2_000_000, 0], impair, 7);
    let (mut client, mut server) = (Info::default(), Info::default());
    for _ in 0..MAX_STEPS {
        network.step();
        // A connection that has ended has no `Info`.
        let infos = network.hosts.each_ref().map(|host| host.conn.info());
        if !infos.iter().all(|info| info.ecn) {
            break;
        }
        [client, server] = infos;
    }
    assert!(client.ecn && client.ecn_reductions > 3, "{client:#?}");
    assert!(server.ce_received >= client.ecn_reductions, "{server:#?}");
    if ecn == EcnPolicy::Accurate {
        // Every mark is reported once, except those in flight.
        let told = u64::from(client.delivered_ce);
        assert!(
            told <= server.ce_received && told + 20 >= server.ce_received,
            "{client:#?} {server:#?}"
        );
    }
    // Tail loss probes of the first round trip, whose length is not known yet.
    assert!(client.total_retrans <= 2, "{client:#?}");
    network.run();
    drop(network);
    assert_eq!(live_runs(), 0, "payload left behind");
}
