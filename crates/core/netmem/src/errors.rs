//! Why device memory cannot be made, or cut into net_iovs.

use std::borrow::Cow;
use std::fmt;
use std::io;

use crate::device::DeviceError;

/// Why device memory could not be created. `Display` prints the reason, then the remedy on a line below.
#[derive(Debug, thiserror::Error)]
pub enum DmabufError {
    /// The size is 0 or not a multiple of the page.
    Size {
        /// The requested size in bytes.
        size: usize,
    },
    /// The address space or the memory was refused.
    Map {
        /// The size asked for, in bytes.
        size: usize,
        /// Error of mmap.
        source: io::Error,
    },
    /// The control group or the machine has less memory. Nothing was touched: the kernel would have killed the process.
    NoRoom(#[from] mapped::NoRoom),
    /// There were not enough free pages.
    Populate {
        /// The size asked for, in bytes.
        size: usize,
        /// Error of madvise.
        source: io::Error,
    },
    /// A file in memory could not be created.
    Memfd {
        /// The call that failed.
        step: &'static str,
        /// Its error.
        source: io::Error,
    },
    /// The exporter has no file descriptor that could be mapped.
    NoFile,
    /// The exporter's file is shorter than its size, or could become shorter: an access would end the process (SIGBUS).
    File(mapped::UnmappableFile),
    /// The exporter has mapped more or fewer bytes than its size.
    Lent {
        /// The exporter's size in bytes.
        size: usize,
        /// The mapped bytes.
        mapped: usize,
    },
    /// The memory cannot be cut into net_iovs.
    Geometry(#[from] GeometryError),
    /// A device refused the memory.
    Device(#[from] DeviceError),
}

impl DmabufError {
    /// Returns the reason, in one line.
    pub fn reason(&self) -> String {
        match self {
            Self::Size { size } => format!(
                "{size} bytes of device memory: the size must be a positive multiple of 4096"
            ),
            Self::Map { size, source } => {
                format!("mapping {size} bytes of memory failed: {source}")
            }
            Self::NoRoom(refused) => refused.to_string(),
            Self::Populate { size, source } => format!(
                "touching {size} bytes of mapped memory failed: {source}: the machine or its cgroup (memory.max) has less free \
                 memory than that"
            ),
            Self::Memfd { step, source } => format!("{step} of a memory file failed: {source}"),
            Self::NoFile => {
                "the exporter of the memory has no file descriptor: it cannot be mapped for the CPU"
                    .to_owned()
            }
            Self::File(unmappable) => {
                format!("the memory of the exporter cannot be mapped: {unmappable}")
            }
            Self::Lent { size, mapped } => format!(
                "the exporter of {size} bytes of memory has mapped {mapped} of them: it is faulty"
            ),
            Self::Geometry(error) => error.to_string(),
            Self::Device(error) => error.reason(),
        }
    }

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
            Self::NoFile | Self::File(_) | Self::Lent { .. } | Self::Geometry(_) => return None,
        })
    }
}

impl fmt::Display for DmabufError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.reason())?;
        match self.remedy() {
            Some(remedy) => write!(f, "\n  {remedy}"),
            None => Ok(()),
        }
    }
}

/// Why memory cannot be cut into net_iovs.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum GeometryError {
    /// The net_iov size is not a power of two from 4 KiB to 2 MiB.
    #[error("a net_iov of {bytes} bytes: take a power of two from 4096 to 2097152")]
    NiovSize {
        /// The requested size.
        bytes: usize,
    },
    /// The area has no bytes.
    #[error("an area of 0 bytes holds no net_iov: take at least one ({niov} bytes)")]
    Empty {
        /// The net_iov size in bytes.
        niov: usize,
    },
    /// The length of the area is not a multiple of the net_iov size.
    #[error(
        "an area of {len} bytes is not a multiple of the net_iov size {niov}: take {remedy} bytes, \
         or smaller net_iovs"
    )]
    Length {
        /// The length of the area in bytes.
        len: usize,
        /// The net_iov size in bytes.
        niov: usize,
        /// The next larger multiple.
        remedy: usize,
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
    #[error("{count} net_iovs are more than 4294967294: take larger net_iovs")]
    Count {
        /// Number of net_iovs.
        count: usize,
    },
}
