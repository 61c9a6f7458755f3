//! Memory of AMD GPUs: allocated or adopted, exported as dma-bufs, and copied by the GPU.
//!
//! - [`open`] returns a [`Device`]: a GPU as the HIP runtime and the frameworks use it, too. [`alloc`] returns memory of one for
//!   the library.
//! - [`Allocation`] is memory of a device, allocated or adopted.
//! - [`GpuError`] names the call that failed, its error and what to do.
//!
//! The library of ROCm 6 or 7 is loaded at run time (`libamdhip64.so.7`, `.6`, or the file that `DEVMEM_LIBAMDHIP` names), by
//! dlopen: a program with this crate needs no ROCm to be built, and runs without a GPU. That of ROCm 6 does not export memory: then
//! the library below it does, for whole allocations (`libhsa-runtime64.so.1`, or the file that `DEVMEM_LIBHSA` names). The crate has
//! the names of the libraries' functions and what other vendors do in another way; the rest is `devmem-gpu`.
//!
//! It has not run on a GPU: tests use a stand-in for the library. NICs of the kernel are refused (`DEVMEM_AMD_STATIC_ATTACH=1`
//! permits them): Linux attaches the memory statically (net/core/devmem.c), for which amdgpu moves it to host memory
//! (amdgpu_dma_buf.c), while the GPU goes on to use its own.
//!
//! The crate copies packets between the ring of a queue and the memory of the device, in both directions
//! (`crates/core/nic/DECISIONS.md`, "Memory that the CPU cannot access"). It knows no headers.
//! It does not launch kernels, and does not import memory of other processes.

mod remedy;
mod sys;

use netmem::Dmabuf;

pub use devmem_gpu::driver::{Platform, Version};
pub use devmem_gpu::{Allocation, Device, DeviceInfo, GpuError, LoadError};

/// The names that messages have.
pub static PLATFORM: Platform = Platform {
    name: "hip",
    title: "HIP",
    library: "libamdhip64",
    variable: "DEVMEM_LIBAMDHIP",
    devices: "`rocm-smi` lists them; HIP_VISIBLE_DEVICES and ROCR_VISIBLE_DEVICES hide some",
    allocators: "hipMalloc or the ROCm allocator of the framework",
    enter: "hipSetDevice",
    not_initialized: "hipErrorNotInitialized",
};

/// Returns the devices of this process.
///
/// # Errors
///
/// [`GpuError`]: there is no library, or it cannot be initialised.
pub fn devices() -> Result<Vec<DeviceInfo>, GpuError> {
    devmem_gpu::devices(sys::Hip::get()?)
}

/// Opens a device, or returns another handle of it.
///
/// # Errors
///
/// [`GpuError`]: there is no library or no such device, or the library refuses.
pub fn open(ordinal: u32) -> Result<Device, GpuError> {
    Device::open(sys::Hip::get()?, ordinal)
}

/// Allocates `size` bytes (rounded up to whole pages) of device `ordinal`.
///
/// # Errors
///
/// There is no library or no such device, or the device does not have enough memory. The error says what to do.
pub fn alloc(ordinal: u32, size: usize) -> Result<Dmabuf, GpuError> {
    open(ordinal)?.alloc_dmabuf(size)
}
