//! Errors of making and binding memory.

use std::io;

use netmem::{CopyError, DeviceError, DmabufError, InUse};

#[cfg(any(feature = "cuda", feature = "hip"))]
use super::device::GpuError;
use super::{Forked, Refusal};
use devmem_uapi::DmabufId;

/// Why device memory could not be created or imported.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum DeviceMemoryError {
    /// The exporter of the kernel refused.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// The descriptor is not a dma-buf.
    #[error(
        "the descriptor is not an open dma-buf: {0}\n  pass one that an exporter of the kernel or a GPU library returned"
    )]
    NotADmabuf(#[source] io::Error),
    /// The dma-buf cannot be mapped for the CPU.
    #[error(transparent)]
    Map(#[from] DmabufError),
    /// There is no such GPU or no driver for it, or the GPU refused.
    #[cfg(any(feature = "cuda", feature = "hip"))]
    #[error(transparent)]
    Gpu(#[from] GpuError),
    /// There is no such Vulkan device or no driver for it, or the device refused.
    #[cfg(feature = "vulkan")]
    #[error(transparent)]
    Vulkan(#[from] devmem_vulkan::VulkanError),
}

/// Why memory could not be bound.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum BindError {
    /// The NIC belongs to another process.
    #[error(transparent)]
    Forked(#[from] Forked),
    /// Anonymous memory has no file descriptor, which a NIC of the kernel needs.
    #[error("{ANONYMOUS}")]
    Anonymous,
    /// A device did not export its memory as a dma-buf, which a NIC of the kernel needs, or would not see what the NIC writes.
    #[error("the memory cannot be given to a NIC of the kernel: {0}")]
    Export(#[from] DeviceError),
    /// The memory is bound for receiving already, or some of it is still lent from an earlier binding. The library refuses
    /// this with both backends, because the second binding would receive into memory that the first has lent. Linux itself
    /// allows it.
    #[error(transparent)]
    InUse(InUse),
    /// The stack or the kernel refused.
    #[error(transparent)]
    Refused(#[from] Refusal),
}

/// Reason and remedy for anonymous memory.
const ANONYMOUS: &str = "anonymous memory is not a dma-buf and cannot be bound to a NIC of the kernel\n  make it with \
                         `devmem_tcp::udmabuf`, `devmem_tcp::dma_heap` or `Dmabuf::memfd`";

#[doc(hidden)]
impl From<stack::BindRxError> for BindError {
    fn from(error: stack::BindRxError) -> Self {
        match error {
            stack::BindRxError::InUse(in_use) => Self::InUse(in_use),
            error => Self::Refused(error.into()),
        }
    }
}

/// Why memory could not be bound for sending.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum BindTxError {
    /// The NIC belongs to another process.
    #[error(transparent)]
    Forked(#[from] Forked),
    /// Anonymous memory has no file descriptor, which a NIC of the kernel needs.
    #[error("{ANONYMOUS}")]
    Anonymous,
    /// A device did not export its memory as a dma-buf, which a NIC of the kernel needs, or would not see what the NIC writes.
    #[error("the memory cannot be given to a NIC of the kernel: {0}")]
    Export(#[from] DeviceError),
    /// The stack or the kernel refused.
    #[error(transparent)]
    Refused(#[from] Refusal),
}

/// Why received bytes cannot be placed directly.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum PlaceError {
    /// The NIC belongs to another process.
    #[error(transparent)]
    Forked(#[from] Forked),
    /// The stack refused; or the NIC is one of the kernel, which cannot.
    #[error(transparent)]
    Refused(#[from] Refusal),
}

/// Why a batch could not be gathered, or read by the CPU.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum GatherError {
    /// The NIC belongs to another process.
    #[error(transparent)]
    Forked(#[from] Forked),
    /// The target is too small.
    #[error(
        "{needed} bytes do not fit at offset {offset} of {size} bytes\n  gather at a smaller offset or into larger memory"
    )]
    DoesNotFit {
        /// Bytes of the batch.
        needed: usize,
        /// Offset in the target.
        offset: usize,
        /// Size of the target.
        size: usize,
    },
    /// The memory of a frag was freed: its token was returned without the library.
    #[error(
        "the memory bound as {dmabuf:?} is gone\n  a frag's token was returned while the batch still held it"
    )]
    Gone {
        /// The binding.
        dmabuf: DmabufId,
    },
    /// The copy would overwrite received bytes that are still needed.
    #[error("bytes {start} to {end} of the target {used}")]
    InUse {
        /// First of these bytes.
        start: usize,
        /// End of these bytes.
        end: usize,
        /// What they are needed for, and a remedy.
        used: String,
    },
    /// A range is outside its memory, or the memory cannot be synchronised for CPU access.
    #[error(transparent)]
    Copy(#[from] CopyError),
}

impl GatherError {
    /// `used` says what the bytes are needed for, and behind a semicolon what to do.
    pub(crate) fn in_use(bytes: std::ops::Range<usize>, used: &str) -> Self {
        Self::InUse {
            start: bytes.start,
            end: bytes.end,
            used: used.replacen("; ", "\n  ", 1),
        }
    }
}

impl From<netmem::OutOfBounds> for GatherError {
    fn from(error: netmem::OutOfBounds) -> Self {
        Self::Copy(error.into())
    }
}
