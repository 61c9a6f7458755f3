//! Memory that another library allocated.
//!
// UNSAFETY: the contract of `Allocation::adopt`.
#![allow(unsafe_code)]

use devmem_cuda::{Allocation, CudaError, Device};

/// Adopts memory of another allocation, which the test keeps.
pub fn adopt(device: &Device, address: u64, len: usize) -> Result<Allocation, CudaError> {
    // SAFETY: the tests keep the allocation that the address is of; addresses of none are refused.
    unsafe { Allocation::adopt(device, address, len) }
}
