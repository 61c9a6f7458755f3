//! Errors: the library that cannot be loaded, and calls that fail.

use netmem::DeviceError;

use crate::driver::{Platform, Version};

/// Why the library of a vendor cannot be used.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum LoadError {
    /// The library cannot be loaded.
    #[error(
        "{name} cannot be loaded: {reason}\n  install the driver of the GPU, or name its library in {}", platform.variable
    )]
    NoLibrary {
        /// The vendor's library.
        platform: &'static Platform,
        /// File name.
        name: String,
        /// Reason of the loader.
        reason: String,
    },
    /// The library is too old.
    #[error("the driver supports {} {version}; {oldest} is needed\n  install a newer driver", platform.title)]
    Old {
        /// The vendor's library.
        platform: &'static Platform,
        /// Its version.
        version: Version,
        /// The oldest version that can be used.
        oldest: Version,
    },
    /// The library lacks a function.
    #[error("{} lacks {name} of {} {since}\n  install a newer driver", platform.library, platform.title)]
    NoFunction {
        /// The vendor's library.
        platform: &'static Platform,
        /// Name of the function.
        name: &'static str,
        /// Version that has it.
        since: Version,
    },
}

/// Why a device, or memory of one, cannot be used.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum GpuError {
    /// There is no driver.
    #[error(transparent)]
    Load(#[from] LoadError),
    /// A call of the driver failed.
    #[error(transparent)]
    Call(#[from] DeviceError),
    /// There is no such device.
    #[error(
        "there is no device {}:{ordinal}; this process sees {count}\n  {}", platform.name, platform.devices
    )]
    NoDevice {
        /// The vendor's library.
        platform: &'static Platform,
        /// The requested device.
        ordinal: u32,
        /// Number of devices.
        count: u32,
    },
    /// There is no device code that adds vectors.
    #[error(
        "{} takes device code of one kind of GPU only, and none that adds vectors is part of this program\n  add on the CPU", platform.title
    )]
    NoAddition {
        /// The vendor's library.
        platform: &'static Platform,
    },
    /// The size is 0 or not a multiple of the page.
    #[error("{size} bytes of device memory: take a positive multiple of 4096")]
    Size {
        /// The requested size.
        size: usize,
    },
    /// Memory to be adopted does not begin or end at a page.
    #[error(
        "{len} bytes at {address:#x} are not whole pages of 4096 bytes, and cannot be exported\n  adopt a multiple of pages of a larger allocation, or allocate here and use views"
    )]
    Misaligned {
        /// Address.
        address: u64,
        /// Bytes.
        len: usize,
    },
    /// An address is not one of device memory.
    #[error("{address:#x} is not in memory of a device: {reason}\n  allocate it with {}", platform.allocators)]
    Foreign {
        /// The vendor's library.
        platform: &'static Platform,
        /// Address.
        address: u64,
        /// What it is.
        reason: &'static str,
    },
    /// The memory is on another device.
    #[error("{address:#x} is in the memory of {0}:{actual}, not {0}:{expected}", platform.name)]
    OtherDevice {
        /// The vendor's library.
        platform: &'static Platform,
        /// Address.
        address: u64,
        /// Device of the memory.
        actual: u32,
        /// Device that it was adopted for.
        expected: u32,
    },
    /// A dma-buf is not that of the memory.
    #[error(
        "the descriptor has {size} bytes, and cannot be the dma-buf of {len} bytes at {address:#x}, exported in whole pages\n  pass the descriptor of cuMemGetHandleForAddressRange for this range"
    )]
    NotExported {
        /// Address.
        address: u64,
        /// Bytes of the range.
        len: usize,
        /// Bytes of the dma-buf; 0: it is none.
        size: usize,
    },
    /// The range is longer than the allocation.
    #[error(
        "{len} bytes at {address:#x} end after the allocation, which has {available} bytes from there"
    )]
    TooLong {
        /// Address.
        address: u64,
        /// Bytes of the range.
        len: usize,
        /// Bytes of the allocation from the address.
        available: usize,
    },
}
