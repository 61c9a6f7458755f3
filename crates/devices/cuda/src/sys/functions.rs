//! The driver's functions, with their parameters.
//!
// UNSAFETY: pointers from the library become functions. The declarations here are the proof: each has the parameters of the
// version that is asked for (cuda.h 12.9 and 13.0).
#![allow(unsafe_code)]

use std::ffi::{c_char, c_int, c_uint, c_void};

use super::library::Library;
use crate::error::LoadError;

/// CUresult.
pub(crate) type Status = c_int;
pub(crate) type RawDevice = c_int;
pub(crate) type DevicePtr = u64;
pub(crate) type RawContext = *mut c_void;
pub(crate) type RawStream = *mut c_void;
pub(crate) type RawEvent = *mut c_void;

pub(crate) const SUCCESS: Status = 0;

/// CUmemLocation: 1 is a device, 0 no hint.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub(crate) struct Location {
    pub(crate) kind: c_int,
    pub(crate) id: c_int,
}

/// CUmemcpyAttributes.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub(crate) struct CopyAttributes {
    pub(crate) source_order: c_uint,
    pub(crate) source: Location,
    pub(crate) destination: Location,
    pub(crate) flags: c_uint,
}

const _: () = assert!(size_of::<CopyAttributes>() == 24 && align_of::<CopyAttributes>() == 4);

/// cuMemcpyBatchAsync of CUDA 12.8: destinations, sources, sizes, their count, attributes, the first copy of each, their
/// count, room for the index of a copy that fails, stream.
pub(crate) type CopyBatch12 = unsafe extern "C" fn(
    *mut DevicePtr,
    *mut DevicePtr,
    *mut usize,
    usize,
    *mut CopyAttributes,
    *mut usize,
    usize,
    *mut usize,
    RawStream,
) -> Status;

/// cuMemcpyBatchAsync of CUDA 13.0: without the index.
pub(crate) type CopyBatch13 = unsafe extern "C" fn(
    *mut DevicePtr,
    *mut DevicePtr,
    *mut usize,
    usize,
    *mut CopyAttributes,
    *mut usize,
    usize,
    RawStream,
) -> Status;

/// The form of cuMemcpyBatchAsync that the driver has.
#[derive(Clone, Copy)]
pub(crate) enum BatchCopy {
    V12(CopyBatch12),
    V13(CopyBatch13),
}

macro_rules! functions {
    ($($field:ident = $symbol:literal $version:literal ($($arg:ty),*);)*) => {
        /// The functions that every supported driver has (CUDA 12.0).
        #[derive(Clone, Copy)]
        pub(crate) struct Functions {
            $(pub(crate) $field: unsafe extern "C" fn($($arg),*) -> Status,)*
        }

        impl Functions {
            pub(crate) fn find(library: &Library) -> Result<Self, LoadError> {
                Ok(Self {
                    $($field: {
                        let found = library.find($symbol, $version)?;
                        // SAFETY: the driver's function of this name and version has these parameters (cuda.h 12.9).
                        unsafe {
                            std::mem::transmute::<*mut c_void, unsafe extern "C" fn($($arg),*) -> Status>(found)
                        }
                    },)*
                })
            }
        }
    };
}

functions! {
    init = c"cuInit" 2000 (c_uint);
    error_name = c"cuGetErrorName" 6000 (Status, *mut *const c_char);
    device_count = c"cuDeviceGetCount" 2000 (*mut c_int);
    device_get = c"cuDeviceGet" 2000 (*mut RawDevice, c_int);
    device_name = c"cuDeviceGetName" 2000 (*mut c_char, c_int, RawDevice);
    device_memory = c"cuDeviceTotalMem" 3020 (*mut usize, RawDevice);
    device_attribute = c"cuDeviceGetAttribute" 2000 (*mut c_int, c_int, RawDevice);
    device_pci = c"cuDeviceGetPCIBusId" 4010 (*mut c_char, c_int, RawDevice);
    context_retain = c"cuDevicePrimaryCtxRetain" 7000 (*mut RawContext, RawDevice);
    context_release = c"cuDevicePrimaryCtxRelease" 11000 (RawDevice);
    context_push = c"cuCtxPushCurrent" 4000 (RawContext);
    context_pop = c"cuCtxPopCurrent" 4000 (*mut RawContext);
    stream_priorities = c"cuCtxGetStreamPriorityRange" 5050 (*mut c_int, *mut c_int);
    mem_alloc = c"cuMemAlloc" 3020 (*mut DevicePtr, usize);
    mem_free = c"cuMemFree" 3020 (DevicePtr);
    mem_export = c"cuMemGetHandleForAddressRange" 11070 (*mut c_int, DevicePtr, usize, c_int, u64);
    host_register = c"cuMemHostRegister" 6050 (*mut c_void, usize, c_uint);
    host_unregister = c"cuMemHostUnregister" 4000 (*mut c_void);
    stream_create = c"cuStreamCreateWithPriority" 5050 (*mut RawStream, c_uint, c_int);
    stream_destroy = c"cuStreamDestroy" 4000 (RawStream);
    stream_synchronize = c"cuStreamSynchronize" 2000 (RawStream);
    stream_wait = c"cuStreamWaitEvent" 3020 (RawStream, RawEvent, c_uint);
    event_create = c"cuEventCreate" 2000 (*mut RawEvent, c_uint);
    event_destroy = c"cuEventDestroy" 4000 (RawEvent);
    event_record = c"cuEventRecord" 2000 (RawEvent, RawStream);
    event_query = c"cuEventQuery" 2000 (RawEvent);
    event_synchronize = c"cuEventSynchronize" 2000 (RawEvent);
    copy_in = c"cuMemcpyHtoDAsync" 3020 (DevicePtr, *const c_void, usize, RawStream);
    copy_out = c"cuMemcpyDtoHAsync" 3020 (*mut c_void, DevicePtr, usize, RawStream);
    copy_within = c"cuMemcpyDtoDAsync" 3020 (DevicePtr, DevicePtr, usize, RawStream);
    pointer_get = c"cuPointerGetAttribute" 4000 (*mut c_void, c_int, DevicePtr);
    pointer_set = c"cuPointerSetAttribute" 6000 (*const c_void, c_int, DevicePtr);
}
