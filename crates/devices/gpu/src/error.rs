//! Errors: the library that cannot be loaded, and calls that fail. `Display` prints the reason.

use std::borrow::Cow;

use netmem::DeviceError;

use crate::platform::{Platform, Version};

/// Why the library of a vendor cannot be used.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum LoadError {
    /// The library cannot be loaded.
    #[error("{name} cannot be loaded: {reason}")]
    NoLibrary {
        /// The vendor's library.
        platform: &'static Platform,
        /// File name.
        name: String,
        /// Reason of the loader.
        reason: String,
    },
    /// The library is too old.
    #[error("the driver supports {} {version}; {oldest} is needed", .platform.title)]
    Old {
        /// The vendor's library.
        platform: &'static Platform,
        /// Its version.
        version: Version,
        /// The oldest version that can be used.
        oldest: Version,
    },
    /// The library lacks a function.
    #[error("{} lacks {name} of {} {since}", .platform.library, .platform.title)]
    NoFunction {
        /// The vendor's library.
        platform: &'static Platform,
        /// Name of the function.
        name: &'static str,
        /// Version that has it.
        since: Version,
    },
}

impl LoadError {
    /// Returns what to do about it.
    pub fn remedy(&self) -> Cow<'static, str> {
        match self {
            Self::NoLibrary { platform, .. } => format!(
                "install the driver of the GPU, or name its library in {}",
                platform.variable
            )
            .into(),
            Self::Old { .. } | Self::NoFunction { .. } => "install a newer driver".into(),
        }
    }
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
    #[error("there is no device {}:{ordinal}; this process sees {count}", .platform.name)]
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
        "{} takes device code of one kind of GPU only, and none that adds vectors is part of this program",
        .platform.title
    )]
    NoAddition {
        /// The vendor's library.
        platform: &'static Platform,
    },
    /// The size is 0 or not a multiple of the page.
    #[error("{size} bytes of device memory are not whole pages of 4096 bytes")]
    Size {
        /// The requested size.
        size: usize,
    },
    /// Memory to be adopted does not begin or end at a page.
    #[error(
        "{len} bytes at {address:#x} are not whole pages of 4096 bytes, and cannot be exported"
    )]
    Misaligned {
        /// Address.
        address: u64,
        /// Bytes.
        len: usize,
    },
    /// An address is not one of device memory.
    #[error("{address:#x} is not in memory of a device: {reason}")]
    Foreign {
        /// The vendor's library.
        platform: &'static Platform,
        /// Address.
        address: u64,
        /// What it is.
        reason: &'static str,
    },
    /// The memory is on another device.
    #[error(
        "{address:#x} is in the memory of {0}:{actual}, not {0}:{expected}",
        .platform.name
    )]
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
        "the descriptor has {size} bytes, and cannot be the dma-buf of {len} bytes at {address:#x}, exported in whole pages"
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

impl GpuError {
    /// Returns what to do about it.
    pub fn remedy(&self) -> Option<Cow<'static, str>> {
        Some(match self {
            Self::Load(error) => error.remedy(),
            Self::Call(error) => error.remedy.into(),
            Self::NoDevice { platform, .. } => platform.devices.into(),
            Self::NoAddition { .. } => "add on the CPU".into(),
            Self::Size { .. } => "take a positive multiple of 4096".into(),
            Self::Misaligned { .. } => {
                "adopt a multiple of pages of a larger allocation, or allocate here and use views"
                    .into()
            }
            Self::Foreign { platform, .. } => {
                format!("allocate it with {}", platform.allocators).into()
            }
            Self::NotExported { .. } => {
                "pass the descriptor of cuMemGetHandleForAddressRange for this range".into()
            }
            Self::OtherDevice { .. } | Self::TooLong { .. } => return None,
        })
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
