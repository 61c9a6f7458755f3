//! Guest memory of the device: windows at guest addresses, each backed by a file of the client.
//!
//! The file must be a memfd sealed against shrinking, as QEMU's memory-backend-memfd makes it: a client that could shrink
//! the file could end this process (SIGBUS). System calls that ask a file system are not made on the client's files,
//! because a FUSE file system may never answer.

use std::collections::BTreeMap;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{Ordering, fence};

use mapped::{FilePages, MapAccess, MappableFile, Mapping, RangeError, UnmappableFile};
use rustix::io::Errno;

/// Maximum number of windows; QEMU needs a dozen.
pub(crate) const MAX_WINDOWS: usize = 1024;
/// Maximum number of bytes in all windows: an eighth of a process's addresses on x86-64.
const MAX_TOTAL_BYTES: u64 = 1 << 44;
/// Granularity of addresses, sizes and file offsets.
pub(crate) const PAGE_BYTES: u64 = 4096;

/// Access rights of the device in a window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Protection {
    /// The device may read.
    pub read: bool,
    /// The device may write.
    pub write: bool,
}

/// A request of a client for a window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MapRequest {
    /// Guest address.
    pub address: u64,
    /// Bytes.
    pub size: u64,
    /// Offset in the file; not used without a file.
    pub offset: u64,
    /// Access rights of the device.
    pub protection: Protection,
}

/// Why a window was not mapped or unmapped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MapError {
    /// The addresses wrap, the size is 0, or address, size or offset is not a multiple of a page.
    #[error("a window of {size:#x} bytes at {address:#x} is not a whole number of pages")]
    Range {
        /// The guest's address.
        address: u64,
        /// Bytes.
        size: u64,
    },
    /// The device may neither read nor write in the window.
    #[error("a window for neither reading nor writing")]
    NoAccess,
    /// The window overlaps another one.
    #[error("{address:#x} is in a window already")]
    Overlap {
        /// The guest's address.
        address: u64,
    },
    /// The maximum number of windows, or of bytes in them, is reached.
    #[error("more than {limit} windows, or too many bytes in them")]
    TooMany {
        /// Maximum number of windows.
        limit: usize,
    },
    /// The range to unmap begins or ends inside a window.
    #[error("{address:#x} is inside a window: a window can only be unmapped completely")]
    Splits {
        /// The guest's address.
        address: u64,
    },
    /// The file ends before the end of the window.
    #[error("the file behind the window is too short")]
    TooShort,
    /// The file consists of huge pages. The client can punch holes in it, and an access to a hole ends this process
    /// when there are no free huge pages.
    #[error("guest memory must not be of huge page files: start the machine without hugetlb=on")]
    HugePages,
    /// The descriptor is not a memfd sealed against shrinking.
    #[error(
        "guest memory must be a memfd sealed against shrinking: start the machine with \
         memory-backend-memfd,share=on and without seal=off"
    )]
    MayShrink,
    /// A system call failed.
    #[error("the window cannot be mapped: {0}")]
    System(Errno),
}

impl MapError {
    /// Returns the errno for the client.
    pub fn errno(self) -> Errno {
        match self {
            Self::Range { .. } | Self::NoAccess | Self::Splits { .. } => Errno::INVAL,
            Self::TooShort | Self::MayShrink => Errno::INVAL,
            Self::Overlap { .. } => Errno::EXIST,
            Self::TooMany { .. } => Errno::NOSPC,
            Self::HugePages => Errno::OPNOTSUPP,
            Self::System(errno) => errno,
        }
    }
}

/// Why an access to guest memory failed, completely or in part.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DmaError {
    /// There is no window at the address.
    #[error("no guest memory at {address:#x}")]
    Unmapped {
        /// The address.
        address: u64,
    },
    /// The window has no file. This server does not request its bytes from the client.
    #[error(
        "guest memory at {address:#x} came without a file descriptor: it must be shared memory"
    )]
    NoFile {
        /// Start of the access.
        address: u64,
    },
    /// The device does not have this access right in the window.
    #[error("guest memory at {address:#x} may not be accessed that way")]
    Forbidden {
        /// Start of the access.
        address: u64,
    },
}

/// The guest memory that a device may access.
///
/// Every access looks its windows up and copies, so that no pointer remains after a window is unmapped.
#[derive(Debug, Default)]
pub struct DmaWindows {
    /// Windows by guest address; no two overlap.
    windows: BTreeMap<u64, DmaWindow>,
    total_bytes: u64,
    /// Bytes of the windows with a file.
    reachable_bytes: u64,
}

#[derive(Debug)]
struct DmaWindow {
    size: u64,
    protection: Protection,
    /// `None`: a window without a file.
    memory: Option<Mapping>,
}

impl DmaWindow {
    fn reachable_bytes(&self) -> u64 {
        self.memory.as_ref().map_or(0, |_| self.size)
    }
}

impl DmaWindows {
    /// Maps a window of `file`. Without a file, the window can be unmapped, and accesses to it fail.
    ///
    /// # Errors
    /// See [`MapError`]; no window is mapped, and the file is closed.
    pub fn map(&mut self, request: MapRequest, file: Option<OwnedFd>) -> Result<(), MapError> {
        let MapRequest {
            address,
            size,
            offset,
            protection,
        } = request;
        check_range(address, size)?;
        if !protection.read && !protection.write {
            return Err(MapError::NoAccess);
        }
        if let Some(taken) = self.first_inside(address, size) {
            return Err(MapError::Overlap { address: taken });
        }
        let total_bytes = self.total_bytes.saturating_add(size);
        if self.windows.len() >= MAX_WINDOWS || total_bytes > MAX_TOTAL_BYTES {
            return Err(MapError::TooMany { limit: MAX_WINDOWS });
        }
        let memory = match &file {
            Some(file) => Some(open(file, offset, size, protection)?),
            None => None,
        };
        let window = DmaWindow {
            size,
            protection,
            memory,
        };
        self.total_bytes = total_bytes;
        self.reachable_bytes += window.reachable_bytes();
        self.windows.insert(address, window);
        Ok(())
    }

    /// Unmaps all windows inside a range, which may be none.
    ///
    /// # Errors
    /// [`MapError::Range`]; [`MapError::Splits`] if a window is only partly inside the range; nothing is unmapped.
    pub fn unmap(&mut self, address: u64, size: u64) -> Result<(), MapError> {
        let end = check_range(address, size)?;
        if self
            .window_at(address)
            .is_some_and(|(start, _)| start < address)
        {
            return Err(MapError::Splits { address });
        }
        let last = self.windows.range(address..end).next_back();
        if last.is_some_and(|(start, window)| end - start < window.size) {
            return Err(MapError::Splits { address: end });
        }
        let mut inside = self.windows.split_off(&address);
        let mut behind = inside.split_off(&end);
        self.windows.append(&mut behind);
        for window in inside.values() {
            self.total_bytes -= window.size;
            self.reachable_bytes -= window.reachable_bytes();
        }
        Ok(())
    }

    /// Unmaps all windows.
    pub fn clear(&mut self) {
        *self = Self::default();
    }

    /// Returns the number of windows.
    pub fn len(&self) -> usize {
        self.windows.len()
    }

    /// True if there is no window.
    pub fn is_empty(&self) -> bool {
        self.windows.is_empty()
    }

    /// Returns the bytes of all windows.
    pub fn total_bytes(&self) -> u64 {
        self.total_bytes
    }

    /// Returns the bytes of all windows with a file, which the device can access.
    pub fn reachable_bytes(&self) -> u64 {
        self.reachable_bytes
    }

    /// Copies guest memory at `address` to all of `out`. 1, 2, 4 or 8 naturally aligned bytes are one load. An acquire
    /// fence follows: a later call does not read older values.
    ///
    /// # Errors
    /// The address of the first byte that could not be read; the bytes before it may be in `out`.
    pub fn read(&self, address: u64, out: &mut [u8]) -> Result<(), DmaError> {
        let mut done = 0;
        while done < out.len() {
            let piece = self.piece(address, done, out.len())?;
            if !piece.window.protection.read {
                return Err(DmaError::Forbidden {
                    address: piece.address,
                });
            }
            let (memory, at) = piece.memory()?;
            let out = &mut out[done..done + piece.len];
            memory
                .copy_out(at, out)
                .map_err(|error| piece.refused(error))?;
            done += piece.len;
        }
        // A relaxed load and this fence are an acquire load. Stronger loads are not defined for read-only mappings.
        fence(Ordering::Acquire);
        Ok(())
    }

    /// Copies `bytes` to guest memory at `address`. 1, 2, 4 or 8 naturally aligned bytes are one store. A release fence
    /// comes first: a thread or guest that sees these bytes sees those of earlier calls.
    ///
    /// # Errors
    /// The address of the first byte that could not be written; the bytes before it are written.
    pub fn write(&self, address: u64, bytes: &[u8]) -> Result<(), DmaError> {
        fence(Ordering::Release);
        let mut done = 0;
        while done < bytes.len() {
            let piece = self.piece(address, done, bytes.len())?;
            if !piece.window.protection.write {
                return Err(DmaError::Forbidden {
                    address: piece.address,
                });
            }
            let (memory, at) = piece.memory()?;
            let bytes = &bytes[done..done + piece.len];
            memory
                .copy_in(at, bytes)
                .map_err(|error| piece.refused(error))?;
            done += piece.len;
        }
        Ok(())
    }

    /// Returns the next part of an access to `len` bytes at `address`, after the first `done` bytes: the bytes in one window.
    fn piece(&self, address: u64, done: usize, len: usize) -> Result<WindowPiece<'_>, DmaError> {
        let missing = DmaError::Unmapped { address };
        let address = address.checked_add(done as u64).ok_or(missing)?;
        let (start, window) = self
            .window_at(address)
            .ok_or(DmaError::Unmapped { address })?;
        let at = address - start;
        let left = usize::try_from(window.size - at).unwrap_or(usize::MAX);
        Ok(WindowPiece {
            window,
            address,
            at,
            len: left.min(len - done),
        })
    }

    /// Returns the window that contains `address`, and its start.
    fn window_at(&self, address: u64) -> Option<(u64, &DmaWindow)> {
        let (&start, window) = self.windows.range(..=address).next_back()?;
        (address - start < window.size).then_some((start, window))
    }

    /// Returns the first address of the range that is in a window.
    fn first_inside(&self, address: u64, size: u64) -> Option<u64> {
        if self.window_at(address).is_some() {
            return Some(address);
        }
        // Does not overflow: checked by `check_range`.
        let inside = self.windows.range(address..address + size).next();
        inside.map(|(&start, _)| start)
    }
}

/// The part of an access that is in one window.
struct WindowPiece<'a> {
    window: &'a DmaWindow,
    address: u64,
    /// Offset in the window.
    at: u64,
    len: usize,
}

impl<'a> WindowPiece<'a> {
    /// Returns the window's memory, and the offset of the part in it.
    fn memory(&self) -> Result<(&'a Mapping, usize), DmaError> {
        let address = self.address;
        let memory = self.window.memory.as_ref();
        let memory = memory.ok_or(DmaError::NoFile { address })?;
        // Fits: the offset is inside a mapping, and its length is a usize.
        let at = usize::try_from(self.at).map_err(|_| DmaError::Unmapped { address })?;
        Ok((memory, at))
    }

    /// Returns the error of a refused copy. It cannot happen after the checks of the window.
    fn refused(&self, error: RangeError) -> DmaError {
        let address = self.address;
        match error {
            RangeError::ReadOnly => DmaError::Forbidden { address },
            RangeError::OutOfBounds { .. } => DmaError::Unmapped { address },
        }
    }
}

/// Maps a file.
fn open(
    file: &OwnedFd,
    offset: u64,
    size: u64,
    protection: Protection,
) -> Result<Mapping, MapError> {
    if !offset.is_multiple_of(PAGE_BYTES) {
        return Err(MapError::Range {
            address: offset,
            size,
        });
    }
    let len = usize::try_from(size).map_err(|_| MapError::TooMany { limit: MAX_WINDOWS })?;
    let access = match protection.write {
        true => MapAccess::ReadWrite,
        false => MapAccess::Read,
    };
    let refused = |unmappable| match unmappable {
        UnmappableFile::MayShrink => MapError::MayShrink,
        UnmappableFile::TooShort { .. } => MapError::TooShort,
        UnmappableFile::System(errno) => MapError::System(errno),
    };
    let file = MappableFile::memfd(file.as_fd()).map_err(refused)?;
    match file.pages() {
        FilePages::Memory => Mapping::file(&file, offset, len, access).map_err(refused),
        FilePages::Huge | FilePages::Dmabuf => Err(MapError::HugePages),
    }
}

/// Returns the end of a range that is a whole number of pages and does not wrap.
fn check_range(address: u64, size: u64) -> Result<u64, MapError> {
    let wrong = MapError::Range { address, size };
    let whole = address.is_multiple_of(PAGE_BYTES) && size.is_multiple_of(PAGE_BYTES);
    let end = address.checked_add(size).ok_or(wrong)?;
    (whole && size > 0).then_some(end).ok_or(wrong)
}
