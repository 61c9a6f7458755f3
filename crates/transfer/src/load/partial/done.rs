//! Ranges that have come, joined where they touch.

use std::collections::BTreeMap;
use std::ops::Range;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(in crate::load) struct Done {
    /// Ends by starts. No two touch.
    ranges: BTreeMap<u64, u64>,
}

impl Done {
    /// Adds a range, which may overlap others.
    pub(in crate::load) fn add(&mut self, range: Range<u64>) {
        if range.is_empty() {
            return;
        }
        let Range { mut start, mut end } = range;
        let touching = self.ranges.range(..=end).rev();
        let touching: Vec<_> = touching
            .take_while(|(_, its_end)| **its_end >= start)
            .map(|(its_start, its_end)| (*its_start, *its_end))
            .collect();
        for (its_start, its_end) in touching {
            self.ranges.remove(&its_start);
            (start, end) = (start.min(its_start), end.max(its_end));
        }
        self.ranges.insert(start, end);
    }

    /// Returns what of `whole` has not come.
    pub(in crate::load) fn missing_in(&self, whole: Range<u64>) -> Vec<Range<u64>> {
        let (mut missing, mut at) = (Vec::new(), whole.start);
        let before = self.ranges.range(..=whole.start).next_back();
        let first = before.map_or(whole.start, |(start, _)| *start);
        let end = whole.end.max(first);
        for (&start, &end) in self.ranges.range(first..end) {
            if start > at {
                missing.push(at..start.min(whole.end));
            }
            at = at.max(end);
        }
        missing.push(at..whole.end);
        missing.retain(|range| range.start < range.end);
        missing
    }

    pub(in crate::load) fn bytes(&self) -> u64 {
        self.ranges.iter().map(|(start, end)| end - start).sum()
    }

    pub(in crate::load) fn iter(&self) -> impl Iterator<Item = Range<u64>> {
        self.ranges.iter().map(|(start, end)| *start..*end)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_joined_and_what_is_missing_is_the_rest() {
        let mut done = Done::default();
        for range in [20..30, 40..50, 5..5, 30..40, 60..70, 45..55, 10..12] {
            done.add(range);
        }
        let ranges: Vec<_> = done.iter().collect();
        assert_eq!(ranges, [10..12, 20..55, 60..70]);
        assert_eq!(done.bytes(), 47);
        assert_eq!(done.missing_in(0..100), [0..10, 12..20, 55..60, 70..100]);
        assert_eq!(done.missing_in(11..62), [12..20, 55..60]);
        assert_eq!(Done::default().missing_in(3..9), [3..9]);
        assert_eq!(Done::default().missing_in(3..3), []);
        done.add(0..100);
        assert_eq!(done.missing_in(0..100), []);
    }
}
