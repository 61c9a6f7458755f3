//! A region of memory with its access rules, its file and its kind of pages.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, OnceLock};

use mapped::UnmappableFile;
use rustix::fs::{MemfdFlags, Mode, SealFlags};

use crate::device::Exporter;
use crate::device::{CopyEngine, DeviceAt, HostWindow, Pinned};
use crate::errors::DmabufError;
use crate::lent::LentMemory;
use crate::page_kind::{self, PageKind};
use crate::populate::{CHEAP_PAGES, collapse, populate};
use crate::region::{
    Advice, BASE_PAGE_BYTES, Commit, HUGE_PAGE_BYTES, MappableFile, MemoryRegion, RegionSpan,
};

/// Which code may read the bytes with the CPU.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum MemoryAccess {
    /// Host memory: the stack and the application.
    Host,
    /// Device memory: the application that created it, not the stack.
    Device,
    /// None; an attempt panics. For tests.
    #[cfg(any(test, feature = "test-util"))]
    Opaque,
}

/// A range is not inside the memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{len} bytes at offset {offset} are not inside {size} bytes of memory")]
pub struct OutOfBounds {
    /// Start of the range.
    pub offset: usize,
    /// Bytes of the range.
    pub len: usize,
    /// Bytes of the memory.
    pub size: usize,
}

/// Where the bytes are.
#[derive(Debug)]
enum Body {
    /// Mapped in this process.
    Mapped(MemoryRegion),
    /// Mapped in this process, and registered with the device of `engine`, which keeps it mapped, too.
    Pinned {
        region: Arc<MemoryRegion>,
        pinned: Pinned,
        engine: Arc<dyn CopyEngine>,
    },
    /// In a device, where the CPU cannot access them: `engine` copies them.
    Remote {
        size: usize,
        engine: Arc<dyn CopyEngine>,
    },
}

impl Body {
    /// Returns the mapped bytes, or the engine without which nothing can access them.
    fn region(&self) -> Result<&MemoryRegion, &Arc<dyn CopyEngine>> {
        match self {
            Body::Mapped(region) => Ok(region),
            Body::Pinned { region, .. } => Ok(region),
            Body::Remote { engine, .. } => Err(engine),
        }
    }
}

/// Which processes may map a memory file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum FileUse {
    /// This one and its children.
    Private,
    /// Also those that a link sends it to: all of the memory, for as long as they like.
    Shared,
}

/// The file that the memory is a mapping of.
#[derive(Debug)]
struct MemoryFile {
    fd: OwnedFd,
    usage: FileUse,
}

/// One run of memory. It stays allocated while an `Arc` of it exists.
#[derive(Debug)]
pub(crate) struct Memory {
    body: Body,
    access: MemoryAccess,
    file: Option<MemoryFile>,
    /// The exporter of the memory to devices, which is called before and after each access of the CPU.
    exporter: OnceLock<Arc<dyn Exporter>>,
    /// Determined on first use: the kernel walks the page tables of the whole process for it, which takes longer
    /// than mapping the memory.
    page_kind: OnceLock<PageKind>,
}

impl Memory {
    /// Maps anonymous memory, in huge pages if possible, and touches every page.
    pub(crate) fn anonymous(size: usize, access: MemoryAccess) -> Result<Self, DmabufError> {
        Ok(Self::mapped(populated(size)?, access))
    }

    /// As [`anonymous`](Self::anonymous), in huge pages as long as these cost less time than base pages.
    pub(crate) fn written_once(size: usize) -> Result<Self, DmabufError> {
        check_size(size)?;
        let region = map(size, Commit::Now)?;
        mapped::check_room(size)?;
        CHEAP_PAGES.populate(&region)?;
        Ok(Self::mapped(region, MemoryAccess::Device))
    }

    fn mapped(region: MemoryRegion, access: MemoryAccess) -> Self {
        Self::new(Body::Mapped(region), access)
    }

    fn new(body: Body, access: MemoryAccess) -> Self {
        Memory {
            body,
            access,
            file: None,
            exporter: OnceLock::new(),
            page_kind: OnceLock::new(),
        }
    }

    /// Maps anonymous host memory in base pages, which are allocated when they are first touched.
    pub(crate) fn lazy(size: usize) -> Result<Self, DmabufError> {
        check_size(size)?;
        let region = map(size, Commit::Lazily)?;
        Ok(Memory {
            page_kind: OnceLock::from(PageKind::Base),
            ..Self::mapped(region, MemoryAccess::Host)
        })
    }

    /// Maps anonymous memory, touches every page, and registers it with the device of `engine`.
    pub(crate) fn pinned(
        size: usize,
        access: MemoryAccess,
        engine: &Arc<dyn CopyEngine>,
    ) -> Result<Self, DmabufError> {
        let region = Arc::new(populated(size)?);
        let body = Body::Pinned {
            pinned: engine.pin(HostWindow::new(Arc::clone(&region)))?,
            region,
            engine: Arc::clone(engine),
        };
        Ok(Self::new(body, access))
    }

    /// Maps a memfd with a sealed size and touches every page: hugetlb pages if enough are reserved, otherwise pages
    /// collapsed to huge ones, otherwise base pages.
    pub(crate) fn memfd(size: usize) -> Result<Self, DmabufError> {
        check_size(size)?;
        if size.is_multiple_of(HUGE_PAGE_BYTES)
            && let Ok(memory) = Self::memfd_with(
                size,
                MemfdFlags::HUGETLB | MemfdFlags::HUGE_2MB,
                FileUse::Private,
            )
        {
            return Ok(memory);
        }
        Self::memfd_with(size, MemfdFlags::empty(), FileUse::Private)
    }

    /// As [`memfd`](Self::memfd), for other processes to map: never in hugetlb pages, which they do not accept.
    pub(crate) fn shared_memfd(size: usize) -> Result<Self, DmabufError> {
        check_size(size)?;
        Self::memfd_with(size, MemfdFlags::empty(), FileUse::Shared)
    }

    /// Maps a memfd with a sealed size as host memory, in base pages, which are allocated when they are first touched.
    pub(crate) fn shareable(size: usize) -> Result<Self, DmabufError> {
        check_size(size)?;
        let file = sealed_file(size, MemfdFlags::empty())?;
        let region = map_file(MappableFile::memfd(file.as_fd()), size)?;
        for_owner_only(&file)?;
        // This mapping stays the only one that can write, also if another process opens the file again (Linux 5.1).
        let _ = rustix::fs::fcntl_add_seals(&file, SealFlags::FUTURE_WRITE);
        Ok(Memory {
            file: Some(MemoryFile {
                fd: file,
                usage: FileUse::Shared,
            }),
            page_kind: OnceLock::from(PageKind::Base),
            ..Self::mapped(region, MemoryAccess::Host)
        })
    }

    /// Maps `size` bytes of a file of another process, for reading.
    pub(crate) fn of_peer(file: &MappableFile<'_>, size: usize) -> Result<Self, UnmappableFile> {
        let region = MemoryRegion::file_to_read(file, size)?;
        Ok(Memory {
            page_kind: OnceLock::from(PageKind::Base),
            ..Self::mapped(region, MemoryAccess::Host)
        })
    }

    fn memfd_with(size: usize, flags: MemfdFlags, usage: FileUse) -> Result<Self, DmabufError> {
        let file = sealed_file(size, flags)?;
        if usage == FileUse::Shared {
            for_owner_only(&file)?;
        }
        let region = map_file(MappableFile::memfd(file.as_fd()), size)?;
        // Reserved huge pages count against no limit of memory.
        if !flags.contains(MemfdFlags::HUGETLB) {
            mapped::check_room(size)?;
        }
        populate(&region)?;
        collapse(&region);
        Ok(Memory {
            file: Some(MemoryFile { fd: file, usage }),
            ..Self::mapped(region, MemoryAccess::Device)
        })
    }

    /// Maps the memory of an exporter. It may have no ordinary pages, so nothing is touched or advised. The exporter's size
    /// is compared with the file. Memory with a copy engine is not mapped, and lent memory is mapped already.
    pub(crate) fn exported(exporter: Arc<dyn Exporter>) -> Result<Self, DmabufError> {
        let size = exporter.size();
        check_size(size)?;
        let body = if let Some(engine) = exporter.copy_engine() {
            Body::Remote { size, engine }
        } else if let Some(memory) = exporter.mapping() {
            Body::Mapped(lent_region(memory, size)?)
        } else {
            let file = exporter.as_fd().ok_or(DmabufError::NoFile)?;
            Body::Mapped(map_file(MappableFile::memfd_or_dmabuf(file), size)?)
        };
        Ok(Memory {
            exporter: OnceLock::from(exporter),
            page_kind: OnceLock::from(PageKind::Base),
            ..Self::new(body, MemoryAccess::Device)
        })
    }

    /// Returns the engine that copies the memory, if the CPU cannot access it.
    pub(crate) fn engine(&self) -> Option<&Arc<dyn CopyEngine>> {
        self.body.region().err()
    }

    /// Returns a byte of memory that the CPU cannot access, for its engine.
    pub(crate) fn device_at(&self, offset: usize) -> Option<(&Arc<dyn CopyEngine>, DeviceAt<'_>)> {
        let memory = self.device_memory()?;
        Some((self.engine()?, DeviceAt { memory, offset }))
    }

    /// Returns the exporter's memory, for an engine of the device.
    pub(crate) fn device_memory(&self) -> Option<&dyn Exporter> {
        self.exporter.get().map(AsRef::as_ref)
    }

    /// Returns what pins host memory, and the engine that it is pinned for.
    pub(crate) fn pinning(&self) -> Option<(&Arc<dyn CopyEngine>, &Pinned)> {
        match &self.body {
            Body::Pinned { pinned, engine, .. } => Some((engine, pinned)),
            Body::Mapped(_) | Body::Remote { .. } => None,
        }
    }

    /// Returns the mapped bytes.
    ///
    /// # Panics
    ///
    /// When the CPU cannot access the memory: only its copy engine can.
    fn region(&self) -> &MemoryRegion {
        self.body.region().unwrap_or_else(|engine| {
            panic!(
                "the CPU cannot access the memory of {}: its payload is staged in host memory",
                engine.device()
            )
        })
    }

    /// Returns the address of the first byte, if the application may access the bytes with the CPU.
    pub(crate) fn cpu_address(&self) -> Option<usize> {
        let region = self.body.region().ok()?;
        match self.access {
            MemoryAccess::Host | MemoryAccess::Device => Some(region.address()),
            #[cfg(any(test, feature = "test-util"))]
            MemoryAccess::Opaque => None,
        }
    }

    pub(crate) fn exporter(&self) -> Option<&Arc<dyn Exporter>> {
        self.exporter.get()
    }

    /// Sets the exporter; if two threads try, the first one wins.
    pub(crate) fn export(&self, exporter: Arc<dyn Exporter>) -> &Arc<dyn Exporter> {
        self.exporter.get_or_init(|| exporter)
    }

    pub(crate) fn size(&self) -> usize {
        match &self.body {
            Body::Mapped(region) => region.len(),
            Body::Pinned { region, .. } => region.len(),
            Body::Remote { size, .. } => *size,
        }
    }

    pub(crate) fn page_kind(&self) -> PageKind {
        *self.page_kind.get_or_init(|| {
            let observed = page_kind::observe(self.region().address(), self.size());
            observed.unwrap_or(PageKind::Base)
        })
    }

    pub(crate) fn page_bytes(&self) -> Option<usize> {
        match (&self.file, self.exporter.get()) {
            (None, Some(exporter)) => exporter.page_bytes(),
            _ => match self.page_kind() {
                PageKind::Huge => Some(HUGE_PAGE_BYTES),
                // At least half of them; the others are base pages.
                PageKind::TransparentHuge => None,
                PageKind::Base => Some(rustix::param::page_size()),
            },
        }
    }

    pub(crate) fn access(&self) -> MemoryAccess {
        self.access
    }

    pub(crate) fn file(&self) -> Option<BorrowedFd<'_>> {
        match self.exporter.get() {
            Some(exporter) => exporter.as_fd(),
            None => self.file.as_ref().map(|file| file.fd.as_fd()),
        }
    }

    /// Returns the file that other processes may map: a memory file that was made for that.
    pub(crate) fn shareable_file(&self) -> Option<BorrowedFd<'_>> {
        let file = self.file.as_ref();
        let shared = file.filter(|file| file.usage == FileUse::Shared);
        shared.map(|file| file.fd.as_fd())
    }

    /// Returns all files of the memory: the one that it is a mapping of, and its exporter's dma-buf.
    pub(crate) fn files(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        let exported = self.exporter.get().and_then(|exporter| exporter.as_fd());
        self.file
            .as_ref()
            .map(|file| file.fd.as_fd())
            .into_iter()
            .chain(exported)
    }

    /// Checks that a range is inside the memory.
    pub(crate) fn check(&self, offset: usize, len: usize) -> Result<(), OutOfBounds> {
        let size = self.size();
        match offset.checked_add(len) {
            Some(end) if end <= size => Ok(()),
            _ => Err(OutOfBounds { offset, len, size }),
        }
    }

    /// Returns the region for an access by the NIC's DMA.
    pub(crate) fn dma(&self) -> &MemoryRegion {
        self.region()
    }

    /// Returns the region for an access by the CPU.
    ///
    /// # Panics
    ///
    /// When the memory is opaque, or the CPU cannot access it.
    pub(crate) fn cpu(&self) -> &MemoryRegion {
        #[cfg(any(test, feature = "test-util"))]
        assert!(
            self.access != MemoryAccess::Opaque,
            "the CPU touched the bytes of opaque device memory: payload of a packet that is not \
             readable may be moved by a DmaPort only"
        );
        self.region()
    }

    /// Returns a range for the copying functions of `region`.
    pub(crate) fn span(&self, offset: usize, len: usize) -> RegionSpan<'_> {
        RegionSpan {
            region: self.region(),
            offset,
            len,
        }
    }
}

/// Maps anonymous memory, in huge pages if possible, and touches every page.
fn populated(size: usize) -> Result<MemoryRegion, DmabufError> {
    check_size(size)?;
    let region = map(size, Commit::Now)?;
    mapped::check_room(size)?;
    // Refused where transparent huge pages are not configured; base pages work, slower.
    let _ = region.advise(Advice::Huge);
    populate(&region)?;
    Ok(region)
}

fn check_size(size: usize) -> Result<(), DmabufError> {
    if size == 0 || !size.is_multiple_of(BASE_PAGE_BYTES) {
        return Err(DmabufError::Size { size });
    }
    Ok(())
}

/// Returns a memfd of `size` zero bytes that gets neither shorter nor longer.
fn sealed_file(size: usize, flags: MemfdFlags) -> Result<OwnedFd, DmabufError> {
    let failed = |step| {
        move |errno: rustix::io::Errno| DmabufError::Memfd {
            step,
            error: errno.into(),
        }
    };
    let flags = flags | MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let file = rustix::fs::memfd_create("devmem-tcp", flags).map_err(failed("memfd_create"))?;
    rustix::fs::ftruncate(&file, size as u64).map_err(failed("ftruncate"))?;
    // A mapped file must not lose pages (SIGBUS); udmabuf requires the same seal.
    rustix::fs::fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW)
        .map_err(failed("F_ADD_SEALS"))?;
    Ok(file)
}

/// Keeps processes of other users, which a link passes the file to for reading, from opening it again for writing. A memory
/// file begins with all permissions for everybody (linux mm/shmem.c `__shmem_file_setup`).
fn for_owner_only(file: &OwnedFd) -> Result<(), DmabufError> {
    let changed = rustix::fs::fchmod(file, Mode::RUSR | Mode::WUSR);
    changed.map_err(|errno| DmabufError::Memfd {
        step: "fchmod",
        error: errno.into(),
    })
}

fn map(size: usize, commit: Commit) -> Result<MemoryRegion, DmabufError> {
    MemoryRegion::anonymous(size, commit).map_err(|error| DmabufError::Map { size, error })
}

/// Checks that an exporter has mapped all of its `size` bytes.
fn lent_region(memory: LentMemory, size: usize) -> Result<MemoryRegion, DmabufError> {
    let region = MemoryRegion::lent(memory);
    match region.len() {
        mapped if mapped == size => Ok(region),
        mapped => Err(DmabufError::Lent { size, mapped }),
    }
}

/// Maps the first `size` bytes of a file that cannot get shorter.
fn map_file(
    file: Result<MappableFile<'_>, UnmappableFile>,
    size: usize,
) -> Result<MemoryRegion, DmabufError> {
    file.and_then(|file| MemoryRegion::file(&file, size))
        .map_err(|refused| match refused {
            UnmappableFile::System(errno) => DmabufError::Map {
                size,
                error: errno.into(),
            },
            refused => DmabufError::File(refused),
        })
}
