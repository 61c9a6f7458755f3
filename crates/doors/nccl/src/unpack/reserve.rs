//! Spans of the part of the bounce buffer that no NIC writes to.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

/// Spans begin at multiples of this.
const ALIGNMENT: usize = 64;

/// The part of a bounce buffer: which spans of it are used.
#[derive(Debug)]
pub(super) struct Reserve {
    size: usize,
    /// Beginning and end of each used span.
    used: Mutex<BTreeMap<usize, usize>>,
}

impl Reserve {
    pub(super) fn new(size: usize) -> Self {
        let used = Mutex::default();
        Self { size, used }
    }

    pub(super) fn size(&self) -> usize {
        self.size
    }

    /// Returns where `len` free bytes begin, at least 1, which are used from now on; `None`: there are none now.
    pub(super) fn take(&self, len: usize) -> Option<usize> {
        let mut used = self.used.lock().unwrap_or_else(PoisonError::into_inner);
        let mut at = 0_usize;
        for (start, end) in used.iter() {
            if start.checked_sub(at).is_some_and(|room| room >= len) {
                break;
            }
            at = end.next_multiple_of(ALIGNMENT);
        }
        let end = at.checked_add(len).filter(|end| *end <= self.size)?;
        used.insert(at, end);
        Some(at)
    }

    pub(super) fn give_back(&self, at: usize) {
        let mut used = self.used.lock().unwrap_or_else(PoisonError::into_inner);
        used.remove(&at);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_do_not_overlap_and_are_used_again() {
        let reserve = Reserve::new(1000);
        assert_eq!(reserve.take(100), Some(0));
        assert_eq!(reserve.take(64), Some(128));
        assert_eq!(reserve.take(808), Some(192));
        assert_eq!(reserve.take(1), None);
        reserve.give_back(128);
        assert_eq!(reserve.take(65), None);
        assert_eq!(reserve.take(64), Some(128));
        reserve.give_back(0);
        assert_eq!(reserve.take(128), Some(0));
        assert_eq!(reserve.take(usize::MAX), None);
        assert_eq!(reserve.size(), 1000);
    }
}
