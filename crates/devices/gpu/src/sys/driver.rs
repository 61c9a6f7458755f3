//! What differs between the libraries of vendors.
//!
// UNSAFETY: a trait whose implementations promise that their functions are those of the vendor.
#![allow(unsafe_code)]

use std::ffi::c_int;

use netmem::{DeviceError, DeviceState};

use super::copies::CopyBatch;
use super::functions::{DevicePtr, Export, Functions, NOT_INITIALIZED, RawDevice, SUCCESS, Status};
use super::kernel::Kernel;
use crate::error::is_fatal;
use crate::platform::{Platform, Version};

/// What all libraries have.
#[derive(Debug)]
pub struct Loaded {
    /// The names that messages have.
    pub platform: &'static Platform,
    /// The functions that all vendors have.
    pub functions: Functions,
    /// The version of the interface that the library supports.
    pub version: Version,
}

/// A device that was prepared.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Opened {
    /// The device in calls that take one.
    pub device: RawDevice,
    /// Address of its context, if the library has one.
    pub context: usize,
}

/// What an address is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Pointer {
    /// Kind of the memory.
    pub kind: PointerKind,
    /// Number of the device.
    pub device: u32,
    /// First address of the allocation.
    pub start: DevicePtr,
    /// Bytes of the allocation.
    pub size: u64,
    /// Number of the allocation, which no other one of this process gets, even at the same address; 0: the library has none.
    pub id: u64,
}

/// Where memory that a library knows is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PointerKind {
    /// In the device.
    Device,
    /// In the host.
    Host,
    /// Sometimes here, sometimes there.
    Managed,
}

/// The library of a vendor.
///
/// All methods but those that say otherwise are called while a device is selected ([`enter`](Self::enter)).
///
/// # Safety
///
/// (1) The functions of [`loaded`](Self::loaded) and [`mem_export`](Self::mem_export) are those of the vendor, and their library
/// is never unloaded. (2) [`copy_batch`](Self::copy_batch) starts the copies of its argument, and no others. (3)
/// [`pointer`](Self::pointer) returns what the library says. (4) The functions of [`add_kernel`](Self::add_kernel),
/// [`copy_kernel`](Self::copy_kernel) and [`crc32c_kernel`](Self::crc32c_kernel) are those of the vendor, their images are device code that the library takes, and the entries do what
/// these methods and [`Kernel::entry`] say.
pub unsafe trait Driver: Send + Sync {
    /// Returns what all libraries have.
    fn loaded(&self) -> &Loaded;

    /// Returns the device of a number, without preparing it. The library is initialised; none need be selected.
    ///
    /// # Errors
    ///
    /// [`DeviceError`] of the library.
    fn device(&self, ordinal: c_int) -> Result<RawDevice, DeviceError>;

    /// Returns the number of the device that the program has selected in this thread; `None`: none.
    fn selected(&self) -> Option<u32>;

    /// Prepares a device for [`enter`](Self::enter). The library is initialised and has this device; none is selected.
    ///
    /// # Errors
    ///
    /// [`DeviceError`] of the library.
    fn open(&self, ordinal: c_int) -> Result<Opened, DeviceError>;

    /// Ends what [`open`](Self::open) began. No device is selected.
    fn close(&self, opened: Opened);

    /// Selects a device for the calls of this thread. Returns what [`leave`](Self::leave) needs to select the previous one.
    ///
    /// # Errors
    ///
    /// [`DeviceError`] of the library.
    fn enter(&self, opened: Opened) -> Result<c_int, DeviceError>;

    /// Selects the device that this thread had selected before [`enter`](Self::enter).
    fn leave(&self, before: c_int);

    /// Returns what an address is; `None` if the library does not know it. Some libraries need a selected device for it.
    ///
    /// # Errors
    ///
    /// [`DeviceError`] of the library.
    fn pointer(&self, address: DevicePtr) -> Result<Option<Pointer>, DeviceError>;

    /// Returns the function that exports memory.
    ///
    /// # Errors
    ///
    /// [`DeviceError`]: the library does not have it.
    fn mem_export(&self) -> Result<Export, DeviceError>;

    /// Returns whether memory can be exported, by the library's own account.
    fn exports(&self, device: RawDevice) -> bool;

    /// Returns whether a NIC of the kernel can access exported memory.
    ///
    /// # Errors
    ///
    /// [`DeviceError`] with the reason why not.
    fn reaches_kernel_nics(&self) -> Result<(), DeviceError> {
        Ok(())
    }

    /// Returns whether [`copy_batch`](Self::copy_batch) can do several copies by one call.
    fn batches_copies(&self) -> bool {
        false
    }

    /// Starts copies by one call. Returns `false`, without an effect, if the library cannot.
    ///
    /// # Errors
    ///
    /// [`DeviceError`] of the library.
    fn copy_batch(&self, _batch: &CopyBatch<'_>) -> Result<bool, DeviceError> {
        Ok(false)
    }

    /// Returns the device code that adds floats; `None`: the vendor's crate has none. It takes the addresses of the sums and of the summands, and
    /// the number of floats, adds each summand to the sum of the same number, and accesses nothing else.
    fn add_kernel(&self) -> Option<&Kernel> {
        None
    }

    /// Returns the device code that copies pieces; `None`: the vendor's crate has none. It takes the address of a list
    /// ([`PieceList`](netmem::PieceList)), which may be in host memory that the device accesses, and the number of pieces in it; the address and the bytes of
    /// the source, and those of the destination. It reads the list, copies the pieces that are inside of both memories, which do not overlap, and accesses
    /// nothing else. 32 threads copy a piece.
    fn copy_kernel(&self) -> Option<&Kernel> {
        None
    }

    /// Returns the device code that computes CRC-32Cs; `None`: the vendor's crate has none. It takes the addresses of the sums, of 4 bytes each, and
    /// of the chunks, a multiple of 16; the bytes of a chunk, a multiple of 16 and at least 16; and the number of chunks. It writes the CRC-32C of each
    /// chunk to the sum of the same number, and accesses nothing else.
    fn crc32c_kernel(&self) -> Option<&Kernel> {
        None
    }

    /// Clears the error that the library keeps for the thread, so that the program does not take it for one of its calls.
    fn forget_error(&self) {}

    /// Returns what to do about an error.
    fn remedy(&self, call: &str, code: i32) -> &'static str;

    /// Returns the error of a call, if its status is one.
    ///
    /// # Errors
    ///
    /// [`DeviceError`] with the names of the call and the error.
    fn check(&self, call: &'static str, status: Status) -> Result<(), DeviceError> {
        match status {
            SUCCESS => Ok(()),
            code => {
                let name = self.loaded().functions.name_of(code);
                self.forget_error();
                Err(self.error(call, code, name))
            }
        }
    }

    /// Returns the error of a call with what to do about it.
    fn error(&self, call: &'static str, code: i32, name: &'static str) -> DeviceError {
        DeviceError {
            call,
            name,
            code,
            state: match code {
                NOT_INITIALIZED => DeviceState::Forked,
                code if is_fatal(code) => DeviceState::Lost,
                _ => DeviceState::Usable,
            },
            remedy: self.remedy(call, code),
        }
    }
}
