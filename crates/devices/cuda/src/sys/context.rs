//! The primary context of a device, and questions about the device.
//!
// UNSAFETY: calls of the driver with pointers to local variables, and with a context that is retained while its value
// exists.
#![allow(unsafe_code)]

use std::ffi::{CStr, c_char, c_int};
use std::marker::PhantomData;
use std::ptr;

use netmem::{DeviceError, Process};

use super::functions::{RawContext, RawDevice, SUCCESS, Status};
use super::library::Driver;
use crate::error::{CudaError, device_error};

/// A device with its primary context, which the CUDA runtime and the frameworks use, too: addresses of theirs are valid in
/// it.
///
/// Invariant: `raw` is retained once by this value, in the process `process`.
pub(crate) struct Context {
    pub(crate) driver: &'static Driver,
    raw: RawContext,
    device: RawDevice,
    ordinal: u32,
    process: Process,
}

// SAFETY: (1) a context belongs to the process, not to a thread; (2) the fields never change.
unsafe impl Send for Context {}
// SAFETY: (1) the fields never change; (2) the driver's functions may be called by any thread.
unsafe impl Sync for Context {}

/// Proof that the context is current in this thread; dropping it restores the one before.
pub(crate) struct Current<'a> {
    pub(crate) driver: &'static Driver,
    context: PhantomData<&'a Context>,
    /// The current context is one of the thread.
    not_send: PhantomData<*mut ()>,
}

/// Initialises the driver, and returns it with the number of devices.
pub(crate) fn initialise() -> Result<(&'static Driver, u32), CudaError> {
    let driver = Driver::get()?;
    // SAFETY: 0 is the only flag.
    let status = unsafe { (driver.functions.init)(0) };
    driver.check("cuInit", status)?;
    let mut count = 0;
    // SAFETY: room for a number.
    let status = unsafe { (driver.functions.device_count)(&raw mut count) };
    driver.check("cuDeviceGetCount", status)?;
    Ok((driver, u32::try_from(count).unwrap_or(0)))
}

impl Driver {
    /// Returns the error of a call, if its status is one.
    pub(crate) fn check(&self, call: &'static str, status: Status) -> Result<(), DeviceError> {
        match status {
            SUCCESS => Ok(()),
            code => Err(device_error(call, code, self.error_name(code))),
        }
    }

    fn error_name(&self, code: Status) -> &'static str {
        let mut name: *const c_char = ptr::null();
        // SAFETY: room for a pointer.
        let status = unsafe { (self.functions.error_name)(code, &raw mut name) };
        if status != SUCCESS || name.is_null() {
            return "an unknown error";
        }
        // SAFETY: a terminated string of the library, which is never unloaded.
        unsafe { CStr::from_ptr(name) }.to_str().unwrap_or_default()
    }
}

impl Context {
    /// Retains the primary context of a device.
    pub(crate) fn retain(ordinal: u32) -> Result<Self, CudaError> {
        let process = Process::current();
        let (driver, count) = initialise()?;
        if ordinal >= count {
            return Err(CudaError::NoDevice { ordinal, count });
        }
        let mut device = 0;
        // SAFETY: room for a number. The ordinal is below a count that was a c_int.
        let status = unsafe { (driver.functions.device_get)(&raw mut device, ordinal as c_int) };
        driver.check("cuDeviceGet", status)?;
        let mut raw = ptr::null_mut();
        // SAFETY: room for a pointer.
        let status = unsafe { (driver.functions.context_retain)(&raw mut raw, device) };
        driver.check("cuDevicePrimaryCtxRetain", status)?;
        Ok(Self {
            driver,
            raw,
            device,
            ordinal,
            process,
        })
    }

    pub(crate) fn ordinal(&self) -> u32 {
        self.ordinal
    }

    /// Returns whether this is not the process that retained the context: nothing of the driver may be called.
    pub(crate) fn is_forked(&self) -> bool {
        !self.process.is_current()
    }

    /// Makes the context current in this thread.
    pub(crate) fn enter(&self) -> Result<Current<'_>, DeviceError> {
        if self.is_forked() {
            return Err(device_error(
                "cuCtxPushCurrent",
                3,
                "CUDA_ERROR_NOT_INITIALIZED",
            ));
        }
        // SAFETY: the context is retained (invariant).
        let status = unsafe { (self.driver.functions.context_push)(self.raw) };
        self.driver.check("cuCtxPushCurrent", status)?;
        Ok(Current {
            driver: self.driver,
            context: PhantomData,
            not_send: PhantomData,
        })
    }

    /// Returns the name of the device.
    pub(crate) fn name(&self) -> Result<String, DeviceError> {
        self.text("cuDeviceGetName", self.driver.functions.device_name)
    }

    /// Returns the PCI address of the device, in the notation of sysfs.
    pub(crate) fn pci_address(&self) -> Result<String, DeviceError> {
        let address = self.text("cuDeviceGetPCIBusId", self.driver.functions.device_pci)?;
        Ok(address.to_ascii_lowercase())
    }

    fn text(
        &self,
        call: &'static str,
        get: unsafe extern "C" fn(*mut c_char, c_int, RawDevice) -> Status,
    ) -> Result<String, DeviceError> {
        const CAPACITY: c_int = 128;
        let mut text = [0_u8; CAPACITY as usize];
        // SAFETY: room for `CAPACITY` bytes.
        let status = unsafe { get(text.as_mut_ptr().cast(), CAPACITY, self.device) };
        self.driver.check(call, status)?;
        let text = CStr::from_bytes_until_nul(&text).unwrap_or_default();
        Ok(text.to_string_lossy().into_owned())
    }

    /// Returns the bytes of the device's memory.
    pub(crate) fn memory_bytes(&self) -> Result<usize, DeviceError> {
        let mut bytes = 0;
        // SAFETY: room for a number.
        let status = unsafe { (self.driver.functions.device_memory)(&raw mut bytes, self.device) };
        self.driver.check("cuDeviceTotalMem", status)?;
        Ok(bytes)
    }

    /// Returns an attribute of the device; 0 if the driver does not know it.
    pub(crate) fn attribute(&self, number: c_int) -> c_int {
        let mut value = 0;
        let get = self.driver.functions.device_attribute;
        // SAFETY: room for a number.
        let status = unsafe { get(&raw mut value, number, self.device) };
        if status == SUCCESS { value } else { 0 }
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        if self.is_forked() {
            return;
        }
        // SAFETY: ends the retention of the invariant, once. An error means that the driver has freed it (process exit).
        let _ = unsafe { (self.driver.functions.context_release)(self.device) };
    }
}

impl Drop for Current<'_> {
    fn drop(&mut self) {
        let mut popped = ptr::null_mut();
        // SAFETY: room for a pointer; `enter` pushed, and values are dropped in the thread that entered (not Send).
        let _ = unsafe { (self.driver.functions.context_pop)(&raw mut popped) };
    }
}
