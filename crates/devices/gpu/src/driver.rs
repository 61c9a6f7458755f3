//! What a crate of a vendor provides: its library, loaded, and what differs from other libraries.

use std::ffi::c_int;
use std::fmt;

use netmem::{DeviceError, DeviceState};

pub use crate::sys::copies::{Batch, RawCopy};
pub use crate::sys::functions::{
    DevicePtr, Function, Functions, MemExport, Name, Names, RawDevice, RawEvent, RawStream,
    SUCCESS, Status,
};
pub use crate::sys::library::Library;

/// The library of a vendor.
///
/// All methods but those that say otherwise are called while a device is selected ([`enter`](Self::enter)).
pub trait Driver: Send + Sync {
    /// Returns what all libraries have.
    fn loaded(&self) -> &Loaded;

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

    /// Returns what an address is; `None` if the library does not know it.
    ///
    /// # Errors
    ///
    /// [`DeviceError`] of the library.
    fn pointer(&self, address: DevicePtr) -> Result<Option<Pointer>, DeviceError>;

    /// Returns the function that exports memory, and the flags to try in this order.
    ///
    /// # Errors
    ///
    /// [`DeviceError`]: the library does not have it.
    fn mem_export(&self) -> Result<(Function<MemExport>, &'static [u64]), DeviceError>;

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
    fn copy_batch(&self, _batch: &Batch<'_>) -> Result<bool, DeviceError> {
        Ok(false)
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
            state: match is_fatal(code) {
                true => DeviceState::Lost,
                false => DeviceState::Usable,
            },
            remedy: self.remedy(call, code),
        }
    }
}

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
    pub kind: MemoryKind,
    /// Number of the device.
    pub device: u32,
    /// First address of the allocation.
    pub start: DevicePtr,
    /// Bytes of the allocation.
    pub size: u64,
}

/// Where memory that a library knows is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum MemoryKind {
    /// In the device.
    Device,
    /// In the host.
    Host,
    /// Sometimes here, sometimes there.
    Managed,
}

/// The names that messages about a vendor's library have.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Platform {
    /// The devices are this, a colon and a number.
    pub name: &'static str,
    /// The interface, before its version.
    pub title: &'static str,
    /// The library without its version.
    pub library: &'static str,
    /// Environment variable with the file name of the library.
    pub variable: &'static str,
    /// How the user finds the devices.
    pub devices: &'static str,
    /// How a program allocates memory of a device.
    pub allocators: &'static str,
    /// The call that selects a device.
    pub enter: &'static str,
    /// The name of error 3, which a child of fork(2) gets.
    pub not_initialized: &'static str,
}

/// A version of a library's interface.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Version(pub u32, pub u32);

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.0, self.1)
    }
}

/// Returns whether the process can no longer use the device (cuda.h: "leaves the process in an inconsistent state"; HIP has
/// the same numbers).
pub fn is_fatal(code: i32) -> bool {
    matches!(
        code,
        4 | 214 | 220 | 226 | 700 | 702 | 709 | 710 | 714..=719 | 721 | 911 | 999
    )
}
