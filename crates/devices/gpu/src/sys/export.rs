//! Device memory as a dma-buf.
//!
// UNSAFETY: calls of the library with an address of device memory, which return a descriptor.
#![allow(unsafe_code)]

use std::ffi::c_int;
use std::fs::File;
use std::io::{Seek, SeekFrom};
use std::os::fd::{FromRawFd, OwnedFd};

use netmem::DeviceError;

use super::copies::out_of_range;
use super::driver::Driver;
use super::functions::{AllocationExport, DevicePtr, Export, Function, MemExport, SUCCESS, Status};
use super::memory::DeviceMemory;

/// CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD, hipMemRangeHandleTypeDmaBufFd.
const DMA_BUF: c_int = 1;

/// The number of an unknown error.
const UNKNOWN: Status = 999;

/// The number of what a library cannot do.
const NOT_SUPPORTED: Status = 801;

impl DeviceMemory {
    /// Exports the first `len` bytes as a dma-buf of no others: a NIC uses all of a dma-buf.
    pub(crate) fn export(&self, len: usize) -> Result<OwnedFd, DeviceError> {
        let address = self.at(0, len).ok_or_else(out_of_range)?;
        let current = self.lanes.enter()?;
        match current.driver.mem_export()? {
            Export::Range(export, flags) => range(current.driver, export, flags, address, len),
            Export::Allocation(export) => allocation(current.driver, export, address, len),
        }
    }
}

fn range(
    driver: &dyn Driver,
    export: Function<MemExport>,
    flags: &[u64],
    address: DevicePtr,
    len: usize,
) -> Result<OwnedFd, DeviceError> {
    let (mut fd, mut status) = (-1, SUCCESS);
    for &flags in flags {
        // SAFETY: room for a descriptor; the range is device memory (invariant of `DeviceMemory`).
        status = unsafe { (export.call)(&raw mut fd, address, len, DMA_BUF, flags) };
        // Older drivers, and GPUs with one way only, refuse the flag.
        if status == SUCCESS {
            break;
        }
    }
    driver.check(export.name, status)?;
    descriptor(driver, export.name, fd)
}

fn allocation(
    driver: &dyn Driver,
    export: Function<AllocationExport>,
    address: DevicePtr,
    len: usize,
) -> Result<OwnedFd, DeviceError> {
    let (mut fd, mut offset) = (-1, 0);
    // SAFETY: room for a descriptor and a number; the range is device memory (invariant of `DeviceMemory`).
    let status = unsafe { (export.call)(address, len, &raw mut fd, &raw mut offset) };
    if status != SUCCESS {
        return Err(driver.error(export.name, status, "the library refuses"));
    }
    let mut file = File::from(descriptor(driver, export.name, fd)?);
    let has_others = offset != 0 || file.seek(SeekFrom::End(0)).ok() != Some(len as u64);
    match has_others {
        true => Err(driver.error(
            export.name,
            NOT_SUPPORTED,
            "the dma-buf has other bytes, too",
        )),
        false => Ok(file.into()),
    }
}

fn descriptor(driver: &dyn Driver, call: &'static str, fd: c_int) -> Result<OwnedFd, DeviceError> {
    if fd < 0 {
        return Err(driver.error(call, UNKNOWN, "no descriptor"));
    }
    // SAFETY: the library made the descriptor for this call.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}
