//! What a crate of a vendor provides: its library, loaded, and what differs from other libraries.

pub use crate::error::is_fatal;
pub use crate::platform::{Platform, Version};
pub use crate::sys::copies::{CopyBatch, RawCopy};
pub use crate::sys::driver::{Driver, Loaded, Opened, Pointer, PointerKind};
pub use crate::sys::functions::{
    AllocationExport, DevicePtr, Export, Function, Functions, MemExport, Name, Names, RawDevice,
    RawEvent, RawStream, SUCCESS, Status,
};
pub use crate::sys::kernel::{Kernel, KernelFunctions, KernelNames, RawFunction, RawModule};
pub use crate::sys::library::Library;
