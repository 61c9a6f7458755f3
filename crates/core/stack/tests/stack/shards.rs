//! Seeded worlds of two NICs with several shards, on one wire that delivers each frame to any shard.

use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use devmem_uapi::DmabufId;
use netmem::{Dmabuf, NiovSize};
use netsim::{Direct, Door as _, MAX_STEPS, Pattern, Progress, STEP, Side, Sink, Source};
use nic::{
    Crossing, CrossingWakeup, DropReason, Impaired, Link, LinkCaps, LinkReceived, LinkSent,
    LinkState, Nic, NicConfig, Posted, Rings, TcpDataSplit, TxFrame, WireLink, WireOptions,
};
use stack::{BindRx, PathMtus, RxPart, Secret, SocketId, Stack, StackConfig};
use steer::RxQueueId;
use wire::Instant;

const PORT: u16 = 80;
const QUEUE: RxQueueId = RxQueueId(0);
const NIOV: NiovSize = NiovSize::MIN;
/// Device memory of each shard.
const PART: usize = 1 << 20;

/// xorshift64* (Marsaglia 2003).
struct Random(u64);

impl Random {
    fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    /// A number below `limit`.
    fn below(&mut self, limit: usize) -> usize {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        let mixed = self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33;
        mixed as usize % limit
    }
}

/// One end of the wire, of all shards: the one that is polled first receives the next frame.
#[derive(Clone)]
struct AnyShard(Arc<Mutex<Box<dyn Link>>>);

impl AnyShard {
    fn link(&self) -> MutexGuard<'_, Box<dyn Link>> {
        self.0.lock().unwrap()
    }
}

impl Link for AnyShard {
    fn caps(&self) -> LinkCaps {
        self.link().caps()
    }

    fn receive(&mut self, posted: &mut Posted<'_>, now: Instant) -> io::Result<LinkReceived> {
        self.link().receive(posted, now)
    }

    fn send(&mut self, frame: &TxFrame<'_>, now: Instant) -> io::Result<LinkSent> {
        self.link().send(frame, now)
    }

    fn next_due(&self) -> Option<Instant> {
        self.link().next_due()
    }

    fn state(&self) -> LinkState {
        self.link().state()
    }
}

/// A NIC with several shards, each with a part of one memory for receiving.
struct Host {
    shards: Vec<Direct>,
    listeners: Vec<SocketId>,
    memory: Dmabuf,
    id: DmabufId,
}

impl Host {
    fn new(side: Side, link: Box<dyn Link>, shards: u16, seed: u64) -> Self {
        let link = AnyShard(Arc::new(Mutex::new(link)));
        let paths = PathMtus::default();
        let crossings = Crossing::group(shards, CrossingWakeup::None).unwrap();
        let stack = |crossing| {
            let nic = NicConfig {
                mac: side.mac(),
                host_mem_bytes: 4 << 20,
                ..NicConfig::default()
            };
            let mut nic = Nic::new(Box::new(link.clone()), nic).unwrap();
            nic.join(crossing);
            nic.set_rings(Rings {
                tcp_data_split: TcpDataSplit::Enabled,
                ..nic.rings()
            })
            .unwrap();
            let secret = Secret::from_seed(seed * 2 + side as u64);
            let config = StackConfig {
                addresses: vec![(side.ipv4(), 24), (side.ipv6(), 64)],
                path_mtus: paths.clone(),
                send_memory_bytes: 4 << 20,
                ..StackConfig::new(side.ipv4(), 24, secret)
            };
            Stack::new(nic, config).unwrap()
        };
        let mut stacks: Vec<_> = crossings.into_iter().map(stack).collect();
        let memory = Dmabuf::anonymous(PART * stacks.len()).unwrap();
        let id = bind(&mut stacks, &memory);
        let mut shards: Vec<_> = stacks.into_iter().map(Direct::open).collect();
        let any = SocketAddr::new("::".parse().unwrap(), PORT);
        let listen = |shard: &mut Direct| shard.listen(any, 16).unwrap();
        Self {
            listeners: shards.iter_mut().map(listen).collect(),
            shards,
            memory,
            id,
        }
    }

    /// The sum of a counter of all shards.
    fn sum(&self, counter: impl Fn(&Stack) -> u64) -> u64 {
        self.shards.iter().map(|shard| shard.look(&counter)).sum()
    }

    fn crossed(&self) -> u64 {
        self.sum(|stack| stack.nic().crossing_stats().received)
    }

    /// Asserts that all memory is home, and frees it.
    fn finish(mut self) {
        for (shard, listener) in self.shards.iter_mut().zip(self.listeners) {
            shard.close(listener).unwrap();
            assert_eq!(shard.stack_mut().send_pool_stats().outstanding, 0);
            shard.unbind(self.id).unwrap();
        }
        let observer = self.memory.observer();
        drop(self.memory);
        assert!(observer.is_freed(), "a net_iov is not home");
    }
}

/// Binds a part of the memory on each stack, with one id.
fn bind(stacks: &mut [Stack], memory: &Dmabuf) -> DmabufId {
    let mut claim = None;
    let mut ids = Vec::new();
    for (number, stack) in stacks.iter_mut().enumerate() {
        let request = BindRx {
            dmabuf: memory.clone(),
            niov_size: NIOV,
            queues: vec![QUEUE],
        };
        let range = number * PART..(number + 1) * PART;
        let part = RxPart {
            range,
            memory: claim,
        };
        let (id, memory) = stack.bind_rx_part(request, part).unwrap();
        claim = Some(memory);
        ids.push(id);
    }
    assert!(ids.iter().all(|id| *id == ids[0]));
    ids[0]
}

/// One end of a connection: what it sends, and what it receives.
struct End {
    side: usize,
    shard: usize,
    socket: SocketId,
    source: Source<Direct>,
    sink: Sink<Direct>,
}

/// A connection in progress: its opener, and the bytes that the two ends send.
struct Flow {
    opener: (usize, usize, SocketId),
    bytes: [u64; 2],
    seed: u64,
}

struct World {
    hosts: [Host; 2],
    random: Random,
    now: Instant,
    opening: Vec<Flow>,
    ends: Vec<End>,
}

impl World {
    fn new(seed: u64, shards: [u16; 2], impairment: &str) -> Self {
        let mut random = Random::new(seed);
        let (a, b) = WireLink::pair(WireOptions {
            offload: impairment.is_empty(),
            ..WireOptions::default()
        })
        .unwrap();
        let a: Box<dyn Link> = match impairment {
            "" => Box::new(a),
            text => {
                let impairment = format!("{text},seed={}", seed + 1).parse().unwrap();
                Box::new(Impaired::both(Box::new(a), impairment))
            }
        };
        let mut world = Self {
            hosts: [
                Host::new(Side::A, a, shards[0], seed),
                Host::new(Side::B, Box::new(b), shards[1], seed),
            ],
            now: Instant::from_millis(1),
            opening: Vec::new(),
            ends: Vec::new(),
            random: Random::new(random.below(1 << 30) as u64),
        };
        for number in 0..2 + random.below(5) {
            world.open(seed * 100 + number as u64);
        }
        world
    }

    /// Connects from a random shard of one side to the other.
    fn open(&mut self, seed: u64) {
        let random = &mut self.random;
        let (side, is_v6) = (random.below(2), random.below(2) == 0);
        let remote = [Side::B, Side::A][side];
        let ip = if is_v6 { remote.ipv6() } else { remote.ipv4() };
        let shard = random.below(self.hosts[side].shards.len());
        let bytes = [(); 2].map(|()| random.below(300_000) as u64);
        let door = &mut self.hosts[side].shards[shard];
        let socket = door.connect(SocketAddr::new(ip, PORT), self.now).unwrap();
        let local = door.local_addr(socket).unwrap();
        assert!(door.look(|stack| stack.has_connections(local, SocketAddr::new(ip, PORT))));
        self.opening.push(Flow {
            opener: (side, shard, socket),
            bytes,
            seed,
        });
    }

    /// Accepts what has arrived, and starts both ends.
    fn accept(&mut self) {
        for side in 0..2 {
            for shard in 0..self.hosts[side].shards.len() {
                let host = &mut self.hosts[side];
                let Ok((socket, peer)) = host.shards[shard].accept(host.listeners[shard]) else {
                    continue;
                };
                let at = self.opening.iter().position(|flow| {
                    let (from, shard, socket) = flow.opener;
                    let local = self.hosts[from].shards[shard].local_addr(socket).unwrap();
                    from != side && local == peer
                });
                let flow = self.opening.remove(at.expect("somebody opened it"));
                let (from, opener_shard, opener) = flow.opener;
                for (end, (side, shard, socket)) in
                    [(from, opener_shard, opener), (side, shard, socket)]
                        .into_iter()
                        .enumerate()
                {
                    let host = &self.hosts[side];
                    let sends = Pattern::new(flow.seed * 2 + end as u64);
                    let gets = Pattern::new(flow.seed * 2 + 1 - end as u64);
                    self.ends.push(End {
                        side,
                        shard,
                        socket,
                        source: Source::new(socket, sends, flow.bytes[end], 7000),
                        sink: Sink::new(socket, gets).with_memory(host.id, &host.memory),
                    });
                }
            }
        }
    }

    /// Polls all shards of both hosts in random order.
    fn poll(&mut self) -> bool {
        let mut order: Vec<_> = (0..2)
            .flat_map(|side| (0..self.hosts[side].shards.len()).map(move |shard| (side, shard)))
            .collect();
        let mut worked = false;
        while !order.is_empty() {
            let (side, shard) = order.swap_remove(self.random.below(order.len()));
            worked |= self.hosts[side].shards[shard].poll(self.now);
        }
        worked
    }

    fn next_deadline(&self) -> Option<Instant> {
        let shards = self.hosts.iter().flat_map(|host| &host.shards);
        shards
            .filter_map(|shard| shard.look(Stack::next_deadline))
            .min()
    }

    fn advance(&mut self, worked: bool) -> bool {
        let next = self.now + STEP;
        match (worked, self.next_deadline()) {
            (true, _) => self.now = next,
            (false, Some(deadline)) => self.now = next.max(deadline),
            (false, None) => return false,
        }
        true
    }

    /// Runs until every byte has arrived at both ends of every connection, and both hosts are idle.
    fn run(mut self) -> [Host; 2] {
        for _ in 0..MAX_STEPS {
            let mut worked = self.poll();
            self.accept();
            let mut done = self.opening.is_empty();
            for end in &mut self.ends {
                let door = &mut self.hosts[end.side].shards[end.shard];
                let progress = end.source.run(door).and(end.sink.run(door));
                worked |= progress == Progress::Worked;
                done &= progress == Progress::Done;
            }
            if done {
                break;
            }
            assert!(self.advance(worked), "nothing is left to wait for");
        }
        for end in self.ends.drain(..) {
            assert!(end.sink.at_end(), "too many steps");
            let door = &mut self.hosts[end.side].shards[end.shard];
            door.close(end.socket).unwrap();
        }
        let end = self.now + Duration::from_secs(300);
        while self.now < end {
            let worked = self.poll();
            if !self.advance(worked) {
                break;
            }
        }
        self.hosts
    }
}

/// Runs worlds; returns how many frames crossed in all of them.
fn worlds(seeds: std::ops::Range<u64>, shards: [u16; 2], impairment: &str) -> u64 {
    let mut crossed = 0;
    for seed in seeds {
        let ended = std::panic::catch_unwind(|| {
            let hosts = World::new(seed, shards, impairment).run();
            let crossed = hosts.iter().map(Host::crossed).sum::<u64>();
            for host in hosts {
                let full = |stack: &Stack| stack.nic().drops().get(DropReason::RxCrossingFull);
                assert_eq!(host.sum(full), 0);
                host.finish();
            }
            crossed
        });
        crossed += ended.unwrap_or_else(|_| panic!("seed {seed}, {shards:?}, '{impairment}'"));
    }
    crossed
}

#[test]
fn worlds_of_two_shards_lose_no_byte_wherever_frames_arrive() {
    assert!(worlds(0..15, [2, 2], "") > 300);
    assert!(worlds(30..38, [1, 2], "") > 50);
    worlds(
        45..75,
        [2, 2],
        "loss=2%,reorder=5%,dup=1%,corrupt=1%,delay=1ms",
    );
}

#[test]
fn worlds_of_four_shards_lose_no_byte_wherever_frames_arrive() {
    assert!(worlds(100..110, [4, 4], "") > 300);
    worlds(
        120..140,
        [4, 2],
        "loss=2%,reorder=5%,dup=1%,corrupt=1%,delay=1ms",
    );
}
