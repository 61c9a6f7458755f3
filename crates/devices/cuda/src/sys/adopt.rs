//! Memory that another library allocated.
//!
// UNSAFETY: addresses from the application, which promises what `adopt` says; the driver is asked about them first.
#![allow(unsafe_code)]

use std::ffi::c_int;

use netmem::DeviceError;

use super::lanes::Lanes;
use super::memory::DeviceMemory;
use crate::allocation::{Allocation, PAGE_BYTES};
use crate::device::Device;
use crate::error::CudaError;

/// CU_POINTER_ATTRIBUTE_...
const MEMORY_TYPE: c_int = 2;
const IS_MANAGED: c_int = 8;
const DEVICE_ORDINAL: c_int = 9;
const RANGE_START: c_int = 11;
const RANGE_SIZE: c_int = 12;

/// CU_MEMORYTYPE_DEVICE.
const DEVICE: u64 = 2;

/// Status for an address that is not one of CUDA.
const INVALID_VALUE: i32 = 1;

impl Allocation {
    /// Takes memory of `device` that another library has allocated and will free: of cuMemAlloc or cudaMalloc, or a tensor
    /// of a framework. The driver is asked whether it is such memory. Work on it must be complete.
    ///
    /// # Errors
    ///
    /// [`CudaError`]: the range is not whole pages, not memory of this device, or longer than its allocation.
    ///
    /// # Safety
    ///
    /// The `len` bytes at `address` stay allocated until this value, and every handle of memory made of it, has been
    /// dropped.
    pub unsafe fn adopt(device: &Device, address: u64, len: usize) -> Result<Self, CudaError> {
        let page = PAGE_BYTES as u64;
        if len == 0 || !len.is_multiple_of(PAGE_BYTES) || !address.is_multiple_of(page) {
            return Err(CudaError::Misaligned { address, len });
        }
        let lanes = &device.engine.lanes;
        check(lanes, address, len)?;
        // SAFETY: the caller promises that the range stays allocated; `check` has found it to be memory of this device.
        let memory = unsafe { DeviceMemory::adopt(lanes, address, len) };
        Self::of(device, memory, len)
    }
}

/// Asks the driver about a range.
fn check(lanes: &Lanes, address: u64, len: usize) -> Result<(), CudaError> {
    let foreign = |reason| CudaError::Foreign { address, reason };
    let kind = match attribute(lanes, MEMORY_TYPE, address) {
        Err(error) if error.code == INVALID_VALUE => {
            return Err(foreign("the driver does not know it"));
        }
        kind => kind?,
    };
    if kind != DEVICE {
        return Err(foreign("it is host memory"));
    }
    if attribute(lanes, IS_MANAGED, address)? != 0 {
        return Err(foreign(
            "it is managed memory, which moves between device and host",
        ));
    }
    let expected = lanes.context.ordinal();
    let actual = u32::try_from(attribute(lanes, DEVICE_ORDINAL, address)?).unwrap_or(u32::MAX);
    if actual != expected {
        return Err(CudaError::OtherDevice {
            address,
            actual,
            expected,
        });
    }
    let start = attribute(lanes, RANGE_START, address)?;
    let size = attribute(lanes, RANGE_SIZE, address)?;
    let available = start.saturating_add(size).saturating_sub(address);
    let available = usize::try_from(available).unwrap_or(usize::MAX);
    match len <= available {
        true => Ok(()),
        false => Err(CudaError::TooLong {
            address,
            len,
            available,
        }),
    }
}

/// Returns an attribute of an address. The driver writes 4 or 8 bytes.
fn attribute(lanes: &Lanes, number: c_int, address: u64) -> Result<u64, DeviceError> {
    let current = lanes.enter()?;
    let mut value = 0_u64.to_le();
    let get = current.driver.functions.pointer_get;
    // SAFETY: room for 8 bytes; the driver looks the address up and does not access it.
    let status = unsafe { get((&raw mut value).cast(), number, address) };
    current.driver.check("cuPointerGetAttribute", status)?;
    Ok(u64::from_le(value))
}
