//! Memory that another library allocated.
//!
// UNSAFETY: addresses from the application, which promises what `adopt` says; the driver is asked about them first.
#![allow(unsafe_code)]

use std::any::Any;

use super::lanes::Lanes;
use super::memory::DeviceMemory;
use crate::allocation::{Allocation, PAGE_BYTES};
use crate::device::Device;
use crate::driver::{Pointer, PointerKind};
use crate::error::GpuError;

impl Allocation {
    /// Takes memory of `device` that another library has allocated and will free: of the vendor's allocation functions, or a
    /// tensor of a framework. The driver is asked whether it is such memory. Work on it must be complete.
    ///
    /// # Errors
    ///
    /// [`GpuError`]: the range is not whole pages, not memory of this device, or longer than its allocation.
    ///
    /// # Safety
    ///
    /// The `len` bytes at `address` stay allocated until this value, and every handle of memory made of it, has been
    /// dropped.
    pub unsafe fn adopt(device: &Device, address: u64, len: usize) -> Result<Self, GpuError> {
        let page = PAGE_BYTES as u64;
        if len == 0 || !len.is_multiple_of(PAGE_BYTES) || !address.is_multiple_of(page) {
            return Err(GpuError::Misaligned { address, len });
        }
        let lanes = &device.engine.lanes;
        check(lanes, address, len)?;
        // SAFETY: the caller promises that the range stays allocated; `check` has found it to be memory of this device.
        let memory = unsafe { DeviceMemory::adopt(lanes, address, len) };
        Self::of(device, memory, len)
    }

    /// As [`adopt`](Self::adopt), with a value whose drop may free the memory. It is dropped after the last use of the memory.
    ///
    /// # Errors
    ///
    /// As [`adopt`](Self::adopt); `owner` is dropped.
    ///
    /// # Safety
    ///
    /// The `len` bytes at `address` stay allocated until `owner` is dropped.
    pub unsafe fn adopt_from_owner(
        device: &Device,
        address: u64,
        len: usize,
        owner: impl Any + Send + Sync,
    ) -> Result<Self, GpuError> {
        // SAFETY: the owner is dropped after the value's other fields, and the range is allocated until then, by the contract.
        let adopted = unsafe { Self::adopt(device, address, len) }?;
        Ok(adopted.kept_by(Box::new(owner)))
    }
}

/// Asks the driver about a range.
fn check(lanes: &Lanes, address: u64, len: usize) -> Result<(), GpuError> {
    let current = lanes.enter()?;
    let platform = current.driver.loaded().platform;
    let foreign = |reason| GpuError::Foreign {
        platform,
        address,
        reason,
    };
    let Some(pointer) = current.driver.pointer(address)? else {
        return Err(foreign("the driver does not know it"));
    };
    let Pointer {
        kind,
        device: actual,
        start,
        size,
    } = pointer;
    match kind {
        PointerKind::Device => {}
        PointerKind::Host => return Err(foreign("it is host memory")),
        PointerKind::Managed => {
            let reason = "it is managed memory, which moves between device and host";
            return Err(foreign(reason));
        }
    }
    let expected = lanes.context.ordinal();
    if actual != expected {
        return Err(GpuError::OtherDevice {
            platform,
            address,
            actual,
            expected,
        });
    }
    let available = start.saturating_add(size).saturating_sub(address);
    let available = usize::try_from(available).unwrap_or(usize::MAX);
    match len <= available {
        true => Ok(()),
        false => Err(GpuError::TooLong {
            address,
            len,
            available,
        }),
    }
}
