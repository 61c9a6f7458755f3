//! What the library of a device offers: memory that it exports, and an engine that copies memory which the CPU cannot access.
//!
//! The NIC reads payload for such memory into host memory that the device can access (it is *pinned*), and asks the engine
//! to copy it to the device; to send, it asks for the opposite. The engine copies while the NIC does other work:
//! [`CopyEngine::submit`] returns a [`Fence`], and [`CopyEngine::is_done`] tells whether the bytes have arrived.

use std::any::Any;
use std::fmt;
use std::io;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use crate::lent::LentMemory;
use crate::piece_list::PieceList;
use crate::region::MemoryRegion;

/// Operations of an exporter of device memory (linux include/linux/dma-buf.h, struct dma_buf_ops).
///
/// An implementation is not trusted: before its memory is mapped, the file is checked to be a dma-buf or a memfd
/// sealed against shrinking, and to have the size.
#[doc(alias = "dma_buf_ops")]
pub trait Exporter: Any + Send + Sync {
    /// Returns the number of bytes.
    fn size(&self) -> usize;

    /// Returns the file descriptor of the memory for the kernel and other processes, if there is one.
    fn as_fd(&self) -> Option<BorrowedFd<'_>>;

    /// Returns the file descriptor of the memory for a NIC of the kernel, if there is one: [`as_fd`](Self::as_fd), with the
    /// reason why an export failed.
    ///
    /// # Errors
    ///
    /// The device's library does not export the memory.
    fn as_dmabuf(&self) -> Result<Option<BorrowedFd<'_>>, DeviceError> {
        Ok(self.as_fd())
    }

    /// Returns the bytes of one page of the memory, if they are known, and if its pages are adjacent by chance alone. A NIC of the kernel
    /// gets the memory in pieces of one page or several.
    fn page_bytes(&self) -> Option<usize> {
        None
    }

    /// Makes the device's writes visible to the CPU.
    ///
    /// # Errors
    ///
    /// When the exporter's synchronisation fails.
    fn begin_cpu_access(&self, access: CpuAccess) -> io::Result<()>;

    /// Makes the CPU's writes visible to the device.
    ///
    /// # Errors
    ///
    /// When the exporter's synchronisation fails.
    fn end_cpu_access(&self, access: CpuAccess) -> io::Result<()>;

    /// Returns the engine of memory that the CPU cannot map. Such memory is never mapped: every access copies it.
    fn copy_engine(&self) -> Option<Arc<dyn CopyEngine>> {
        None
    }

    /// Returns the memory as the device's library has mapped it for the CPU, if it has: coherent, and as long as
    /// [`size`](Self::size). Otherwise the file is mapped. Called once, for memory without a copy engine.
    fn mapping(&self) -> Option<LentMemory> {
        None
    }

    /// Returns the engine that gathers the memory: also of memory that the CPU can access, but reads slowly.
    fn gather_engine(&self) -> Option<Arc<dyn CopyEngine>> {
        self.copy_engine()
    }
}

impl std::fmt::Debug for dyn Exporter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Exporter")
            .field("size", &self.size())
            .finish_non_exhaustive()
    }
}

/// Kind of an access by the CPU (DMA_BUF_SYNC_READ, _WRITE).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CpuAccess {
    /// Reading only.
    Read,
    /// Writing only.
    Write,
    /// Reading and writing.
    ReadWrite,
}

/// Registration of host memory with a device. Dropping it waits until no copy uses the memory any more, and ends it.
pub type Pinned = Box<dyn Any + Send + Sync>;

/// Copies between the memory of one device and host memory, asynchronously.
///
/// Copies of one [`Lane`] are done in the order of their submissions; the copies of one submission in any order. An
/// implementation accepts only memory that it has made itself, which it recognises by its type, and checks each range
/// against the size of that memory.
pub trait CopyEngine: Send + Sync {
    /// Returns the device in the notation of the tools, such as `cuda:0`.
    fn device(&self) -> String;

    /// Registers host memory, so that the device can copy to and from it while the CPU does other work.
    ///
    /// # Errors
    ///
    /// [`DeviceError`] of the device.
    fn pin(&self, memory: HostWindow) -> Result<Pinned, DeviceError>;

    /// Starts copies between two memories. These must stay allocated until the fence is done; an implementation ensures it for its own
    /// memory and for pinned memory, whose owners wait when they are dropped.
    ///
    /// # Errors
    ///
    /// [`DeviceError`]; some of the bytes may have been copied.
    fn submit(
        &self,
        lane: Lane,
        way: CopyWay<'_>,
        pieces: &[CopyPiece],
    ) -> Result<Fence, DeviceError>;

    /// Starts the copies of a list, as [`submit`](Self::submit) does. The code of the device checks each piece, and leaves one out that is not inside of
    /// both memories. `None`: nothing was started, since the device has no such code, or copies so few pieces faster without.
    ///
    /// # Errors
    ///
    /// [`DeviceError`]; some of the bytes may have been copied.
    fn submit_list(
        &self,
        _lane: Lane,
        _way: CopyWay<'_>,
        _list: &PieceList,
    ) -> Result<Option<Fence>, DeviceError> {
        Ok(None)
    }

    /// Returns whether all copies up to `fence` are done. Does not wait.
    ///
    /// # Errors
    ///
    /// [`DeviceError`]: the copies will never be done.
    fn is_done(&self, fence: Fence) -> Result<bool, DeviceError>;

    /// Waits until all copies up to `fence` are done.
    ///
    /// # Errors
    ///
    /// [`DeviceError`]: the copies will never be done.
    fn wait(&self, fence: Fence) -> Result<(), DeviceError>;

    /// Copies device memory to `out`, and waits.
    ///
    /// # Errors
    ///
    /// [`DeviceError`] of the device.
    fn read(&self, from: DeviceAt<'_>, out: &mut [u8]) -> Result<(), DeviceError>;

    /// Copies `bytes` to device memory, and waits.
    ///
    /// # Errors
    ///
    /// [`DeviceError`] of the device.
    fn write(&self, to: DeviceAt<'_>, bytes: &[u8]) -> Result<(), DeviceError>;

    /// Has the device compute the CRC-32C of `len` bytes of its memory, and waits. `None`, so that the caller reads the bytes back: the device has
    /// no code for it, or cannot use it for these bytes.
    ///
    /// # Errors
    ///
    /// [`DeviceError`] of the device.
    fn crc32c(&self, _from: DeviceAt<'_>, _len: usize) -> Result<Option<u32>, DeviceError> {
        Ok(None)
    }
}

impl fmt::Debug for dyn CopyEngine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "CopyEngine({})", self.device())
    }
}

/// Queue of copies of an engine. Lanes do not wait for each other.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Lane {
    /// From host memory to the device: received payload.
    In,
    /// From the device to host memory: payload to send.
    Out,
    /// Within the device: gathering.
    Gather,
}

/// A point in a lane: that submission and all before it in the lane.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Fence {
    /// The lane.
    pub lane: Lane,
    /// Number of the submission in the lane, from 1.
    pub number: u64,
}

/// The two memories between which an engine copies.
#[derive(Clone, Copy, Debug)]
pub enum CopyWay<'a> {
    /// From pinned host memory to the device.
    In {
        /// Source: what [`CopyEngine::pin`] returned.
        from: &'a Pinned,
        /// Destination.
        to: &'a dyn Exporter,
    },
    /// From the device to pinned host memory.
    Out {
        /// Source.
        from: &'a dyn Exporter,
        /// Destination: what [`CopyEngine::pin`] returned.
        to: &'a Pinned,
    },
    /// From device memory to device memory.
    Within {
        /// Source.
        from: &'a dyn Exporter,
        /// Destination.
        to: &'a dyn Exporter,
    },
}

/// A copy on a [`CopyWay`]. Its ranges do not overlap.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct CopyPiece {
    /// Offset of the first byte in the source.
    pub from: usize,
    /// Offset of its place in the destination.
    pub to: usize,
    /// Number of bytes, at least 1.
    pub len: usize,
}

/// A byte of device memory.
#[derive(Clone, Copy, Debug)]
pub struct DeviceAt<'a> {
    /// The exporter of the memory, made by the device's library.
    pub memory: &'a dyn Exporter,
    /// Offset of the byte.
    pub offset: usize,
}

/// Mapped host memory to be pinned. It stays mapped while this exists, so a [`Pinned`] keeps it.
#[derive(Debug)]
pub struct HostWindow {
    pub(crate) region: Arc<MemoryRegion>,
}

impl HostWindow {
    pub(crate) fn new(region: Arc<MemoryRegion>) -> Self {
        HostWindow { region }
    }

    /// Returns the address of the first byte, at the start of a page.
    pub fn address(&self) -> usize {
        self.region.address()
    }

    /// Returns the number of bytes, a multiple of the page.
    #[expect(clippy::len_without_is_empty, reason = "a window is never empty")]
    pub fn len(&self) -> usize {
        self.region.len()
    }
}

/// A call of a device's library that failed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{call} failed: {name} ({code})")]
pub struct DeviceError {
    /// The function of the library.
    pub call: &'static str,
    /// The name of the error in the library.
    pub name: &'static str,
    /// The number of the error.
    pub code: i32,
    /// Whether the device can still be used by this process.
    pub state: DeviceState,
    /// What to do about it.
    pub remedy: &'static str,
}

/// Whether a device can be used after an error.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DeviceState {
    /// Only the call failed.
    Usable,
    /// Every later call will fail in this process.
    Lost,
    /// The device was opened by the process that this one was forked from. Every call fails in this process.
    Forked,
}

impl From<DeviceError> for io::Error {
    fn from(error: DeviceError) -> Self {
        io::Error::other(error)
    }
}
