//! Known byte streams: made by senders, recognised by receivers wherever the bytes came to lie.

#[cfg(test)]
mod tests;

/// Bytes looked at in one pass; they stay in the first-level cache.
pub const BLOCK_BYTES: usize = 32 * 1024;
/// Words compared before looking at the result.
const LANES: usize = 8;
const LANE_BYTES: usize = LANES * size_of::<u64>();
/// 2^64 divided by the golden ratio: odd, so that no two words of a stream are alike.
const STEP: u64 = 0x9e37_79b9_7f4a_7c15;

/// A stream whose bytes depend on their position and on a seed: any byte that was lost, repeated or moved
/// shows. The little-endian word at position `8 * k` is `mix((start + k) * STEP)`: one addition from word to word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PositionPattern {
    start: u64,
}

impl PositionPattern {
    /// A stream of its own for each `seed`: they start at places of one sequence of 2^64 words that are as
    /// far apart as a hash makes them.
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
        let mut chunks = words.chunks_exact_mut(size_of::<u64>());
        for chunk in &mut chunks {
            chunk.copy_from_slice(&mix(counter).to_le_bytes());
            counter = counter.wrapping_add(STEP);
        }
        let tail = chunks.into_remainder();
        let len = tail.len();
        tail.copy_from_slice(&mix(counter).to_le_bytes()[..len]);
    }

    fn fill_bytes(&self, position: u64, out: &mut [u8]) {
        for (at, byte) in (position..).zip(out) {
            *byte = self.byte(at);
        }
    }

    /// Tells whether `bytes` are the stream's from `position` on.
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

    /// Counts the bytes that differ, one by one.
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

/// Brings the fast-changing high half into the low one, whose bytes would repeat every few hundred words.
fn mix(counter: u64) -> u64 {
    counter ^ (counter >> 32)
}

/// Splits `len` bytes at `position` into those before the next word border and the position of that.
fn split_at_word(position: u64, len: usize) -> (usize, u64) {
    let to_border = usize::try_from(position.wrapping_neg() % 8).expect("below 8");
    let head = to_border.min(len);
    (head, position.wrapping_add(head as u64))
}

/// The repeating stream of the seed's test: bytes 1 to N-1, then one byte in the zero position, which is NUL
/// (`tr \\n \\0` made it) or newline (as ncdevmem of today expects). The first one seen must stay.
#[derive(Clone, Debug)]
pub struct RepeatingPattern {
    period: u16,
    /// Whole periods, at least [`BLOCK_BYTES`] and one period more, once the zero position is known.
    expected: Vec<u8>,
}

impl RepeatingPattern {
    /// Smallest and largest N.
    pub const PERIODS: std::ops::RangeInclusive<u16> = 2..=256;

    /// A stream that repeats every `period` bytes, one of [`Self::PERIODS`].
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

    /// Counts the bytes that differ, and returns where the first of them is.
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

/// Bytes of one block that are not what they should be.
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

/// Checks one stream from its first byte on, however it is cut.
#[derive(Clone, Debug)]
pub struct Verifier {
    expected: Expected,
    position: u64,
    wrong: Differences,
}

/// What the stream should be.
#[derive(Clone, Debug)]
pub enum Expected {
    /// The tool's own pattern.
    Position(PositionPattern),
    /// The seed's pattern.
    Repeating(RepeatingPattern),
}

impl Verifier {
    /// Starts at the stream's first byte.
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

    /// Returns how many bytes were as they should be.
    pub fn good_bytes(&self) -> u64 {
        self.position - self.wrong.count
    }

    /// Returns how many bytes were not as they should be.
    pub fn bad_bytes(&self) -> u64 {
        self.wrong.count
    }

    /// Returns the position of the first byte that was not as it should be.
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
