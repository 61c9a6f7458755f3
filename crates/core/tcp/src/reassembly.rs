//! Payload that arrived out of order, sorted without reading or copying a byte.
//!
//! Ranges are sorted and never touch or overlap; each holds its payloads as they arrived. A byte that is held is not
//! replaced: bytes that arrive again are cut off.

use std::collections::VecDeque;

use netmem::Payload;

use crate::seqnum::SeqNum;

/// Most ranges of one connection.
///
/// A window of 4,000 segments with 5 % loss has about 200. The limit bounds the cost of an insertion in the middle: moving
/// 1,024 ranges is a few tens of kilobytes.
pub(crate) const MAX_RANGES: usize = 1024;

/// Number of recently changed ranges that are remembered for SACK (RFC 2018 4: as many as fit).
const RECENT: usize = wire::SackBlocks::CAPACITY;

/// A half-open range of sequence numbers.
pub(crate) type SeqRange = (SeqNum, SeqNum);

/// Out-of-order payload of one connection.
#[derive(Debug)]
pub(crate) struct Reassembly<P> {
    ranges: VecDeque<HeldRange<P>>,
    bytes: usize,
    payloads: usize,
    max_payloads: usize,
    /// A sequence number inside each recently changed range, most recent first.
    recent: [Option<SeqNum>; RECENT],
}

/// Payloads without a gap.
#[derive(Debug)]
struct HeldRange<P> {
    start: SeqNum,
    end: SeqNum,
    payloads: VecDeque<P>,
}

/// Effect of an insertion.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Inserted {
    /// Some of the payload was new, and is held now.
    pub(crate) stored: bool,
    /// The first part of it that was held already, for D-SACK.
    pub(crate) duplicate: Option<SeqRange>,
}

/// The limit of ranges or payloads is reached; the payload was dropped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Full;

impl<P: Payload> Reassembly<P> {
    /// Returns an empty reassembly for at most `max_payloads` payloads; it owns no memory.
    pub(crate) fn new(max_payloads: usize) -> Reassembly<P> {
        Reassembly {
            ranges: VecDeque::new(),
            bytes: 0,
            payloads: 0,
            max_payloads,
            recent: [None; RECENT],
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.ranges.is_empty()
    }

    /// Returns the number of bytes held.
    pub(crate) fn len(&self) -> usize {
        self.bytes
    }

    /// Keeps the new parts of `payload`, whose first byte is `seq`.
    ///
    /// # Errors
    ///
    /// [`Full`]: there would be too many ranges or payloads.
    pub(crate) fn insert(&mut self, seq: SeqNum, payload: P) -> Result<Inserted, Full> {
        if payload.is_empty() {
            return Ok(Inserted {
                stored: false,
                duplicate: None,
            });
        }
        let end = seq + payload.len();
        let first = self.ranges.partition_point(|range| range.end.before(seq));
        let touched = self
            .ranges
            .iter()
            .skip(first)
            .take_while(|range| range.start.before_eq(end))
            .count();
        if self.payloads >= self.max_payloads || (touched == 0 && self.ranges.len() >= MAX_RANGES) {
            return Err(Full);
        }
        let inserted = if touched == 0 {
            self.count_in(&payload);
            self.ranges.insert(
                first,
                HeldRange {
                    start: seq,
                    end,
                    payloads: VecDeque::from([payload]),
                },
            );
            Inserted {
                stored: true,
                duplicate: None,
            }
        } else {
            self.merge(first, touched, seq, payload)
        };
        self.note_recent(seq);
        Ok(inserted)
    }

    /// Puts `payload` into the gaps between the `touched` ranges from `first` on, which become one.
    fn merge(&mut self, first: usize, touched: usize, seq: SeqNum, mut payload: P) -> Inserted {
        let mut inserted = Inserted {
            stored: false,
            duplicate: None,
        };
        let mut at = seq;
        let mut merged: Option<HeldRange<P>> = None;
        for index in first..first + touched {
            // The hole that `take` leaves is filled or drained below.
            let range = self.ranges[index].take();
            let gap = range.start.bytes_since(at);
            if gap > 0 {
                let piece = payload.split_off_front(gap);
                self.count_in(&piece);
                HeldRange::push(&mut merged, at, piece);
                inserted.stored = true;
                at = range.start;
            }
            let overlap = range.end.bytes_since(at).min(payload.len());
            if overlap > 0 {
                payload.trim_front(overlap);
                inserted.duplicate = inserted.duplicate.or(Some((at, at + overlap)));
                at += overlap;
            }
            merged = Some(HeldRange::join(merged, range));
        }
        if !payload.is_empty() {
            self.count_in(&payload);
            HeldRange::push(&mut merged, at, payload);
            inserted.stored = true;
        }
        if let Some(merged) = merged {
            self.ranges[first] = merged;
        }
        if touched > 1 {
            self.ranges.drain(first + 1..first + touched);
        }
        inserted
    }

    fn count_in(&mut self, payload: &P) {
        self.bytes += payload.len();
        self.payloads += 1;
    }

    /// Returns where the first range starts.
    pub(crate) fn first_start(&self) -> Option<SeqNum> {
        self.ranges.front().map(|range| range.start)
    }

    /// Returns the number after the last byte held.
    pub(crate) fn last_end(&self) -> Option<SeqNum> {
        self.ranges.back().map(|range| range.end)
    }

    /// Takes the payloads that start at `rcv_nxt`, in order; none if the next byte is missing.
    ///
    /// The caller never inserts bytes before `rcv_nxt`, so the first range starts there or later.
    pub(crate) fn pop_ready(&mut self, rcv_nxt: SeqNum) -> VecDeque<P> {
        match self.ranges.front() {
            Some(range) if range.start.before_eq(rcv_nxt) => {
                let range = self
                    .ranges
                    .pop_front()
                    .map(|range| (range.end.bytes_since(range.start), range.payloads));
                let (len, payloads) = range.unwrap_or_default();
                self.bytes -= len;
                self.payloads -= payloads.len();
                if self.ranges.is_empty() {
                    // An idle connection keeps no memory for earlier losses.
                    self.clear();
                }
                payloads
            }
            _ => VecDeque::new(),
        }
    }

    /// Removes the payload with the highest sequence numbers, which the peer will send again last.
    pub(crate) fn pop_last(&mut self) -> Option<P> {
        let last = self.ranges.back_mut()?;
        let payload = last.payloads.pop_back()?;
        let left = last.end.bytes_since(last.start) - payload.len();
        last.end = last.start + left;
        let (start, end) = (last.start, last.end);
        for recent in self.recent.iter_mut().flatten() {
            // SACK still reports the rest of the range.
            if recent.after_eq(end) && left > 0 {
                *recent = start;
            }
        }
        if last.payloads.is_empty() {
            self.ranges.pop_back();
        }
        self.bytes -= payload.len();
        self.payloads -= 1;
        if self.ranges.is_empty() {
            self.clear();
        }
        Some(payload)
    }

    /// Returns every payload, in the order of the stream.
    pub(crate) fn payloads(&self) -> impl Iterator<Item = &P> + '_ {
        self.ranges.iter().flat_map(|range| &range.payloads)
    }

    /// Returns every payload, to be moved to other memory; none may change its length.
    pub(crate) fn payloads_mut(&mut self) -> impl Iterator<Item = &mut P> + '_ {
        self.ranges.iter_mut().flat_map(|range| &mut range.payloads)
    }

    /// Drops everything.
    pub(crate) fn clear(&mut self) {
        *self = Reassembly::new(self.max_payloads);
    }

    /// Returns the ranges in the order in which SACK reports them: the one that changed last first
    /// (RFC 2018 4).
    pub(crate) fn sack_ranges(&self) -> impl Iterator<Item = SeqRange> + '_ {
        let found = self.recent.map(|seq| self.find(seq?));
        (0..RECENT)
            .filter_map(move |i| found[i].filter(|range| !found[..i].contains(&Some(*range))))
    }

    /// Returns the range that holds `seq`.
    pub(crate) fn find(&self, seq: SeqNum) -> Option<SeqRange> {
        let index = self
            .ranges
            .partition_point(|range| range.end.before_eq(seq));
        let range = self.ranges.get(index)?;
        range
            .start
            .before_eq(seq)
            .then_some((range.start, range.end))
    }

    /// Remembers that the range around `seq` changed last, and removes an older entry for the same range.
    fn note_recent(&mut self, seq: SeqNum) {
        let now = self.find(seq);
        let same = |entry: &Option<SeqNum>| entry.is_none_or(|other| self.find(other) == now);
        let vacant = self.recent.iter().position(same).unwrap_or(RECENT - 1);
        self.recent[..=vacant].rotate_right(1);
        self.recent[0] = Some(seq);
    }
}

impl<P: Payload> HeldRange<P> {
    fn take(&mut self) -> HeldRange<P> {
        HeldRange {
            start: self.start,
            end: self.end,
            payloads: core::mem::take(&mut self.payloads),
        }
    }

    /// Puts `piece`, which starts at `at`, behind `range` (which ends there) or starts a range with
    /// it.
    fn push(range: &mut Option<HeldRange<P>>, at: SeqNum, piece: P) {
        let end = at + piece.len();
        match range {
            Some(range) => {
                range.payloads.push_back(piece);
                range.end = end;
            }
            None => {
                *range = Some(HeldRange {
                    start: at,
                    end,
                    payloads: VecDeque::from([piece]),
                })
            }
        }
    }

    /// Joins two touching ranges by moving the shorter list, so that each payload is moved at most a logarithmic number of
    /// times, in whichever order a peer fills gaps.
    fn join(front: Option<HeldRange<P>>, mut back: HeldRange<P>) -> HeldRange<P> {
        let Some(mut front) = front else { return back };
        if front.payloads.len() < back.payloads.len() {
            while let Some(payload) = front.payloads.pop_back() {
                back.payloads.push_front(payload);
            }
            HeldRange {
                start: front.start,
                ..back
            }
        } else {
            front.payloads.append(&mut back.payloads);
            HeldRange {
                end: back.end,
                ..front
            }
        }
    }
}

#[cfg(test)]
mod tests;
