//! The driver's functions: their names, and the parameters of those that other vendors do not have.
//!
// UNSAFETY: functions of the driver are declared, and found by one of them. The names and parameters here are the proof: each has those of the version
// that is asked for (cuda.h 12.9 and 13.0).
#![allow(unsafe_code)]

use std::ffi::{c_char, c_int, c_void};
use std::ptr;

use devmem_gpu::driver::{DevicePtr, KernelNames, Name, Names, RawDevice, SUCCESS, Status};
use devmem_gpu::function_table;

/// The functions that other vendors have, too.
pub(crate) const NAMES: Names = Names {
    init: Name::new(c"cuInit", 2, 0),
    error_name: Name::new(c"cuGetErrorName", 6, 0),
    device_count: Name::new(c"cuDeviceGetCount", 2, 0),
    device_name: Name::new(c"cuDeviceGetName", 2, 0),
    device_memory: Name::new(c"cuDeviceTotalMem", 3, 2),
    device_attribute: Name::new(c"cuDeviceGetAttribute", 2, 0),
    device_pci: Name::new(c"cuDeviceGetPCIBusId", 4, 1),
    stream_priorities: Name::new(c"cuCtxGetStreamPriorityRange", 5, 5),
    mem_alloc: Name::new(c"cuMemAlloc", 3, 2),
    mem_free: Name::new(c"cuMemFree", 3, 2),
    host_register: Name::new(c"cuMemHostRegister", 6, 5),
    host_unregister: Name::new(c"cuMemHostUnregister", 4, 0),
    host_alloc: Name::new(c"cuMemHostAlloc", 2, 2),
    host_free: Name::new(c"cuMemFreeHost", 2, 0),
    host_address: Name::new(c"cuMemHostGetDevicePointer", 3, 2),
    stream_create: Name::new(c"cuStreamCreateWithPriority", 5, 5),
    stream_destroy: Name::new(c"cuStreamDestroy", 4, 0),
    stream_synchronize: Name::new(c"cuStreamSynchronize", 2, 0),
    stream_wait: Name::new(c"cuStreamWaitEvent", 3, 2),
    event_create: Name::new(c"cuEventCreate", 2, 0),
    event_destroy: Name::new(c"cuEventDestroy", 4, 0),
    event_record: Name::new(c"cuEventRecord", 2, 0),
    event_query: Name::new(c"cuEventQuery", 2, 0),
    event_synchronize: Name::new(c"cuEventSynchronize", 2, 0),
    copy_in: Name::new(c"cuMemcpyHtoDAsync", 3, 2),
    copy_out: Name::new(c"cuMemcpyDtoHAsync", 3, 2),
    copy_within: Name::new(c"cuMemcpyDtoDAsync", 3, 2),
    pointer_set: Name::new(c"cuPointerSetAttribute", 6, 0),
};

/// cuGetProcAddress of CUDA 12: name, room for the function, version, flags, room for a status.
pub(crate) type Find =
    unsafe extern "C" fn(*const c_char, *mut *mut c_void, c_int, u64, *mut c_int) -> Status;

function_table! {
    OwnNames, Own;
    device_get(*mut RawDevice, c_int);
    context_retain(*mut *mut c_void, RawDevice);
    context_release(RawDevice);
    context_push(*mut c_void);
    context_pop(*mut *mut c_void);
    context_device(*mut RawDevice);
    capture_mode(*mut c_int);
    mem_export(*mut c_int, DevicePtr, usize, c_int, u64);
    pointer_get(*mut c_void, c_int, DevicePtr);
}

/// What other libraries do not have, or have with other parameters.
pub(crate) const OWN_NAMES: OwnNames = OwnNames {
    device_get: Name::new(c"cuDeviceGet", 2, 0),
    context_retain: Name::new(c"cuDevicePrimaryCtxRetain", 7, 0),
    context_release: Name::new(c"cuDevicePrimaryCtxRelease", 11, 0),
    context_push: Name::new(c"cuCtxPushCurrent", 4, 0),
    context_pop: Name::new(c"cuCtxPopCurrent", 4, 0),
    context_device: Name::new(c"cuCtxGetDevice", 2, 0),
    capture_mode: Name::new(c"cuThreadExchangeStreamCaptureMode", 10, 1),
    mem_export: Name::new(c"cuMemGetHandleForAddressRange", 11, 7),
    pointer_get: Name::new(c"cuPointerGetAttribute", 4, 0),
};

/// The functions that load and start device code.
pub(crate) const KERNEL_NAMES: KernelNames = KernelNames {
    module_load: Name::new(c"cuModuleLoadData", 2, 0),
    module_unload: Name::new(c"cuModuleUnload", 2, 0),
    module_function: Name::new(c"cuModuleGetFunction", 2, 0),
    launch: Name::new(c"cuLaunchKernel", 4, 0),
};

/// Returns a function in the version of a CUDA release.
pub(super) fn find_versioned(find: Find, name: Name) -> Option<*mut c_void> {
    let (mut found, mut status) = (ptr::null_mut(), 0);
    let version = (name.since.0 * 1000 + name.since.1 * 10).cast_signed();
    let (symbol, found_at) = (name.symbol.as_ptr(), &raw mut found);
    // SAFETY: a terminated string, and room for a pointer and a status.
    let result = unsafe { find(symbol, found_at, version, 0, &raw mut status) };
    (result == SUCCESS && !found.is_null()).then_some(found)
}
