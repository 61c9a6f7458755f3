//! Registered memory of this agent, by number and by key.

use std::collections::HashMap;
use std::sync::Arc;

use crate::info::random;
use crate::raw::region::Region;
use crate::raw::scatter::{Scatter, Uses};
use crate::record::{Entry, Piece, Violation};
use crate::status::{Failure, Status};
use crate::transfer::Span;

/// All regions of an agent.
#[derive(Debug, Default)]
pub(crate) struct Regions {
    by_number: HashMap<u64, Arc<Region>>,
    by_key: HashMap<u64, Arc<Region>>,
    last: u64,
}

impl Regions {
    /// Returns a key that no region has.
    pub(crate) fn new_key(&self) -> Result<u64, Failure> {
        loop {
            let key = random()?;
            if !self.by_key.contains_key(&key) {
                return Ok(key);
            }
        }
    }

    /// Adds a region with a key of [`new_key`](Self::new_key), and returns its number.
    pub(crate) fn add(&mut self, region: Arc<Region>) -> u64 {
        self.last += 1;
        self.by_key.insert(region.key(), Arc::clone(&region));
        self.by_number.insert(self.last, region);
        self.last
    }

    pub(crate) fn get(&self, number: u64) -> Result<&Arc<Region>, Failure> {
        let unknown = || Failure::new(Status::NotFound, "the memory is not registered any more");
        self.by_number.get(&number).ok_or_else(unknown)
    }

    /// Removes a region. With transfers going on that is an error, and they fail: the core of NIXL pays no attention to the result, so the
    /// program frees the memory in either case, and nothing may touch it.
    pub(crate) fn remove(&mut self, number: u64) -> Result<(), Failure> {
        let region = Arc::clone(self.get(number)?);
        self.by_key.remove(&region.key());
        self.by_number.remove(&number);
        region.close().map_err(|uses| {
            let what = format!(
                "the memory at {:#x} was deregistered with {uses} transfers or parts of them going on, which fail; wait for transfers, or \
                 release them, before",
                region.address()
            );
            Failure::new(Status::NotAllowed, what)
        })
    }

    /// Returns the far side of a transfer of this agent to itself.
    pub(crate) fn own(&self, spans: &[Span]) -> Option<Scatter> {
        let mut uses = Uses::default();
        let taken = spans
            .iter()
            .map(|span| uses.take(self.by_key.get(&span.key)?));
        let indices = taken.collect::<Option<Vec<_>>>()?;
        let mut scatter = Scatter::new(Arc::new(uses), spans.len());
        for (span, index) in spans.iter().zip(indices) {
            scatter.push(index, span.remote_offset, span.len)?;
        }
        Some(scatter)
    }

    /// Returns the memory that a peer names. Each range is checked, and their bytes are those of the piece.
    pub(crate) fn resolve(&self, piece: &Piece, entries: &[Entry]) -> Result<Scatter, Violation> {
        let mut uses = Uses::default();
        let mut found = Vec::with_capacity(entries.len());
        let mut last: Option<(u64, usize)> = None;
        for entry in entries {
            let key = entry.key.get();
            let index = match last {
                Some((same, index)) if same == key => index,
                _ => {
                    let region = self.by_key.get(&key).ok_or(Violation::Region)?;
                    uses.take(region).ok_or(Violation::Region)?
                }
            };
            last = Some((key, index));
            found.push(index);
        }
        let mut scatter = Scatter::new(Arc::new(uses), entries.len());
        for (entry, index) in entries.iter().zip(found) {
            let pushed = scatter.push(index, entry.offset.get(), entry.len.get());
            pushed.ok_or(Violation::Region)?;
        }
        match scatter.left() == piece.bytes {
            true => Ok(scatter),
            false => Err(Violation::Sum),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::raw::region::tests::leaked;

    fn piece(entries: &[Entry], bytes: u64) -> Piece {
        Piece {
            transfer: 1,
            stream: 1,
            entries: entries.len() as u32,
            bytes,
        }
    }

    #[test]
    fn ranges_of_peers_are_checked() {
        let mut regions = Regions::default();
        let number = regions.add(leaked(vec![0; 100], 7));
        let good = [Entry::new(7, 0, 60), Entry::new(7, 99, 1)];
        let scatter = regions.resolve(&piece(&good, 61), &good).unwrap();
        assert_eq!(scatter.left(), 61);
        for (entry, bytes, violation) in [
            (Entry::new(8, 0, 1), 1, Violation::Region),
            (Entry::new(7, 100, 1), 1, Violation::Region),
            (Entry::new(7, u64::MAX, 2), 2, Violation::Region),
            (Entry::new(7, 0, u64::MAX), 1, Violation::Region),
            (Entry::new(7, 0, 10), 11, Violation::Sum),
        ] {
            let refused = regions.resolve(&piece(&[entry], bytes), &[entry]);
            assert_eq!(refused.unwrap_err(), violation, "{entry:?}");
        }
        assert_eq!(
            regions.remove(number).unwrap_err().status,
            Status::NotAllowed
        );
        assert_eq!(
            regions.resolve(&piece(&good, 61), &good).unwrap_err(),
            Violation::Region
        );
        assert_eq!(regions.remove(number).unwrap_err().status, Status::NotFound);
        drop(scatter);
    }
}
