//! Device memory of the kernel: dma-bufs.
//!
//! A [`DmabufFd`] comes from [`udmabuf`](DmabufFd::udmabuf), from a [dma-heap](DmabufFd::heap), or is
//! [imported](DmabufFd::import) from another driver (a GPU's, for example). The CPU can access its bytes only during a
//! [`CpuView`], which notifies the exporter before and after; otherwise caches may hold stale data.

mod access;
mod exporters;
mod fd;
mod large_pages;

pub use access::{AccessError, CpuAccess, CpuView};
pub use exporters::{UdmabufLimits, dma_heaps, udmabuf_limits};
pub use fd::{DmabufFd, ExportError, Exporter};
pub use large_pages::memory_files_may_have_large_pages;
