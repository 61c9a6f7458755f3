//! Contiguous bytes of a frame, in a buffer of the NIC or in network memory.

use std::ops::Range;

use netmem::{BufSpan, DmaPort, Frag};
use smallvec::SmallVec;

/// Contiguous bytes of a frame.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Piece<'a> {
    /// In a host buffer of the NIC.
    Host(&'a [u8]),
    /// In network memory.
    Span(BufSpan<'a>),
}

/// Pieces of a frame: header buffer, posted net_iovs, spill.
pub(crate) type Pieces<'a> = SmallVec<[Piece<'a>; 22]>;

impl Piece<'_> {
    pub(crate) fn len(&self) -> usize {
        match self {
            Piece::Host(bytes) => bytes.len(),
            Piece::Span(span) => span.len as usize,
        }
    }

    /// Copies the piece to `out`, which has the same length.
    pub(crate) fn copy_out(&self, out: &mut [u8], port: &DmaPort) {
        match self {
            Piece::Host(bytes) => out.copy_from_slice(bytes),
            Piece::Span(span) => port.copy_out(*span, 0, out),
        }
    }

    /// Copies `range` of the piece, no longer than `to`, to its start.
    pub(crate) fn copy_in(&self, range: Range<usize>, to: BufSpan<'_>, port: &DmaPort) {
        match self {
            Piece::Host(bytes) => port.copy_in(to.netmem, to.offset, &bytes[range]),
            Piece::Span(span) => port.copy(within(*span, range), to.netmem, to.offset),
        }
    }
}

/// Returns `range` of a span; the range is inside.
pub(crate) fn within(span: BufSpan<'_>, range: Range<usize>) -> BufSpan<'_> {
    // Inside the span, whose offset and length are u32.
    BufSpan {
        offset: span.offset + range.start as u32,
        len: range.len() as u32,
        ..span
    }
}

/// Returns `range` of the bytes that frags have in order.
pub(crate) fn spans_of<'a>(
    frags: impl IntoIterator<Item = &'a Frag>,
    range: Range<usize>,
) -> impl Iterator<Item = BufSpan<'a>> {
    let placed = frags.into_iter().scan(0, |at, frag| {
        let start = *at;
        *at += frag.len();
        Some((start, frag))
    });
    let before_end = placed.take_while(move |(start, _)| *start < range.end);
    before_end.filter_map(move |(start, frag)| {
        let (from, to) = (range.start.max(start), range.end.min(start + frag.len()));
        (from < to).then(|| within(frag.span(), from - start..to - start))
    })
}
