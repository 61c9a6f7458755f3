//! Worlds made from seeds: two endpoints in virtual time, over a wire that loses, reorders, duplicates, corrupts and delays
//! packets; messages, puts, gets and notifications in both directions at once, from and into host and device memory.
//!
//! Each world must end with every byte right and none outside of its place, every operation ended once, no region in use,
//! and every net_iov of the receive memory given back. A failure prints the seed and the world.
//!
//! - `DEVMEM_SEEDS=100000 cargo test -p devmem-exchange --test exchange seeds` tries that many, instead of those that fit into
//!   one second,
//! - `DEVMEM_SEED=4711 cargo test -p devmem-exchange --test exchange seeds` tries one.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::{Duration, Instant};

use devmem_exchange::{Buffer, Closing, Endpoint, Event, Fabric, Options, Pool, Region, RegionKey};
use devmem_tcp::Dmabuf;

use crate::world::{IDLE_TURNS, connect, device, host, pair_of, part, pattern, run};

/// Time for the worlds of a normal run.
const TIME: Duration = Duration::from_secs(1);
/// Bytes behind a place that must keep their value.
const MARGIN: usize = 64;
const UNTOUCHED: u8 = 0xee;
/// The notification after all operations of a side.
const END: &[u8] = b"all posted";

struct Dice(u64);

impl Dice {
    fn below(&mut self, end: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((mixed ^ (mixed >> 31)) % end as u64) as usize
    }

    fn of<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[self.below(choices.len())]
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Message,
    Put,
    Get,
    Notify,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    Host,
    Device,
}

#[derive(Clone, Debug)]
struct Op {
    kind: Kind,
    /// 0 or 1: the bytes go from this side to the other.
    from: usize,
    len: usize,
    tag: u32,
    source: Place,
    target: Place,
}

#[derive(Clone, Debug)]
struct World {
    seed: u64,
    impairment: String,
    streams: u16,
    chunk: usize,
    /// Bytes of the memory that the accepting side receives into, and its queues.
    pool: Option<(usize, u16)>,
    ops: Vec<Op>,
}

impl World {
    fn new(seed: u64) -> Self {
        let mut dice = Dice(seed);
        let lengths = [
            0, 1, 8, 127, 4095, 4096, 4097, 20_000, 65_536, 150_001, 400_000,
        ];
        let (loss, reorder) = (dice.of(&[0, 0, 1, 3, 8]), dice.of(&[0, 0, 2, 10]));
        let (dup, corrupt) = (dice.of(&[0, 0, 2]), dice.of(&[0, 0, 1]));
        let delay = dice.of(&["", ",delay=1ms,jitter=500us", ",delay=20ms"]);
        let ops = (0..1 + dice.below(12)).map(|_| Op {
            kind: dice.of(&[
                Kind::Message,
                Kind::Message,
                Kind::Put,
                Kind::Get,
                Kind::Notify,
            ]),
            from: dice.below(2),
            len: dice.of(&lengths) + dice.below(3),
            tag: dice.below(3) as u32,
            source: dice.of(&[Place::Host, Place::Device]),
            target: dice.of(&[Place::Host, Place::Device]),
        });
        let ops = ops.collect();
        Self {
            seed,
            impairment: format!(
                "loss={loss}%,reorder={reorder}%,dup={dup}%,corrupt={corrupt}%{delay},seed={seed}"
            ),
            streams: dice.of(&[1, 2, 4]),
            chunk: dice.of(&[4096, 16 << 10, 128 << 10]),
            pool: dice.of(&[None, Some((1 << 20, 1)), Some((4 << 20, 2))]),
            ops,
        }
    }

    fn options(&self, pool: Option<Pool>) -> Options {
        Options {
            streams: self.streams,
            chunk: self.chunk,
            pool,
            ..Options::default()
        }
    }
}

/// Memory of an operation at one side.
enum Bytes {
    Host(Arc<Buffer>),
    Device(Dmabuf),
}

impl Bytes {
    fn register(place: Place, fabric: &Fabric, bytes: Vec<u8>) -> (Self, Region) {
        match place {
            Place::Host => {
                let (buffer, region) = host(fabric, bytes);
                (Self::Host(buffer), region)
            }
            Place::Device => {
                let (memory, region) = device(fabric, &bytes);
                (Self::Device(memory), region)
            }
        }
    }

    fn first(&self, len: usize) -> Vec<u8> {
        match self {
            Self::Host(buffer) => buffer.with(|bytes| bytes[..len].to_vec()),
            Self::Device(memory) => memory.slice(0..len).to_vec(),
        }
    }
}

/// An operation with its registered memory.
struct Posted<'a> {
    op: &'a Op,
    user: u64,
    sent: Vec<u8>,
    _source: Bytes,
    target: Bytes,
    regions: [Region; 2],
    /// Of the region that the other side names, if it does.
    key: RegionKey,
}

impl<'a> Posted<'a> {
    fn new(op: &'a Op, user: u64, seed: u64, fabrics: &[Fabric; 2], ends: [&Endpoint; 2]) -> Self {
        let sent = pattern(seed ^ (user << 32), op.len);
        let (from, to) = (&fabrics[op.from], &fabrics[1 - op.from]);
        let padded = [&sent[..], &[0]].concat();
        let (source, source_region) = Bytes::register(op.source, from, padded);
        let untouched = vec![UNTOUCHED; op.len + MARGIN];
        let (target, target_region) = Bytes::register(op.target, to, untouched);
        let published = match op.kind {
            Kind::Get => ends[op.from].publish(&source_region),
            _ => ends[1 - op.from].publish(&target_region),
        };
        Self {
            op,
            user,
            sent,
            key: published.unwrap(),
            _source: source,
            target,
            regions: [source_region, target_region],
        }
    }

    /// Posts what this side has to post. `side` is 0 or 1.
    fn post(&self, side: usize, endpoint: &Endpoint) {
        let Self {
            op, user, regions, ..
        } = self;
        let ([source, target], user, len) = (regions, *user, op.len);
        let posted = match (op.kind, side == op.from) {
            (Kind::Message, true) => endpoint.send(source, 0..len, op.tag, user),
            (Kind::Message, false) => {
                endpoint.receive(&[part(target, 0..len + MARGIN, op.tag)], user)
            }
            (Kind::Put, true) => endpoint.put(source, 0..len, self.key, 0, user),
            (Kind::Get, false) => endpoint.get(self.key, 0, target, 0..len, user),
            (Kind::Notify, true) => endpoint.notify(&self.sent[..len.min(4096)]),
            (Kind::Put | Kind::Notify, false) | (Kind::Get, true) => Ok(()),
        };
        posted.unwrap();
    }

    /// Returns whether an event of this side is the end of the operation.
    fn ends(&self, side: usize, event: &Event) -> bool {
        let (is_from, kind) = (side == self.op.from, self.op.kind);
        match event {
            Event::Sent { user } => is_from && kind == Kind::Message && *user == self.user,
            Event::Received { user, sizes } => {
                let is_it = !is_from && kind == Kind::Message && *user == self.user;
                assert!(!is_it || **sizes == [self.op.len as u64], "{event:?}");
                is_it
            }
            Event::Put { user } => is_from && kind == Kind::Put && *user == self.user,
            Event::Got { user } => !is_from && kind == Kind::Get && *user == self.user,
            Event::Notified { bytes } => {
                let sent = &self.sent[..self.op.len.min(4096)];
                !is_from && kind == Kind::Notify && bytes == sent
            }
            Event::Failed { .. } | Event::Broken(_) => false,
        }
    }

    fn events(&self, side: usize) -> usize {
        let is_from = side == self.op.from;
        match self.op.kind {
            Kind::Message => 1,
            Kind::Put => usize::from(is_from),
            Kind::Get | Kind::Notify => usize::from(!is_from),
        }
    }

    fn check(&self) {
        let (len, user) = (self.op.len, self.user);
        let got = self.target.first(len + MARGIN);
        if self.op.kind != Kind::Notify {
            assert!(got[..len] == self.sent, "operation {user}: wrong bytes");
        }
        let outside = match self.op.kind {
            Kind::Notify => &got[..],
            _ => &got[len..],
        };
        let is_untouched = outside.iter().all(|byte| *byte == UNTOUCHED);
        assert!(is_untouched, "operation {user}: bytes outside changed");
    }
}

/// Posts the operations of each side in order, the sides in any order, with progress in between.
fn post_all(posted: &[Posted<'_>], ends: [&Endpoint; 2], mut dice: Dice) {
    let mut waiting: [VecDeque<_>; 2] = [posted.iter().collect(), posted.iter().collect()];
    while waiting.iter().any(|side| !side.is_empty()) {
        let side = dice.below(2);
        match dice.below(3) {
            0 => drop(ends[dice.below(2)].progress()),
            _ => {
                if let Some(next) = waiting[side].pop_front() {
                    next.post(side, ends[side]);
                }
            }
        }
    }
}

fn live(world: &World) {
    let memory = world.pool.map(|(bytes, queues)| Pool {
        memory: Dmabuf::anonymous(bytes).unwrap(),
        queues,
    });
    let (a, b) = (world.options(None), world.options(memory.clone()));
    let (a, b) = pair_of(&world.impairment, a, b);
    let fabrics = [a, b];
    let (of_a, of_b) = connect(&fabrics[0], &fabrics[1]);
    let ends = [&of_a, &of_b];
    let posted = (0..).zip(&world.ops);
    let posted: Vec<_> = posted
        .map(|(user, op)| Posted::new(op, user, world.seed, &fabrics, ends))
        .collect();

    post_all(&posted, ends, Dice(!world.seed));
    of_a.notify(END).unwrap();
    of_b.notify(END).unwrap();
    let wanted = [0, 1].map(|side| posted.iter().map(|op| op.events(side)).sum::<usize>() + 1);
    let (events_a, events_b) = run(&of_a, &of_b, wanted[0], wanted[1]);
    for (side, events) in [events_a, events_b].iter().enumerate() {
        assert_eq!(events.len(), wanted[side], "{events:?}");
        for op in &posted {
            let ended = events.iter().filter(|event| op.ends(side, event)).count();
            // Notifications of the same bytes are told apart by nothing.
            let expected = op.events(side);
            let is_right = match op.op.kind {
                Kind::Notify => ended >= expected,
                _ => ended == expected,
            };
            assert!(is_right, "side {side}, operation {}: {events:?}", op.user);
        }
    }
    posted.iter().for_each(Posted::check);
    let regions: Vec<_> = posted.into_iter().flat_map(|op| op.regions).collect();
    // The answer to a get has no event at the side that gives it, and is in use until it is acknowledged.
    for _ in 0..IDLE_TURNS {
        of_a.progress();
        of_b.progress();
        if regions.iter().all(|region| region.users() == 0) {
            break;
        }
    }
    for region in regions {
        region.deregister().expect("no operation uses it");
    }
    of_a.close(Closing::Linger);
    of_b.close(Closing::Linger);
    while fabrics.iter().map(Fabric::progress).sum::<usize>() > 0 {}
    let nic = fabrics[1].nic().clone();
    drop(fabrics);
    if let Some(pool) = memory {
        // Memory with a lent net_iov cannot be bound again.
        Fabric::open(nic, world.options(Some(pool))).expect("all net_iovs are home");
    }
}

fn try_one(seed: u64) {
    let world = World::new(seed);
    if catch_unwind(AssertUnwindSafe(|| live(&world))).is_err() {
        panic!("seed {seed}: run it alone with DEVMEM_SEED={seed}; its world is\n{world:#?}");
    }
}

fn number(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok()?;
    let number = text.parse();
    Some(number.unwrap_or_else(|_| panic!("{name}={text} is not a number")))
}

#[test]
fn every_world_ends_with_all_bytes_right_all_operations_ended_and_all_memory_home() {
    if let Some(seed) = number("DEVMEM_SEED") {
        return try_one(seed);
    }
    let all = number("DEVMEM_SEEDS");
    let start = Instant::now();
    let mut seeds = 0;
    while all.map_or(start.elapsed() < TIME, |all| seeds < all) {
        try_one(seeds);
        seeds += 1;
    }
    println!("{seeds} worlds");
}
