//! The list of a message: from the pieces that have arrived to the copies that a kernel makes.
//!
//! Pieces that touch, in the bounce buffer and in the message, become one entry. What the NIC did not write to the bounce buffer has to be
//! copied to its reserved part first; and if there are more entries than a list has room for, the rest is gathered
//! there, and becomes the last entry.

use std::ops::Range;

use super::layout::Entry;

/// A piece of a message.
#[derive(Clone, Debug)]
pub(crate) struct Piece<'a> {
    /// Where it belongs in the message.
    pub(crate) at: usize,
    pub(crate) source: Source<'a>,
}

/// Where the bytes of a piece are.
#[derive(Clone, Debug)]
pub(crate) enum Source<'a> {
    /// A range of the bounce buffer.
    Bounce(Range<usize>),
    /// In host memory.
    Host(&'a [u8]),
}

/// What must be copied to the reserved part before kernels may use the list. Offsets count from the beginning of the span.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Move<'a> {
    Host {
        to: usize,
        bytes: &'a [u8],
    },
    /// Ranges of the bounce buffer, one after another.
    Gather {
        to: usize,
        ranges: Vec<Range<usize>>,
    },
}

/// An entry before the place of the span is known.
#[derive(Clone, Copy, Debug)]
struct Draft {
    at: usize,
    len: usize,
    from: From,
}

#[derive(Clone, Copy, Debug)]
enum From {
    /// Offset in the bounce buffer.
    Bounce(usize),
    /// Offset in the span.
    Reserved(usize),
}

/// The list of a message.
#[derive(Debug)]
pub(crate) struct List<'a> {
    drafts: Vec<Draft>,
    pub(crate) moves: Vec<Move<'a>>,
    /// Bytes of the span of the reserved part that the list needs.
    pub(crate) reserved: usize,
}

/// Pieces do not make up a message, or an offset does not fit: a bug of this library.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BadPieces;

/// Kernels copy fastest if source and destination have the same place in such a unit.
const ALIGNMENT: usize = 16;

impl<'a> List<'a> {
    /// Makes the list of a message of `len` bytes, with at most `most` entries, at least 1.
    pub(crate) fn of(
        mut pieces: Vec<Piece<'a>>,
        len: usize,
        most: usize,
    ) -> Result<Self, BadPieces> {
        pieces.retain(|piece| piece.source.len() > 0);
        pieces.sort_by_key(|piece| piece.at);
        let mut end = 0;
        for piece in &pieces {
            if piece.at != end {
                return Err(BadPieces);
            }
            end = piece.at.checked_add(piece.source.len()).ok_or(BadPieces)?;
        }
        if end != len {
            return Err(BadPieces);
        }
        let mut runs = runs(&pieces);
        let mut list = Self {
            drafts: Vec::with_capacity(runs.len().min(most)),
            moves: Vec::new(),
            reserved: 0,
        };
        let rest = match runs.len() > most {
            true => runs.split_off(most.saturating_sub(1)),
            false => Vec::new(),
        };
        for run in runs {
            match pieces[run.start].source {
                Source::Bounce(ref range) => {
                    let len = pieces[run.clone()].iter().map(|it| it.source.len()).sum();
                    let from = From::Bounce(range.start);
                    let at = pieces[run.start].at;
                    list.drafts.push(Draft { at, len, from });
                }
                Source::Host(_) => list.reserve(&pieces[run])?,
            }
        }
        if let (Some(first), Some(last)) = (rest.first(), rest.last()) {
            list.reserve(&pieces[first.start..last.end])?;
        }
        Ok(list)
    }

    /// Adds an entry for pieces that are copied to the reserved part.
    fn reserve(&mut self, pieces: &[Piece<'a>]) -> Result<(), BadPieces> {
        let at = pieces.first().ok_or(BadPieces)?.at;
        let gap = (at % ALIGNMENT + ALIGNMENT - self.reserved % ALIGNMENT) % ALIGNMENT;
        let start = self.reserved.checked_add(gap).ok_or(BadPieces)?;
        let mut to = start;
        for piece in pieces {
            match (&piece.source, self.moves.last_mut()) {
                (Source::Host(bytes), _) => self.moves.push(Move::Host { to, bytes }),
                // Within this entry: nothing else ends where it goes on.
                (Source::Bounce(range), Some(Move::Gather { to: begin, ranges }))
                    if *begin + ranges.iter().map(Range::len).sum::<usize>() == to =>
                {
                    ranges.push(range.clone());
                }
                (Source::Bounce(range), _) => {
                    let ranges = vec![range.clone()];
                    self.moves.push(Move::Gather { to, ranges });
                }
            }
            to = to.checked_add(piece.source.len()).ok_or(BadPieces)?;
        }
        self.reserved = to;
        let (len, from) = (to - start, From::Reserved(start));
        self.drafts.push(Draft { at, len, from });
        Ok(())
    }

    /// Returns the entries, with the span at `span` of the bounce buffer.
    pub(crate) fn entries(&self, span: usize) -> Result<Vec<Entry>, BadPieces> {
        let entry = |draft: &Draft| {
            let src = match draft.from {
                From::Bounce(at) => Some(at),
                From::Reserved(at) => span.checked_add(at),
            };
            Some(Entry {
                src_off: u32::try_from(src?).ok()?,
                len: u32::try_from(draft.len).ok()?,
                dst_off: draft.at as u64,
            })
        };
        let entries = self.drafts.iter().map(entry).collect::<Option<_>>();
        entries.ok_or(BadPieces)
    }
}

impl Source<'_> {
    fn len(&self) -> usize {
        match self {
            Self::Bounce(range) => range.len(),
            Self::Host(bytes) => bytes.len(),
        }
    }
}

/// Returns runs of pieces that one entry can describe.
fn runs(pieces: &[Piece<'_>]) -> Vec<Range<usize>> {
    let mut runs: Vec<Range<usize>> = Vec::new();
    for (index, piece) in pieces.iter().enumerate() {
        let before = index.checked_sub(1).map(|before| &pieces[before].source);
        let continues = match (before, &piece.source) {
            (Some(Source::Bounce(before)), Source::Bounce(here)) => before.end == here.start,
            (Some(Source::Host(_)), Source::Host(_)) => true,
            _ => false,
        };
        match runs.last_mut() {
            Some(run) if continues => run.end = index + 1,
            _ => runs.push(index..index + 1),
        }
    }
    runs
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Bytes of the bounce buffer in tests; the reserved part is behind them.
    const BOUNCE: usize = 4096;

    /// Does what the plugin and then a kernel do, and returns the receive's memory.
    fn unpack(list: &List<'_>, bounce: &[u8], span: usize, len: usize) -> Vec<u8> {
        let mut buffer = bounce.to_vec();
        buffer.resize(span + list.reserved, 0xaa);
        for step in &list.moves {
            match step {
                Move::Host { to, bytes } => {
                    buffer[span + to..][..bytes.len()].copy_from_slice(bytes);
                }
                Move::Gather { to, ranges } => {
                    let bytes: Vec<u8> = ranges
                        .iter()
                        .flat_map(|range| bounce[range.clone()].to_vec())
                        .collect();
                    buffer[span + to..][..bytes.len()].copy_from_slice(&bytes);
                }
            }
        }
        let mut memory = vec![0xee; len + 3];
        for entry in list.entries(span).unwrap() {
            let from = &buffer[entry.src_off as usize..][..entry.len as usize];
            memory[entry.dst_off as usize..][..from.len()].copy_from_slice(from);
        }
        memory
    }

    fn bounce() -> Vec<u8> {
        (0..BOUNCE).map(|at| (at * 7 % 251) as u8).collect()
    }

    #[test]
    fn touching_pieces_are_one_entry() {
        let pieces = |ranges: &[Range<usize>]| {
            let mut at = 0;
            let piece = |range: &Range<usize>| {
                at += range.len();
                let source = Source::Bounce(range.clone());
                Piece {
                    at: at - range.len(),
                    source,
                }
            };
            ranges.iter().map(piece).collect::<Vec<_>>()
        };
        let list = List::of(pieces(&[100..200, 200..300, 50..60, 60..61]), 211, 2048).unwrap();
        let entry = |src_off, len, dst_off| Entry {
            src_off,
            len,
            dst_off,
        };
        assert_eq!(
            list.entries(0).unwrap(),
            [entry(100, 200, 0), entry(50, 11, 200)]
        );
        assert!(list.moves.is_empty() && list.reserved == 0);
        // No bytes, no entries.
        assert!(
            List::of(Vec::new(), 0, 2048)
                .unwrap()
                .entries(0)
                .unwrap()
                .is_empty()
        );
        // A gap, and an end that is missing.
        let mut gap = pieces(&[0..10, 20..30]);
        gap[1].at = 11;
        assert_eq!(List::of(gap, 21, 9).map(drop), Err(BadPieces));
        assert_eq!(
            List::of(pieces(&[Range { start: 0, end: 10 }]), 11, 9).map(drop),
            Err(BadPieces)
        );
    }

    #[test]
    fn entries_beyond_the_limit_are_gathered_into_the_last_one() {
        let pieces: Vec<_> = (0..2900)
            .map(|at| Piece {
                at,
                // No two of them touch.
                source: Source::Bounce(at % 2 * 2000 + at / 2..at % 2 * 2000 + at / 2 + 1),
            })
            .collect();
        let list = List::of(pieces, 2900, 2048).unwrap();
        let entries = list.entries(8192).unwrap();
        assert_eq!(entries.len(), 2048);
        let last = entries[2047];
        assert_eq!((last.dst_off, last.len), (2047, 2900 - 2047));
        assert_eq!(last.src_off % 16, 2047 % 16, "as its destination");
        assert_eq!(list.moves.len(), 1, "one gather");
        let memory = unpack(&list, &bounce(), 8192, 2900);
        let whole = |at: usize| bounce()[at % 2 * 2000 + at / 2];
        assert!((0..2900).all(|at| memory[at] == whole(at)));
    }

    #[test]
    fn what_does_not_fit_the_bounce_buffer_is_refused() {
        let piece = Piece {
            at: 0,
            source: Source::Bounce(1 << 33..(1 << 33) + 8),
        };
        let list = List::of(vec![piece], 8, 10).unwrap();
        assert_eq!(list.entries(0), Err(BadPieces));
    }

    /// Lengths and places of pieces: `None` in host memory.
    fn arrivals() -> impl Strategy<Value = Vec<(usize, Option<usize>)>> {
        let place = prop_oneof![
            1 => Just(None),
            3 => (0..BOUNCE - 64).prop_map(Some),
        ];
        proptest::collection::vec((0..64_usize, place), 0..60)
    }

    proptest! {
        #[test]
        fn a_kernel_unpacks_exactly_the_stream(
            arrivals in arrivals(),
            joined in proptest::collection::vec(any::<bool>(), 60),
            most in 1..70_usize,
            order in any::<u64>(),
        ) {
            let bounce = bounce();
            let host: Vec<u8> = (0..64).map(|at| 200 - at).collect();
            let (mut stream, mut pieces, mut end) = (Vec::new(), Vec::new(), 0);
            for ((len, place), join) in arrivals.into_iter().zip(joined) {
                // Some pieces continue the one before, as frags of one net_iov do.
                let place = place.map(|at| if join && end + len <= BOUNCE { end } else { at });
                let source = match place {
                    Some(start) => Source::Bounce(start..start + len),
                    None => Source::Host(&host[..len]),
                };
                pieces.push(Piece { at: stream.len(), source: source.clone() });
                match source {
                    Source::Bounce(range) => {
                        end = range.end;
                        stream.extend_from_slice(&bounce[range]);
                    }
                    Source::Host(bytes) => stream.extend_from_slice(bytes),
                }
            }
            // Chunks of several streams come in any order.
            let mut state = order;
            for index in (1..pieces.len()).rev() {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                pieces.swap(index, (state >> 33) as usize % (index + 1));
            }
            let list = List::of(pieces, stream.len(), most).unwrap();
            let span = BOUNCE + 16;
            let entries = list.entries(span).unwrap();
            prop_assert!(entries.len() <= most);
            let memory = unpack(&list, &bounce, span, stream.len());
            prop_assert_eq!(&memory[..stream.len()], &stream[..]);
            prop_assert_eq!(&memory[stream.len()..], &[0xee; 3]);
        }
    }
}
