//! Memory of NVIDIA GPUs: allocated or adopted, exported as dma-bufs, and copied by the GPU.
//!
//! - [`open`] returns a [`Device`]: a GPU with its primary context, which the CUDA runtime and the frameworks use, too.
//!   [`alloc`] returns memory of one for the library.
//! - [`Allocation`] is memory of a device, allocated or adopted.
//! - [`GpuError`] names the call that failed, its error and what to do.
//!
//! The driver's library is loaded at run time (`libcuda.so.1`, or the file that `DEVMEM_LIBCUDA` names), by dlopen: a program
//! with this crate needs no CUDA to be built, and runs without a GPU. The crate has the names of the driver's functions and
//! what other vendors do in another way; the rest is `devmem-gpu`.
//!
//! The crate copies packets between the ring of a queue and the memory of the device, in both directions
//! (`crates/core/nic/DECISIONS.md`, "Memory that the CPU cannot access"). It knows no headers.
//! The kernels that it launches add vectors of floats ([`Device::adder`]) and compute CRC-32Cs (`Dmabuf::crc32c`): PTX, which the
//! driver compiles for the GPU that is there. It does not import memory of other processes.

mod remedy;
mod sys;

use netmem::Dmabuf;

pub use devmem_gpu::driver::{Platform, Version};
pub use devmem_gpu::{
    Adder, Allocation, Device, DeviceInfo, Floats, GpuError, LoadError, Place, SharedWords,
};

/// The names that messages have.
pub static PLATFORM: Platform = Platform {
    name: "cuda",
    title: "CUDA",
    library: "libcuda",
    variable: "DEVMEM_LIBCUDA",
    devices: "`nvidia-smi -L` lists them; CUDA_VISIBLE_DEVICES hides some",
    allocators: "cuMemAlloc, cudaMalloc or the CUDA allocator of the framework",
    enter: "cuCtxPushCurrent",
    not_initialized: "CUDA_ERROR_NOT_INITIALIZED",
};

/// Returns the devices of this process.
///
/// # Errors
///
/// [`GpuError`]: there is no driver, or it cannot be initialised.
pub fn devices() -> Result<Vec<DeviceInfo>, GpuError> {
    devmem_gpu::devices(sys::Cuda::get()?)
}

/// Opens a device, or returns another handle of it.
///
/// # Errors
///
/// [`GpuError`]: there is no driver or no such device, or the driver refuses.
pub fn open(ordinal: u32) -> Result<Device, GpuError> {
    Device::open(sys::Cuda::get()?, ordinal)
}

/// Returns the device and the allocation of an address that another library has allocated. Opens no device, unless the driver answers in no
/// other way.
///
/// # Errors
///
/// [`GpuError`]: there is no driver; the address is not one of device memory.
pub fn locate(address: u64) -> Result<Place, GpuError> {
    devmem_gpu::locate(sys::Cuda::get()?, address)
}

/// Returns the number of the device whose context is current in this thread, if there is one.
///
/// # Errors
///
/// [`GpuError`]: there is no driver.
pub fn selected() -> Result<Option<u32>, GpuError> {
    devmem_gpu::selected(sys::Cuda::get()?)
}

/// Returns for each device of this process whether it exports memory as dma-bufs, by the driver's own account. Opens no device.
///
/// # Errors
///
/// [`GpuError`]: there is no driver, or it cannot be initialised.
pub fn exporting() -> Result<Vec<bool>, GpuError> {
    devmem_gpu::exporting(sys::Cuda::get()?)
}

/// Allocates `size` bytes (rounded up to whole pages) of device `ordinal`.
///
/// # Errors
///
/// There is no driver or no such device, or the device does not have enough memory. The error says what to do.
pub fn alloc(ordinal: u32, size: usize) -> Result<Dmabuf, GpuError> {
    open(ordinal)?.alloc_dmabuf(size)
}
