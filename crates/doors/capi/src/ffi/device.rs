// UNSAFETY: C functions on memory of GPUs.

//! Memory of GPUs.

use std::ffi::c_int;
use std::os::fd::IntoRawFd;
use std::ptr;

use super::opaque::DmtMemory;
use crate::devices::{self, Library};
use crate::failure::{Failure, finish};
use crate::stacks;

fn new_memory(name: &'static str, library: Library, device: c_int, bytes: usize) -> *mut DmtMemory {
    let mut number = 0;
    finish(name, || -> Result<_, Failure> {
        number = devices::new_memory(library, device, bytes)?;
        Ok(())
    });
    ptr::without_provenance_mut(number)
}

/// Allocates memory of an NVIDIA GPU.
#[unsafe(no_mangle)]
pub extern "C" fn dmt_memory_cuda(device: c_int, bytes: usize) -> *mut DmtMemory {
    new_memory("dmt_memory_cuda", Library::Cuda, device, bytes)
}

/// Allocates memory of an AMD GPU.
#[unsafe(no_mangle)]
pub extern "C" fn dmt_memory_hip(device: c_int, bytes: usize) -> *mut DmtMemory {
    new_memory("dmt_memory_hip", Library::Hip, device, bytes)
}

/// Allocates memory of a Vulkan device.
#[unsafe(no_mangle)]
pub extern "C" fn dmt_memory_vulkan(device: c_int, bytes: usize) -> *mut DmtMemory {
    new_memory("dmt_memory_vulkan", Library::Vulkan, device, bytes)
}

/// Writes the address of the first byte on the device to `address`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dmt_memory_device_ptr(memory: *mut DmtMemory, address: *mut u64) -> c_int {
    finish("dmt_memory_device_ptr", || -> Result<_, Failure> {
        let memory = stacks::memory(memory.addr())?;
        let found = devices::device_ptr(&memory)?;
        // SAFETY: a number can be written, as the header requires.
        Ok(unsafe { cabi::write(address, found) }?)
    })
}

/// Returns a new file descriptor of the dma-buf of a memory.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dmt_memory_fd(memory: *mut DmtMemory) -> c_int {
    finish("dmt_memory_fd", || -> Result<_, Failure> {
        let memory = stacks::memory(memory.addr())?;
        Ok(devices::export(&memory)?.into_raw_fd())
    })
}
