//! Why device memory cannot be made, or cut into net_iovs.

use std::borrow::Cow;
use std::io;

use crate::device::DeviceError;

/// Why device memory could not be created. `Display` prints the reason.
#[derive(Debug, thiserror::Error)]
pub enum DmabufError {
    /// The size is 0 or not a multiple of the page.
    #[error("{size} bytes of device memory: the size must be a positive multiple of 4096")]
    Size {
        /// The requested size in bytes.
        size: usize,
    },
    /// The address space or the memory was refused.
    #[error("mapping {size} bytes of memory failed: {error}")]
    Map {
        /// The size asked for, in bytes.
        size: usize,
        /// Error of mmap.
        error: io::Error,
    },
    /// The control group or the machine has less memory. Nothing was touched: the kernel would have killed the process.
    #[error(transparent)]
    NoRoom(#[from] mapped::NoRoom),
    /// There were not enough free pages.
    #[error(
        "touching {size} bytes of mapped memory failed: {error}: the machine or its cgroup (memory.max) has less free memory than that"
    )]
    Populate {
        /// The size asked for, in bytes.
        size: usize,
        /// Error of madvise.
        error: io::Error,
    },
    /// A file in memory could not be created.
    #[error("{step} of a memory file failed: {error}")]
    Memfd {
        /// The call that failed.
        step: &'static str,
        /// Its error.
        error: io::Error,
    },
    /// The exporter has no file descriptor that could be mapped.
    #[error("the exporter of the memory has no file descriptor: it cannot be mapped for the CPU")]
    NoFile,
    /// The exporter's file is shorter than its size, or could become shorter: an access would end the process (SIGBUS).
    #[error("the memory of the exporter cannot be mapped: {0}")]
    File(mapped::UnmappableFile),
    /// The exporter has mapped more or fewer bytes than its size.
    #[error("the exporter of {size} bytes of memory has mapped {mapped} of them: it is faulty")]
    Lent {
        /// The exporter's size in bytes.
        size: usize,
        /// The mapped bytes.
        mapped: usize,
    },
    /// The memory cannot be cut into net_iovs.
    #[error(transparent)]
    Geometry(#[from] GeometryError),
    /// A device refused the memory.
    #[error(transparent)]
    Device(#[from] DeviceError),
}

impl DmabufError {
    /// Returns what to do about it.
    pub fn remedy(&self) -> Option<Cow<'static, str>> {
        Some(match self {
            Self::Size { .. } => "round it up".into(),
            Self::Map { .. } => {
                "ask for less, or raise the limits: address space (ulimit -v), vm.overcommit_memory, memory.max of the cgroup"
                    .into()
            }
            Self::NoRoom(refused) => refused.remedy().into(),
            Self::Populate { .. } => "ask for less".into(),
            Self::Memfd { .. } => "use anonymous device memory, which needs no file".into(),
            Self::Device(error) => error.remedy.into(),
            Self::Geometry(error) => error.remedy().into(),
            Self::NoFile | Self::File(_) | Self::Lent { .. } => return None,
        })
    }
}

/// Why memory cannot be cut into net_iovs.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum GeometryError {
    /// The net_iov size is not a power of two from 4 KiB to 2 MiB.
    #[error("a net_iov cannot have {bytes} bytes")]
    NiovSize {
        /// The requested size.
        bytes: usize,
    },
    /// The area has no bytes.
    #[error("an area of 0 bytes holds no net_iov of {niov} bytes")]
    Empty {
        /// The net_iov size in bytes.
        niov: usize,
    },
    /// The length of the area is not a multiple of the net_iov size.
    #[error(
        "an area of {len} bytes is not a multiple of the net_iov size {niov}, of which the next one is {next}"
    )]
    Length {
        /// The length of the area in bytes.
        len: usize,
        /// The net_iov size in bytes.
        niov: usize,
        /// The next larger multiple.
        next: usize,
    },
    /// The area does not begin at a multiple of the net_iov size in its dma-buf.
    #[error("an area at offset {base} does not begin at a multiple of the net_iov size {niov}")]
    Base {
        /// The offset of the area in the dma-buf.
        base: usize,
        /// The net_iov size in bytes.
        niov: usize,
    },
    /// The area ends after the end of the dma-buf.
    #[error("an area of {len} bytes at offset {base} ends after a dma-buf of {size} bytes")]
    PastEnd {
        /// The offset of the area in the dma-buf.
        base: usize,
        /// The length of the area in bytes.
        len: usize,
        /// The size of the dma-buf in bytes.
        size: usize,
    },
    /// The area has more net_iovs than a u32 can count.
    #[error("{count} net_iovs are more than 4294967294")]
    Count {
        /// Number of net_iovs.
        count: usize,
    },
}

impl GeometryError {
    /// Returns what to do about it.
    pub const fn remedy(&self) -> &'static str {
        match self {
            Self::NiovSize { .. } => "take a power of two from 4096 to 2097152",
            Self::Empty { .. } => "take at least one net_iov",
            Self::Length { .. } => "round it up, or take smaller net_iovs",
            Self::Base { .. } => "begin at a multiple of it",
            Self::PastEnd { .. } => "take a range inside of it",
            Self::Count { .. } => "take larger net_iovs",
        }
    }
}
