//! Test patterns: byte streams that senders generate and receivers verify, in host and in device memory.
//!
//! Key types: [`PositionPattern`] and [`RepeatingPattern`] (streams), [`Verifier`] (of one of them, in pieces); [`floats`] are the
//! vectors of collectives. What touches each byte of a payload for a program is here, because the programs are not optimised
//! (Cargo.toml of the workspace).

#![forbid(unsafe_code)]

pub mod floats;
#[cfg(test)]
mod tests;

/// Bytes verified in one pass; they fit the first-level cache.
pub const BLOCK_BYTES: usize = 32 * 1024;
/// Words compared before the result is checked.
const LANES: usize = 8;
const LANE_BYTES: usize = LANES * size_of::<u64>();
/// 2^64 divided by the golden ratio; odd, so all words of a stream differ.
const STEP: u64 = 0x9e37_79b9_7f4a_7c15;

/// A stream in which every byte depends on its position and on a seed, so that lost, repeated and moved bytes are
/// detected. The little-endian word at position `8 * k` is `mix((start + k) * STEP)`: one addition per word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PositionPattern {
    start: u64,
}

impl PositionPattern {
    /// Returns the stream of `seed`. Streams are parts of one sequence of 2^64 words; a hash of the seed gives the
    /// start.
    pub fn new(seed: u64) -> Self {
        // The finisher of SplitMix64 (Steele, Lea, Flood: Fast Splittable Pseudorandom Number Generators).
        let mut hash = seed.wrapping_add(STEP);
        hash = (hash ^ (hash >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        hash = (hash ^ (hash >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        Self {
            start: hash ^ (hash >> 31),
        }
    }

    /// Writes the bytes from `position` on.
    pub fn fill(&self, position: u64, out: &mut [u8]) {
        let (head, rest) = split_at_word(position, out.len());
        let (head, words) = out.split_at_mut(head);
        self.fill_bytes(position, head);
        let mut counter = self.counter(rest);
        let (words, tail) = words.as_chunks_mut::<{ size_of::<u64>() }>();
        for word in words {
            *word = mix(counter).to_le_bytes();
            counter = counter.wrapping_add(STEP);
        }
        let len = tail.len();
        tail.copy_from_slice(&mix(counter).to_le_bytes()[..len]);
    }

    fn fill_bytes(&self, position: u64, out: &mut [u8]) {
        for (at, byte) in (position..).zip(out) {
            *byte = self.byte(at);
        }
    }

    /// Returns whether `bytes` are those of the stream from `position` on.
    fn matches(&self, position: u64, bytes: &[u8]) -> bool {
        let (head, rest) = split_at_word(position, bytes.len());
        let (head, words) = bytes.split_at(head);
        let mut wrong = self.differences(position, head);
        let mut counters = [0; LANES];
        let mut counter = self.counter(rest);
        for lane in &mut counters {
            *lane = counter;
            counter = counter.wrapping_add(STEP);
        }
        let mut wrong_lanes = [0; LANES];
        let (groups, tail) = words.as_chunks::<LANE_BYTES>();
        for group in groups {
            let (found, _) = group.as_chunks::<{ size_of::<u64>() }>();
            for ((wrong, counter), found) in wrong_lanes.iter_mut().zip(&mut counters).zip(found) {
                *wrong |= u64::from_le_bytes(*found) ^ mix(*counter);
                *counter = counter.wrapping_add(STEP.wrapping_mul(LANES as u64));
            }
        }
        wrong += self.differences(rest + (groups.len() * LANE_BYTES) as u64, tail);
        wrong == 0 && wrong_lanes == [0; LANES]
    }

    /// Counts the wrong bytes, one by one.
    fn differences(&self, position: u64, bytes: &[u8]) -> u64 {
        let wrong = (position..)
            .zip(bytes)
            .filter(|&(at, &found)| self.byte(at) != found);
        wrong.count() as u64
    }

    fn counter(&self, position: u64) -> u64 {
        self.start.wrapping_add(position / 8).wrapping_mul(STEP)
    }

    fn byte(&self, position: u64) -> u8 {
        let in_word = usize::try_from(position % 8).expect("below 8");
        mix(self.counter(position)).to_le_bytes()[in_word]
    }
}

/// Mixes the high half into the low half, whose bytes would otherwise repeat every few hundred words.
fn mix(counter: u64) -> u64 {
    counter ^ (counter >> 32)
}

/// Returns how many of `len` bytes at `position` come before the next word boundary, and the position of that boundary.
fn split_at_word(position: u64, len: usize) -> (usize, u64) {
    let to_border = usize::try_from(position.wrapping_neg() % 8).expect("below 8");
    let head = to_border.min(len);
    (head, position.wrapping_add(head as u64))
}

/// The repeating stream of the ncdevmem test: bytes 1 to N-1, then one byte in the zero position, which is NUL (made by
/// `tr \\n \\0`) or newline (expected by current ncdevmem). The first one received is expected from then on.
#[derive(Clone, Debug)]
pub struct RepeatingPattern {
    period: u16,
    /// Whole periods, at least [`BLOCK_BYTES`] and one period more, once the zero position is known.
    expected: Vec<u8>,
}

impl RepeatingPattern {
    /// Smallest and largest N.
    pub const PERIODS: std::ops::RangeInclusive<u16> = 2..=256;

    /// Returns the stream that repeats every `period` bytes, one of [`Self::PERIODS`].
    pub fn new(period: u16) -> Self {
        Self {
            period,
            expected: Vec::new(),
        }
    }

    /// Writes the bytes from `position` on, NUL in the zero position.
    pub fn fill(&self, position: u64, out: &mut [u8]) {
        let mut phase = self.phase(position);
        for byte in out {
            phase = (phase + 1) % usize::from(self.period);
            // Below the period, which is 256 at most.
            *byte = phase as u8;
        }
    }

    /// Counts the wrong bytes and returns the position of the first, `None` if there is none.
    fn check(&mut self, position: u64, bytes: &[u8]) -> Option<Differences> {
        let phase = self.phase(position);
        if let Some(expected) = self.expected.get(phase..phase + bytes.len())
            && expected == bytes
        {
            return None;
        }
        let mut found = Differences::default();
        for (at, &byte) in (position..).zip(bytes) {
            if !self.accepts(at, byte) {
                found.add(at);
            }
        }
        (found.count > 0).then_some(found)
    }

    fn accepts(&mut self, position: u64, byte: u8) -> bool {
        let phase = self.phase(position);
        let zero_position = usize::from(self.period) - 1;
        if phase != zero_position {
            return phase + 1 == usize::from(byte);
        }
        match self.expected.get(zero_position) {
            Some(&zero) => byte == zero,
            None if byte == 0 || byte == b'\n' => {
                let period = (1..self.period).map(|b| b as u8).chain([byte]);
                let len = BLOCK_BYTES + 2 * usize::from(self.period);
                self.expected = period.cycle().take(len).collect();
                true
            }
            None => false,
        }
    }

    fn phase(&self, position: u64) -> usize {
        usize::try_from(position % u64::from(self.period)).expect("below the period")
    }
}

/// Wrong bytes of one block.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Differences {
    count: u64,
    first: Option<u64>,
}

impl Differences {
    fn add(&mut self, position: u64) {
        self.count += 1;
        self.first.get_or_insert(position);
    }
}

/// Verifier of one stream, from its first byte on, in pieces of any size.
#[derive(Clone, Debug)]
pub struct Verifier {
    expected: Expected,
    position: u64,
    wrong: Differences,
}

/// Expected stream.
#[derive(Clone, Debug)]
pub enum Expected {
    /// The position pattern.
    Position(PositionPattern),
    /// The repeating pattern.
    Repeating(RepeatingPattern),
}

impl Verifier {
    /// Returns a verifier for the first byte of the stream.
    pub fn new(expected: Expected) -> Self {
        Self {
            expected,
            position: 0,
            wrong: Differences::default(),
        }
    }

    /// Checks the next bytes of the stream.
    pub fn check(&mut self, bytes: &[u8]) {
        for block in bytes.chunks(BLOCK_BYTES) {
            self.check_block(block);
        }
    }

    fn check_block(&mut self, block: &[u8]) {
        let differences = match &mut self.expected {
            Expected::Position(pattern) => {
                if pattern.matches(self.position, block) {
                    None
                } else {
                    Some(position_differences(pattern, self.position, block))
                }
            }
            Expected::Repeating(pattern) => pattern.check(self.position, block),
        };
        if let Some(Differences { count, first }) = differences {
            self.wrong.count += count;
            self.wrong.first = self.wrong.first.or(first);
        }
        self.position += block.len() as u64;
    }

    /// Returns how many bytes were right.
    pub fn good_bytes(&self) -> u64 {
        self.position - self.wrong.count
    }

    /// Returns how many bytes were wrong.
    pub fn bad_bytes(&self) -> u64 {
        self.wrong.count
    }

    /// Returns the position of the first wrong byte.
    pub fn first_bad(&self) -> Option<u64> {
        self.wrong.first
    }
}

fn position_differences(pattern: &PositionPattern, position: u64, block: &[u8]) -> Differences {
    let mut found = Differences::default();
    for (at, &byte) in (position..).zip(block) {
        if byte != pattern.byte(at) {
            found.add(at);
        }
    }
    found
}
