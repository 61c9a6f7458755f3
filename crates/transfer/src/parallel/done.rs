//! Ranges that have come, joined where they touch.

use std::ops::Range;

/// Such ranges, in order, with gaps between them. What comes is mostly added at the end, or near to it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Done(Vec<Range<u64>>);

impl Done {
    /// Adds a range, which may overlap others.
    pub(crate) fn add(&mut self, range: Range<u64>) {
        if range.is_empty() {
            return;
        }
        let first = self.0.partition_point(|it| it.end < range.start);
        let behind = self.0.partition_point(|it| it.start <= range.end);
        match self.0.get(first..behind) {
            Some([touched, rest @ ..]) => {
                let last = rest.last().unwrap_or(touched);
                let joined = range.start.min(touched.start)..range.end.max(last.end);
                self.0[first] = joined;
                self.0.drain(first + 1..behind);
            }
            _ => self.0.insert(first, range),
        }
    }

    /// Returns whether any byte of `range` has come.
    pub(crate) fn has_some_of(&self, range: &Range<u64>) -> bool {
        let first = self.0.partition_point(|it| it.end <= range.start);
        let first = self.0.get(first);
        first.is_some_and(|it| it.start < range.end)
    }

    /// Returns what of `whole` has not come.
    pub(crate) fn missing_in(&self, whole: Range<u64>) -> Vec<Range<u64>> {
        let (mut missing, mut at) = (Vec::new(), whole.start);
        let first = self.0.partition_point(|it| it.end <= whole.start);
        let behind = self.0.partition_point(|it| it.start < whole.end);
        for come in self.0.get(first..behind).unwrap_or_default() {
            missing.push(at..come.start);
            at = come.end;
        }
        missing.push(at..whole.end);
        missing.retain(|range| range.start < range.end);
        missing
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.0.iter().map(|range| range.end - range.start).sum()
    }

    pub(crate) fn iter(&self) -> impl ExactSizeIterator<Item = Range<u64>> {
        self.0.iter().cloned()
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
        assert!(done.has_some_of(&(29..31)) && done.has_some_of(&(0..11)));
        assert!(!done.has_some_of(&(0..10)) && !done.has_some_of(&(55..60)));
        done.add(0..100);
        assert_eq!(done.missing_in(0..100), []);
    }
}
