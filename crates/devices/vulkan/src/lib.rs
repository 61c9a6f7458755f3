//! Memory of Vulkan devices: mapped for the CPU where the device allows it, exported as dma-bufs, and copied by the device.
//!
//! - [`Device`] is a device, opened, with one queue for copies. It is a [`CopyEngine`](netmem::CopyEngine): it gathers payload
//!   by one copy command with a region for each piece.
//! - [`Allocation`] is memory of a device: an [`Exporter`](netmem::Exporter). If the CPU can map it (integrated and software
//!   devices, others with a resizable BAR), a user-space NIC reads packets straight into it; otherwise payload passes through
//!   host memory that is imported into the device. It is freed when the last of its users is dropped, in any order.
//! - [`VulkanError`] names the call that failed, its result and what to do.
//!
//! The loader is loaded at run time (`libvulkan.so.1`, or the file that `DEVMEM_LIBVULKAN` names), by dlopen. Any thread may
//! call anything. After fork(2), a child gets errors, and frees nothing.
//!
//! The crate copies packets between the ring of a queue and the memory of the device, in both directions
//! (`crates/core/nic/DECISIONS.md`, "Memory that the CPU cannot access"), and gathers frags. It knows no headers.
//! It does not run shaders, does not draw, and does not import memory of other processes.

mod allocation;
mod device;
mod error;
mod memory_types;
mod static_attach;
mod sys;

pub use allocation::Allocation;
pub use device::{Device, DeviceInfo, devices};
pub use error::VulkanError;
