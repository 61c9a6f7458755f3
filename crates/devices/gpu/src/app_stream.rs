//! Streams of the application, which wait for copies of a device or are waited for.
//!
// UNSAFETY: streams of the application, which promises that they exist.
#![allow(unsafe_code)]

use std::ffi::c_void;

use netmem::Fence;

use crate::device::Device;
use crate::error::GpuError;

impl Device {
    /// Makes a stream of the application wait for copies of this device, so that kernels on it see their bytes; the CPU does
    /// not wait.
    ///
    /// # Errors
    ///
    /// [`GpuError`] of the driver.
    ///
    /// # Safety
    ///
    /// `stream` is a stream of this device (a CUstream of its primary context, a hipStream_t) that exists, or one of the driver's
    /// special handles.
    pub unsafe fn hold_stream(&self, fence: Fence, stream: *mut c_void) -> Result<(), GpuError> {
        // SAFETY: the contract is the same.
        Ok(unsafe { self.lanes.hold_stream(fence, stream) }?)
    }

    /// Waits until the work of a stream of the application is done; null is the default stream. Memory that the stream works on
    /// may be adopted then.
    ///
    /// # Errors
    ///
    /// [`GpuError`] of the driver, or of a kernel on the stream.
    ///
    /// # Safety
    ///
    /// As for [`hold_stream`](Self::hold_stream), or `stream` is null.
    pub unsafe fn synchronize_stream(&self, stream: *mut c_void) -> Result<(), GpuError> {
        // SAFETY: the contract is the same.
        Ok(unsafe { self.lanes.synchronize_stream(stream) }?)
    }
}
