//! Memory that another library allocated.
//!
// UNSAFETY: the contracts of `Allocation::adopt` and `Allocation::adopt_exported`.
#![allow(unsafe_code)]

use std::os::fd::OwnedFd;

use devmem_gpu::{Allocation, Device, GpuError};

/// Adopts memory of another allocation, which the test keeps.
pub fn adopt(device: &Device, address: u64, len: usize) -> Result<Allocation, GpuError> {
    // SAFETY: the tests keep the allocation that the address is of; addresses of none are refused.
    unsafe { Allocation::adopt(device, address, len) }
}

/// Adopts memory of another allocation, which the test keeps, with a dma-buf of it.
pub fn adopt_exported(
    device: &Device,
    address: u64,
    len: usize,
    exported: OwnedFd,
) -> Result<Allocation, GpuError> {
    // SAFETY: as of `adopt`; descriptors of other memory are refused.
    unsafe { Allocation::adopt_exported(device, address, len, exported) }
}
