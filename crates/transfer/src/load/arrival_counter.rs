//! What has come of ranges of a source, each of which belongs to something that is complete with its last byte.

use std::ops::Range;

use crate::parallel::Done;

/// Counts the bytes of things that are loaded, and tells which are complete.
#[derive(Debug, Default)]
pub struct ArrivalCounter {
    /// Ranges of the source, and the number of the thing that each belongs to; sorted.
    spans: Vec<(Range<u64>, usize)>,
    /// Of each thing, its bytes that have not come.
    missing: Vec<u64>,
    done: Done,
}

impl ArrivalCounter {
    /// Returns the ranges of `count` things. No two overlap.
    ///
    /// # Panics
    /// When a number is not below `count`.
    pub fn new(mut spans: Vec<(Range<u64>, usize)>, count: usize) -> Self {
        spans.retain(|(range, _)| !range.is_empty());
        spans.sort_unstable_by_key(|(range, _)| range.start);
        let mut missing = vec![0; count];
        for (range, number) in &spans {
            missing[*number] += range.end - range.start;
        }
        Self {
            spans,
            missing,
            done: Done::default(),
        }
    }

    /// Returns the things of which all bytes have come.
    pub fn complete(&self) -> impl Iterator<Item = usize> {
        let missing = self.missing.iter().enumerate();
        missing
            .filter(|(_, missing)| **missing == 0)
            .map(|(number, _)| number)
    }

    /// Returns the ranges that have bytes of `range`, and what they belong to, in order.
    pub fn spans_in(&self, range: &Range<u64>) -> &[(Range<u64>, usize)] {
        let first = self
            .spans
            .partition_point(|(span, _)| span.end <= range.start);
        let after = self
            .spans
            .partition_point(|(span, _)| span.start < range.end);
        self.spans.get(first..after).unwrap_or_default()
    }

    /// Counts bytes, each once however often it comes. `complete` is called with the number of each thing whose last byte is among them.
    pub fn add(&mut self, range: Range<u64>, complete: &mut dyn FnMut(usize)) {
        let fresh = self.done.missing_in(range.clone());
        self.done.add(range);
        for range in fresh {
            let first = self
                .spans
                .partition_point(|(span, _)| span.end <= range.start);
            let spans = self.spans[first..].iter();
            for (span, number) in spans.take_while(|(span, _)| span.start < range.end) {
                let missing = &mut self.missing[*number];
                *missing -= span.end.min(range.end) - span.start.max(range.start);
                if *missing == 0 {
                    complete(*number);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thing_is_complete_with_its_last_byte_and_only_once() {
        let spans = vec![
            (50..60, 1),
            (0..10, 0),
            (20..30, 0),
            (30..31, 2),
            (40..40, 3),
        ];
        let mut coming = ArrivalCounter::new(spans, 4);
        assert_eq!(coming.complete().collect::<Vec<_>>(), [3]);
        assert_eq!(coming.spans_in(&(9..20)), [(0..10, 0)]);
        assert_eq!(
            coming.spans_in(&(9..31)),
            [(0..10, 0), (20..30, 0), (30..31, 2)]
        );
        assert_eq!(coming.spans_in(&(31..50)), []);
        let mut told = Vec::new();
        for range in [0..5, 0..9, 50..59, 20..31, 5..10, 0..10, 59..60, 50..60] {
            coming.add(range, &mut |number| told.push(number));
        }
        assert_eq!(told, [2, 0, 1]);
    }
}
