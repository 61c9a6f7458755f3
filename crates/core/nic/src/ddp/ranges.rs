//! The ranges of memory that the next payload of one connection fills, one after another.

use std::ops::Range;

use netmem::{FragList, FragUse, OutOfBounds, Payload};

use crate::fill::MAX_PAYLOAD;

/// Bytes that frags are made of at a time: a few packets, and not too many frags if net_iovs are small.
const FRONT_BYTES: usize = 4 * MAX_PAYLOAD;

/// Most pieces of memory, adjacent ones counted as one, that are posted for a packet: with those of the queue they are fewer
/// than one readv takes.
const MAX_POSTED: usize = 32;

/// The place of the next payload of one connection.
#[derive(Debug)]
pub(super) struct DdpRanges {
    /// Sequence number of the next byte.
    pub(super) seq: u32,
    memory: FragUse,
    /// All ranges, also those that are full.
    ranges: Vec<Range<usize>>,
    /// Bytes that are still to be filled.
    left: usize,
    /// Frags of the first of these bytes.
    front: FragList,
    /// Index of the range behind `front`, and bytes of it that are in `front` or full.
    behind: (usize, usize),
}

impl DdpRanges {
    /// # Errors
    /// A range is not inside the memory.
    pub(super) fn new(
        seq: u32,
        memory: FragUse,
        ranges: Vec<Range<usize>>,
    ) -> Result<Self, OutOfBounds> {
        let mut left = 0_usize;
        for range in &ranges {
            memory.check(range.start, range.len())?;
            left = left.saturating_add(range.len());
        }
        Ok(Self {
            seq,
            memory,
            ranges,
            left,
            front: FragList::new(),
            behind: (0, 0),
        })
    }

    /// Returns the number of bytes that are still to be filled.
    pub(super) fn left(&self) -> usize {
        self.left
    }

    /// Returns frags of the next bytes: `least` bytes, those of one packet, or all that are left.
    pub(super) fn front(&mut self, least: usize) -> &FragList {
        if self.front.len() < self.left.min(least) {
            self.fill_front(least.max(FRONT_BYTES));
        }
        &self.front
    }

    /// Returns the frags of the last call of [`front`](Self::front).
    pub(super) fn made(&self) -> &FragList {
        &self.front
    }

    fn fill_front(&mut self, wanted: usize) {
        let wanted = self.left.min(wanted);
        while self.front.len() < wanted
            && let Some(range) = self.ranges.get(self.behind.0)
        {
            let rest = range.start + self.behind.1..range.end;
            let len = rest.len().min(wanted - self.front.len());
            // Inside the memory: `new` has checked all ranges.
            let made = self.memory.append(rest.start, len, &mut self.front);
            debug_assert!(made.is_ok(), "{made:?}");
            self.behind = match len == rest.len() {
                true => (self.behind.0 + 1, 0),
                false => (self.behind.0, self.behind.1 + len),
            };
        }
    }

    /// Returns how many of the next bytes, at most `room`, can be posted for a packet.
    pub(super) fn postable(&mut self, room: usize) -> usize {
        let longest = self.front(room).len().min(room);
        self.front.first_runs(MAX_POSTED, longest)
    }

    /// Takes the next `len` bytes, into which payload was placed; the front has as many.
    pub(super) fn take(&mut self, len: usize) -> FragList {
        // At most the payload of one packet.
        self.seq = self.seq.wrapping_add(len as u32);
        self.left = self.left.saturating_sub(len);
        self.front.split_off_front(len)
    }

    /// Continues with the byte that has the sequence number `seq`; `left` bytes are still to be filled.
    pub(super) fn resync(&mut self, seq: u32, left: usize) {
        if self.seq == seq {
            return;
        }
        let total: usize = self.ranges.iter().map(ExactSizeIterator::len).sum();
        let mut full = total.saturating_sub(left);
        self.seq = seq;
        self.left = total - full;
        self.front = FragList::new();
        self.behind = (self.ranges.len(), 0);
        for (index, range) in self.ranges.iter().enumerate() {
            if full < range.len() {
                self.behind = (index, full);
                break;
            }
            full -= range.len();
        }
    }
}
