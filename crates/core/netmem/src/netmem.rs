//! The owned handle to a host page or net_iov.

use std::fmt;
use std::sync::Arc;

use devmem_uapi::DmabufId;

use crate::memory::Memory;
use crate::net_iov::NetIov;
use crate::pool_shared::PoolShared;
use crate::pool_types::PoolId;
use crate::region::RegionSpan;

/// An owned host page or net_iov. When its last handle is dropped, on any thread,
/// it goes home: through the return ring of its pool, or to the provider when the pool has been dropped.
///
/// Not `Clone`: a second owner is made by [`Netmem::share`] and counted. The pool's owner recycles it
/// faster with [`crate::PagePool::recycle`].
#[doc(alias = "netmem_ref")]
pub struct Netmem {
    pool: Arc<PoolShared>,
    index: u32,
}

impl Netmem {
    /// Returns the handle of a net_iov that the caller has taken from provider or ring.
    pub(crate) fn claim(pool: &Arc<PoolShared>, index: u32) -> Self {
        pool.area().slot(index).claim();
        Netmem {
            pool: Arc::clone(pool),
            index,
        }
    }

    /// Returns another handle of a net_iov that has owners: those of the binding it is sent from.
    pub(crate) fn attach(pool: &Arc<PoolShared>, index: u32) -> Self {
        pool.area().slot(index).add_owner();
        Netmem {
            pool: Arc::clone(pool),
            index,
        }
    }

    /// Turns the only handle into its index, without sending the net_iov home.
    pub(crate) fn disclaim(self) -> u32 {
        debug_assert!(self.slot().is_sole());
        self.slot().disclaim();
        self.index
    }

    /// Returns a second owner of the same memory.
    #[must_use = "a share is a counted reference to memory"]
    pub fn share(&self) -> Netmem {
        self.slot().add_owner();
        Netmem {
            pool: Arc::clone(&self.pool),
            index: self.index,
        }
    }

    /// Returns whether the stack may read the bytes.
    #[inline]
    pub fn is_readable(&self) -> bool {
        self.pool.is_readable()
    }

    /// Returns the pool of the memory.
    #[inline]
    pub fn pool_id(&self) -> PoolId {
        self.pool.id()
    }

    /// Returns the dma-buf that the memory is part of; `None` for a host page.
    #[inline]
    pub fn dmabuf_id(&self) -> Option<DmabufId> {
        self.pool.dmabuf_id()
    }

    /// Returns the offset of byte `offset` of this memory in its dma-buf (or host area).
    #[inline]
    pub fn dmabuf_offset(&self, offset: u32) -> u64 {
        self.pool.area().offset_of(self.index) as u64 + u64::from(offset)
    }

    /// Returns the number of bytes.
    #[inline]
    pub fn size(&self) -> usize {
        self.pool.area().niov_size().bytes()
    }

    /// Returns whether both are handles of the same memory.
    #[inline]
    pub fn is_same(&self, other: &Netmem) -> bool {
        self.index == other.index && Arc::ptr_eq(&self.pool, &other.pool)
    }

    /// Returns whether this memory begins where `before` ends.
    #[inline]
    pub fn is_right_after(&self, before: &Netmem) -> bool {
        before.index.checked_add(1) == Some(self.index)
            && Arc::ptr_eq(self.pool.area(), before.pool.area())
    }

    /// Returns whether this is the only owner, so that the bytes may be overwritten.
    #[inline]
    pub fn is_sole_owner(&self) -> bool {
        self.slot().is_sole()
    }

    #[inline]
    pub(crate) fn pool(&self) -> &Arc<PoolShared> {
        &self.pool
    }

    /// Returns the memory that this is part of.
    #[inline]
    pub(crate) fn memory(&self) -> &Memory {
        self.pool.area().memory()
    }

    /// As [`memory`](Self::memory), to tell whether two frags are of the same memory.
    pub(crate) fn memory_handle(&self) -> &Arc<Memory> {
        self.pool.area().memory()
    }

    /// Returns whether `next` is the same memory, or begins where this ends.
    pub(crate) fn is_continued_by(&self, next: &Netmem) -> bool {
        let is_next = self.index == next.index || self.index.checked_add(1) == Some(next.index);
        is_next && Arc::ptr_eq(self.pool.area(), next.pool.area())
    }

    /// Returns a range of this memory for `region`'s copying functions.
    ///
    /// # Panics
    ///
    /// When the range is not inside.
    pub(crate) fn span(&self, offset: u32, len: usize) -> RegionSpan<'_> {
        let area = self.pool.area();
        let offset = offset as usize;
        let inside = offset
            .checked_add(len)
            .is_some_and(|end| end <= self.size());
        assert!(
            inside,
            "{len} bytes at offset {offset} of a net_iov of {} bytes",
            self.size()
        );
        area.memory().span(area.offset_of(self.index) + offset, len)
    }

    #[inline]
    fn slot(&self) -> &NetIov {
        self.pool.area().slot(self.index)
    }
}

impl Drop for Netmem {
    fn drop(&mut self) {
        if self.slot().let_go() {
            self.pool.come_home(&[self.index]);
        }
    }
}

impl fmt::Debug for Netmem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Netmem({:?}, {})", self.pool.id(), self.index)
    }
}
