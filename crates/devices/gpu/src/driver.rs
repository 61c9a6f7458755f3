//! What a crate of a vendor provides: its library, loaded, and what differs from other libraries.

use std::fmt;

pub use crate::sys::copies::{CopyBatch, RawCopy};
pub use crate::sys::driver::Driver;
pub use crate::sys::functions::{
    AllocationExport, DevicePtr, Export, Function, Functions, MemExport, Name, Names, RawDevice,
    RawEvent, RawStream, SUCCESS, Status,
};
pub use crate::sys::kernel::{Kernel, KernelFunctions, KernelNames, RawFunction, RawModule};
pub use crate::sys::library::Library;

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
