//! The functions of ROCm's library that CUDA does not have, or has with other parameters. All are found by their symbols.
//!
// UNSAFETY: C functions that write to addresses of their caller, with the contracts of AMD's functions of these names.
#![allow(unsafe_code, non_snake_case, missing_docs, clippy::missing_safety_doc)]

use std::cell::Cell;
use std::ffi::{c_char, c_int, c_uint, c_void};

use crate::calls::{function, put};
use crate::machine::{CURRENT, INVALID_VALUE, machine};

/// The version of HIP, unless the plan has another: 7.0.
const RUNTIME: c_int = 70_051_831;

/// HSA_STATUS_ERROR, HSA_STATUS_ERROR_INVALID_ARGUMENT.
const HSA_ERROR: c_int = 0x1000;
const HSA_ERROR_INVALID_ARGUMENT: c_int = 0x1001;

thread_local! {
    /// The last error of this thread.
    pub(crate) static LAST_ERROR: Cell<c_int> = const { Cell::new(0) };
}

/// Selects the first device, if this thread has selected none.
pub(crate) fn select_first() {
    CURRENT.with_borrow_mut(|stack| {
        if stack.is_empty() {
            stack.push(1);
        }
    });
}

/// hipPointerAttribute_t.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct PointerAttributes {
    kind: c_int,
    device: c_int,
    addresses: [u64; 2],
    is_managed: c_int,
    flags: c_uint,
}

/// Returns the version of the plan.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hipRuntimeGetVersion(out: *mut c_int) -> c_int {
    // SAFETY: as the function's contract says.
    unsafe { put(out, machine().plan.driver.unwrap_or(RUNTIME)) };
    0
}

/// Returns the last error of this thread, and clears it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hipGetLastError() -> c_int {
    let error = LAST_ERROR.replace(0);
    machine().plan.log(&format!("hipGetLastError {error}"));
    error
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn hipDrvGetErrorName(code: c_int, out: *mut *const c_char) -> c_int {
    let name = match code {
        1 => c"hipErrorInvalidValue",
        2 => c"hipErrorOutOfMemory",
        3 => c"hipErrorNotInitialized",
        100 => c"hipErrorNoDevice",
        201 => c"hipErrorInvalidContext",
        700 => c"hipErrorIllegalAddress",
        801 => c"hipErrorNotSupported",
        _ => return INVALID_VALUE,
    };
    // SAFETY: room for a pointer, by the contract of the function.
    unsafe { put(out, name.as_ptr()) };
    0
}

function!([#[unsafe(no_mangle)]] pub hipGetDevice(out: *mut c_int) |machine| {
    let device = machine.current()? as c_int - 1;
    // SAFETY: as the function's contract says.
    unsafe { put(out, device) };
    Ok(())
});

function!([#[unsafe(no_mangle)]] pub hipSetDevice(device: c_int) |machine| {
    if device >= machine.plan.devices {
        return Err(101);
    }
    CURRENT.with_borrow_mut(|stack| *stack = vec![device as usize + 1]);
    Ok(())
});

function!([#[unsafe(no_mangle)]] pub hipMemGetAddressRange(start: *mut u64, size: *mut usize, address: u64) |machine| {
    let (first, memory) = machine.find(address).ok_or(INVALID_VALUE)?;
    // SAFETY: as the function's contract says.
    unsafe { put(start, first) };
    // SAFETY: as the function's contract says.
    unsafe { put(size, memory.size) };
    Ok(())
});

function!([#[unsafe(no_mangle)]] pub hipPointerGetAttributes(out: *mut PointerAttributes, address: *const c_void) |machine| {
    let found = machine.find(address.addr() as u64);
    let kind = match found {
        Some(_) => 2,
        None if machine.is_registered(address.addr(), 1) => 1,
        None => 0,
    };
    let attributes = PointerAttributes {
        kind,
        device: found.map_or(0, |(_, memory)| memory.device as c_int - 1),
        addresses: [address.addr() as u64; 2],
        is_managed: c_int::from(machine.plan.managed),
        flags: 0,
    };
    // SAFETY: as the function's contract says.
    unsafe { put(out, attributes) };
    Ok(())
});

function!([#[unsafe(no_mangle)]] pub hsa_system_get_info(attribute: c_int, out: *mut bool) |machine| {
    if attribute != 0x204 {
        return Err(HSA_ERROR_INVALID_ARGUMENT);
    }
    // SAFETY: as the function's contract says.
    unsafe { put(out, machine.plan.dmabuf) };
    Ok(())
});

// Exports the whole allocation, as it is in ROCm.
function!([#[unsafe(no_mangle)]] pub hsa_amd_portable_export_dmabuf(address: u64, size: usize, out: *mut c_int, offset: *mut u64) |machine| {
    machine.device_bytes(address, size).map_err(|_| HSA_ERROR_INVALID_ARGUMENT)?;
    let (start, memory) = machine.find(address).ok_or(HSA_ERROR_INVALID_ARGUMENT)?;
    if !machine.plan.dmabuf {
        return Err(HSA_ERROR);
    }
    // SAFETY: a descriptor of this allocation; the copy belongs to the caller.
    let fd = unsafe { libc::fcntl(memory.file, libc::F_DUPFD_CLOEXEC, 3) };
    // SAFETY: as the function's contract says.
    unsafe { put(out, fd) };
    // SAFETY: as the function's contract says.
    unsafe { put(offset, address - start) };
    Ok(())
});
