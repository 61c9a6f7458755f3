//! The functions that are found by their symbols, those that need no initialisation, and the batched copy.
//!
// UNSAFETY: C functions that read and write addresses of their caller, with the contracts of NVIDIA's functions of these
// names.
#![allow(unsafe_code, non_snake_case)]

use std::ffi::{CStr, c_char, c_int, c_void};
use std::slice;

use crate::calls::{self, call, copy, put};
use crate::machine::{INVALID_VALUE, Machine, machine};
use crate::{cuda, host, kernels};

/// CUmemcpyAttributes: order of the source, two locations, flags.
#[repr(C)]
struct CopyAttributes {
    source_order: u32,
    locations: [i32; 4],
    flags: u32,
}

const SOURCE_ORDER_STREAM: u32 = 1;

/// The version of CUDA, unless the plan has another.
const DRIVER: c_int = 13_000;

/// Returns the version of the plan.
///
/// # Safety
///
/// `out` has room for a number.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDriverGetVersion(out: *mut c_int) -> c_int {
    // SAFETY: as the contract says.
    unsafe { put(out, machine().plan.driver.unwrap_or(DRIVER)) };
    0
}

/// Finds a function in the version of a CUDA release; success and null for one that is unknown.
///
/// # Safety
///
/// `symbol` is a terminated string, `out` and `status` have room for a pointer and a number.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuGetProcAddress_v2(
    symbol: *const c_char,
    out: *mut *mut c_void,
    version: c_int,
    _flags: u64,
    status: *mut c_int,
) -> c_int {
    // SAFETY: as the contract says.
    let name = unsafe { CStr::from_ptr(symbol) };
    let name = name.to_str().unwrap_or_default();
    let machine = machine();
    if version > machine.plan.driver.unwrap_or(DRIVER) {
        return INVALID_VALUE;
    }
    let found = match (name, version) {
        _ if !machine.plan.has(name) => None,
        ("cuGetErrorName", _) => Some(error_name as *const c_void),
        ("cuMemcpyBatchAsync", 13_000..) => Some(copy_batch_13 as *const c_void),
        ("cuMemcpyBatchAsync", 12_080..) => Some(copy_batch_12 as *const c_void),
        _ => calls::find(name)
            .or_else(|| cuda::find(name))
            .or_else(|| host::find(name))
            .or_else(|| kernels::find(name)),
    };
    // SAFETY: as the contract says.
    unsafe { put(status, c_int::from(found.is_none())) };
    let found = found.map_or(std::ptr::null_mut(), <*const c_void>::cast_mut);
    // SAFETY: as the contract says.
    unsafe { put(out, found) };
    0
}

unsafe extern "C" fn error_name(code: c_int, out: *mut *const c_char) -> c_int {
    let name = match code {
        1 => c"CUDA_ERROR_INVALID_VALUE",
        2 => c"CUDA_ERROR_OUT_OF_MEMORY",
        3 => c"CUDA_ERROR_NOT_INITIALIZED",
        100 => c"CUDA_ERROR_NO_DEVICE",
        200 => c"CUDA_ERROR_INVALID_IMAGE",
        209 => c"CUDA_ERROR_NO_BINARY_FOR_GPU",
        218 => c"CUDA_ERROR_INVALID_PTX",
        221 => c"CUDA_ERROR_JIT_COMPILER_NOT_FOUND",
        201 => c"CUDA_ERROR_INVALID_CONTEXT",
        400 => c"CUDA_ERROR_INVALID_HANDLE",
        500 => c"CUDA_ERROR_NOT_FOUND",
        700 => c"CUDA_ERROR_ILLEGAL_ADDRESS",
        801 => c"CUDA_ERROR_NOT_SUPPORTED",
        803 => c"CUDA_ERROR_SYSTEM_DRIVER_MISMATCH",
        _ => return INVALID_VALUE,
    };
    // SAFETY: room for a pointer, by the contract of cuGetErrorName.
    unsafe { put(out, name.as_ptr()) };
    0
}

unsafe extern "C" fn copy_batch_13(
    to: *mut u64,
    from: *mut u64,
    sizes: *mut usize,
    count: usize,
    attributes: *mut CopyAttributes,
    firsts: *mut usize,
    attribute_count: usize,
    stream: *mut c_void,
) -> c_int {
    // SAFETY: arrays of `count` entries, by the contract of cuMemcpyBatchAsync.
    let to = unsafe { slice::from_raw_parts(to, count) };
    // SAFETY: as above.
    let from = unsafe { slice::from_raw_parts(from, count) };
    // SAFETY: as above.
    let sizes = unsafe { slice::from_raw_parts(sizes, count) };
    // SAFETY: `attribute_count` entries, by the contract; this stub takes one.
    let attributes = unsafe { attributes.read() };
    // SAFETY: as above.
    let first = unsafe { firsts.read() };
    let is_usual = attribute_count == 1
        && first == 0
        && attributes.source_order == SOURCE_ORDER_STREAM
        && attributes.locations == [0; 4];
    let bytes: usize = sizes.iter().sum();
    let arguments = format!("count={count} bytes={bytes} flags={}", attributes.flags);
    call("cuMemcpyBatchAsync", &arguments, |machine| {
        let pinned = |machine: &Machine, address: u64, len| {
            machine.find(address).is_some() || machine.is_registered(address as usize, len)
        };
        if !is_usual || count == 0 || stream.is_null() {
            return Err(INVALID_VALUE);
        }
        for ((&to, &from), &len) in to.iter().zip(from).zip(sizes) {
            if !pinned(machine, to, len) || !pinned(machine, from, len) {
                return Err(INVALID_VALUE);
            }
            copy(machine, to, from, len, stream)?;
        }
        Ok(())
    })
}

unsafe extern "C" fn copy_batch_12(
    to: *mut u64,
    from: *mut u64,
    sizes: *mut usize,
    count: usize,
    attributes: *mut CopyAttributes,
    firsts: *mut usize,
    attribute_count: usize,
    failed: *mut usize,
    stream: *mut c_void,
) -> c_int {
    // SAFETY: room for an index, by the contract of CUDA 12.8.
    unsafe { put(failed, usize::MAX) };
    // SAFETY: the contract is the same but for the index.
    unsafe {
        copy_batch_13(
            to,
            from,
            sizes,
            count,
            attributes,
            firsts,
            attribute_count,
            stream,
        )
    }
}
