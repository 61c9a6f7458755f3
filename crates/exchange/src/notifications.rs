//! Notifications of the peer that the program has not taken, bounded in number and in bytes.

use std::collections::VecDeque;

use crate::operations::Event;

/// Notifications, and bytes of them with what each costs beside its bytes, from which on no further records are read, so that TCP
/// stops the peer. Reading goes on when the program has taken half of them.
const MAX_NOTIFICATIONS: usize = 1024;
const MAX_BYTES: usize = 1 << 20;

/// What a notification costs beside its bytes: its places in two queues, which may be twice as long as what they contain, and
/// what the allocator keeps.
const OVERHEAD: usize = 2 * (size_of::<Waiting>() + size_of::<Event>()) + 32;

/// A notification that waits for the puts before it.
struct Waiting {
    /// Number of chunks announced before it.
    after: u64,
    bytes: Vec<u8>,
}

/// Notifications between their record and the program.
#[derive(Default)]
pub(crate) struct Notifications {
    waiting: VecDeque<Waiting>,
    /// Number and cost of those that wait and of those that are events which the program has not taken.
    held: usize,
    cost: usize,
    is_full: bool,
}

impl Notifications {
    /// Returns whether further records may be read.
    pub(crate) fn has_room(&self) -> bool {
        !self.is_full
    }

    /// Keeps a notification until the `after` chunks announced before it are in place.
    pub(crate) fn add(&mut self, after: u64, bytes: Vec<u8>) {
        self.held += 1;
        self.cost += bytes.len() + OVERHEAD;
        self.is_full |= self.held >= MAX_NOTIFICATIONS || self.cost >= MAX_BYTES;
        self.waiting.push_back(Waiting { after, bytes });
    }

    /// Returns the bytes of the next one whose chunks are in place. `missing` is the number of the first chunk that is not.
    pub(crate) fn next_ready(&mut self, missing: Option<u64>) -> Option<Vec<u8>> {
        let first = self.waiting.front()?;
        let is_ready = missing.is_none_or(|missing| missing >= first.after);
        let ready = is_ready.then(|| self.waiting.pop_front()).flatten();
        ready.map(|waiting| waiting.bytes)
    }

    /// Notes that the program has taken one of `len` bytes.
    pub(crate) fn on_taken(&mut self, len: usize) {
        self.forget(1, len + OVERHEAD);
    }

    /// Drops those that wait: the endpoint is broken.
    pub(crate) fn drop_waiting(&mut self) {
        let waiting = std::mem::take(&mut self.waiting);
        let cost = waiting.iter().map(|it| it.bytes.len() + OVERHEAD).sum();
        self.forget(waiting.len(), cost);
    }

    fn forget(&mut self, number: usize, cost: usize) {
        self.held = self.held.saturating_sub(number);
        self.cost = self.cost.saturating_sub(cost);
        self.is_full &= self.held > MAX_NOTIFICATIONS / 2 || self.cost > MAX_BYTES / 2;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Adds notifications of `len` bytes until there is no room, and delivers them.
    fn fill(len: usize) -> (Notifications, usize) {
        let mut all = Notifications::default();
        let mut number = 0;
        while all.has_room() {
            all.add(0, vec![0; len]);
            number += 1;
        }
        for _ in 0..number {
            assert!(all.next_ready(None).is_some());
        }
        assert!(all.next_ready(None).is_none());
        (all, number)
    }

    #[test]
    fn delivered_ones_count_until_the_program_has_taken_half_of_them() {
        for len in [0, 100, 4096] {
            let (mut all, number) = fill(len);
            assert!(number <= MAX_NOTIFICATIONS);
            assert!(number * (len + OVERHEAD) < MAX_BYTES + 4096 + OVERHEAD);
            let mut taken = 0;
            while !all.has_room() {
                all.on_taken(len);
                taken += 1;
            }
            assert!(
                (number / 2..=number / 2 + 1).contains(&taken),
                "{taken} of {number}"
            );
        }
        assert_eq!(fill(0).1, MAX_NOTIFICATIONS);
        assert!(
            fill(4096).1 < MAX_BYTES / 4096,
            "what each costs counts, too"
        );
    }

    #[test]
    fn one_waits_for_the_chunks_before_it() {
        let mut all = Notifications::default();
        all.add(3, vec![1]);
        assert!(all.next_ready(Some(2)).is_none());
        assert_eq!(all.next_ready(Some(3)), Some(vec![1]));
        all.add(4, vec![2]);
        all.drop_waiting();
        assert!(all.next_ready(None).is_none());
        assert_eq!((all.held, all.cost), (1, 1 + OVERHEAD));
    }
}
