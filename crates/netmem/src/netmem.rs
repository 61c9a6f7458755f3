//! Owned handles to network memory: [`Netmem`] for a host page or net_iov, [`Frag`] for a piece of one.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use devmem_uapi::DmabufId;

use crate::dma_port::BufSpan;
use crate::net_iov::NetIov;
use crate::page_pool::{PoolId, PoolShared};
use crate::region::Span;

/// An owned host page or net_iov. Dropping the last handle of one, on any thread and however late,
/// sends it home: through the return ring of its pool, or to the provider when the pool is gone.
///
/// Not `Clone`: a second owner is made by [`Netmem::share`] and counted. The pool's owner returns it
/// faster with [`crate::PagePool::recycle`].
#[doc(alias = "netmem_ref")]
pub struct Netmem {
    pool: Arc<PoolShared>,
    index: u32,
}

impl Netmem {
    /// Returns the handle of a net_iov that the caller took from provider or ring.
    pub(crate) fn claim(pool: &Arc<PoolShared>, index: u32) -> Self {
        pool.area().slot(index).claim();
        Netmem {
            pool: Arc::clone(pool),
            index,
        }
    }

    /// Returns one more handle of a net_iov that others hold, too: the binding it is sent from.
    pub(crate) fn attach(pool: &Arc<PoolShared>, index: u32) -> Self {
        pool.area().slot(index).add_owner();
        Netmem {
            pool: Arc::clone(pool),
            index,
        }
    }

    /// Gives up a handle that is the only one, for its index, without sending the net_iov home.
    pub(crate) fn disclaim(self) -> u32 {
        debug_assert!(self.slot().is_sole());
        self.slot().disclaim();
        self.index
    }

    /// Drops handles as one by one would, but with one push to the return ring for up to 64 net_iovs
    /// of the same pool in a row: for a thread that is done with a whole batch.
    pub fn drop_bulk(netmems: impl IntoIterator<Item = Netmem>) {
        let mut indices = [0; 64];
        let mut count = 0;
        let mut pool: Option<Arc<PoolShared>> = None;
        for netmem in netmems {
            if !netmem.is_sole_owner() {
                // Its own drop decides whether it became the last meanwhile.
                continue;
            }
            let same = pool
                .as_ref()
                .is_some_and(|pool| Arc::ptr_eq(pool, &netmem.pool));
            if !same || count == indices.len() {
                if let Some(pool) = &pool {
                    pool.come_home(&indices[..count]);
                }
                pool = Some(Arc::clone(&netmem.pool));
                count = 0;
            }
            indices[count] = netmem.disclaim();
            count += 1;
        }
        if let Some(pool) = &pool {
            pool.come_home(&indices[..count]);
        }
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

    /// Returns whether the CPU may read the bytes.
    #[inline]
    pub fn is_readable(&self) -> bool {
        self.pool.is_readable()
    }

    /// Returns the pool that the memory goes home to.
    #[inline]
    pub fn pool_id(&self) -> PoolId {
        self.pool.id()
    }

    /// Returns the dma-buf that the memory is a part of; a host page is of none.
    #[inline]
    pub fn dmabuf_id(&self) -> Option<DmabufId> {
        self.pool.dmabuf_id()
    }

    /// Returns where byte `offset` of this memory lies in its dma-buf (or host area).
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

    /// Returns whether this is the only owner, who may write over bytes that others had.
    #[inline]
    pub fn is_sole_owner(&self) -> bool {
        self.slot().is_sole()
    }

    #[inline]
    pub(crate) fn pool(&self) -> &Arc<PoolShared> {
        &self.pool
    }

    /// Returns a range of this memory for `region`'s copying functions.
    ///
    /// # Panics
    ///
    /// When the range is not inside.
    pub(crate) fn span(&self, offset: u32, len: usize) -> Span<'_> {
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

/// The bytes are in device memory, where the CPU does not read.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("the payload lies in device memory; only its owner can look at it")]
pub struct Unreadable;

/// One piece of one packet: a range of a net_iov or host page. Never an IP fragment.
#[doc(alias = "skb_frag_t")]
#[derive(Debug)]
pub struct Frag {
    netmem: Netmem,
    offset: u32,
    len: u32,
    linear: bool,
}

impl Frag {
    /// Returns `len` bytes at `offset` of `netmem`.
    ///
    /// # Panics
    ///
    /// When the range is not inside the memory.
    pub fn new(netmem: Netmem, offset: u32, len: u32) -> Self {
        let end = u64::from(offset) + u64::from(len);
        assert!(
            end <= netmem.size() as u64,
            "{len} bytes at offset {offset} of {} bytes",
            netmem.size()
        );
        Frag {
            netmem,
            offset,
            len,
            linear: false,
        }
    }

    /// Marks it as the linear part of a packet: payload that landed in host memory although the rest of
    /// its packet did not.
    #[must_use]
    pub fn into_linear(self) -> Self {
        Frag {
            linear: true,
            ..self
        }
    }

    /// Returns the number of bytes.
    #[inline]
    pub fn len(&self) -> usize {
        self.len as usize
    }

    /// Returns whether there are no bytes.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns where in its net_iov the piece begins.
    #[inline]
    pub fn offset(&self) -> u32 {
        self.offset
    }

    /// Returns whether the CPU may read the bytes.
    #[inline]
    pub fn is_readable(&self) -> bool {
        self.netmem.is_readable()
    }

    /// Returns whether this is the linear part of a packet.
    #[inline]
    pub fn is_linear(&self) -> bool {
        self.linear
    }

    /// Returns the dma-buf that the bytes are in; host bytes are in none.
    #[inline]
    pub fn dmabuf_id(&self) -> Option<DmabufId> {
        self.netmem.dmabuf_id()
    }

    /// Returns where in its dma-buf (or host area) the piece begins.
    #[inline]
    pub fn dmabuf_offset(&self) -> u64 {
        self.netmem.dmabuf_offset(self.offset)
    }

    /// Returns the memory.
    #[inline]
    pub fn netmem(&self) -> &Netmem {
        &self.netmem
    }

    /// Returns the range of memory.
    #[inline]
    pub fn span(&self) -> BufSpan<'_> {
        BufSpan {
            netmem: &self.netmem,
            offset: self.offset,
            len: self.len,
        }
    }

    /// Returns the memory, without the range.
    pub fn into_netmem(self) -> Netmem {
        self.netmem
    }

    /// Copies from byte `offset` of the piece to all of `out`: host memory only.
    ///
    /// # Errors
    ///
    /// [`Unreadable`] when the bytes are in device memory.
    ///
    /// # Panics
    ///
    /// When the range is not inside the piece, or the memory is a test's opaque memory: who asks
    /// [`Frag::is_readable`] first never gets there.
    pub fn copy_to(&self, offset: usize, out: &mut [u8]) -> Result<(), Unreadable> {
        let region = self.netmem.pool.area().memory().cpu();
        if !self.is_readable() {
            return Err(Unreadable);
        }
        region.copy_out(
            self.bytes_at(offset..offset.saturating_add(out.len()))
                .offset,
            out,
        );
        Ok(())
    }

    /// Returns a second owner of a range of the piece.
    ///
    /// # Panics
    ///
    /// When the range is not inside the piece.
    #[must_use = "a share is a counted reference to memory"]
    pub fn share(&self, range: Range<usize>) -> Frag {
        let (offset, len) = self.sub_range(&range);
        Frag {
            netmem: self.netmem.share(),
            offset,
            len,
            linear: self.linear,
        }
    }

    /// Drops the first `n` bytes, at most all.
    pub(crate) fn trim_front(&mut self, n: usize) {
        // At most `len`, a u32.
        let n = n.min(self.len()) as u32;
        self.offset += n;
        self.len -= n;
    }

    /// Keeps the first `n` bytes, at most all.
    pub(crate) fn truncate(&mut self, n: usize) {
        // At most `len`, a u32.
        self.len = n.min(self.len()) as u32;
    }

    /// Extends over `next` when that is the same memory and begins where this ends. The range cannot
    /// leave the memory: `next` did not.
    pub(crate) fn try_merge(&mut self, next: &Frag) -> bool {
        let touches = self.offset + self.len == next.offset
            && self.linear == next.linear
            && self.netmem.is_same(&next.netmem);
        if touches {
            self.len += next.len;
        }
        touches
    }

    /// Returns a range of the piece for `region`'s copying functions.
    pub(crate) fn bytes_at(&self, range: Range<usize>) -> Span<'_> {
        let (offset, len) = self.sub_range(&range);
        self.netmem.span(offset, len as usize)
    }

    pub(crate) fn bytes(&self) -> Span<'_> {
        self.netmem.span(self.offset, self.len())
    }

    /// Returns (offset in the memory, length) of a range of the piece.
    fn sub_range(&self, range: &Range<usize>) -> (u32, u32) {
        let inside = range.start <= range.end && range.end <= self.len();
        assert!(inside, "bytes {range:?} of a frag of {} bytes", self.len());
        // Both ends are at most `len`, a u32, and offset + len is inside the memory.
        (
            self.offset + range.start as u32,
            (range.end - range.start) as u32,
        )
    }
}
