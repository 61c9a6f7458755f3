//! Memory that another library allocated.
//!
// UNSAFETY: addresses from the application, which promises what `adopt` says; the driver is asked about them first.
#![allow(unsafe_code)]

use std::any::Any;
use std::fs::File;
use std::io::{Seek, SeekFrom};
use std::os::fd::OwnedFd;

use crate::allocation::{Allocation, PAGE_BYTES};
use crate::device::Device;
use crate::error::GpuError;
use crate::sys::driver::{Pointer, PointerKind};
use crate::sys::lanes::Lanes;
use crate::sys::memory::DeviceMemory;

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
        let lanes = &device.lanes;
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

    /// Takes memory of `device` that another library has allocated, exported and will free. `exported` is its dma-buf, whose first
    /// byte is the one at `address`; it may be longer than `len`, the bytes that are used here. Work on it must be complete.
    ///
    /// # Errors
    ///
    /// [`GpuError`]: the range is not memory of this device, or longer than the dma-buf; that is not whole pages.
    ///
    /// # Safety
    ///
    /// As of [`adopt`](Self::adopt); and the dma-buf is that of the memory.
    pub unsafe fn adopt_exported(
        device: &Device,
        address: u64,
        len: usize,
        exported: OwnedFd,
    ) -> Result<Self, GpuError> {
        let lanes = &device.lanes;
        check_ends(lanes, address, len)?;
        let mut file = File::from(exported);
        let size = file.seek(SeekFrom::End(0)).unwrap_or(0);
        let size = usize::try_from(size).unwrap_or(usize::MAX);
        if size < len || !size.is_multiple_of(PAGE_BYTES) {
            return Err(GpuError::NotExported { address, len, size });
        }
        // SAFETY: the caller promises that the range stays allocated; both of its ends were found to be memory of this device.
        let memory = unsafe { DeviceMemory::adopt(lanes, address, len) };
        let allocation = Self::of(device, memory, size)?;
        Ok(allocation.exported_as(file.into()))
    }
}

/// Asks the driver about the first and the last byte of a range, which may be several allocations that were mapped side by side.
fn check_ends(lanes: &Lanes, address: u64, len: usize) -> Result<(), GpuError> {
    let last = len as u64 - u64::from(len > 0);
    let last = address.checked_add(last).filter(|_| len > 0);
    let last = last.ok_or(GpuError::Misaligned { address, len })?;
    check(lanes, address, 1)?;
    check(lanes, last, 1)
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
        id: _,
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
