//! One piece of a packet's payload.

use std::ops::Range;
use std::sync::Arc;

use devmem_uapi::DmabufId;

use crate::buf_span::BufSpan;
use crate::netmem::Netmem;
use crate::region::RegionSpan;

/// The bytes are in device memory, which the stack cannot read.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("the payload is in device memory; only its owner can read it")]
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

    /// Marks it as the linear part of a packet: payload in host memory, while the rest of the packet is in device memory.
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

    /// Returns the offset of the piece in its net_iov.
    #[inline]
    pub fn offset(&self) -> u32 {
        self.offset
    }

    /// Returns whether the stack may read the bytes.
    #[inline]
    pub fn is_readable(&self) -> bool {
        self.netmem.is_readable()
    }

    /// Returns whether this is the linear part of a packet.
    #[inline]
    pub fn is_linear(&self) -> bool {
        self.linear
    }

    /// Returns the dma-buf of the bytes; `None` for host memory.
    #[inline]
    pub fn dmabuf_id(&self) -> Option<DmabufId> {
        self.netmem.dmabuf_id()
    }

    /// Returns the offset of the piece in its dma-buf (or host area).
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
    /// When the range is not inside the piece.
    pub fn copy_to(&self, offset: usize, out: &mut [u8]) -> Result<(), Unreadable> {
        let region = self.netmem.pool().area().memory().cpu();
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

    /// Extends the piece over `next` when `next` is in the same memory and begins where the piece ends. The range stays
    /// inside the memory, because `next` is.
    pub(crate) fn try_merge(&mut self, next: &Frag) -> bool {
        let touches = self.offset + self.len == next.offset
            && self.linear == next.linear
            && self.netmem.is_same(&next.netmem);
        if touches {
            self.len += next.len;
        }
        touches
    }

    /// Returns whether `next` is in the same pool and begins where the piece ends, in the same or the next net_iov.
    pub(crate) fn is_followed_by(&self, next: &Frag) -> bool {
        self.linear == next.linear
            && Arc::ptr_eq(self.netmem.pool(), next.netmem.pool())
            && self.dmabuf_offset() + u64::from(self.len) == next.dmabuf_offset()
    }

    /// Returns a range of the piece for `region`'s copying functions.
    pub(crate) fn bytes_at(&self, range: Range<usize>) -> RegionSpan<'_> {
        let (offset, len) = self.sub_range(&range);
        self.netmem.span(offset, len as usize)
    }

    pub(crate) fn bytes(&self) -> RegionSpan<'_> {
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

impl<'a> From<&'a Frag> for BufSpan<'a> {
    fn from(frag: &'a Frag) -> Self {
        frag.span()
    }
}
