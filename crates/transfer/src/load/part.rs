//! The ranges of a source that are loaded, and the places of their bytes.

use std::ops::Range;

use client::PartError;
use devmem_tcp::Dmabuf;

use crate::parallel::ranges::{joined, sorted_apart};

/// A range of the source, and the place for its bytes.
#[derive(Clone, Debug)]
pub struct Part {
    /// Byte offsets in the source.
    pub source: Range<u64>,
    /// The memory that its bytes are copied to. It must not be bound for receiving.
    pub memory: Dmabuf,
    /// The place of the first byte in `memory`.
    pub offset: usize,
}

/// Parts in the order of the source.
#[derive(Debug)]
pub(crate) struct Layout {
    parts: Vec<Part>,
}

/// The place of one byte, and of those that follow it without a gap.
#[derive(Debug)]
pub(crate) struct Place<'a> {
    pub(crate) memory: &'a Dmabuf,
    pub(crate) offset: usize,
    /// Bytes from here to the end of the part.
    pub(crate) room: u64,
}

impl Layout {
    /// Sorts the parts and checks them.
    ///
    /// # Errors
    /// A part does not fit into its memory, or two parts overlap in the source.
    pub(crate) fn new(parts: &[Part]) -> Result<Self, PartError> {
        let mut parts: Vec<_> = parts
            .iter()
            .filter(|part| !part.source.is_empty())
            .cloned()
            .collect();
        parts.sort_unstable_by_key(|part| part.source.start);
        for part in &parts {
            let room = part.memory.size().saturating_sub(part.offset);
            let bytes = part.source.end - part.source.start;
            if usize::try_from(bytes).map_or(true, |bytes| bytes > room) {
                return Err(PartError::DoesNotFit {
                    range: part.source.clone(),
                    offset: part.offset,
                    size: part.memory.size(),
                });
            }
        }
        sorted_apart(parts.iter().map(|part| part.source.clone()))?;
        Ok(Self { parts })
    }

    /// Returns the ranges of the source; parts that lie side by side in the source make one range, so that one request can
    /// ask for many small parts.
    pub(crate) fn ranges(&self) -> Vec<Range<u64>> {
        joined(self.parts.iter().map(|part| part.source.clone()))
    }

    /// Returns each memory of the parts once.
    pub(crate) fn memories(&self) -> Vec<&Dmabuf> {
        let mut memories: Vec<&Dmabuf> = Vec::new();
        for part in &self.parts {
            // Most parts lie in the memory of the part before.
            if !memories.iter().rev().any(|it| it.is_same(&part.memory)) {
                memories.push(&part.memory);
            }
        }
        memories
    }

    /// Returns the place of the byte at `at` in the source; `None` if no part contains it.
    pub(crate) fn place(&self, at: u64) -> Option<Place<'_>> {
        let after = self.parts.partition_point(|part| part.source.start <= at);
        let part = self.parts.get(after.checked_sub(1)?)?;
        let room = part.source.end.checked_sub(at).filter(|room| *room > 0)?;
        // Fits: the part fits into its memory.
        let inside = usize::try_from(at - part.source.start).ok()?;
        Some(Place {
            memory: &part.memory,
            offset: part.offset + inside,
            room,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn part(source: Range<u64>, memory: &Dmabuf, offset: usize) -> Part {
        Part {
            source,
            memory: memory.clone(),
            offset,
        }
    }

    #[test]
    fn neighbours_make_one_range_and_keep_their_places() {
        let (a, b) = (
            Dmabuf::anonymous(4096).unwrap(),
            Dmabuf::anonymous(4096).unwrap(),
        );
        let parts = [
            part(300..310, &a, 0),
            part(100..200, &b, 256),
            part(200..300, &a, 1024),
            part(5..5, &a, 0),
            part(1000..1001, &b, 4095),
        ];
        let layout = Layout::new(&parts).unwrap();
        assert_eq!(layout.ranges(), [100..310, 1000..1001]);
        let place = layout.place(199).unwrap();
        assert!(place.memory.is_same(&b));
        assert_eq!((place.offset, place.room), (355, 1));
        let place = layout.place(200).unwrap();
        assert!(place.memory.is_same(&a));
        assert_eq!((place.offset, place.room), (1024, 100));
        assert!(layout.place(310).is_none());
        assert!(layout.place(99).is_none());
    }

    #[test]
    fn parts_that_do_not_fit_or_overlap_are_refused() {
        let memory = Dmabuf::anonymous(4096).unwrap();
        let refused = |parts: &[Part]| Layout::new(parts).unwrap_err();
        for part in [
            part(0..4097, &memory, 0),
            part(0..1, &memory, 4096),
            part(0..1, &memory, usize::MAX),
            part(0..u64::MAX, &memory, 0),
        ] {
            assert!(matches!(refused(&[part]), PartError::DoesNotFit { .. }));
        }
        let overlap = refused(&[part(9..20, &memory, 50), part(0..10, &memory, 0)]);
        assert!(matches!(overlap, PartError::Overlap { first, .. } if first == (0..10)));
    }
}
