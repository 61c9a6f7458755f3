// UNSAFETY: adopts memory of GPUs that NIXL has registered, by its address.

//! Registered memory of a GPU: the driver copies it, through pinned host memory, and waits for each copy.

use std::io;
use std::sync::Arc;

use devmem_tcp::cuda::{self, Allocation, GpuError};
use devmem_tcp::memory::CopyError;
use devmem_tcp::{Dmabuf, hip};

use crate::status::{Failure, Status, one_line};

/// The unit in which drivers know memory.
const PAGE_BYTES: usize = 4096;

/// Memory of a GPU. Until it is [revoked](Self::revoke), it stays allocated.
#[derive(Debug)]
pub(crate) struct GpuMemory {
    allocation: Arc<Allocation>,
    memory: Dmabuf,
    /// Where the registered range begins in it.
    offset: usize,
}

/// Returns whether a driver of this machine has a GPU.
pub(crate) fn is_there() -> bool {
    let has = |devices: Result<Vec<cuda::DeviceInfo>, GpuError>| {
        devices.is_ok_and(|devices| !devices.is_empty())
    };
    has(cuda::devices()) || has(hip::devices())
}

impl GpuMemory {
    /// Adopts `len` bytes at `address`, of CUDA if its driver knows the address, else of the HIP device with this number.
    ///
    /// # Safety
    /// If the bytes are memory of a GPU, they stay so until [`revoke`](Self::revoke) has returned: NIXL's contract of `registerMem`.
    pub(crate) unsafe fn adopt(address: u64, len: usize, device: u64) -> Result<Self, Failure> {
        let refused = |error: GpuError| {
            let error = one_line(&error);
            let text =
                format!("cannot register {len} bytes at {address:#x} as memory of a GPU: {error}");
            Failure::new(Status::InvalidParam, text)
        };
        let inside = address % PAGE_BYTES as u64;
        let whole = len.checked_add(inside as usize);
        let whole = whole.and_then(|whole| whole.checked_next_multiple_of(PAGE_BYTES));
        let whole = whole.ok_or_else(|| refused(GpuError::Size { size: len }))?;
        let gpu = match cuda::locate(address) {
            Ok(place) => cuda::open(place.device),
            Err(error) => match hip::open(u32::try_from(device).unwrap_or(u32::MAX)) {
                Ok(gpu) => Ok(gpu),
                Err(_) => Err(error),
            },
        };
        let gpu = gpu.map_err(refused)?;
        // SAFETY: this function's; the driver is asked whether the pages around the range belong to its allocation, too.
        let adopted = unsafe { Allocation::adopt(&gpu, address - inside, whole) };
        let allocation = Arc::new(adopted.map_err(refused)?);
        Ok(Self {
            memory: allocation.dmabuf(),
            allocation,
            offset: inside as usize,
        })
    }

    /// Copies bytes into the range, and waits until they are there.
    pub(super) fn copy_in(&self, at: usize, bytes: &[u8]) -> io::Result<()> {
        self.memory.copy_in(self.offset + at, bytes).map_err(failed)
    }

    /// Copies bytes out of the range, and waits for them.
    pub(super) fn copy_out(&self, at: usize, bytes: &mut [u8]) -> io::Result<()> {
        self.memory
            .copy_out(self.offset + at, bytes)
            .map_err(failed)
    }

    /// Ends all copies: the memory may be freed.
    pub(super) fn revoke(&self) {
        self.allocation.revoke();
    }
}

/// A copy that the driver refused, as the inner error of an I/O error.
#[derive(Debug, thiserror::Error)]
#[error("the GPU cannot copy its memory: {0}")]
pub(crate) struct NotCopied(CopyError);

fn failed(error: CopyError) -> io::Error {
    io::Error::other(NotCopied(error))
}
