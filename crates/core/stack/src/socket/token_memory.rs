//! The memory of one token.

use netmem::{Frag, FragList, Netmem};
use smallvec::SmallVec;

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

    /// Passes each net_iov to `home`, which gives it back.
    pub(crate) fn release(self, home: impl FnMut(Netmem)) {
        self.0.into_iter().for_each(home);
    }
}
