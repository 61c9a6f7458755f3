//! Deadlines of sockets: an indexed binary heap.
//!
//! A socket has at most one entry, and its position in the heap is known: arming, moving and disarming are
//! `O(log n)`, and there are no stale entries. Nothing is allocated once the heap has grown to the number of
//! sockets. A poll looks only at the root and at entries that are due.

use wire::Instant;

/// Position of a slot that is not armed.
const IDLE: u32 = u32::MAX;

/// The armed deadlines of sockets, by slot of the socket table.
#[derive(Debug, Default)]
pub(crate) struct TimerHeap {
    heap: Vec<(Instant, u32)>,
    /// Position in `heap` of each slot; [`IDLE`] if it is not armed.
    places: Vec<u32>,
}

impl TimerHeap {
    /// Returns the earliest deadline.
    pub(crate) fn next(&self) -> Option<Instant> {
        self.heap.first().map(|&(deadline, _)| deadline)
    }

    /// Returns the deadline for which `slot` is armed.
    pub(crate) fn armed(&self, slot: u32) -> Option<Instant> {
        let place = self.place(slot)?;
        self.heap.get(place).map(|&(deadline, _)| deadline)
    }

    /// Arms `slot` for `deadline`, or disarms it. This replaces an earlier deadline.
    pub(crate) fn arm(&mut self, slot: u32, deadline: Option<Instant>) {
        match (deadline, self.place(slot)) {
            (None, None) => {}
            (None, Some(place)) => self.remove(place),
            (Some(deadline), Some(place)) => {
                self.heap[place].0 = deadline;
                self.settle(place);
            }
            (Some(deadline), None) => self.insert(slot, deadline),
        }
    }

    /// Disarms and returns the slot with the earliest deadline, if that is not after `now`.
    pub(crate) fn pop_due(&mut self, now: Instant) -> Option<u32> {
        let &(deadline, slot) = self.heap.first()?;
        if deadline > now {
            return None;
        }
        self.remove(0);
        Some(slot)
    }

    fn place(&self, slot: u32) -> Option<usize> {
        match self.places.get(slot as usize) {
            None | Some(&IDLE) => None,
            Some(&place) => Some(place as usize),
        }
    }

    fn insert(&mut self, slot: u32, deadline: Instant) {
        let index = slot as usize;
        if self.places.len() <= index {
            self.places.resize(index + 1, IDLE);
        }
        let place = self.heap.len();
        self.heap.push((deadline, slot));
        self.places[index] = place as u32;
        self.settle(place);
    }

    fn remove(&mut self, place: usize) {
        let (_, slot) = self.heap.swap_remove(place);
        self.places[slot as usize] = IDLE;
        if place < self.heap.len() {
            self.places[self.heap[place].1 as usize] = place as u32;
            self.settle(place);
        }
    }

    /// Moves the entry at `place` up or down until the heap is in order again.
    fn settle(&mut self, mut place: usize) {
        while place > 0 {
            let parent = (place - 1) / 2;
            if self.heap[parent].0 <= self.heap[place].0 {
                break;
            }
            self.swap(parent, place);
            place = parent;
        }
        loop {
            let left = 2 * place + 1;
            let Some(&(mut least, _)) = self.heap.get(left) else {
                return;
            };
            let mut child = left;
            if let Some(&(right, _)) = self.heap.get(left + 1)
                && right < least
            {
                (least, child) = (right, left + 1);
            }
            if self.heap[place].0 <= least {
                return;
            }
            self.swap(place, child);
            place = child;
        }
    }

    fn swap(&mut self, a: usize, b: usize) {
        self.heap.swap(a, b);
        self.places[self.heap[a].1 as usize] = a as u32;
        self.places[self.heap[b].1 as usize] = b as u32;
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::random::SplitMix;

    fn at(ns: u64) -> Instant {
        Instant::from_nanos(ns)
    }

    #[test]
    fn the_earliest_slot_fires_first_and_only_when_due() {
        let mut timers = TimerHeap::default();
        timers.arm(7, Some(at(30)));
        timers.arm(1, Some(at(10)));
        timers.arm(3, Some(at(20)));
        assert_eq!(timers.next(), Some(at(10)));
        assert_eq!(timers.pop_due(at(9)), None);
        assert_eq!(timers.pop_due(at(20)), Some(1));
        assert_eq!(timers.pop_due(at(20)), Some(3));
        assert_eq!(timers.pop_due(at(20)), None);
        assert_eq!(timers.armed(7), Some(at(30)));
    }

    #[test]
    fn arming_again_moves_and_none_disarms() {
        let mut timers = TimerHeap::default();
        timers.arm(0, Some(at(10)));
        timers.arm(1, Some(at(20)));
        timers.arm(0, Some(at(40)));
        assert_eq!(timers.pop_due(at(100)), Some(1));
        timers.arm(0, None);
        assert_eq!((timers.next(), timers.armed(0)), (None, None));
        timers.arm(0, None);
    }

    #[test]
    fn it_agrees_with_a_sorted_map_over_many_random_steps() {
        for seed in 0..50 {
            let mut random = SplitMix::new(seed);
            let mut timers = TimerHeap::default();
            let mut model: BTreeMap<u32, u64> = BTreeMap::new();
            for step in 0..400 {
                let slot = (random.next() % 40) as u32;
                let deadline = random.next() % 1000;
                match random.next() % 3 {
                    0 => {
                        timers.arm(slot, None);
                        model.remove(&slot);
                    }
                    _ => {
                        timers.arm(slot, Some(at(deadline)));
                        model.insert(slot, deadline);
                    }
                }
                let earliest = model.values().min().copied().map(at);
                assert_eq!(timers.next(), earliest, "seed {seed} step {step}");
                assert_eq!(
                    timers.armed(slot),
                    model.get(&slot).copied().map(at),
                    "seed {seed} step {step}"
                );
            }
            let mut last = at(0);
            while let Some(deadline) = timers.next() {
                let slot = timers.pop_due(at(1000)).unwrap();
                assert_eq!(model.remove(&slot).map(at), Some(deadline), "seed {seed}");
                assert!(deadline >= last, "seed {seed}");
                last = deadline;
            }
            assert!(model.is_empty(), "seed {seed}");
        }
    }
}
