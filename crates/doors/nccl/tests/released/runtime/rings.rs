//! What NCCL's kernels do with the algorithm Ring and the protocol Simple, and with messages (src/device/*.h): who sends which elements when.
//! The order must be theirs, because nothing on the way says what it is.

use std::thread;

use super::address::{Address, copy};
use super::kernel::{Aborted, Block};
use super::layout::*;
use super::pipe::{End, Pace, Pass, Pipe, RECEIVE, SEND};

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
        let [_, _, _, counts, grains] = block.version.layout.collective;
        let channels = work.u32(COLLECTIVE_CHANNELS);
        assert_eq!(channels & COLLECTIVE_REGISTERED, 0, "no registered buffer");
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
    fn chunks(&self) -> impl Iterator<Item = (usize, usize)> {
        let starts = (0..self.count).step_by(self.chunk.max(1));
        starts.map(|at| (self.begin + at, self.chunk.min(self.count - at)))
    }
}

/// A rank's part of a collective in one channel.
struct Ring {
    /// This rank, the next one, and so on.
    ranks: Vec<usize>,
    /// This rank's place, counted from the same one on all ranks.
    index: usize,
    root: usize,
    part: Part,
    width: usize,
}

/// Runs a collective's part of one channel.
pub fn collective(block: &Block, function: Function, work: Address) -> Result<(), Aborted> {
    let (width, (slices, steps)) = match function {
        Function::AllGather => (1, (2, 2)),
        Function::Broadcast => (1, (1, 1)),
        Function::Reduce => (4, (1, 1)),
        _ => (4, (2, 2)),
    };
    let pace = Pace {
        slices,
        steps,
        step_bytes: block.comm.u32(COMM_BUFFER_BYTES) / STEPS as usize,
        width,
    };
    let channel = block.channel;
    let [_, receive, send, ..] = block.version.layout.collective;
    let end = |side, peer| Some(End::open(block, side, (channel.u32(peer), 0), pace));
    let mut pipe = Pipe {
        receive: end(&RECEIVE, CHANNEL_PREVIOUS),
        send: end(&SEND, CHANNEL_NEXT),
        buffers: [send, receive].map(|field| work.u64(field)),
        pace,
    };
    let ranks = channel.to(CHANNEL_RANKS);
    let ring = Ring {
        ranks: (0..block.comm.u32(COMM_RANKS))
            .map(|at| ranks.u32(at * 4))
            .collect(),
        index: channel.u32(CHANNEL_INDEX),
        root: work.u32(COLLECTIVE_ROOT),
        part: Part::of(block, work, width),
        width,
    };
    let passes = match function {
        Function::AllReduce => ring.all_reduce(),
        _ => ring
            .part
            .chunks()
            .flat_map(|chunk| ring.passes(function, chunk))
            .collect(),
    };
    passes.into_iter().try_for_each(|pass| pipe.pass(pass))
}

impl Ring {
    /// Returns what is done with a chunk; with those of all ranks, if each has one.
    fn passes(&self, function: Function, (at, len): (usize, usize)) -> Vec<Pass> {
        let of = |distance: usize| at + self.ranks[distance] * self.part.total;
        let count = self.ranks.len();
        let between = (2..count).rev();
        let (is_root, is_before) = (self.ranks[0] == self.root, self.ranks[1] == self.root);
        let is_after = self.ranks[count - 1] == self.root;
        let pass = match function {
            Function::AllGather => {
                let mut passes = vec![Pass::first(at, Some(of(0)), len)];
                passes.extend(between.map(|distance| Pass::middle(None, Some(of(distance)), len)));
                passes.push(Pass::last(None, of(1), len));
                return passes;
            }
            Function::ReduceScatter => {
                let mut passes = vec![Pass::first(of(count - 1), None, len)];
                passes.extend(
                    between.map(|distance| Pass::middle(Some(of(distance - 1)), None, len)),
                );
                passes.push(Pass::last(Some(of(0)), at, len));
                return passes;
            }
            Function::Reduce if is_root => Pass::last(Some(at), at, len),
            Function::Reduce if is_after => Pass::first(at, None, len),
            Function::Reduce => Pass::middle(Some(at), None, len),
            _ if is_root => Pass::first(at, Some(at), len),
            _ if is_before => Pass::last(None, at, len),
            _ => Pass::middle(None, Some(at), len),
        };
        vec![pass]
    }

    /// Sums of a block go around once, and then the finished block.
    fn all_reduce(&self) -> Vec<Pass> {
        let (ranks, mut chunk) = (self.ranks.len(), self.part.chunk);
        let mut passes = Vec::new();
        for begin in (0..self.part.count).step_by((ranks * chunk).max(1)) {
            let left = self.part.count - begin;
            if left < ranks * chunk {
                chunk = left.div_ceil(ranks).next_multiple_of(16 / self.width);
            }
            // Begin and length of the block that is this many places back.
            let block = |places: usize| {
                let at = (self.index + ranks - places) % ranks * chunk;
                let len = chunk.min(left.saturating_sub(at));
                (self.part.begin + begin + at, len)
            };
            let (at, len) = block(1);
            passes.push(Pass::first(at, None, len));
            let sums = (2..ranks).map(block);
            passes.extend(sums.map(|(at, len)| Pass::middle(Some(at), None, len)));
            let (at, len) = block(0);
            passes.push(Pass::middle(Some(at), Some(at), len));
            let finished = (1..ranks - 1).map(block);
            passes.extend(finished.map(|(at, len)| Pass::middle(None, Some(at), len)));
            let (at, len) = block(ranks - 1);
            passes.push(Pass::last(None, at, len));
        }
        passes
    }
}

/// Runs messages of one channel, all at the same time.
pub fn messages(block: &Block, items: &[Vec<u64>]) -> Result<(), Aborted> {
    thread::scope(|scope| {
        let mut running = Vec::new();
        for work in items.iter().map(|item| Address::of(item)) {
            let flags = work.u8(P2P_FLAGS) & 0x3f;
            assert_eq!(flags, 0, "neither LL nor registered buffers");
            let ways = [0, 1].map(|way| (way, part_of_message(block, work, way)));
            if work.u32(P2P_PEER[0]) == block.comm.u32(COMM_RANK) {
                if let [(_, Some((from, len))), (_, Some((to, _)))] = ways {
                    copy(from, to, len);
                }
                continue;
            }
            for (way, part) in ways {
                let part = part.map(|part| scope.spawn(move || message(block, work, way, part)));
                running.extend(part);
            }
        }
        let mut ends = running.into_iter().map(|thread| thread.join());
        ends.try_for_each(|end| end.expect("a panic ends the process"))
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
    let pace = Pace {
        slices: 1,
        steps: 1,
        step_bytes: block.comm.u32(COMM_P2P_BYTES),
        width: 1,
    };
    let end = |side| End::open(block, side, (work.u32(P2P_PEER[way]), 1), pace);
    let is_out = way == 0;
    let mut pipe = Pipe {
        receive: (!is_out).then(|| end(&RECEIVE)),
        send: is_out.then(|| end(&SEND)),
        buffers: [address; 2],
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
        let elements = chunk.min(len - done);
        pipe.pass(match is_out {
            true => Pass::first(done, None, elements),
            false => Pass::last(None, done, elements),
        })?;
        done += elements;
        if done >= len {
            return Ok(());
        }
    }
}
