//! Collectives of a vector of floats over a ring of processes: each rank sends to the next and receives from the previous one.
//!
//! The vector is cut into one block per rank. A reduce-scatter adds each block up while it travels around the ring; an
//! all-gather then passes the sums on. Both take one step less than there are ranks.

use std::ops::Range;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow, bail};
use exchange::{Access, Endpoint, Event, Fabric, Part, Region, RegisterError};
use pattern::floats::{self, FLOAT_BYTES};

use super::vectors::Vectors;
use crate::report::Reduction;

/// Turns without work after which the loop sleeps, so that the other processes get the processor.
const IDLE_TURNS: u32 = 32;
/// Length of that sleep.
const REST: Duration = Duration::from_micros(50);
/// Time without any progress after which a collective fails.
const STALL_LIMIT: Duration = Duration::from_secs(20);

/// The two neighbours in the ring, and the fabrics on the wires to them.
#[derive(Debug)]
pub struct Neighbours {
    /// The previous rank: messages come from there.
    pub left: (Fabric, Endpoint),
    /// The next rank: messages go there.
    pub right: (Fabric, Endpoint),
}

/// The place of this process in the ring.
#[derive(Clone, Copy, Debug)]
pub struct Place {
    /// Its number.
    pub rank: usize,
    /// How many there are.
    pub ranks: usize,
}

impl Place {
    /// Returns the number of floats of the longest block of a vector.
    pub fn longest(self, floats: usize) -> usize {
        floats.div_ceil(self.ranks)
    }

    /// Returns the number of the block `steps` places before `block`.
    fn before(self, block: usize, steps: usize) -> usize {
        (block + self.ranks - steps % self.ranks) % self.ranks
    }

    /// Returns the bytes of a block of a vector.
    fn bytes_of(self, block: usize, floats: usize) -> Range<usize> {
        let at = |block| floats * block / self.ranks * FLOAT_BYTES;
        at(block)..at(block + 1)
    }
}

/// A vector that the ranks of a ring share the work on.
pub struct Ring {
    place: Place,
    floats: usize,
    /// The vector, and the blocks that are received to be added to it.
    vectors: Vectors,
    outgoing: Region,
    incoming: Region,
    summands: Region,
    neighbours: Neighbours,
    /// Tag of the next message, the same on all ranks.
    tag: u32,
}

/// Where a received block goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Into {
    Vector,
    Block,
}

impl Ring {
    /// Registers a vector of `floats` floats, and the block of [`Place::longest`].
    ///
    /// # Errors
    ///
    /// As [`Fabric::register`].
    pub fn new(
        place: Place,
        floats: usize,
        vectors: Vectors,
        neighbours: Neighbours,
    ) -> Result<Self, RegisterError> {
        let (left, right) = (&neighbours.left.0, &neighbours.right.0);
        Ok(Self {
            place,
            floats,
            outgoing: right.register(vectors.vector(), Access::PRIVATE)?,
            incoming: left.register(vectors.vector(), Access::PRIVATE)?,
            summands: left.register(vectors.block(), Access::PRIVATE)?,
            vectors,
            neighbours,
            tag: 0,
        })
    }

    /// Gives the vector the values that a rank begins with.
    ///
    /// # Errors
    ///
    /// The device that the vector is in refuses.
    pub fn fill(&self, rank: usize) -> Result<()> {
        self.fill_range(0..self.floats, rank)
    }

    /// Gives only the block of a rank its values, and all others such as no vector has.
    ///
    /// # Errors
    ///
    /// As [`fill`](Self::fill).
    pub fn fill_block(&self, rank: usize) -> Result<()> {
        let all = 0..self.floats * FLOAT_BYTES;
        self.vectors
            .write(all, |_, bytes| floats::fill_with_nan(bytes))?;
        self.fill_range(self.block(rank), rank)
    }

    fn fill_range(&self, floats: Range<usize>, rank: usize) -> Result<()> {
        self.vectors.write(bytes_of(floats), |range, bytes| {
            floats::fill(bytes, range.start / FLOAT_BYTES, rank);
        })
    }

    /// Counts the floats of a range that are not exactly the sums of the vectors of `ranks`.
    ///
    /// # Errors
    ///
    /// As [`fill`](Self::fill).
    pub fn wrong(&self, floats: Range<usize>, ranks: Range<usize>) -> Result<u64> {
        let mut wrong = 0;
        self.vectors.read(bytes_of(floats), |range, bytes| {
            wrong += floats::count_wrong(bytes, range.start / FLOAT_BYTES, ranks.clone());
        })?;
        Ok(wrong)
    }

    /// Returns who adds.
    pub fn reduction(&self) -> Reduction {
        self.vectors.reduction()
    }

    /// Returns the floats of a rank's block.
    pub fn block(&self, rank: usize) -> Range<usize> {
        let bytes = self.place.bytes_of(rank, self.floats);
        bytes.start / FLOAT_BYTES..bytes.end / FLOAT_BYTES
    }

    /// Adds up the vectors of all ranks: each has the sums afterwards.
    ///
    /// # Errors
    ///
    /// A neighbour is gone, or nothing moves.
    pub fn all_reduce(&mut self) -> Result<()> {
        let rank = self.place.rank;
        for step in 0..self.place.ranks - 1 {
            let sends = self.place.before(rank, step);
            let adds = self.place.before(rank, step + 1);
            self.step(self.bytes(sends), Into::Block, self.bytes(adds))?;
            self.vectors.add(self.bytes(adds))?;
        }
        // Block `rank + 1` was added up by all ranks when it arrived here.
        self.pass_on((rank + 1) % self.place.ranks)
    }

    /// Collects the blocks of all ranks: each has the whole vector afterwards.
    ///
    /// # Errors
    ///
    /// A neighbour is gone, or nothing moves.
    pub fn all_gather(&mut self) -> Result<()> {
        self.pass_on(self.place.rank)
    }

    /// Returns when all ranks have called it.
    ///
    /// # Errors
    ///
    /// A neighbour is gone, or nothing moves.
    pub fn barrier(&mut self) -> Result<()> {
        for _ in 0..self.place.ranks - 1 {
            self.step(0..0, Into::Block, 0..0)?;
        }
        Ok(())
    }

    /// Passes blocks on around the ring, first the block `first`, which is complete here.
    fn pass_on(&mut self, first: usize) -> Result<()> {
        for step in 0..self.place.ranks - 1 {
            let sends = self.place.before(first, step);
            let gets = self.place.before(first, step + 1);
            self.step(self.bytes(sends), Into::Vector, self.bytes(gets))?;
        }
        Ok(())
    }

    fn bytes(&self, block: usize) -> Range<usize> {
        self.place.bytes_of(block, self.floats)
    }

    /// Sends bytes of the vector to the next rank and receives as many as it can from the previous one.
    fn step(&mut self, sends: Range<usize>, into: Into, gets: Range<usize>) -> Result<()> {
        let (region, range) = match into {
            Into::Vector => (&self.incoming, gets.clone()),
            Into::Block => (&self.summands, 0..gets.len()),
        };
        let (left, right) = (&self.neighbours.left.1, &self.neighbours.right.1);
        let tag = self.tag;
        left.receive(&[Part { region, range, tag }], 0)?;
        right.send(&self.outgoing, sends, tag, 0)?;
        self.tag = tag.wrapping_add(1);
        let received = self.settle()?;
        if received != gets.len() as u64 {
            bail!(
                "the previous rank sent {received} bytes instead of {}",
                gets.len()
            );
        }
        Ok(())
    }

    /// Makes progress until the message to the next rank is sent and that of the previous one is there. Returns its length.
    fn settle(&self) -> Result<u64> {
        let (left, right) = (&self.neighbours.left.1, &self.neighbours.right.1);
        let (mut sent, mut received) = (false, None);
        let (mut idle, mut moved) = (0, Instant::now());
        loop {
            // Both: an endpoint moves nothing while the other one does.
            let worked = left.progress() | right.progress();
            for (end, name) in [(left, "previous"), (right, "next")] {
                while let Some(event) = end.next_event() {
                    match event {
                        Event::Received { sizes, .. } => received = sizes.first().copied(),
                        Event::Sent { .. } => sent = true,
                        // A neighbour that is done may close before this rank is: only a failed operation counts.
                        Event::Broken(_) => {}
                        Event::Failed { .. } => return Err(failed(end, name)),
                        event => bail!("unexpected {event:?} of the {name} rank"),
                    }
                }
            }
            if let (true, Some(bytes)) = (sent, received) {
                return Ok(bytes);
            }
            if worked {
                (idle, moved) = (0, Instant::now());
                continue;
            }
            idle += 1;
            if idle < IDLE_TURNS {
                thread::yield_now();
                continue;
            }
            if moved.elapsed() > STALL_LIMIT {
                bail!("the neighbours moved nothing for {STALL_LIMIT:?}");
            }
            thread::sleep(REST);
        }
    }
}

/// Returns why an operation failed.
fn failed(end: &Endpoint, name: &str) -> anyhow::Error {
    let context = format!("the connection to the {name} rank");
    match end.cause() {
        Some(cause) => anyhow::Error::new(cause).context(context),
        None => anyhow!("{context} failed"),
    }
}

/// Returns the bytes of floats.
fn bytes_of(floats: Range<usize>) -> Range<usize> {
    floats.start * FLOAT_BYTES..floats.end * FLOAT_BYTES
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_blocks_cover_a_vector_of_any_length() {
        for (ranks, floats) in [(4, 4), (4, 7), (4, 1023), (3, 100), (1, 5)] {
            let place = Place { rank: 0, ranks };
            let blocks: Vec<_> = (0..ranks).map(|b| place.bytes_of(b, floats)).collect();
            assert_eq!(blocks[0].start, 0);
            assert_eq!(blocks[ranks - 1].end, floats * FLOAT_BYTES);
            assert!(blocks.windows(2).all(|two| two[0].end == two[1].start));
        }
    }

    #[test]
    fn blocks_are_counted_backwards_around_the_ring() {
        let place = Place { rank: 0, ranks: 4 };
        let before: Vec<_> = (0..5).map(|steps| place.before(1, steps)).collect();
        assert_eq!(before, [1, 0, 3, 2, 1]);
    }
}
