//! The tokens of a socket: frags that are lent to the application.
//!
//! A token is the lowest free number of the socket, beginning with 1. The table owns a reference to
//! the memory of each lent frag. Releasing a token returns the reference, to be recycled; dropping the table
//! releases all memory.

use devmem_uapi::{DmabufToken, FragToken, MAX_DONTNEED_FRAGS, MAX_DONTNEED_TOKENS};
use netmem::{Frag, FragList, Netmem};
use smallvec::SmallVec;

use super::error::DontneedError;
use super::free_map::FreeMap;
use super::limits::MAX_TOKENS;

/// Slots that an empty table keeps: few, so that an idle connection needs little memory, and enough for one that lends a
/// frag from time to time without an allocation.
pub(crate) const IDLE_SLOTS: usize = 8;

/// Maximum slots allocated at once for a table that was as large before it became empty.
const USUAL_SLOTS_MAX: usize = 1024;

/// The memory of one token: one net_iov, or several adjacent ones.
#[derive(Debug, Default)]
pub(crate) struct TokenMemory(SmallVec<[Netmem; 2]>);

impl TokenMemory {
    /// Adds the memory of one more piece.
    pub(crate) fn keep(&mut self, piece: FragList) {
        self.0.reserve(piece.frag_count());
        for netmem in piece.into_iter().map(Frag::into_netmem) {
            // One reference is enough to keep a net_iov.
            if !self.0.last().is_some_and(|last| last.is_same(&netmem)) {
                self.0.push(netmem);
            }
        }
    }

    /// Iterates over the net_iovs.
    pub(crate) fn netmems(&self) -> impl Iterator<Item = &Netmem> {
        self.0.iter()
    }
}

impl IntoIterator for TokenMemory {
    type Item = Netmem;
    type IntoIter = smallvec::IntoIter<[Netmem; 2]>;

    fn into_iter(self) -> Self::IntoIter {
        self.0.into_iter()
    }
}

/// Lent frags by token. `H` holds the memory of one frag.
#[derive(Debug, Default)]
pub(crate) struct TokenTable<H> {
    slots: Vec<Option<H>>,
    free: FreeMap,
    outstanding: usize,
    /// Number of slots before the table last became empty.
    usual: usize,
}

impl<H: Default> TokenTable<H> {
    /// Lends `held` under the lowest free token; `None` if [`MAX_TOKENS`] are lent.
    pub(crate) fn issue(&mut self, held: H) -> Option<FragToken> {
        if self.outstanding >= MAX_TOKENS {
            return None;
        }
        if self.slots.capacity() == 0 {
            self.slots
                .reserve_exact(self.usual.clamp(IDLE_SLOTS, USUAL_SLOTS_MAX));
        }
        let number = self.free.take_lowest();
        match self.slots.get_mut(number) {
            Some(slot) => *slot = Some(held),
            None => self.slots.push(Some(held)),
        }
        self.outstanding += 1;
        Some(FragToken(number as u32 + 1))
    }

    /// Takes back the frags of `ranges`, passes each to `home`, and returns their number.
    ///
    /// Unknown tokens are skipped, but count towards the [`MAX_DONTNEED_FRAGS`] tokens that one call handles (linux
    /// net/core/sock.c `sock_devmem_dontneed`).
    pub(crate) fn release(
        &mut self,
        ranges: &[DmabufToken],
        mut home: impl FnMut(H),
    ) -> Result<u32, DontneedError> {
        if ranges.len() > MAX_DONTNEED_TOKENS {
            return Err(DontneedError::TooManyRanges {
                given: ranges.len(),
            });
        }
        let mut freed = 0;
        let tokens = ranges.iter().flat_map(|range| range.tokens());
        for token in tokens.take(MAX_DONTNEED_FRAGS) {
            let number = (token.0 as usize).checked_sub(1);
            let slot =
                number.and_then(|number| Some((number, self.slots.get_mut(number)?.take()?)));
            let Some((number, held)) = slot else { continue };
            self.free.give_back(number);
            self.outstanding -= 1;
            freed += 1;
            home(held);
        }
        if self.outstanding == 0 && self.slots.len() > IDLE_SLOTS {
            *self = Self {
                usual: self.slots.len(),
                ..Self::default()
            };
        }
        Ok(freed)
    }

    /// Takes back all frags.
    pub(crate) fn release_all(&mut self, home: impl FnMut(H)) {
        std::mem::take(self)
            .slots
            .into_iter()
            .flatten()
            .for_each(home);
    }

    /// Iterates over the lent frags.
    pub(crate) fn held(&self) -> impl Iterator<Item = &H> {
        self.slots.iter().flatten()
    }

    /// Returns the number of lent frags.
    pub(crate) fn outstanding(&self) -> usize {
        self.outstanding
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lent(count: u32) -> TokenTable<u32> {
        let mut table = TokenTable::default();
        for number in 1..=count {
            assert_eq!(table.issue(number), Some(FragToken(number)));
        }
        table
    }

    fn range(start: u32, count: u32) -> DmabufToken {
        DmabufToken {
            token_start: FragToken(start),
            token_count: count,
        }
    }

    fn release(table: &mut TokenTable<u32>, ranges: &[DmabufToken]) -> (u32, Vec<u32>) {
        let mut home = Vec::new();
        let freed = table.release(ranges, |held| home.push(held)).unwrap();
        (freed, home)
    }

    #[test]
    fn absurd_ranges_cost_no_more_than_the_limit() {
        let mut table = lent(5);
        assert_eq!(
            release(&mut table, &[range(u32::MAX, u32::MAX)]),
            (0, vec![])
        );
        assert_eq!(
            release(&mut table, &[range(0, u32::MAX)]),
            (5, vec![1, 2, 3, 4, 5])
        );
    }

    #[test]
    fn a_token_that_is_returned_twice_frees_once_and_does_not_take_its_next_owner() {
        let mut table = lent(3);
        assert_eq!(
            release(&mut table, &[range(2, 1), range(2, 1), range(1, 2)]),
            (2, vec![2, 1])
        );
        assert_eq!(table.outstanding(), 1);
        assert_eq!(release(&mut table, &[range(1, 2)]), (0, vec![]));
        // The numbers are used again, the lowest first, each for one frag.
        let again: Vec<_> = (7..10).map(|held| table.issue(held).unwrap().0).collect();
        assert_eq!((again, table.outstanding()), (vec![1, 2, 4], 4));
        assert_eq!(release(&mut table, &[range(1, 4)]), (4, vec![7, 8, 3, 9]));
        assert_eq!(table.outstanding(), 0);
    }

    #[test]
    fn tokens_that_were_never_issued_free_nothing() {
        let mut table = lent(2);
        let unknown = [range(0, 1), range(3, 5), range(u32::MAX, 1)];
        assert_eq!(release(&mut table, &unknown), (0, vec![]));
        assert_eq!(
            (table.outstanding(), table.issue(3)),
            (2, Some(FragToken(3)))
        );
        let held: Vec<_> = table.held().copied().collect();
        assert_eq!(held, [1, 2, 3]);
    }

    #[test]
    fn too_many_ranges_free_nothing() {
        let mut table = lent(1);
        let ranges = [range(1, 1); MAX_DONTNEED_TOKENS + 1];
        let refused = table.release(&ranges, |_| panic!("nothing is freed"));
        assert_eq!(refused, Err(DontneedError::TooManyRanges { given: 129 }));
        assert_eq!(release(&mut table, &ranges[1..]), (1, vec![1]));
    }

    #[test]
    fn a_call_looks_at_1024_tokens_and_no_more() {
        let mut table = lent(1030);
        let (freed, home) = release(&mut table, &[range(1, 1000), range(1, 20), range(1001, 30)]);
        assert_eq!((freed, home.len(), home.last()), (1004, 1004, Some(&1004)));
    }

    #[test]
    fn an_empty_table_owns_little_and_starts_at_one_again() {
        let mut table = lent(3000);
        for start in [1, 1025, 2049] {
            release(&mut table, &[range(start, 1024)]);
        }
        assert_eq!((table.slots.capacity(), table.outstanding()), (0, 0));
        assert_eq!(table.issue(1), Some(FragToken(1)));
        assert_eq!(table.slots.capacity(), USUAL_SLOTS_MAX);
        let mut small = lent(IDLE_SLOTS as u32);
        release(&mut small, &[range(1, IDLE_SLOTS as u32)]);
        assert_eq!(
            (small.slots.capacity(), small.issue(1)),
            (IDLE_SLOTS, Some(FragToken(1)))
        );
    }

    #[test]
    fn everything_can_be_taken_back_at_once() {
        let mut table = lent(5);
        release(&mut table, &[range(2, 1)]);
        let mut home = Vec::new();
        table.release_all(|held| home.push(held));
        assert_eq!(home, [1, 3, 4, 5]);
        assert_eq!(
            (table.outstanding(), table.issue(9)),
            (0, Some(FragToken(1)))
        );
    }
}
