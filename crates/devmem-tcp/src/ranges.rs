//! Ranges of bound memory that are to be sent, and the calls that queue them.

use std::ops::Range;

use devmem_uapi::{DmabufId, UIO_MAXIOV};

use crate::driver::WaitLimit;
use crate::error::{Error, ErrorKind};
use crate::send_id::SendId;

/// Removes the first `taken` bytes from the ranges.
pub(crate) fn advance(ranges: &mut Vec<Range<usize>>, mut taken: usize) {
    let whole = ranges
        .iter()
        .take_while(|range| {
            let fits = range.len() <= taken;
            taken -= if fits { range.len() } else { 0 };
            fits
        })
        .count();
    ranges.drain(..whole);
    if let Some(first) = ranges.first_mut() {
        first.start += taken;
    }
}

pub(crate) fn length(ranges: &[Range<usize>]) -> usize {
    ranges
        .iter()
        .fold(0, |sum: usize, range| sum.saturating_add(range.len()))
}

/// How much of its ranges a send queues.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HowMuch {
    /// What there is room for; it waits only for the first byte.
    WhatFits,
    /// All of them.
    All,
}

/// How much of its ranges a send queues, and how long it waits for room.
#[derive(Clone, Copy, Debug)]
pub(crate) struct HowToSend {
    pub(crate) how_much: HowMuch,
    pub(crate) limit: WaitLimit,
}

/// Calls `once` with the remaining ranges until it has queued as many bytes as `how` says. `sent` returns the number of
/// zero-copy sends so far.
pub(crate) fn send_ranges(
    ranges: &[Range<usize>],
    how: HowToSend,
    sent: impl Fn() -> u64,
    mut once: impl FnMut(&[Range<usize>], WaitLimit) -> Result<usize, Error>,
) -> Result<SendId, Error> {
    let first = sent();
    let total = length(ranges);
    let mut bytes = 0;
    // The ranges are copied only if one call does not queue all of them.
    let mut rest: Option<Vec<_>> = None;
    while bytes < total {
        let now = rest.as_deref().unwrap_or(ranges);
        let now = &now[..now.len().min(UIO_MAXIOV)];
        let fits_only = how.how_much == HowMuch::WhatFits && bytes > 0;
        let limit = if fits_only {
            WaitLimit::Never
        } else {
            how.limit
        };
        let taken = match once(now, limit) {
            Ok(taken) => taken,
            Err(error) if fits_only && error.kind() == ErrorKind::WouldBlock => break,
            Err(error) => return Err(error),
        };
        bytes += taken;
        if bytes < total {
            // Without the empty ranges, every call queues at least one byte.
            let all = || {
                let whole = ranges.iter().filter(|range| !range.is_empty());
                whole.cloned().collect()
            };
            advance(rest.get_or_insert_with(all), taken);
        }
    }
    Ok(SendId::new(first, sent(), bytes))
}

/// Refuses ranges outside the `size` bytes of the memory before any of them is sent, as the user-space stack does.
pub(crate) fn check_ranges(
    dmabuf: DmabufId,
    size: usize,
    ranges: &[Range<usize>],
) -> Result<(), Error> {
    let bad = |range: &&Range<usize>| range.start > range.end || range.end > size;
    match ranges.iter().find(bad) {
        None => Ok(()),
        Some(range) => Err(stack::SendError::OutOfBounds {
            dmabuf,
            offset: range.start,
            end: range.end,
            size,
        }
        .into()),
    }
}

#[cfg(test)]
#[allow(clippy::single_range_in_vec_init, reason = "ranges are what is listed")]
mod tests {
    use super::advance;

    #[test]
    fn bytes_are_removed_from_the_front_of_ranges() {
        for (taken, expected) in [
            (0, vec![0..10, 20..20, 30..35]),
            (4, vec![4..10, 20..20, 30..35]),
            (10, vec![30..35]),
            (12, vec![32..35]),
            (15, vec![]),
        ] {
            let mut ranges = vec![0..10, 20..20, 30..35];
            advance(&mut ranges, taken);
            assert_eq!(ranges, expected, "{taken}");
        }
    }
}
