//! The complete zero-copy sends of a socket. The kernel reports ranges of 32-bit ids in any order.

use std::collections::BTreeMap;

use devmem_uapi::ZerocopyRange;

/// The zero-copy sends of a socket, numbered from 0 with 64 bits, and the set of complete ones.
#[derive(Debug, Default)]
pub(super) struct CompletionSet {
    /// Number of sends; the kernel's ids are the lower halves of their numbers.
    sent: u64,
    /// All sends before this number are complete.
    through: u64,
    /// Complete ranges after that, from start to end; they never touch.
    beyond: BTreeMap<u64, u64>,
}

impl CompletionSet {
    pub(super) fn sent(&self) -> u64 {
        self.sent
    }

    pub(super) fn through(&self) -> u64 {
        self.through
    }

    /// Returns the number of complete sends, in order or not.
    pub(super) fn complete(&self) -> u64 {
        let beyond = self.beyond.iter().map(|(start, end)| end - start);
        self.through + beyond.sum::<u64>()
    }

    pub(super) fn contains(&self, send: u64) -> bool {
        let before = self.beyond.range(..=send).next_back();
        send < self.through || before.is_some_and(|(_, end)| send < *end)
    }

    /// Counts one more send and returns its number.
    pub(super) fn count(&mut self) -> u64 {
        self.sent += 1;
        self.sent - 1
    }

    /// Adds a range from the error queue. Returns the number of sends that it newly completes: 0 if it contains sends that do
    /// not exist, or was reported before.
    pub(super) fn note(&mut self, range: ZerocopyRange) -> u64 {
        let before = self.complete();
        // At most 2^32 sends are unreported, so the distance from the oldest of them gives the upper half.
        #[allow(
            clippy::cast_possible_truncation,
            reason = "the lower half is what the kernel counts"
        )]
        let ahead = range.lo.0.wrapping_sub(self.through as u32);
        let start = self.through + u64::from(ahead);
        let end = start + range.count();
        if end > self.sent {
            return 0;
        }
        self.insert(start, end);
        self.complete() - before
    }

    fn insert(&mut self, mut start: u64, mut end: u64) {
        // Ranges that overlap or touch this one are merged into it.
        while let Some((&other, &other_end)) = self.beyond.range(..=end).next_back()
            && other_end >= start
        {
            self.beyond.remove(&other);
            start = start.min(other);
            end = end.max(other_end);
        }
        if start <= self.through {
            self.through = self.through.max(end);
        } else {
            self.beyond.insert(start, end);
        }
    }
}

#[cfg(test)]
mod tests {
    use devmem_uapi::ZerocopyId;

    use super::*;

    fn set(sent: u64) -> CompletionSet {
        CompletionSet {
            sent,
            ..CompletionSet::default()
        }
    }

    fn range(lo: u32, hi: u32) -> ZerocopyRange {
        ZerocopyRange {
            lo: ZerocopyId(lo),
            hi: ZerocopyId(hi),
            copied: false,
        }
    }

    #[test]
    fn ranges_complete_in_any_order() {
        let mut set = set(10);
        assert_eq!(set.note(range(4, 5)), 2);
        assert_eq!(set.note(range(8, 8)), 1);
        assert_eq!((set.through(), set.complete()), (0, 3));
        assert!(set.contains(4) && set.contains(5) && set.contains(8));
        assert!(!set.contains(3) && !set.contains(6) && !set.contains(9));
        assert_eq!(set.note(range(0, 3)), 4);
        assert_eq!((set.through(), set.complete()), (6, 7));
        assert_eq!(set.note(range(6, 7)), 2);
        assert_eq!((set.through(), set.complete()), (9, 9));
        assert!(set.beyond.is_empty());
        assert_eq!(set.note(range(9, 9)), 1);
        assert_eq!(set.through(), set.sent());
    }

    #[test]
    fn completions_of_unknown_or_reported_sends_are_ignored() {
        let mut set = set(4);
        assert_eq!(set.note(range(2, 4)), 0, "the last of them was not sent");
        assert_eq!(set.note(range(1, 2)), 2);
        assert_eq!(set.note(range(1, 3)), 1);
        assert_eq!(set.note(range(0, 0)), 1);
        assert_eq!(set.note(range(0, 0)), 0);
        assert_eq!(set.through(), 4);
    }

    #[test]
    fn the_kernels_counter_wraps_and_ours_does_not() {
        let mut set = set((1 << 32) + 3);
        set.through = (1 << 32) - 2;
        assert_eq!(set.note(range(1, 1)), 1);
        assert!(set.contains((1 << 32) + 1));
        assert_eq!(set.note(range(u32::MAX - 1, 0)), 3);
        assert_eq!(set.through(), (1 << 32) + 2);
        assert_eq!(set.count(), (1 << 32) + 3);
    }

    #[test]
    fn any_order_of_single_completions_ends_complete() {
        for seed in 0..50u64 {
            let mut ids: Vec<u32> = (0..40).collect();
            // A shuffle that needs no randomness: by a multiplicative hash.
            ids.sort_by_key(|id| (u64::from(*id) + 1 + seed).wrapping_mul(0x9e37_79b9_7f4a_7c15));
            let mut set = set(40);
            for (done, id) in ids.iter().enumerate() {
                assert_eq!(set.note(range(*id, *id)), 1, "seed {seed}");
                assert_eq!(set.complete(), done as u64 + 1);
            }
            assert_eq!((set.through(), set.beyond.len()), (40, 0));
        }
    }
}
