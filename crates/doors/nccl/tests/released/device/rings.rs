//! What NCCL's kernels do with the algorithm Ring and the protocol Simple, and with messages (src/device/*.h): who sends which elements when.
//! The order must be theirs, because nothing on the way says what it is.

use std::thread;

use super::kernel::{Aborted, Address, Block, Item, fields};
use super::layout::*;
use super::memory::copy;
use super::pipe::{End, Pace, Pipe, Way};

/// The ring of a channel, from this rank on.
struct Ring<'a> {
    pipe: Pipe<'a>,
    /// This rank, the next one, and so on.
    ranks: Vec<usize>,
    send: usize,
    receive: usize,
}

/// The elements of a channel: where they begin, their number, and that of a chunk.
struct Part {
    begin: usize,
    count: usize,
    chunk: usize,
    /// The number of all channels.
    total: usize,
}

impl Part {
    fn of(block: &Block, work: Address, width: usize) -> Self {
        let [_, _, _, counts, grains] = block.layout.collective;
        let channels = work.u32(COLLECTIVE_CHANNELS);
        assert_eq!(
            channels as u32 & COLLECTIVE_REGISTERED,
            0,
            "no buffer is registered"
        );
        let (first, last) = (channels & 0xff, channels >> 8 & 0xff);
        let [low, each, high] = [0, 8, 16].map(|at| work.u64(counts + at));
        let between = (last - first).saturating_sub(1) * each;
        let (begin, count, place) = match block.number {
            number if number == first => (0, low, 0),
            number if number == last => (low + between, high, 2),
            number => (low + (number - first - 1) * each, each, 1),
        };
        let grains = work.u64(grains) >> (21 * place) & 0x1f_ffff;
        Self {
            begin,
            count,
            chunk: grains * (GRAIN_BYTES / width),
            total: low + between + high,
        }
    }

    /// Begin and length of each chunk.
    fn chunks(&self) -> impl Iterator<Item = (usize, isize)> {
        let starts = (0..self.count).step_by(self.chunk.max(1));
        starts.map(|at| (self.begin + at, self.chunk.min(self.count - at) as isize))
    }
}

/// Runs a collective's part of one channel.
pub fn collective(block: &Block, function: Function, item: &Item) -> Result<(), Aborted> {
    let work = fields(item);
    let (width, (slices, steps)) = match function {
        Function::AllGather => (1, (2, 2)),
        Function::Broadcast => (1, (1, 1)),
        Function::Reduce => (4, (1, 1)),
        _ => (4, (2, 2)),
    };
    let mut ring = Ring::open(block, width, slices, steps);
    let [_, receive, send, ..] = block.layout.collective;
    ring.send = work.u64(send);
    ring.receive = work.u64(receive);
    let part = Part::of(block, work, width);
    match function {
        Function::AllReduce => ring.all_reduce(part, block.channel.u32(CHANNEL_INDEX)),
        Function::ReduceScatter => ring.reduce_scatter(&part),
        Function::AllGather => ring.all_gather(&part),
        Function::Broadcast => ring.broadcast(&part, work.u32(COLLECTIVE_ROOT)),
        _ => ring.reduce(&part, work.u32(COLLECTIVE_ROOT)),
    }
}

impl<'a> Ring<'a> {
    fn open(block: &'a Block, width: usize, slices: usize, steps: u64) -> Self {
        let step_bytes = block.comm.u32(COMM_BUFFER_BYTES) / STEPS as usize;
        let pace = Pace {
            slices,
            steps,
            step_bytes,
            width,
        };
        let ranks = block.channel.to(CHANNEL_RANKS);
        let ranks = (0..block.comm.u32(COMM_RANKS)).map(|at| ranks.u32(at * 4));
        let previous = block.channel.u32(CHANNEL_PREVIOUS);
        let next = block.channel.u32(CHANNEL_NEXT);
        Self {
            pipe: Pipe {
                receive: Some(End::receive(block, previous, 0, pace)),
                send: Some(End::send(block, next, 0, pace)),
                pace,
            },
            ranks: ranks.collect(),
            send: 0,
            receive: 0,
        }
    }

    /// Where an element that is sent is.
    fn from(&self, element: usize) -> Option<usize> {
        Some(self.send + element * self.pipe.pace.width)
    }

    /// Where an element that is received goes.
    fn to(&self, element: usize) -> Option<usize> {
        Some(self.receive + element * self.pipe.pace.width)
    }

    /// Sums of a block go around once, and then the finished block. `index` is this rank's place, counted from the same one on all ranks.
    fn all_reduce(&mut self, part: Part, index: usize) -> Result<(), Aborted> {
        let ranks = self.ranks.len();
        let mut chunk = part.chunk;
        for begin in (0..part.count).step_by((ranks * chunk).max(1)) {
            let left = part.count - begin;
            if left < ranks * chunk {
                chunk = left
                    .div_ceil(ranks)
                    .next_multiple_of(16 / self.pipe.pace.width);
            }
            let places_back = |places: usize| {
                let at = (index + ranks - places) % ranks * chunk;
                let len = (chunk as isize).min(left as isize - at as isize);
                (part.begin + begin + at, len)
            };
            let blocks: Vec<_> = (0..ranks).map(places_back).collect();
            let (at, len) = blocks[1];
            self.pipe.pass(Way::Send, self.from(at), None, len)?;
            for &(at, len) in &blocks[2..] {
                self.pipe.pass(Way::Both, self.from(at), None, len)?;
            }
            let (at, len) = blocks[0];
            self.pipe.pass(Way::Both, self.from(at), self.to(at), len)?;
            for &(at, len) in &blocks[1..ranks - 1] {
                self.pipe.pass(Way::Both, None, self.to(at), len)?;
            }
            let (at, len) = blocks[ranks - 1];
            self.pipe.pass(Way::Receive, None, self.to(at), len)?;
        }
        Ok(())
    }

    fn all_gather(&mut self, part: &Part) -> Result<(), Aborted> {
        for (at, len) in part.chunks() {
            let all: Vec<_> = self
                .ranks
                .iter()
                .map(|rank| self.to(at + rank * part.total))
                .collect();
            let from = self.from(at);
            self.pipe
                .pass(Way::Send, from, all[0].filter(|_| all[0] != from), len)?;
            for to in all[2..].iter().rev() {
                self.pipe.pass(Way::Both, None, *to, len)?;
            }
            self.pipe.pass(Way::Receive, None, all[1], len)?;
        }
        Ok(())
    }

    fn reduce_scatter(&mut self, part: &Part) -> Result<(), Aborted> {
        for (at, len) in part.chunks() {
            let all: Vec<_> = self
                .ranks
                .iter()
                .map(|rank| self.from(at + rank * part.total))
                .collect();
            let last = all.len() - 1;
            self.pipe.pass(Way::Send, all[last], None, len)?;
            for from in all[1..last].iter().rev() {
                self.pipe.pass(Way::Both, *from, None, len)?;
            }
            self.pipe.pass(Way::Receive, all[0], self.to(at), len)?;
        }
        Ok(())
    }

    fn reduce(&mut self, part: &Part, root: usize) -> Result<(), Aborted> {
        let is_root = self.ranks[0] == root;
        let is_first = self.ranks.last() == Some(&root);
        for (at, len) in part.chunks() {
            let way = match (is_first, is_root) {
                (true, _) => Way::Send,
                (_, true) => Way::Receive,
                _ => Way::Both,
            };
            self.pipe
                .pass(way, self.from(at), self.to(at).filter(|_| is_root), len)?;
        }
        Ok(())
    }

    fn broadcast(&mut self, part: &Part, root: usize) -> Result<(), Aborted> {
        let (is_root, is_last) = (self.ranks[0] == root, self.ranks[1] == root);
        for (at, len) in part.chunks() {
            let (from, to) = (self.from(at), self.to(at));
            let (way, from, to) = match (is_root, is_last) {
                (true, _) => (Way::Send, from, to.filter(|_| to != from)),
                (_, true) => (Way::Receive, None, to),
                _ => (Way::Both, None, to),
            };
            self.pipe.pass(way, from, to, len)?;
        }
        Ok(())
    }
}

/// Runs messages of one channel, all at the same time.
pub fn messages(block: &Block, items: &[Item]) -> Result<(), Aborted> {
    thread::scope(|scope| {
        let mut running = Vec::new();
        for work in items.iter().map(fields) {
            assert_eq!(
                work.u8(P2P_FLAGS) & 0x3f,
                0,
                "neither LL nor registered buffers"
            );
            let [out, into] = [0, 1].map(|way| part_of_message(block, work, way));
            if work.u32(P2P_PEER[0]) == block.comm.u32(COMM_RANK) {
                if let (Some((from, len)), Some((to, _))) = (out, into) {
                    copy(from, to, len);
                }
                continue;
            }
            for (way, part) in [out, into].into_iter().enumerate() {
                let part = part.map(|part| scope.spawn(move || message(block, work, way, part)));
                running.extend(part);
            }
        }
        running
            .into_iter()
            .try_for_each(|thread| thread.join().expect("a panic ends the process"))
    })
}

/// Returns address and length of a channel's part of a message that goes out (0) or comes in (1), if it has one.
fn part_of_message(block: &Block, work: Address, way: usize) -> Option<(usize, usize)> {
    let parts = work.u8(P2P_PARTS[way]);
    // The number of channels is a power of two.
    let number =
        block.number.wrapping_sub(work.u8(P2P_FIRST_CHANNEL)) & (work.u8(P2P_CHANNELS) - 1);
    let len = work.u64(P2P_LEN[way]);
    let each = len.div_ceil(parts.max(1)).next_multiple_of(PART_BYTES);
    let [begin, end] = [number, number + 1].map(|part| len.min(part * each));
    (number < parts).then(|| (work.u64(P2P_ADDRESS[way]) + begin, end - begin))
}

fn message(
    block: &Block,
    work: Address,
    way: usize,
    (address, len): (usize, usize),
) -> Result<(), Aborted> {
    let step_bytes = block.comm.u32(COMM_P2P_BYTES);
    let pace = Pace {
        slices: 1,
        steps: 1,
        step_bytes,
        width: 1,
    };
    let peer = work.u32(P2P_PEER[way]);
    let is_out = way == 0;
    let mut pipe = Pipe {
        receive: (!is_out).then(|| End::receive(block, peer, 1, pace)),
        send: is_out.then(|| End::send(block, peer, 1, pace)),
        pace,
    };
    let encoded = work.u8(P2P_CHUNK[way]);
    let chunk = match (encoded >> 3, encoded & 7) {
        (0, mantissa) => mantissa,
        (exponent, mantissa) => (mantissa | 8) << (exponent - 1),
    };
    let mut done = 0;
    // An empty message is a step, too.
    loop {
        let next = chunk.min(len - done);
        let here = Some(address + done);
        match is_out {
            true => pipe.pass(Way::Send, here, None, next as isize)?,
            false => pipe.pass(Way::Receive, None, here, next as isize)?,
        }
        done += next;
        if done >= len {
            return Ok(());
        }
    }
}
