//! The way home for net_iovs that are let go outside the pool's own calls, from any thread.
//!
//! The kernel's page pool has a ptr_ring here. Ours is a list through the net_iovs themselves
//! ([`NetIov::next`]), each of which is in at most one place at a time: many producers push, one or many
//! net_iovs by one compare-and-swap; the one consumer takes the whole list by one swap and walks it at
//! leisure. It is only ever taken whole, so the ABA problem does not arise: a producer's
//! compare-and-swap needs the head to *be* the index that it linked to, not to have stayed it.
//!
//! There would be room for all net_iovs, but a ring that is as long as its capacity turns more away, as
//! the kernel's does: on a binding of several queues, an idle one must not keep what the others need.
//!
//! Closing is one more swap: who pushes later is turned away for good. Either a push came before the
//! swap, and the closer has it, or it sees the mark. Nothing is in between. Who is turned away, for
//! either reason, takes the net_iovs to the provider.

use crate::net_iov::NetIov;
use crate::sync::{AtomicU64, Ordering};

/// No net_iov: the end of a list.
pub(crate) const NO_INDEX: u32 = u32::MAX;

/// The net_iovs on their way home, as (how many, which is first).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Chain {
    pub(crate) len: u32,
    first: u32,
}

impl Chain {
    pub(crate) const EMPTY: Chain = Chain {
        len: 0,
        first: NO_INDEX,
    };
    /// As many as there can never be: a pool has fewer than `NO_INDEX` net_iovs. So it is full, too.
    const CLOSED: Chain = Chain {
        len: u32::MAX,
        first: NO_INDEX,
    };

    fn pack(self) -> u64 {
        u64::from(self.len) << 32 | u64::from(self.first)
    }

    fn unpack(word: u64) -> Self {
        // The casts take the two halves.
        Chain {
            len: (word >> 32) as u32,
            first: word as u32,
        }
    }

    /// Takes the first net_iov off a chain that the caller owns.
    pub(crate) fn pop(&mut self, slots: &[NetIov]) -> Option<u32> {
        if self.len == 0 {
            return None;
        }
        let index = self.first;
        // Relaxed: `ReturnRing::take` ordered us behind everyone who linked.
        self.first = slots[index as usize].next.load(Ordering::Relaxed);
        self.len -= 1;
        Some(index)
    }
}

/// Why a ring did not take net_iovs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum TurnedAway {
    /// It holds enough already.
    Full,
    /// Its pool is gone.
    Closed,
}

/// A list of net_iovs that anyone may push to and one owner takes.
pub(crate) struct ReturnRing {
    /// A [`Chain`]: with the length beside the first index, a reader learns it from one load.
    head: CachePadded,
    capacity: u32,
}

/// Producers write the head; with no neighbour on its line they slow down nobody who reads one.
///
/// Room instead of alignment: every send from device memory allocates one of these, and malloc is slow to align.
#[repr(C)]
struct CachePadded {
    _before: [u64; 7],
    word: AtomicU64,
    _behind: [u64; 7],
}

impl CachePadded {
    fn new(word: u64) -> Self {
        CachePadded {
            _before: [0; 7],
            word: AtomicU64::new(word),
            _behind: [0; 7],
        }
    }
}

impl ReturnRing {
    /// Returns an empty ring that takes about `capacity` net_iovs.
    pub(crate) fn new(capacity: u32) -> Self {
        let head = CachePadded::new(Chain::EMPTY.pack());
        ReturnRing { head, capacity }
    }

    /// Adds net_iovs that the caller owns alone; on `Err` he still does.
    #[inline]
    pub(crate) fn push(&self, slots: &[NetIov], indices: &[u32]) -> Result<(), TurnedAway> {
        let (Some(&first), Some(&last)) = (indices.first(), indices.last()) else {
            return Ok(());
        };
        for pair in indices.windows(2) {
            slots[pair[0] as usize]
                .next
                .store(pair[1], Ordering::Relaxed);
        }
        // A pool has fewer net_iovs than u32::MAX, and each is here once.
        let len = indices.len() as u32;
        let mut seen = self.head.word.load(Ordering::Relaxed);
        loop {
            let chain = Chain::unpack(seen);
            if chain.len >= self.capacity {
                let closed = chain == Chain::CLOSED;
                return Err(if closed {
                    TurnedAway::Closed
                } else {
                    TurnedAway::Full
                });
            }
            slots[last as usize]
                .next
                .store(chain.first, Ordering::Relaxed);
            let next = Chain {
                len: chain.len + len,
                first,
            }
            .pack();
            // Release: the links, and what we did with the memory, are seen by who takes them. Later
            // pushes are read-modify-writes and so continue our release sequence.
            match self.head.word.compare_exchange_weak(
                seen,
                next,
                Ordering::Release,
                Ordering::Relaxed,
            ) {
                Ok(_) => return Ok(()),
                Err(now) => seen = now,
            }
        }
    }

    /// Returns how many net_iovs wait.
    pub(crate) fn len(&self) -> u32 {
        match Chain::unpack(self.head.word.load(Ordering::Relaxed)) {
            Chain::CLOSED => 0,
            chain => chain.len,
        }
    }

    /// Takes all that wait. Only the pool's owner calls this, and not after `close`.
    pub(crate) fn take(&self) -> Chain {
        if self.len() == 0 {
            return Chain::EMPTY;
        }
        Chain::unpack(self.head.word.swap(Chain::EMPTY.pack(), Ordering::Acquire))
    }

    /// Takes all that wait and turns later pushes away.
    pub(crate) fn close(&self) -> Chain {
        let chain = Chain::unpack(self.head.word.swap(Chain::CLOSED.pack(), Ordering::Acquire));
        if chain == Chain::CLOSED {
            Chain::EMPTY
        } else {
            chain
        }
    }
}
