//! Memory that another library allocated.
//!
// UNSAFETY: the contracts of `Allocation::adopt`, `Allocation::adopt_exported`, `Device::synchronize_stream` and
// `Device::hold_stream`.
#![allow(unsafe_code)]

use std::any::Any;
use std::os::fd::OwnedFd;
use std::ptr;

use devmem_gpu::{Allocation, Device, GpuError};
use netmem::Fence;

/// Adopts memory of another allocation, which the test keeps.
pub fn adopt(device: &Device, address: u64, len: usize) -> Result<Allocation, GpuError> {
    // SAFETY: the tests keep the allocation that the address is of; addresses of none are refused.
    unsafe { Allocation::adopt(device, address, len) }
}

/// Adopts memory of an allocation that `owner` keeps.
pub fn adopt_from_owner(
    device: &Device,
    address: u64,
    len: usize,
    owner: impl Any + Send + Sync,
) -> Result<Allocation, GpuError> {
    // SAFETY: the tests pass an owner that keeps the allocation that the address is of.
    unsafe { Allocation::adopt_from_owner(device, address, len, owner) }
}

/// Makes the default stream wait for copies.
pub fn hold_default_stream(device: &Device, fence: Fence) -> Result<(), GpuError> {
    // SAFETY: a special handle of both libraries: the default stream.
    unsafe { device.hold_stream(fence, ptr::null_mut()) }
}

/// Waits for the default stream.
pub fn synchronize_default_stream(device: &Device) -> Result<(), GpuError> {
    // SAFETY: null is the default stream.
    unsafe { device.synchronize_stream(ptr::null_mut()) }
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
