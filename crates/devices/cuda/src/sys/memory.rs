//! Device memory, and host memory that is registered with a device.
//!
// UNSAFETY: memory that is freed, and registrations that end, when their value is dropped, after the copies that use them.
#![allow(unsafe_code)]

use std::ffi::c_int;
use std::marker::PhantomData;
use std::os::fd::{FromRawFd, OwnedFd};
use std::ptr;
use std::sync::Arc;

use netmem::{DeviceError, HostWindow};

use super::functions::DevicePtr;
use super::lanes::Lanes;
use crate::error::device_error;

/// CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD.
const DMA_BUF: c_int = 1;

/// CU_MEM_RANGE_FLAG_DMA_BUF_MAPPING_TYPE_PCIE: for GPUs whose memory the CPU reaches by another way than PCIe.
const BY_PCIE: u64 = 1;

/// CU_MEMHOSTREGISTER_PORTABLE: registered for all devices.
const PORTABLE: u32 = 1;

/// CU_POINTER_ATTRIBUTE_SYNC_MEMOPS.
const SYNC_MEMOPS: c_int = 6;

/// Device memory. Invariant: `len` bytes at `address` are memory of the device of `lanes`, and stay so while this exists.
#[derive(Debug)]
pub(crate) struct DeviceMemory {
    address: DevicePtr,
    len: usize,
    owner: Owner,
    pub(crate) lanes: Arc<Lanes>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Owner {
    /// Freed by `drop`.
    This,
    /// Freed by the application.
    Application,
}

impl DeviceMemory {
    /// Allocates `len` bytes.
    pub(crate) fn alloc(lanes: &Arc<Lanes>, len: usize) -> Result<Self, DeviceError> {
        let current = lanes.enter()?;
        let mut address = 0;
        // SAFETY: room for an address.
        let status = unsafe { (current.driver.functions.mem_alloc)(&raw mut address, len) };
        lanes.note(current.driver.check("cuMemAlloc", status))?;
        let lanes = Arc::clone(lanes);
        let owner = Owner::This;
        Ok(Self {
            address,
            len,
            owner,
            lanes,
        })
    }

    /// Takes over memory of the application, which frees it.
    ///
    /// # Safety
    ///
    /// `len` bytes at `address` are memory of this device until the value has been dropped.
    pub(crate) unsafe fn adopt(lanes: &Arc<Lanes>, address: DevicePtr, len: usize) -> Self {
        let lanes = Arc::clone(lanes);
        let owner = Owner::Application;
        Self {
            address,
            len,
            owner,
            lanes,
        }
    }

    pub(crate) fn address(&self) -> DevicePtr {
        self.address
    }

    /// Makes synchronous copies of the application wait until their bytes are in the memory, so that a NIC does not send old
    /// ones. Without effect where the driver refuses it.
    pub(crate) fn synchronise_copies(&self) -> Result<(), DeviceError> {
        let current = self.lanes.enter()?;
        let on = 1_u32;
        let set = current.driver.functions.pointer_set;
        // SAFETY: the attribute is read from a number of 4 bytes; the address is one of device memory (invariant).
        let _ = unsafe { set((&raw const on).cast(), SYNC_MEMOPS, self.address) };
        Ok(())
    }

    /// Exports the memory as a dma-buf.
    pub(crate) fn export(&self) -> Result<OwnedFd, DeviceError> {
        let current = self.lanes.enter()?;
        let (driver, export) = (current.driver, current.driver.functions.mem_export);
        let mut fd = -1;
        let mut status = 0;
        for flags in [BY_PCIE, 0] {
            // SAFETY: room for a descriptor; the range is device memory (invariant).
            status =
                unsafe { export((&raw mut fd).cast(), self.address, self.len, DMA_BUF, flags) };
            // Older drivers, and GPUs with one way only, refuse the flag.
            if status == 0 {
                break;
            }
        }
        driver.check("cuMemGetHandleForAddressRange", status)?;
        if fd < 0 {
            return Err(device_error(
                "cuMemGetHandleForAddressRange",
                999,
                "no descriptor",
            ));
        }
        // SAFETY: the driver made the descriptor for this call.
        Ok(unsafe { OwnedFd::from_raw_fd(fd) })
    }
}

impl Drop for DeviceMemory {
    fn drop(&mut self) {
        if self.lanes.context.is_forked() {
            return;
        }
        self.lanes.wait_all();
        if self.owner == Owner::This
            && let Ok(current) = self.lanes.context.enter()
        {
            // SAFETY: allocated by `alloc`, freed here only, and no copy is running. Errors: the driver has freed it.
            let _ = unsafe { (current.driver.functions.mem_free)(self.address) };
        }
    }
}

/// Host memory that is registered with a device. Invariant: it stays mapped and registered while this exists.
#[derive(Debug)]
pub(crate) struct Registration {
    window: HostWindow,
    pub(crate) lanes: Arc<Lanes>,
}

impl Registration {
    pub(crate) fn new(lanes: &Arc<Lanes>, window: HostWindow) -> Result<Self, DeviceError> {
        let current = lanes.enter()?;
        let register = current.driver.functions.host_register;
        let start = ptr::with_exposed_provenance_mut(window.address());
        // SAFETY: the window is mapped while it exists, and it becomes part of the value.
        let status = unsafe { register(start, window.len(), PORTABLE) };
        lanes.note(current.driver.check("cuMemHostRegister", status))?;
        let lanes = Arc::clone(lanes);
        Ok(Self { window, lanes })
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        if self.lanes.context.is_forked() {
            return;
        }
        self.lanes.wait_all();
        if let Ok(current) = self.lanes.context.enter() {
            let start = ptr::with_exposed_provenance_mut(self.window.address());
            // SAFETY: registered by `new`, ended here only, and no copy is running. Errors: the driver has ended it.
            let _ = unsafe { (current.driver.functions.host_unregister)(start) };
        }
    }
}

/// A copy between checked ranges. The memory outlives it: owners wait for the lanes when they are dropped.
#[derive(Debug)]
pub(crate) struct RawCopy<'a> {
    pub(crate) kind: CopyKind,
    pub(crate) from: u64,
    pub(crate) to: u64,
    pub(crate) len: usize,
    memory: PhantomData<&'a DeviceMemory>,
}

/// Where the two sides of a copy are.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum CopyKind {
    /// From the host to the device.
    In,
    /// From the device to the host.
    Out,
    /// Both on the device.
    Within,
}

impl<'a> RawCopy<'a> {
    /// Returns a copy between registered host memory and the device.
    pub(crate) fn staged(
        kind: CopyKind,
        (host, host_at): (&Registration, usize),
        (memory, device_at): (&'a DeviceMemory, usize),
        len: usize,
    ) -> Option<Self> {
        let (host, device) = (host.at(host_at, len)?, memory.at(device_at, len)?);
        let (from, to) = match kind {
            CopyKind::Out => (device, host),
            CopyKind::In | CopyKind::Within => (host, device),
        };
        Some(Self::new(kind, from, to, len))
    }

    /// Returns a copy within the memory of a device.
    pub(crate) fn within(
        (from, from_at): (&'a DeviceMemory, usize),
        (to, to_at): (&'a DeviceMemory, usize),
        len: usize,
    ) -> Option<Self> {
        let (from, to) = (from.at(from_at, len)?, to.at(to_at, len)?);
        Some(Self::new(CopyKind::Within, from, to, len))
    }

    fn new(kind: CopyKind, from: u64, to: u64, len: usize) -> Self {
        let memory = PhantomData;
        Self {
            kind,
            from,
            to,
            len,
            memory,
        }
    }
}

impl DeviceMemory {
    /// Copies device memory to `out`, and waits.
    pub(crate) fn read(&self, from: usize, out: &mut [u8]) -> Result<(), DeviceError> {
        let (len, to) = (out.len(), out.as_mut_ptr().expose_provenance() as u64);
        let from = self.at(from, len).ok_or_else(out_of_range)?;
        // `out` is borrowed until the copy is done.
        self.lanes
            .copy_and_wait(&RawCopy::new(CopyKind::Out, from, to, len))
    }

    /// Copies `bytes` to device memory, and waits.
    pub(crate) fn write(&self, to: usize, bytes: &[u8]) -> Result<(), DeviceError> {
        let (len, from) = (bytes.len(), bytes.as_ptr().expose_provenance() as u64);
        let to = self.at(to, len).ok_or_else(out_of_range)?;
        // `bytes` is borrowed until the copy is done.
        self.lanes
            .copy_and_wait(&RawCopy::new(CopyKind::In, from, to, len))
    }

    /// Returns the address of `len` bytes at `offset`, if they are inside.
    fn at(&self, offset: usize, len: usize) -> Option<u64> {
        let is_inside = offset.checked_add(len).is_some_and(|end| end <= self.len);
        is_inside.then(|| self.address + offset as u64)
    }
}

impl Registration {
    fn at(&self, offset: usize, len: usize) -> Option<u64> {
        let is_inside = offset
            .checked_add(len)
            .is_some_and(|end| end <= self.window.len());
        is_inside.then(|| (self.window.address() + offset) as u64)
    }
}

/// Returns the error of a copy whose range is not inside its memory.
pub(crate) fn out_of_range() -> DeviceError {
    device_error("copy", 1, "a range is not inside the memory")
}
