//! Memory that another library allocated.
//!
// UNSAFETY: the contract of `Allocation::adopt`.
#![allow(unsafe_code)]

use devmem_gpu::{Allocation, Device, GpuError};

/// Adopts memory of another allocation, which the test keeps.
pub fn adopt(device: &Device, address: u64, len: usize) -> Result<Allocation, GpuError> {
    // SAFETY: the tests keep the allocation that the address is of; addresses of none are refused.
    unsafe { Allocation::adopt(device, address, len) }
}
