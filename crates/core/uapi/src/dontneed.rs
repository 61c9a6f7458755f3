//! The return of frags: tokens merged into ranges, in calls within the limits of `SO_DEVMEM_DONTNEED`.

use crate::dmabuf::DmabufToken;
use crate::ids::FragToken;
use crate::limits::{MAX_DONTNEED_FRAGS, MAX_DONTNEED_TOKENS};

/// Tokens to return, merged into ranges. Can be reused for any number of calls.
#[derive(Debug, Default)]
pub struct TokenRanges {
    ranges: Vec<DmabufToken>,
}

/// Counts of returned frags.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Freed {
    /// Frags returned.
    pub asked: u64,
    /// Frags that were freed. The number is lower than that of returned frags if some were returned before, by this or
    /// another thread.
    pub freed: u64,
    /// Calls made.
    pub calls: u64,
}

impl Freed {
    /// Returns the number of frags that were not freed.
    pub fn missing(&self) -> u64 {
        self.asked.saturating_sub(self.freed)
    }
}

impl TokenRanges {
    /// Adds a frag. Frags added in the order of receiving are merged at once.
    #[inline]
    pub fn push(&mut self, token: FragToken) {
        let merged = self.ranges.last_mut().is_some_and(|r| r.try_extend(token));
        if !merged {
            self.ranges.push(DmabufToken::one(token));
        }
    }

    /// Returns whether there is nothing to return.
    pub fn is_empty(&self) -> bool {
        self.ranges.is_empty()
    }

    /// Frees room that is not needed, as `Vec::shrink_to_fit` does.
    pub fn shrink_to_fit(&mut self) {
        self.ranges.shrink_to_fit();
    }

    /// Returns all frags by `dontneed`, in as few calls as the limits allow, and leaves the list empty. Returns the counts.
    ///
    /// Frags that were not freed are counted but not tried again: every call is within the limits, so their tokens
    /// are invalid, or may name frags that were lent since.
    ///
    /// # Errors
    ///
    /// The first error of `dontneed`, with the counts before it; the remaining frags stay in the list, so that the call can be
    /// repeated.
    pub fn flush<E>(
        &mut self,
        mut dontneed: impl FnMut(&[DmabufToken]) -> Result<u32, E>,
    ) -> Result<Freed, (Freed, E)> {
        merge(&mut self.ranges);
        let mut freed = Freed::default();
        let mut rest = &self.ranges[..];
        let mut into_first = 0;
        while let Some(call) = Call::next(&mut rest, &mut into_first) {
            match dontneed(&call.ranges[..call.len]) {
                Ok(count) => {
                    freed.freed += u64::from(count);
                    freed.asked += call.frags;
                    freed.calls += 1;
                }
                Err(error) => {
                    self.ranges = call.unsent(rest, into_first);
                    return Err((freed, error));
                }
            }
        }
        self.ranges.clear();
        Ok(freed)
    }
}

impl FromIterator<FragToken> for TokenRanges {
    fn from_iter<I: IntoIterator<Item = FragToken>>(tokens: I) -> Self {
        let mut ranges = Self::default();
        tokens.into_iter().for_each(|token| ranges.push(token));
        ranges
    }
}

impl std::ops::Deref for TokenRanges {
    type Target = [DmabufToken];

    fn deref(&self) -> &[DmabufToken] {
        &self.ranges
    }
}

/// The ranges of one call.
struct Call {
    ranges: [DmabufToken; MAX_DONTNEED_TOKENS],
    len: usize,
    frags: u64,
}

impl Call {
    /// Takes as many ranges as one call may have, the last one possibly in part. `into_first` is the part of the first range
    /// of `rest` that earlier calls took.
    fn next(rest: &mut &[DmabufToken], into_first: &mut u32) -> Option<Self> {
        let mut call = Self {
            ranges: [DmabufToken::one(FragToken(0)); MAX_DONTNEED_TOKENS],
            len: 0,
            frags: 0,
        };
        let limit = u32::try_from(MAX_DONTNEED_FRAGS).expect("1,024");
        let mut room = limit;
        while let Some((first, after)) = rest.split_first()
            && room > 0
            && let Some(slot) = call.ranges.get_mut(call.len)
        {
            let left = first.token_count - *into_first;
            let taken = left.min(room);
            *slot = DmabufToken {
                token_start: FragToken(first.token_start.0 + *into_first),
                token_count: taken,
            };
            call.len += 1;
            room -= taken;
            *into_first += taken;
            if *into_first == first.token_count {
                *rest = after;
                *into_first = 0;
            }
        }
        call.frags = u64::from(limit - room);
        (call.len > 0).then_some(call)
    }

    /// Returns what has not been returned yet: the ranges of this call and all ranges after them.
    fn unsent(&self, rest: &[DmabufToken], into_first: u32) -> Vec<DmabufToken> {
        let mut unsent = self.ranges[..self.len].to_vec();
        if let Some((first, after)) = rest.split_first() {
            unsent.push(DmabufToken {
                token_start: FragToken(first.token_start.0 + into_first),
                token_count: first.token_count - into_first,
            });
            unsent.extend_from_slice(after);
        }
        unsent
    }
}

/// Sorts the ranges and merges those that touch.
fn merge(ranges: &mut Vec<DmabufToken>) {
    ranges.sort_unstable_by_key(|range| range.token_start.0);
    ranges.dedup_by(|later, earlier| {
        let end = earlier.token_start.0.checked_add(earlier.token_count);
        let joined = earlier.token_count.checked_add(later.token_count);
        match joined {
            Some(count) if end == Some(later.token_start.0) => {
                earlier.token_count = count;
                true
            }
            _ => false,
        }
    });
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;
    use crate::Errno;

    /// A model of the kernel: a set of valid tokens, and the kernel's limits.
    struct Kernel {
        known: BTreeSet<u32>,
        calls: usize,
        fails_at: Option<usize>,
    }

    impl Kernel {
        fn new(known: impl IntoIterator<Item = u32>) -> Self {
            Self {
                known: known.into_iter().collect(),
                calls: 0,
                fails_at: None,
            }
        }

        fn dontneed(&mut self, ranges: &[DmabufToken]) -> Result<u32, Errno> {
            if self.fails_at == Some(self.calls) {
                return Err(Errno::EINVAL);
            }
            self.calls += 1;
            assert!(ranges.len() <= MAX_DONTNEED_TOKENS);
            let tokens: Vec<_> = ranges.iter().flat_map(|r| r.tokens()).collect();
            assert!(tokens.len() <= MAX_DONTNEED_FRAGS, "{}", tokens.len());
            let freed = tokens.iter().filter(|t| self.known.remove(&t.0)).count();
            Ok(u32::try_from(freed).unwrap())
        }
    }

    fn returns(tokens: impl IntoIterator<Item = u32>) -> TokenRanges {
        tokens.into_iter().map(FragToken).collect()
    }

    #[test]
    fn consecutive_frags_go_home_as_one_range_in_calls_of_1024() {
        let mut kernel = Kernel::new(1..=2500);
        let mut returns = returns(1..=2500);
        assert_eq!(returns.ranges.len(), 1);
        let freed = returns.flush(|call| kernel.dontneed(call)).unwrap();
        let expected = Freed {
            asked: 2500,
            freed: 2500,
            calls: 3,
        };
        assert_eq!(freed, expected);
        assert!(kernel.known.is_empty() && returns.is_empty());
    }

    #[test]
    fn scattered_frags_go_home_in_calls_of_128_ranges() {
        let tokens: Vec<u32> = (0..300).map(|i| 2 * i + 1).collect();
        let mut kernel = Kernel::new(tokens.clone());
        let freed = returns(tokens).flush(|call| kernel.dontneed(call));
        assert_eq!(freed.unwrap().calls, 3);
        assert!(kernel.known.is_empty());
    }

    #[test]
    fn frags_in_any_order_are_merged() {
        let mut kernel = Kernel::new(1..=100);
        let mut returns = returns((1..=100).rev());
        assert_eq!(returns.ranges.len(), 100);
        let freed = returns.flush(|call| kernel.dontneed(call)).unwrap();
        assert_eq!((freed.calls, freed.missing()), (1, 0));
    }

    #[test]
    fn frags_that_were_not_freed_are_counted_and_not_tried_again() {
        let mut kernel = Kernel::new([1, 2, 4]);
        let mut returns = returns([1, 2, 3, 4]);
        let freed = returns.flush(|call| kernel.dontneed(call)).unwrap();
        assert_eq!((freed.freed, freed.missing(), kernel.calls), (3, 1, 1));
        assert!(returns.is_empty());
    }

    #[test]
    fn a_refusal_keeps_the_tokens_that_were_not_returned() {
        let mut kernel = Kernel::new(1..=3000);
        kernel.fails_at = Some(1);
        let mut returns = returns(1..=3000);
        let error = returns.flush(|call| kernel.dontneed(call)).unwrap_err();
        assert_eq!(error.0.freed, 1024);
        kernel.fails_at = None;
        let freed = returns.flush(|call| kernel.dontneed(call)).unwrap();
        assert_eq!((freed.freed, freed.missing()), (1976, 0));
        assert!(kernel.known.is_empty());
    }

    #[test]
    fn an_empty_list_makes_no_call() {
        let mut kernel = Kernel::new([]);
        let freed = TokenRanges::default().flush(|call| kernel.dontneed(call));
        assert_eq!((freed, kernel.calls), (Ok(Freed::default()), 0));
    }

    #[test]
    fn the_largest_tokens_do_not_overflow() {
        let last = [u32::MAX - 1, u32::MAX];
        let mut kernel = Kernel::new(last);
        let freed = returns(last).flush(|call| kernel.dontneed(call));
        assert_eq!(freed.unwrap().freed, 2);
    }

    proptest! {
        #[test]
        fn every_token_is_given_back_once_whatever_the_order(
            tokens in prop::collection::btree_set(0u32..3000, 0..1500),
            shuffle in any::<u64>(),
        ) {
            let mut order: Vec<u32> = tokens.iter().copied().collect();
            order.sort_by_key(|t| u64::from(*t).wrapping_mul(shuffle | 1));
            let mut kernel = Kernel::new(tokens.iter().copied());
            let freed = returns(order).flush(|call| kernel.dontneed(call)).unwrap();
            prop_assert_eq!(freed.freed, tokens.len() as u64);
            prop_assert_eq!(freed.missing(), 0);
            prop_assert!(kernel.known.is_empty());
        }
    }
}
