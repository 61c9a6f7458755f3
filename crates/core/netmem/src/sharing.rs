//! Memory that two processes map: this one sends from it, or another one does.

use std::os::fd::BorrowedFd;
use std::sync::Arc;

use mapped::{FilePages, MappableFile, UnmappableFile};

use crate::dma_port::DmaPort;
use crate::dmabuf::MemoryObserver;
use crate::frag::Frag;
use crate::frag_list::FragList;
use crate::frag_source::{FragSource, FragUse};
use crate::memory::{Memory, MemoryAccess, OutOfBounds};
use crate::region::BASE_PAGE_BYTES;

/// Largest memory of another process that is mapped, in bytes. It bounds what this process allocates for its net_iovs:
/// 256 KiB.
pub const MAX_PEER_BYTES: u64 = 64 << 30;

/// Why memory of another process is not mapped.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum PeerMemoryError {
    /// An access could end this process: see [`UnmappableFile`].
    #[error(transparent)]
    File(#[from] UnmappableFile),
    /// The other process can punch a hole in huge pages, and the next access ends this process if no huge page is free.
    #[error("a file of huge pages may lose pages while it is mapped")]
    HugePages,
    /// The size is 0, not a multiple of the page, or more than [`MAX_PEER_BYTES`].
    #[error(
        "{size} bytes of memory of another process: take a positive multiple of 4096, at most {MAX_PEER_BYTES}"
    )]
    Size {
        /// The size in bytes.
        size: u64,
    },
}

/// The memory of a frag, as a file that another process may map: memory that its program has marked as shared
/// ([`Dmabuf::shared_memfd`](crate::Dmabuf::shared_memfd)), or host memory that a link has made for its peer
/// ([`MemoryProvider::shareable`](crate::MemoryProvider::shareable)).
#[derive(Clone, Copy, Debug)]
pub struct ShareableMemory<'m> {
    memory: &'m Arc<Memory>,
    file: BorrowedFd<'m>,
}

impl ShareableMemory<'_> {
    /// Returns the file, if another process may map it: it accepts no other files ([`DmaPort::map_peer`]).
    pub fn file(&self) -> Option<BorrowedFd<'_>> {
        let size = self.memory.size() as u64;
        accept(self.file, size).ok().map(|_| self.file)
    }

    /// Returns the number of bytes.
    pub fn size(&self) -> usize {
        self.memory.size()
    }

    /// Returns an observer of the memory, which does not keep it.
    pub fn observer(&self) -> MemoryObserver {
        MemoryObserver::of(self.memory)
    }

    /// Returns whether `observer` observes this memory.
    pub fn is_observed_by(&self, observer: &MemoryObserver) -> bool {
        observer.observes(self.memory)
    }

    /// Returns whether it is host memory of this process, not device memory of its program.
    pub fn is_host(&self) -> bool {
        self.memory.access() == MemoryAccess::Host
    }
}

/// Memory of another process, mapped for reading. That process may write to it at any time.
#[derive(Debug)]
pub struct PeerMemory(FragSource);

impl PeerMemory {
    /// Returns the number of bytes.
    pub fn size(&self) -> usize {
        self.0.size()
    }

    /// Appends `len` bytes at `offset` to `list`. Returns the handle that tells when the last of these frags was dropped.
    ///
    /// # Errors
    ///
    /// [`OutOfBounds`], and nothing is appended.
    pub fn borrow_frags(
        &self,
        offset: usize,
        len: usize,
        list: &mut FragList,
    ) -> Result<FragUse, OutOfBounds> {
        let send = self.0.begin();
        send.append(offset, len, list)?;
        Ok(send)
    }
}

impl DmaPort {
    /// Returns the memory of a frag, if another process may map it.
    pub fn shareable<'f>(&self, frag: &'f Frag) -> Option<ShareableMemory<'f>> {
        let memory = frag.netmem().memory_handle();
        let file = memory.shareable_file()?;
        Some(ShareableMemory { memory, file })
    }

    /// Maps all `size` bytes of a file that another process has sent, for reading. Never waits for a file system.
    ///
    /// # Errors
    ///
    /// [`PeerMemoryError`]; a file that is no sealed memfd is refused.
    pub fn map_peer(&self, file: BorrowedFd<'_>, size: u64) -> Result<PeerMemory, PeerMemoryError> {
        let (file, size) = accept(file, size)?;
        let memory = Memory::of_peer(&file, size)?;
        Ok(PeerMemory(FragSource::of_peer(Arc::new(memory))))
    }
}

/// Checks that the first `size` bytes of a file can be mapped safely.
fn accept(file: BorrowedFd<'_>, size: u64) -> Result<(MappableFile<'_>, usize), PeerMemoryError> {
    let file = MappableFile::memfd(file)?;
    if file.pages() == FilePages::Huge {
        return Err(PeerMemoryError::HugePages);
    }
    let bytes = usize::try_from(size)
        .ok()
        .filter(|bytes| *bytes > 0 && bytes.is_multiple_of(BASE_PAGE_BYTES));
    let bytes = bytes.filter(|_| size <= MAX_PEER_BYTES);
    Ok((file, bytes.ok_or(PeerMemoryError::Size { size })?))
}

#[cfg(test)]
mod tests;
