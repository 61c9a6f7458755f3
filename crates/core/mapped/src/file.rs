//! Files that cannot get shorter under a mapping.

use std::os::fd::{AsFd, BorrowedFd};

use rustix::fs::{SealFlags, SeekFrom, fcntl_get_seals, fstat, fstatfs, seek};
use rustix::io::Errno;

/// `HUGETLBFS_MAGIC` and `DMA_BUF_MAGIC` (linux include/uapi/linux/magic.h). Negative where `f_type` has 32 bits.
const HUGETLBFS_MAGIC: u32 = 0x9584_58f6;
const DMA_BUF_MAGIC: u32 = 0x444d_4142;

/// Why a file may not be mapped.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum UnmappableFile {
    /// It may get shorter, and an access past its end would end the process (SIGBUS).
    #[error(
        "the file is neither a dma-buf nor a memfd sealed against shrinking; \
         make it with memfd_create(MFD_ALLOW_SEALING) and add F_SEAL_SHRINK"
    )]
    MayShrink,
    /// It ends before the end of the range.
    #[error("the file has {size} bytes, and the range ends at {end}; make the file longer first")]
    TooShort {
        /// End of the range.
        end: u64,
        /// Bytes of the file.
        size: u64,
    },
    /// A system call failed.
    #[error("the file cannot be mapped: {0}")]
    System(Errno),
}

impl From<Errno> for UnmappableFile {
    fn from(errno: Errno) -> Self {
        Self::System(errno)
    }
}

/// Kind of memory of a file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FilePages {
    /// Ordinary memory: a missing page is allocated when it is touched.
    Memory,
    /// Huge pages of the administrator's pool. A process with write access to the file can punch a hole in it, even if it
    /// is sealed against shrinking; if the pool is empty then, the next access to the hole ends the process (SIGBUS).
    Huge,
    /// Memory of a device or its driver: a dma-buf.
    Dmabuf,
}

/// A file that always has at least `size` bytes.
#[derive(Clone, Copy, Debug)]
pub struct MappableFile<'fd> {
    fd: BorrowedFd<'fd>,
    size: u64,
    pages: FilePages,
}

impl<'fd> MappableFile<'fd> {
    /// Accepts a memfd that is sealed against shrinking. Never waits for a file system: for a file of another kind,
    /// `F_GET_SEALS` fails with `EINVAL` in the kernel (linux mm/memfd.c `memfd_get_seals`), without a call of its file
    /// system (FUSE, NFS).
    ///
    /// # Errors
    /// [`UnmappableFile::MayShrink`], or the error of fstat(2).
    pub fn memfd(fd: BorrowedFd<'fd>) -> Result<Self, UnmappableFile> {
        let seals = fcntl_get_seals(fd).map_err(|_no_memfd| UnmappableFile::MayShrink)?;
        if !seals.contains(SealFlags::SHRINK) {
            return Err(UnmappableFile::MayShrink);
        }
        // Here the file is known to be a memory file of the kernel: these calls do not block.
        let pages = match is_on(fd, HUGETLBFS_MAGIC)? {
            true => FilePages::Huge,
            false => FilePages::Memory,
        };
        let size = u64::try_from(fstat(fd)?.st_size).map_err(|_negative| Errno::OVERFLOW)?;
        Ok(Self { fd, size, pages })
    }

    /// Accepts a file for [`MappableFile::memfd`], or a dma-buf, whose size never changes. Calls the file's file system,
    /// so it is for files of this program, not for those of untrusted clients.
    ///
    /// # Errors
    /// As [`MappableFile::memfd`].
    pub fn memfd_or_dmabuf(fd: BorrowedFd<'fd>) -> Result<Self, UnmappableFile> {
        match Self::memfd(fd) {
            Err(UnmappableFile::MayShrink) if is_on(fd, DMA_BUF_MAGIC)? => {
                // Seeking to the end returns the size of a dma-buf (linux drivers/dma-buf/dma-buf.c dma_buf_llseek).
                let size = seek(fd, SeekFrom::End(0))?;
                let pages = FilePages::Dmabuf;
                Ok(Self { fd, size, pages })
            }
            judged => judged,
        }
    }

    /// Returns its kind of memory.
    pub fn pages(&self) -> FilePages {
        self.pages
    }

    /// Checks that the file has `len` bytes at `offset`.
    pub(crate) fn check(&self, offset: u64, len: usize) -> Result<(), UnmappableFile> {
        let size = self.size;
        // A sum that overflows is past the end of every file.
        let end = offset.saturating_add(u64::try_from(len).unwrap_or(u64::MAX));
        if end > size {
            return Err(UnmappableFile::TooShort { end, size });
        }
        Ok(())
    }
}

impl AsFd for MappableFile<'_> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd
    }
}

fn is_on(fd: BorrowedFd<'_>, magic: u32) -> Result<bool, Errno> {
    let kind = fstatfs(fd)?.f_type;
    #[allow(clippy::useless_conversion, reason = "32 bits elsewhere")]
    Ok(i64::from(kind) & 0xffff_ffff == i64::from(magic))
}

#[cfg(test)]
mod tests;
