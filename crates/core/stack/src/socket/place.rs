//! Direct placement: where the next bytes of a connection belong, and its frags of such memory that are lent.

use std::ops::Range;

use devmem_uapi::{DmabufCmsg, DmabufId, DmabufToken, FragToken};

/// The place of a connection: its rest is at the NIC.
#[derive(Debug)]
pub(crate) struct Place {
    pub(crate) target: DmabufId,
    pub(crate) ranges: Vec<Range<usize>>,
    /// Position in the stream of the first byte behind the range. Once that is reached, the NIC has forgotten the range.
    pub(crate) end: u64,
}

impl Place {
    /// Returns the ranges without the bytes that TCP has delivered, up to position `delivered` of the stream.
    pub(crate) fn rest(&self, delivered: u64) -> impl Iterator<Item = Range<usize>> {
        let total = self
            .ranges
            .iter()
            .map(ExactSizeIterator::len)
            .sum::<usize>();
        let left = usize::try_from(self.end.saturating_sub(delivered)).unwrap_or(usize::MAX);
        behind(&self.ranges, total.saturating_sub(left))
    }
}

/// Frags of targets that are lent, and whose bytes were not gathered yet.
#[derive(Debug, Default)]
pub(crate) struct PlacedFrags {
    /// The targets in which the connection was given places.
    targets: Vec<DmabufId>,
    lent: Vec<(FragToken, DmabufId, Range<usize>)>,
}

impl PlacedFrags {
    pub(crate) fn watch(&mut self, target: DmabufId) {
        if !self.targets.contains(&target) {
            self.targets.push(target);
        }
    }

    /// Notes a frag that is lent now.
    pub(crate) fn on_lent(&mut self, cmsg: &DmabufCmsg) {
        if self.targets.contains(&cmsg.dmabuf_id) {
            let range = range_of(cmsg.frag_offset, cmsg.frag_size as usize);
            self.lent.push((cmsg.frag_token, cmsg.dmabuf_id, range));
        }
    }

    /// Forgets frags that were released or gathered.
    pub(crate) fn forget(&mut self, tokens: &[DmabufToken]) {
        self.lent.retain(|(token, _, _)| !is_named(*token, tokens));
    }

    /// Returns the bytes that are lent of `target`, frags of `except` aside.
    pub(crate) fn of(
        &self,
        target: DmabufId,
        except: &[DmabufToken],
    ) -> impl Iterator<Item = &Range<usize>> {
        let lent = self.lent.iter();
        let lent = lent.filter(move |(token, id, _)| *id == target && !is_named(*token, except));
        lent.map(|(_, _, range)| range)
    }
}

fn is_named(token: FragToken, ranges: &[DmabufToken]) -> bool {
    let mut ranges = ranges.iter();
    ranges.any(|range| token.0.wrapping_sub(range.token_start.0) < range.token_count)
}

/// Returns the bytes of a frag in its memory.
pub(crate) fn range_of(offset: u64, len: usize) -> Range<usize> {
    // The memory is mapped in this process, so its offsets fit usize.
    let start = usize::try_from(offset).unwrap_or(usize::MAX);
    start..start.saturating_add(len)
}

/// Returns the ranges without their first `skip` bytes.
pub(crate) fn behind(
    ranges: &[Range<usize>],
    mut skip: usize,
) -> impl Iterator<Item = Range<usize>> {
    let rest = ranges.iter().map(move |range| {
        let passed = skip.min(range.len());
        skip -= passed;
        range.start + passed..range.end
    });
    rest.filter(|range| !range.is_empty())
}
