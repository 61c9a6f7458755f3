//! Where dma-bufs come from: udmabuf, dma-heaps, other drivers.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::{fs, io};

use devmem_uapi::udmabuf::{UDMABUF_FLAGS_CLOEXEC, UdmabufCreate};
use rustix::fs::{
    MemfdFlags, Mode, OFlags, SealFlags, SeekFrom, fcntl_add_seals, ftruncate, memfd_create, open,
    seek,
};
use rustix::io::Errno;
use serde::Serialize;

use super::access::{self, CpuAccess};
use super::fd::{DmabufFd, ExportError, Exporter};
use crate::errors::{Cause, CauseKind, Facts, Operation, cause};
use crate::sys;

/// Size in bytes of the common huge page on x86-64, and on arm64 with 4 KiB pages.
const HUGE_PAGE: usize = 2 << 20;
const UDMABUF_PATH: &str = "/dev/udmabuf";
const HEAP_FOLDER: &str = "/dev/dma_heap";
const UDMABUF_PARAMETERS: &str = "/sys/module/udmabuf/parameters";

/// The limits of /dev/udmabuf.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct UdmabufLimits {
    /// Largest buffer, in MiB.
    pub size_limit_mb: u64,
    /// Largest number of pieces of a buffer.
    pub list_limit: Option<u64>,
}

impl UdmabufLimits {
    /// Returns the largest buffer in bytes.
    pub fn size_limit_bytes(&self) -> u64 {
        self.size_limit_mb.saturating_mul(1 << 20)
    }
}

/// Reads the limits of /dev/udmabuf; `None` if the module is not loaded.
pub fn udmabuf_limits() -> Option<UdmabufLimits> {
    limits_in(Path::new(UDMABUF_PARAMETERS))
}

fn limits_in(parameters: &Path) -> Option<UdmabufLimits> {
    let number = |name: &str| {
        let text = fs::read_to_string(parameters.join(name)).ok()?;
        text.trim().parse().ok()
    };
    Some(UdmabufLimits {
        size_limit_mb: number("size_limit_mb")?,
        list_limit: number("list_limit"),
    })
}

/// Lists the dma-heaps of this machine by name.
pub fn dma_heaps() -> Vec<String> {
    let entries = fs::read_dir(HEAP_FOLDER).into_iter().flatten().flatten();
    let mut names: Vec<_> = entries
        .filter_map(|entry| entry.file_name().into_string().ok())
        .collect();
    names.sort_unstable();
    names
}

impl DmabufFd {
    /// Creates a dma-buf of `size` bytes of ordinary memory, rounded up to whole pages.
    ///
    /// # Errors
    ///
    /// See [`ExportError`]. A size over udmabuf's `size_limit_mb` is reported as that, with the command that raises the limit.
    pub fn udmabuf(size: usize) -> Result<Self, ExportError> {
        let page = rustix::param::page_size();
        let rounded = size.checked_next_multiple_of(page).unwrap_or(size);
        let failed =
            |call| move |errno| export_error(Exporter::Udmabuf, rounded as u64, call, errno);
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        // The exporter allocates and pins all of its pages.
        mapped::check_room(rounded).map_err(no_room)?;
        let memfd = memfd_create(c"devmem-udmabuf", flags).map_err(failed("memfd_create"))?;
        ftruncate(&memfd, rounded as u64).map_err(failed("ftruncate"))?;
        fcntl_add_seals(&memfd, SealFlags::SHRINK).map_err(failed("F_ADD_SEALS"))?;
        Self::udmabuf_of(memfd.as_fd(), rounded)
    }

    /// Creates a dma-buf as [`udmabuf`](Self::udmabuf) does, but of huge pages, rounded up to whole ones. Its pieces are large
    /// enough for net_iovs of more than a page.
    ///
    /// # Errors
    ///
    /// As [`udmabuf`](Self::udmabuf); `ENOMEM` if too few huge pages are reserved.
    pub fn udmabuf_huge(size: usize) -> Result<Self, ExportError> {
        let rounded = size.checked_next_multiple_of(HUGE_PAGE).unwrap_or(size);
        let failed =
            |call| move |errno| export_error(Exporter::Udmabuf, rounded as u64, call, errno);
        let flags = MemfdFlags::CLOEXEC
            | MemfdFlags::ALLOW_SEALING
            | MemfdFlags::HUGETLB
            | MemfdFlags::HUGE_2MB;
        let memfd =
            memfd_create(c"devmem-udmabuf", flags).map_err(failed("memfd_create (huge pages)"))?;
        ftruncate(&memfd, rounded as u64).map_err(failed("ftruncate"))?;
        fcntl_add_seals(&memfd, SealFlags::SHRINK).map_err(failed("F_ADD_SEALS"))?;
        Self::udmabuf_of(memfd.as_fd(), rounded)
    }

    /// Creates a dma-buf from the first `size` bytes of a memfd that is sealed against shrinking. Both are the same memory, so
    /// a mapping of the memfd shows what the NIC wrote.
    ///
    /// # Errors
    ///
    /// As [`udmabuf`](Self::udmabuf); `EINVAL` if the memfd is not sealed, or `size` is not a multiple of the page size.
    pub fn udmabuf_of(memfd: BorrowedFd<'_>, size: usize) -> Result<Self, ExportError> {
        let failed = |call| move |errno| export_error(Exporter::Udmabuf, size as u64, call, errno);
        let device = open(
            UDMABUF_PATH,
            OFlags::RDONLY | OFlags::CLOEXEC,
            Mode::empty(),
        )
        .map_err(failed("open /dev/udmabuf"))?;
        let create = UdmabufCreate {
            memfd: u32::try_from(memfd.as_raw_fd())
                .map_err(|_| failed("UDMABUF_CREATE")(Errno::BADF))?,
            flags: UDMABUF_FLAGS_CLOEXEC,
            offset: 0,
            size: size as u64,
        };
        let fd = sys::dmabuf::udmabuf_create(device.as_fd(), &create)
            .map_err(failed("UDMABUF_CREATE"))?;
        Ok(Self::new(fd, size, Exporter::Udmabuf))
    }

    /// Allocates `size` bytes, rounded up to whole pages, from the dma-heap `name`. [`dma_heaps`] lists the heaps; the common
    /// one is "system".
    ///
    /// # Errors
    ///
    /// See [`ExportError`].
    pub fn heap(name: &str, size: usize) -> Result<Self, ExportError> {
        let page = rustix::param::page_size();
        let rounded = size.checked_next_multiple_of(page).unwrap_or(size);
        let exporter = || Exporter::Heap(name.to_owned());
        let failed = |call| move |errno| export_error(exporter(), rounded as u64, call, errno);
        // Must be a file name: a path could leave the folder.
        if name.is_empty() || name.contains('/') || name.starts_with('.') {
            return Err(failed("open")(Errno::NOENT));
        }
        let path = Path::new(HEAP_FOLDER).join(name);
        let heap =
            open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).map_err(failed("open"))?;
        let fd = sys::dmabuf::heap_alloc(heap.as_fd(), rounded as u64)
            .map_err(failed("DMA_HEAP_IOCTL_ALLOC"))?;
        Ok(Self::new(fd, rounded, exporter()))
    }

    /// Imports a dma-buf that another driver exported, for example of a GPU.
    ///
    /// # Errors
    ///
    /// `EBADF` or `EINVAL` if the descriptor is not a dma-buf.
    pub fn import(fd: OwnedFd) -> Result<Self, io::Error> {
        // Only dma-bufs support the ioctl (ENOTTY otherwise); a read access has no side effect.
        access::sync(fd.as_fd(), CpuAccess::Read, access::Moment::Begin)?;
        access::sync(fd.as_fd(), CpuAccess::Read, access::Moment::End)?;
        // Seeking to the end returns the size of a dma-buf (linux drivers/dma-buf/dma-buf.c dma_buf_llseek).
        let size = seek(&fd, SeekFrom::End(0))?;
        let size = usize::try_from(size).map_err(|_| io::Error::from(Errno::OVERFLOW))?;
        Ok(Self::new(fd, size, Exporter::Imported))
    }
}

/// The error of a udmabuf that the process has no memory for.
fn no_room(refused: mapped::NoRoom) -> ExportError {
    ExportError {
        exporter: Exporter::Udmabuf,
        bytes: refused.bytes,
        call: "allocate its pages",
        errno: devmem_uapi::Errno::ENOMEM,
        cause: Box::new(Cause {
            kind: CauseKind::NoResources,
            message: refused.to_string(),
            hint: Some(refused.remedy()),
        }),
    }
}

fn export_error(exporter: Exporter, bytes: u64, call: &'static str, errno: Errno) -> ExportError {
    let operation = match exporter {
        Exporter::Heap(_) => Operation::DmaHeap,
        Exporter::Udmabuf | Exporter::Imported => Operation::Udmabuf,
    };
    let errno = devmem_uapi::Errno(errno.raw_os_error());
    let facts = Facts {
        bytes: Some(bytes),
        bytes_max: udmabuf_limits().map(|limits| limits.size_limit_bytes()),
        ..Facts::default()
    };
    ExportError {
        exporter,
        bytes,
        call,
        errno,
        cause: Box::new(cause(operation, errno, &facts)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::errors::CauseKind;

    #[test]
    fn limits_are_read_if_the_module_is_loaded() {
        let scratch = tempfile::tempdir().unwrap();
        let folder = scratch.path();
        assert_eq!(limits_in(folder), None);
        fs::write(folder.join("size_limit_mb"), "64\n").unwrap();
        let limits = limits_in(folder).unwrap();
        assert_eq!(
            (limits.size_limit_bytes(), limits.list_limit),
            (64 << 20, None)
        );
        fs::write(folder.join("list_limit"), "1024\n").unwrap();
        assert_eq!(limits_in(folder).unwrap().list_limit, Some(1024));
        fs::write(folder.join("size_limit_mb"), "much\n").unwrap();
        assert_eq!(limits_in(folder), None);
    }

    #[test]
    fn a_missing_heap_is_reported_and_a_path_is_not_a_heap_name() {
        for name in ["nosuch", "../null", "", ".", "a/b"] {
            let error = DmabufFd::heap(name, 4096).unwrap_err();
            assert_eq!(error.cause.kind, CauseKind::NoExporter, "{error}");
        }
    }
}
