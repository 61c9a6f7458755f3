//! Device memory, and host memory that is registered with a device.
//!
// UNSAFETY: memory that is freed, and registrations that end, when their value is dropped, after the copies that use them.
#![allow(unsafe_code)]

use std::ffi::c_int;
use std::ptr;
use std::sync::Arc;

use netmem::{DeviceError, HostWindow};

use super::copies::{CopyKind, Extent, RawCopy, out_of_range};
use super::functions::{DevicePtr, SUCCESS};
use super::lanes::Lanes;
use super::revocation::Revocation;

/// CU_MEMHOSTREGISTER_PORTABLE and _DEVICEMAP, hipHostRegisterPortable and hipHostRegisterMapped: for all devices, whose kernels access it, too.
const REGISTER_FLAGS: u32 = 1 | 2;

/// CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, HIP_POINTER_ATTRIBUTE_SYNC_MEMOPS.
const SYNC_MEMOPS: c_int = 6;

/// Device memory. Invariant: `len` bytes at `address` are memory of the device of `lanes`, and stay so while this exists, or until
/// it has been revoked.
#[derive(Debug)]
pub(crate) struct DeviceMemory {
    address: DevicePtr,
    len: usize,
    owner: Owner,
    revocation: Revocation,
    pub(crate) lanes: Arc<Lanes>,
}

#[derive(Debug)]
enum Owner {
    /// Freed by `drop`.
    This,
    /// Freed by the application.
    Application,
    /// Freed with the memory that it is a part of.
    Whole { _keeps: Arc<DeviceMemory> },
}

impl DeviceMemory {
    /// Allocates `len` bytes.
    pub(crate) fn alloc(lanes: &Arc<Lanes>, len: usize) -> Result<Self, DeviceError> {
        let current = lanes.enter()?;
        let mut address = 0;
        let alloc = current.driver.loaded().functions.mem_alloc;
        // SAFETY: room for an address.
        let status = unsafe { (alloc.call)(&raw mut address, len) };
        lanes.note(current.driver.check(alloc.name, status))?;
        let lanes = Arc::clone(lanes);
        let owner = Owner::This;
        Ok(Self {
            address,
            len,
            owner,
            revocation: Revocation::default(),
            lanes,
        })
    }

    /// Takes over memory of the application, which frees it.
    ///
    /// # Safety
    ///
    /// `len` bytes at `address` are memory of this device until the value has been dropped, or `revoke` has returned.
    pub(crate) unsafe fn adopt(lanes: &Arc<Lanes>, address: DevicePtr, len: usize) -> Self {
        let lanes = Arc::clone(lanes);
        let owner = Owner::Application;
        Self {
            address,
            len,
            owner,
            revocation: Revocation::default(),
            lanes,
        }
    }

    /// Returns `len` bytes at `offset` as memory of their own, if they are inside.
    pub(crate) fn part(self: &Arc<Self>, offset: usize, len: usize) -> Option<Self> {
        let whole = Arc::clone(self);
        // Inside of the memory, which is kept: the invariant of the part.
        Some(Self {
            address: self.at(offset, len)?,
            len,
            owner: Owner::Whole { _keeps: whole },
            revocation: Revocation::default(),
            lanes: Arc::clone(&self.lanes),
        })
    }

    pub(crate) fn address(&self) -> DevicePtr {
        self.address
    }

    /// Ends all copies: those that are running end, and no other one begins.
    pub(crate) fn revoke(&self) {
        self.revocation.revoke();
        // Takes the lock of each lane after the flag was set. A copy is checked and started under that lock, so it was
        // started before, and is waited for here; or it finds the flag.
        self.lanes.wait_all();
    }

    /// Returns whether the memory was revoked, which is to be asked under the lock of the lane.
    pub(crate) fn revocation(&self) -> &Revocation {
        &self.revocation
    }

    /// Makes synchronous copies of the application wait until their bytes are in the memory, so that a NIC does not send old
    /// ones. Without effect where the driver refuses it.
    pub(crate) fn synchronise_copies(&self) -> Result<(), DeviceError> {
        let current = self.lanes.enter()?;
        let on = 1_u32;
        let set = current.driver.loaded().functions.pointer_set.call;
        // SAFETY: the attribute is read from a number of 4 bytes; the address is one of device memory (invariant).
        if unsafe { set((&raw const on).cast(), SYNC_MEMOPS, self.address) } != SUCCESS {
            current.driver.forget_error();
        }
        Ok(())
    }
}

impl Drop for DeviceMemory {
    fn drop(&mut self) {
        if self.lanes.context.is_forked() {
            return;
        }
        self.lanes.wait_all();
        if matches!(self.owner, Owner::This)
            && let Ok(current) = self.lanes.context.enter()
        {
            // SAFETY: allocated by `alloc`, freed here only, and no copy is running. Errors: the driver has freed it.
            let _ = unsafe { (current.driver.loaded().functions.mem_free.call)(self.address) };
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
        let register = current.driver.loaded().functions.host_register;
        let start = ptr::with_exposed_provenance_mut(window.address());
        // SAFETY: the window is mapped while it exists, and it becomes part of the value.
        let status = unsafe { (register.call)(start, window.len(), REGISTER_FLAGS) };
        lanes.note(current.driver.check(register.name, status))?;
        let registered = Self {
            window,
            lanes: Arc::clone(lanes),
        };
        let address_of = current.driver.loaded().functions.host_address;
        let mut address = 0;
        // SAFETY: room for an address; the memory was registered above.
        let status = unsafe { (address_of.call)(&raw mut address, start, 0) };
        if status != SUCCESS {
            current.driver.forget_error();
        }
        if status != SUCCESS || address != registered.window.address() as u64 {
            lanes.note_foreign_addresses();
        }
        Ok(registered)
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
            let _ = unsafe { (current.driver.loaded().functions.host_unregister.call)(start) };
        }
    }
}

impl DeviceMemory {
    /// Copies device memory to `out`, and waits.
    pub(crate) fn read(&self, from: usize, out: &mut [u8]) -> Result<(), DeviceError> {
        let (len, to) = (out.len(), out.as_mut_ptr().expose_provenance() as u64);
        let from = self.at(from, len).ok_or_else(out_of_range)?;
        // `out` is borrowed until the copy is done.
        self.copy_and_wait(CopyKind::Out, &RawCopy::new(from, to, len))
    }

    /// Copies `bytes` to device memory, and waits.
    pub(crate) fn write(&self, to: usize, bytes: &[u8]) -> Result<(), DeviceError> {
        let (len, from) = (bytes.len(), bytes.as_ptr().expose_provenance() as u64);
        let to = self.at(to, len).ok_or_else(out_of_range)?;
        // `bytes` is borrowed until the copy is done.
        self.copy_and_wait(CopyKind::In, &RawCopy::new(from, to, len))
    }

    fn copy_and_wait(&self, kind: CopyKind, copy: &RawCopy) -> Result<(), DeviceError> {
        self.lanes.copy_and_wait(&self.revocation, kind, copy)
    }

    /// Returns the memory as a side of copies.
    pub(crate) fn extent(&self) -> Extent {
        let (address, len) = (self.address, self.len);
        Extent { address, len }
    }

    /// Returns the address of `len` bytes at `offset`, if they are inside.
    pub(crate) fn at(&self, offset: usize, len: usize) -> Option<u64> {
        self.extent().at(offset, len)
    }
}

impl Registration {
    /// Returns the memory as a side of copies.
    pub(crate) fn extent(&self) -> Extent {
        let (address, len) = (self.window.address() as u64, self.window.len());
        Extent { address, len }
    }
}
