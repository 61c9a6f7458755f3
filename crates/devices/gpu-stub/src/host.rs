//! Host memory of the driver, which a device reads where it is: at the same address; and dma-bufs of the kernel.
//!
// UNSAFETY: C functions that write to addresses of their caller, with the contracts of NVIDIA's and AMD's functions of these names; memory
// of the C library.
#![allow(unsafe_code, non_snake_case, missing_docs, clippy::missing_safety_doc)]

use std::ffi::{c_int, c_uint, c_void};

use crate::calls::{NOT_SUPPORTED, functions, put};
use crate::machine::{INVALID_VALUE, OUT_OF_MEMORY};

const PAGE_BYTES: usize = 4096;

functions! {
    cuMemHostAlloc [hipHostMalloc] (out: *mut *mut c_void, size: usize, _flags: c_uint) |machine| {
        machine.current()?;
        // SAFETY: a size of whole pages.
        let start = unsafe { libc::aligned_alloc(PAGE_BYTES, size.next_multiple_of(PAGE_BYTES)) };
        if start.is_null() {
            return Err(OUT_OF_MEMORY);
        }
        machine.registered.insert(start.expose_provenance(), size);
        // SAFETY: as the function's contract says.
        unsafe { put(out, start) };
        Ok(())
    }
    cuMemFreeHost [hipHostFree] (start: *mut c_void) |machine| {
        machine.current()?;
        machine.registered.remove(&start.addr()).ok_or(INVALID_VALUE)?;
        // SAFETY: allocated above, by the caller's contract.
        unsafe { libc::free(start) };
        Ok(())
    }
    cuMemHostGetDevicePointer [hipHostGetDevicePointer] (out: *mut u64, start: *mut c_void, _flags: c_uint) |machine| {
        machine.current()?;
        machine.registered.get(&start.addr()).ok_or(INVALID_VALUE)?;
        // SAFETY: as the function's contract says.
        unsafe { put(out, start.expose_provenance() as u64) };
        Ok(())
    }
}

/// struct udmabuf_create.
#[repr(C)]
struct UdmabufCreate {
    file: u32,
    flags: u32,
    offset: u64,
    size: u64,
}

/// UDMABUF_CREATE.
const CREATE: libc::Ioctl = 0x4018_7542;
/// UDMABUF_FLAGS_CLOEXEC.
const CLOEXEC: u32 = 1;

/// Makes a dma-buf of a range of a memory file.
pub(crate) fn udmabuf(file: i32, offset: u64, size: u64) -> Result<i32, i32> {
    let create = UdmabufCreate {
        file: file.cast_unsigned(),
        flags: CLOEXEC,
        offset,
        size,
    };
    // SAFETY: a file of this process. An error is found by the next call.
    let _ = unsafe { libc::fcntl(file, libc::F_ADD_SEALS, libc::F_SEAL_SHRINK) };
    // SAFETY: a terminated path.
    let device = unsafe { libc::open(c"/dev/udmabuf".as_ptr(), libc::O_RDWR | libc::O_CLOEXEC) };
    // SAFETY: the argument of this request; a wrong descriptor is an error.
    let made = unsafe { libc::ioctl(device, CREATE, &raw const create) };
    // SAFETY: opened above.
    unsafe { libc::close(device) };
    if made < 0 {
        Err(NOT_SUPPORTED)
    } else {
        Ok(made)
    }
}
