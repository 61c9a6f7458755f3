//! The capability to move bytes of memory that the stack may not read: the equivalent of a NIC's DMA engine.

use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};

use mapped::DmaRight;

use crate::buf_span::BufSpan;
use crate::checksum;
use crate::frag_list::FragList;
use crate::netmem::Netmem;
use crate::page_pool::PagePool;

/// The right to move bytes in and out of any network memory, readable or not.
///
/// It is the equivalent of a NIC's DMA engine. [`PagePool::dma_port`] returns one to the NIC queue of the pool, in exchange
/// for a [`DmaRight`], which the stack above the NIC cannot get.
///
/// All methods panic when a range is not inside its memory: a NIC knows the geometry of the memory that it posted.
#[derive(Debug)]
pub struct DmaPort {
    _private: (),
}

impl PagePool {
    /// Returns the port for the NIC queue of the pool.
    ///
    /// Only a crate that depends on `mapped` can name a [`DmaRight`], and this crate does not pass one on. The NIC depends
    /// on `mapped`; TCP, the stack and the library do not (`.ci/run --only deny`).
    pub fn dma_port(&self, _right: DmaRight) -> DmaPort {
        DmaPort::new()
    }
}

impl DmaPort {
    /// Maximum number of frags of a payload for [`writev`](Self::writev); frags that are adjacent in memory count as one.
    pub const MAX_WRITE_FRAGS: usize = mapped::MAX_IOVECS - 1;

    pub(crate) fn new() -> Self {
        DmaPort { _private: () }
    }

    /// Reads one packet from `fd` into `head`, then `tail`, and the rest into `spill`. Returns its length.
    ///
    /// Spans that are adjacent in memory count as one buffer; with `head` and `spill` there may be one more than
    /// [`MAX_WRITE_FRAGS`](Self::MAX_WRITE_FRAGS).
    ///
    /// # Errors
    ///
    /// As readv(2) (EINTR is retried); `ArgumentListTooLong` for too many spans.
    pub fn readv(
        &self,
        fd: BorrowedFd<'_>,
        head: &mut [u8],
        tail: &[BufSpan<'_>],
        spill: &mut [u8],
    ) -> io::Result<usize> {
        mapped::readv(fd, head, tail.iter().map(BufSpan::mapped), spill)
    }

    /// As [`readv`](Self::readv), for a packet of a socket: descriptors that came with it are appended to `fds`. Never waits.
    ///
    /// # Errors
    ///
    /// As recvmsg(2) (EINTR is retried); `ArgumentListTooLong` for too many spans.
    pub fn receive(
        &self,
        socket: BorrowedFd<'_>,
        head: &mut [u8],
        tail: &[BufSpan<'_>],
        spill: &mut [u8],
        fds: &mut Vec<OwnedFd>,
    ) -> io::Result<usize> {
        mapped::receive(socket, head, tail.iter().map(BufSpan::mapped), spill, fds)
    }

    /// Writes one packet to `fd`: `head`, then the payload. Returns the number of bytes.
    ///
    /// # Errors
    ///
    /// As writev(2) (EINTR is retried); `ArgumentListTooLong` for a payload in more pieces than
    /// [`MAX_WRITE_FRAGS`](Self::MAX_WRITE_FRAGS).
    pub fn writev(&self, fd: BorrowedFd<'_>, head: &[u8], payload: &FragList) -> io::Result<usize> {
        mapped::writev(fd, head, payload.iter().map(|frag| frag.bytes().mapped()))
    }

    /// Copies `bytes` to `offset` of `netmem`.
    pub fn copy_in(&self, netmem: &Netmem, offset: u32, bytes: &[u8]) {
        let to = netmem.span(offset, bytes.len());
        to.region.copy_in(to.offset, bytes);
    }

    /// Copies from byte `offset` of `from` (a frag, or any range of network memory) to all of `out`.
    pub fn copy_out<'a>(&self, from: impl Into<BufSpan<'a>>, offset: usize, out: &mut [u8]) {
        let from = from.into();
        let len = from.len as usize;
        let inside = offset.checked_add(out.len()).is_some_and(|end| end <= len);
        assert!(inside, "{} bytes at {offset} of {len}", out.len());
        let from = from.span();
        from.region.copy_out(from.offset + offset, out);
    }

    /// Copies all of `from` (a frag, or any range of network memory) to `offset` of `netmem`, device to
    /// device. The two may overlap.
    pub fn copy<'a>(&self, from: impl Into<BufSpan<'a>>, netmem: &Netmem, offset: u32) {
        let from = from.into();
        let to = netmem.span(offset, from.len as usize);
        to.region.copy_from(to.offset, from.span());
    }

    /// Returns the ones' complement sum of all bytes of `range` (a frag, or any range of network
    /// memory), folded and not complemented (RFC 1071), to be added to the rest of a checksum. The first byte is the high
    /// half of a word; an odd last byte is followed by 0.
    pub fn checksum<'a>(&self, range: impl Into<BufSpan<'a>>) -> u16 {
        checksum::of_span(range.into().span())
    }
}

#[cfg(test)]
mod tests;
