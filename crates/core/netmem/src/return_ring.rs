//! The ring through which net_iovs that are dropped, on any thread, return to their pool.
//!
//! The kernel's page pool has a ptr_ring here. This is a linked list of the net_iovs
//! ([`NetIov::next`]), each of which is in at most one place at a time. Producers push one or more
//! net_iovs by one compare-and-swap; the one consumer takes the whole list by one swap. Because only the whole list
//! is taken, there is no ABA problem: a producer's compare-and-swap is correct whenever the head is the index that it
//! linked to, even if it was another one in between.
//!
//! The list could hold all net_iovs, but it refuses more than its capacity, as
//! the kernel's ring does: on a binding of several queues, an idle queue must not keep what the others need.
//!
//! Closing is another swap, to a mark: a push that came before it is in the list that the closing thread gets, and a later
//! push sees the mark and is refused. Refused net_iovs, for either reason, go to the provider.

use crate::net_iov::{NO_INDEX, NetIov};
use crate::sync::{AtomicU64, Ordering};

/// A list of net_iovs, as its length and the first index.
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
    /// The mark of a closed ring: a length that no list has, since a pool has fewer than `NO_INDEX` net_iovs.
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
        // Relaxed: `ReturnRing::take` has synchronized with all threads that linked.
        self.first = slots[index as usize].next.load(Ordering::Relaxed);
        self.len -= 1;
        Some(index)
    }
}

/// Why a ring refused net_iovs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum PushError {
    /// It has reached its capacity.
    Full,
    /// Its pool has been dropped.
    Closed,
}

/// A list of net_iovs: any thread may push, one owner takes all.
pub(crate) struct ReturnRing {
    /// A [`Chain`]: length and first index in one word, so that one load reads both.
    head: CachePadded,
    capacity: u32,
}

/// Padding around the head: producers write it, and must not invalidate the cache line of fields that others read.
///
/// Padding instead of alignment: every send from device memory allocates one of these, and malloc is slow with alignment.
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
    /// Returns an empty ring for about `capacity` net_iovs.
    pub(crate) fn new(capacity: u32) -> Self {
        let head = CachePadded::new(Chain::EMPTY.pack());
        ReturnRing { head, capacity }
    }

    /// Adds net_iovs of which the caller is the only owner; on `Err` it still is.
    #[inline]
    pub(crate) fn push(&self, slots: &[NetIov], indices: &[u32]) -> Result<(), PushError> {
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
                    PushError::Closed
                } else {
                    PushError::Full
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
            // Release: the thread that takes them sees the links and all accesses to the memory. Later
            // pushes are read-modify-writes and so continue the release sequence.
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

    /// Returns the number of net_iovs in the ring.
    pub(crate) fn len(&self) -> u32 {
        match Chain::unpack(self.head.word.load(Ordering::Relaxed)) {
            Chain::CLOSED => 0,
            chain => chain.len,
        }
    }

    /// Takes all net_iovs. Only the pool's owner calls this, and not after `close`.
    pub(crate) fn take(&self) -> Chain {
        if self.len() == 0 {
            return Chain::EMPTY;
        }
        Chain::unpack(self.head.word.swap(Chain::EMPTY.pack(), Ordering::Acquire))
    }

    /// Takes all net_iovs and refuses later pushes.
    pub(crate) fn close(&self) -> Chain {
        let chain = Chain::unpack(self.head.word.swap(Chain::CLOSED.pack(), Ordering::Acquire));
        if chain == Chain::CLOSED {
            Chain::EMPTY
        } else {
            chain
        }
    }
}
