// UNSAFETY: adopts GPU memory that NCCL has registered, at addresses that it gave.

//! Registered GPU memory.

use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;

use devmem_tcp::cuda::{Allocation, Device, GpuError};

/// GPU memory of NCCL. Invariant: it stays allocated until its allocation has been revoked.
#[derive(Clone, Copy, Debug)]
pub(crate) struct GpuRange {
    address: u64,
    len: usize,
}

/// What a descriptor has of memory.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Exported<'a> {
    /// The dma-buf.
    pub(crate) fd: BorrowedFd<'a>,
    /// Where the memory begins in it.
    pub(crate) offset: usize,
}

impl GpuRange {
    /// # Safety
    /// If the `len` bytes at `address` are GPU memory, they stay so until every [`Allocation`] that `adopt` makes of the range has been
    /// revoked. That is the contract of NCCL's `regMr` and `regMrDmaBuf`, whose end is `deregMr`.
    pub(crate) unsafe fn new(address: u64, len: usize) -> Self {
        Self { address, len }
    }

    pub(crate) fn address(&self) -> u64 {
        self.address
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Takes the whole pages of the range as memory of `device`.
    pub(crate) fn adopt(&self, device: &Device) -> Result<Adopted, GpuError> {
        let page = 4096;
        let inside = self.address % page;
        let start = self.address - inside;
        let len = self.len.checked_add(inside as usize);
        let rounded = len.and_then(|len| len.checked_next_multiple_of(page as usize));
        let len = rounded.ok_or(GpuError::Size { size: self.len })?;
        // SAFETY: the invariant; the driver is asked whether the pages around the range belong to its allocation, too.
        let allocation = unsafe { Allocation::adopt(device, start, len) }?;
        Ok(Adopted {
            allocation: Arc::new(allocation),
            offset: inside as usize,
        })
    }

    /// Takes the range as memory of `device` that is exported already.
    pub(crate) fn adopt_exported(
        &self,
        device: &Device,
        fd: OwnedFd,
        offset: usize,
    ) -> Result<Adopted, GpuError> {
        let wrong = GpuError::Size { size: offset };
        let start = self.address.checked_sub(offset as u64);
        let (Some(start), Some(len)) = (start, offset.checked_add(self.len)) else {
            return Err(wrong);
        };
        // SAFETY: the invariant, for the range; the bytes before it are in the same dma-buf, by NCCL's contract, and no operation
        // names them.
        let allocation = unsafe { Allocation::adopt_exported(device, start, len, fd) }?;
        Ok(Adopted {
            allocation: Arc::new(allocation),
            offset,
        })
    }
}

/// A range as memory of a device.
pub(crate) struct Adopted {
    pub(crate) allocation: Arc<Allocation>,
    /// Where the range begins in it.
    pub(crate) offset: usize,
}
