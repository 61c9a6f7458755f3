//! Ranges of a source or an export.

use std::ops::Range;

use client::PartError;

/// Two ranges with a common byte.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Overlap {
    pub(crate) first: Range<u64>,
    pub(crate) second: Range<u64>,
}

impl From<Overlap> for PartError {
    fn from(Overlap { first, second }: Overlap) -> Self {
        Self::Overlap { first, second }
    }
}

/// Returns the ranges that are not empty, sorted.
///
/// # Errors
/// Two of them overlap.
pub(crate) fn sorted_apart(
    ranges: impl IntoIterator<Item = Range<u64>>,
) -> Result<Vec<Range<u64>>, Overlap> {
    let mut ranges: Vec<_> = ranges.into_iter().filter(|r| !r.is_empty()).collect();
    ranges.sort_unstable_by_key(|range| range.start);
    let overlapping = |pair: &&[Range<u64>]| pair[0].end > pair[1].start;
    match ranges.windows(2).find(overlapping) {
        Some(pair) => Err(Overlap {
            first: pair[0].clone(),
            second: pair[1].clone(),
        }),
        None => Ok(ranges),
    }
}

/// Joins sorted ranges where one ends at the start of the next, so that one request covers many small parts.
pub(crate) fn joined(ranges: impl IntoIterator<Item = Range<u64>>) -> Vec<Range<u64>> {
    let mut joined: Vec<Range<u64>> = Vec::new();
    for range in ranges {
        match joined.last_mut() {
            Some(last) if last.end == range.start => last.end = range.end,
            _ => joined.push(range),
        }
    }
    joined
}

/// Returns the first range that is not of whole blocks, and the blocks that it lies in. All bytes, if their number is known, may end with a part
/// of a block: many servers that name a block read and write it.
pub(crate) fn unaligned(
    ranges: &[Range<u64>],
    block: u64,
    size: Option<u64>,
) -> Option<(Range<u64>, Range<u64>)> {
    let all = 0..size.unwrap_or(u64::MAX);
    let blocks_of = |range: &Range<u64>| widened(std::slice::from_ref(range), block, &all).pop();
    ranges.iter().find_map(|range| {
        let blocks = blocks_of(range).filter(|blocks| blocks != range)?;
        Some((range.clone(), blocks))
    })
}

/// Returns sorted ranges inside of `whole`, widened to multiples of `block` from its start on, and joined where they touch then.
pub(crate) fn widened(ranges: &[Range<u64>], block: u64, whole: &Range<u64>) -> Vec<Range<u64>> {
    let widened = ranges.iter().map(|range| {
        let start = range.start - (range.start - whole.start) % block;
        let end = (range.end - whole.start).checked_next_multiple_of(block);
        let end = end.and_then(|len| whole.start.checked_add(len));
        start..end.unwrap_or(whole.end).min(whole.end)
    });
    let mut joined: Vec<Range<u64>> = Vec::new();
    for range in widened {
        match joined.last_mut() {
            Some(last) if last.end >= range.start => last.end = last.end.max(range.end),
            _ => joined.push(range),
        }
    }
    joined
}

/// Returns the length of a piece: `wanted`, rounded up to a multiple of `block`, and `longest` at most.
pub(crate) fn piece_bytes(wanted: u64, block: u64, longest: u64) -> u64 {
    let rounded = wanted.checked_next_multiple_of(block);
    rounded.unwrap_or(longest).min(longest)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_sorted_and_neighbours_joined() {
        let sorted = sorted_apart([300..310, 100..200, 5..5, 200..300]).unwrap();
        assert_eq!(sorted, [100..200, 200..300, 300..310]);
        assert_eq!(joined(sorted), [100..310]);
        let (first, second) = (0..10, 9..20);
        let refused = sorted_apart([second.clone(), first.clone()]);
        assert_eq!(refused, Err(Overlap { first, second }));
    }

    #[test]
    fn ranges_and_pieces_obey_the_block_size() {
        assert_eq!(unaligned(&[0..8, 8..15], 8, None), Some((8..15, 8..16)));
        assert_eq!(unaligned(&[8..16], 8, Some(99)), None);
        assert_eq!(unaligned(&[8..99], 8, Some(99)), None, "all bytes end");
        assert_eq!(unaligned(&[98..99], 8, Some(99)), Some((98..99, 96..99)));
        assert_eq!(
            widened(&[13..20, 21..22, 50..99], 8, &(8..100)),
            [8..24, 48..100]
        );
        assert_eq!(widened(&[13..20], 1, &(0..100)), [13..20]);
        assert_eq!(piece_bytes(100, 64, 1024), 128);
        assert_eq!(piece_bytes(2000, 64, 1024), 1024);
        assert_eq!(piece_bytes(u64::MAX, 64, 1024), 1024);
    }
}
