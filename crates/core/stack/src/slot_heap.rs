//! Sockets in the order of a key, such as the deadline of a timer: an indexed binary heap.
//!
//! A socket has at most one entry, and its position in the heap is known: adding, moving and removing it are
//! `O(log n)`, and there are no stale entries. Nothing is allocated once the heap has grown to the number of
//! sockets. A poll looks only at the root and at entries that it removes.

/// Position of a slot that has no entry.
const ABSENT: u32 = u32::MAX;

/// Slots of the socket table with a key each, the least key first.
#[derive(Debug, Default)]
pub(crate) struct SlotHeap<K> {
    heap: Vec<(K, u32)>,
    /// Position in `heap` of each slot; [`ABSENT`] if it has no entry.
    positions: Vec<u32>,
}

impl<K: Copy + Ord> SlotHeap<K> {
    /// Returns whether there is no entry.
    pub(crate) fn is_empty(&self) -> bool {
        self.heap.is_empty()
    }

    /// Returns the least key.
    pub(crate) fn first(&self) -> Option<K> {
        self.heap.first().map(|&(key, _)| key)
    }

    /// Returns the key of `slot`.
    pub(crate) fn key(&self, slot: u32) -> Option<K> {
        let position = self.position(slot)?;
        self.heap.get(position).map(|&(key, _)| key)
    }

    /// Sets the key of `slot`; `None` removes its entry.
    pub(crate) fn set(&mut self, slot: u32, key: Option<K>) {
        match (key, self.position(slot)) {
            (None, None) => {}
            (None, Some(position)) => self.remove(position),
            (Some(key), Some(position)) => {
                self.heap[position].0 = key;
                self.sift(position);
            }
            (Some(key), None) => self.insert(slot, key),
        }
    }

    /// Removes and returns the slot with the least key, if that is not greater than `limit`.
    pub(crate) fn pop_until(&mut self, limit: K) -> Option<u32> {
        let &(key, slot) = self.heap.first()?;
        if key > limit {
            return None;
        }
        self.remove(0);
        Some(slot)
    }

    fn position(&self, slot: u32) -> Option<usize> {
        match self.positions.get(slot as usize) {
            None | Some(&ABSENT) => None,
            Some(&position) => Some(position as usize),
        }
    }

    fn insert(&mut self, slot: u32, key: K) {
        let index = slot as usize;
        if self.positions.len() <= index {
            self.positions.resize(index + 1, ABSENT);
        }
        let position = self.heap.len();
        self.heap.push((key, slot));
        self.positions[index] = position as u32;
        self.sift(position);
    }

    fn remove(&mut self, position: usize) {
        let (_, slot) = self.heap.swap_remove(position);
        self.positions[slot as usize] = ABSENT;
        if position < self.heap.len() {
            self.positions[self.heap[position].1 as usize] = position as u32;
            self.sift(position);
        }
    }

    /// Moves the entry at `position` up or down until the heap is in order again.
    fn sift(&mut self, mut position: usize) {
        while position > 0 {
            let parent = (position - 1) / 2;
            if self.heap[parent].0 <= self.heap[position].0 {
                break;
            }
            self.swap(parent, position);
            position = parent;
        }
        loop {
            let left = 2 * position + 1;
            let Some(&(mut least, _)) = self.heap.get(left) else {
                return;
            };
            let mut child = left;
            if let Some(&(right, _)) = self.heap.get(left + 1)
                && right < least
            {
                (least, child) = (right, left + 1);
            }
            if self.heap[position].0 <= least {
                return;
            }
            self.swap(position, child);
            position = child;
        }
    }

    fn swap(&mut self, a: usize, b: usize) {
        self.heap.swap(a, b);
        self.positions[self.heap[a].1 as usize] = a as u32;
        self.positions[self.heap[b].1 as usize] = b as u32;
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use wire::Instant;

    use super::*;
    use crate::random::SplitMix;

    fn at(ns: u64) -> Instant {
        Instant::from_nanos(ns)
    }

    #[test]
    fn the_earliest_slot_fires_first_and_only_when_due() {
        let mut timers = SlotHeap::default();
        timers.set(7, Some(at(30)));
        timers.set(1, Some(at(10)));
        timers.set(3, Some(at(20)));
        assert_eq!(timers.first(), Some(at(10)));
        assert_eq!(timers.pop_until(at(9)), None);
        assert_eq!(timers.pop_until(at(20)), Some(1));
        assert_eq!(timers.pop_until(at(20)), Some(3));
        assert_eq!(timers.pop_until(at(20)), None);
        assert_eq!(timers.key(7), Some(at(30)));
    }

    #[test]
    fn a_new_key_moves_the_entry_and_none_removes_it() {
        let mut timers = SlotHeap::default();
        timers.set(0, Some(at(10)));
        timers.set(1, Some(at(20)));
        timers.set(0, Some(at(40)));
        assert_eq!(timers.pop_until(at(100)), Some(1));
        timers.set(0, None);
        assert_eq!((timers.first(), timers.key(0)), (None, None));
        timers.set(0, None);
    }

    #[test]
    fn it_agrees_with_a_sorted_map_over_many_random_steps() {
        for seed in 0..50 {
            let mut random = SplitMix::new(seed);
            let mut timers = SlotHeap::default();
            let mut model: BTreeMap<u32, u64> = BTreeMap::new();
            for step in 0..400 {
                let slot = (random.next() % 40) as u32;
                let deadline = random.next() % 1000;
                match random.next() % 3 {
                    0 => {
                        timers.set(slot, None);
                        model.remove(&slot);
                    }
                    _ => {
                        timers.set(slot, Some(at(deadline)));
                        model.insert(slot, deadline);
                    }
                }
                let earliest = model.values().min().copied().map(at);
                assert_eq!(timers.first(), earliest, "seed {seed} step {step}");
                assert_eq!(
                    timers.key(slot),
                    model.get(&slot).copied().map(at),
                    "seed {seed} step {step}"
                );
            }
            let mut last = at(0);
            while let Some(deadline) = timers.first() {
                let slot = timers.pop_until(at(1000)).unwrap();
                assert_eq!(model.remove(&slot).map(at), Some(deadline), "seed {seed}");
                assert!(deadline >= last, "seed {seed}");
                last = deadline;
            }
            assert!(model.is_empty(), "seed {seed}");
        }
    }
}
