// UNSAFETY: declares what NCCL and this library share; sizes and offsets are asserted below.

//! What NCCL's interface has for devices whose kernels unpack.

use std::ffi::{c_int, c_void};
use std::mem::offset_of;

/// The function behind `get_device_mr`.
pub type GetDeviceMr = unsafe extern "C" fn(*mut c_void, *mut c_void, *mut *mut c_void) -> c_int;
/// The function behind `irecv_consumed`.
pub type IrecvConsumed = unsafe extern "C" fn(*mut c_void, c_int, *mut c_void) -> c_int;

/// What a receiving communicator gives to kernels.
#[repr(C)]
pub struct NetDeviceHandle {
    pub device_type: c_int,
    pub device_version: c_int,
    /// Address in memory of the GPU.
    pub handle: *mut c_void,
    pub size: usize,
    pub needs_proxy_progress: c_int,
}

const _: () = {
    assert!(size_of::<NetDeviceHandle>() == 32);
    assert!(offset_of!(NetDeviceHandle, device_version) == 4);
    assert!(offset_of!(NetDeviceHandle, handle) == 8);
    assert!(offset_of!(NetDeviceHandle, size) == 16);
    assert!(offset_of!(NetDeviceHandle, needs_proxy_progress) == 24);
};
