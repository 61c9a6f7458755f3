//! Host memory of the driver, which a device reads where it is: at the same address.
//!
// UNSAFETY: C functions that write to addresses of their caller, with the contracts of NVIDIA's and AMD's functions of these names; memory
// of the C library.
#![allow(unsafe_code, non_snake_case, missing_docs, clippy::missing_safety_doc)]

use std::ffi::{c_int, c_uint, c_void};

use crate::calls::{functions, put};
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
