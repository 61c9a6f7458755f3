//! Memory of GPUs: CUDA, HIP and Vulkan.

use std::any::Any;
use std::ffi::c_int;
use std::os::fd::OwnedFd;

use devmem_tcp::{cuda, hip};
use devmem_uapi::Errno;
use netmem::Dmabuf;

use crate::failure::Failure;
use crate::stacks;

/// A library of GPUs.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Library {
    Cuda,
    Hip,
    Vulkan,
}

/// Allocates memory of a device and returns its number.
pub(crate) fn new_memory(library: Library, device: c_int, bytes: usize) -> Result<usize, Failure> {
    let device = u32::try_from(device).map_err(|_negative| {
        let text = format!("{device} is not the number of a device; the first one is 0");
        Failure::new(Errno::EINVAL, text)
    })?;
    let made = match library {
        Library::Cuda => cuda::alloc(device, bytes).map_err(devmem_tcp::Error::from),
        Library::Hip => hip::alloc(device, bytes).map_err(devmem_tcp::Error::from),
        Library::Vulkan => return new_vulkan_memory(device, bytes),
    };
    stacks::add_memory(made)
}

#[cfg(feature = "vulkan")]
fn new_vulkan_memory(device: u32, bytes: usize) -> Result<usize, Failure> {
    let made = devmem_tcp::vulkan::alloc(device, bytes);
    stacks::add_memory(made.map_err(devmem_tcp::Error::from))
}

#[cfg(not(feature = "vulkan"))]
fn new_vulkan_memory(_device: u32, _bytes: usize) -> Result<usize, Failure> {
    Err(Failure::new(
        Errno::EOPNOTSUPP,
        "this libdevmemtcp was built without Vulkan; the Debian package has it, and \
         `cargo build --release -p devmem-tcp-c --features vulkan` builds it",
    ))
}

fn allocation_of<T: Any>(memory: &Dmabuf) -> Option<&T> {
    let exporter: &dyn Any = memory.exporter()?.as_ref();
    exporter.downcast_ref()
}

/// Returns the address of a memory for the libraries of its device.
pub(crate) fn device_ptr(memory: &Dmabuf) -> Result<u64, Failure> {
    // Memory of CUDA and of HIP is of one type.
    let allocation = allocation_of::<cuda::Allocation>(memory);
    let address = allocation.map(cuda::Allocation::device_ptr);
    address.ok_or_else(|| {
        Failure::new(
            Errno::EOPNOTSUPP,
            "the memory has no address on a device; dmt_memory_cuda and dmt_memory_hip make memory that has one",
        )
    })
}

/// Returns a new descriptor of the dma-buf of a memory.
pub(crate) fn export(memory: &Dmabuf) -> Result<OwnedFd, Failure> {
    let refused = |error: devmem_tcp::Error| Failure::of(error.errno(), &error);
    if let Some(allocation) = allocation_of::<cuda::Allocation>(memory) {
        allocation.export().map_err(|error| refused(error.into()))?;
    }
    #[cfg(feature = "vulkan")]
    if let Some(allocation) = allocation_of::<devmem_tcp::vulkan::Allocation>(memory) {
        allocation.export().map_err(|error| refused(error.into()))?;
    }
    let file = memory.as_fd().ok_or_else(|| {
        Failure::new(
            Errno::EINVAL,
            "memory of dmt_memory_new has no file descriptor; make it with dmt_memory_udmabuf, dmt_memory_heap or a function \
             for memory of a GPU",
        )
    })?;
    file.try_clone_to_owned().map_err(|error| {
        let errno = Errno(error.raw_os_error().unwrap_or(Errno::EMFILE.0));
        Failure::of(errno, &error)
    })
}
