// UNSAFETY: adopts memory of GPUs that NIXL has registered, by its address.

//! Registered memory of a GPU: the driver copies it, through pinned host memory, and waits for each copy; or a NIC sends from it, and the GPU
//! gathers what a NIC has received.

use std::fmt;
use std::io;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use devmem_tcp::cuda::{self, Allocation, Device, GpuError};
use devmem_tcp::memory::{CopyError, DeviceGather};
use devmem_tcp::{BoundTx, Dmabuf, Netdev, hip};

use crate::status::{Failure, Status, text_of};

/// The unit in which drivers know memory.
const PAGE_BYTES: usize = 4096;

/// A GPU of this machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Gpu {
    platform: &'static str,
    ordinal: u32,
}

impl fmt::Display for Gpu {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "GPU {} of {}", self.ordinal, self.platform)
    }
}

impl Gpu {
    fn of(device: &Device) -> Self {
        Self {
            platform: device.platform().name,
            ordinal: device.ordinal(),
        }
    }
}

/// Memory of a GPU. Until it is [revoked](Self::revoke), it stays allocated.
#[derive(Debug)]
pub(crate) struct GpuMemory {
    allocation: Arc<Allocation>,
    memory: Dmabuf,
    /// Where the registered range begins in it.
    offset: usize,
    /// Its binding to the NIC that sends from it, until it is revoked.
    bound: Mutex<Option<Arc<BoundTx>>>,
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
            let error = text_of(&error);
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
            bound: Mutex::default(),
        })
    }

    pub(crate) fn gpu(&self) -> Gpu {
        Gpu::of(self.allocation.device())
    }

    /// Lets a NIC send from the memory.
    pub(crate) fn bind(&self, nic: &Netdev) -> Result<(), devmem_tcp::Error> {
        let bound = nic.bind_tx(&self.memory)?;
        *self.lock_bound() = Some(Arc::new(bound));
        Ok(())
    }

    fn lock_bound(&self) -> MutexGuard<'_, Option<Arc<BoundTx>>> {
        self.bound.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the binding of the memory, if a NIC can send from it.
    pub(crate) fn bound(&self) -> Option<Arc<BoundTx>> {
        self.lock_bound().clone()
    }

    /// Returns bytes of the registered range as a range of the memory that is bound.
    pub(super) fn within(&self, at: usize, len: usize) -> Range<usize> {
        let start = self.offset + at;
        start..start + len
    }

    /// Has the GPU copy ranges of other memory of it to offsets of the registered range. `None`: it is memory of another GPU, or the same.
    pub(super) fn scatter_from(
        &self,
        source: &Dmabuf,
        pieces: &[(Range<usize>, usize)],
    ) -> io::Result<Option<DeviceGather>> {
        let pieces = pieces.iter().cloned();
        let pieces = pieces.map(|(range, at)| (range, self.offset + at));
        self.memory.scatter_from(source, pieces).map_err(failed)
    }

    /// Copies between two memories of GPUs, or within one, and waits for it.
    pub(super) fn copy_from(
        &self,
        source: &Self,
        from: usize,
        at: usize,
        len: usize,
    ) -> io::Result<()> {
        let (from, at) = (source.offset + from, self.offset + at);
        let copied = self.memory.copy_from(&source.memory, from, at, len);
        copied.map_err(failed)
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
        self.lock_bound().take();
        self.allocation.revoke();
    }
}

/// A copy that the driver refused, as the inner error of an I/O error.
#[derive(Debug, thiserror::Error)]
#[error("the GPU cannot copy its memory: {0}")]
pub(crate) struct NotCopied(CopyError);

/// Allocates memory of a GPU: of this number, or of the one that the calling thread uses.
pub(crate) fn alloc(ordinal: Option<u32>, bytes: usize) -> Result<(Dmabuf, Gpu), GpuError> {
    let gpu = match cuda::devices() {
        Ok(devices) if !devices.is_empty() => {
            let ordinal = ordinal.map_or_else(cuda::selected, |it| Ok(Some(it)))?;
            cuda::open(ordinal.unwrap_or(0))
        }
        // What CUDA says is said if HIP has none, either.
        _ => hip::open(ordinal.unwrap_or(0)).or_else(|_| cuda::open(ordinal.unwrap_or(0))),
    };
    let gpu = gpu?;
    Ok((gpu.alloc_dmabuf(bytes)?, Gpu::of(&gpu)))
}

pub(super) fn failed(error: CopyError) -> io::Error {
    io::Error::other(NotCopied(error))
}
