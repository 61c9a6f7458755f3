//! A device that is selected for the calls of a thread, and questions about the device.
//!
// UNSAFETY: calls of the library with pointers to local variables.
#![allow(unsafe_code)]

use std::ffi::{CStr, c_char, c_int};
use std::marker::PhantomData;
use std::ptr;

use netmem::{DeviceError, Process};

use super::driver::{Driver, Opened};
use super::functions::{Function, Functions, NOT_INITIALIZED, RawDevice, SUCCESS, Status};
use crate::error::GpuError;

/// A device in the way that the frameworks use it, too: their addresses are valid in it.
///
/// Invariant: `opened` was opened once for this value, in the process `process`.
pub(crate) struct Context {
    pub(crate) driver: &'static dyn Driver,
    opened: Opened,
    ordinal: u32,
    process: Process,
}

/// Proof that the device is selected in this thread; dropping it selects the previous one.
pub(crate) struct Current<'a> {
    pub(crate) driver: &'static dyn Driver,
    before: c_int,
    context: PhantomData<&'a Context>,
    /// The selection is one of the thread.
    not_send: PhantomData<*mut ()>,
}

/// Initialises the library, and returns the number of devices.
pub(crate) fn initialise(driver: &'static dyn Driver) -> Result<u32, GpuError> {
    let functions = &driver.loaded().functions;
    // SAFETY: 0 is the only flag.
    let status = unsafe { (functions.init.call)(0) };
    driver.check(functions.init.name, status)?;
    let mut count = 0;
    // SAFETY: room for a number.
    let status = unsafe { (functions.device_count.call)(&raw mut count) };
    driver.check(functions.device_count.name, status)?;
    Ok(u32::try_from(count).unwrap_or(0))
}

impl Functions {
    /// Returns the name of an error.
    pub(crate) fn name_of(&self, code: Status) -> &'static str {
        let mut name: *const c_char = ptr::null();
        // SAFETY: room for a pointer.
        let status = unsafe { (self.error_name.call)(code, &raw mut name) };
        if status != SUCCESS || name.is_null() {
            return "an unknown error";
        }
        // SAFETY: a terminated string of the library, which is never unloaded.
        unsafe { CStr::from_ptr(name) }.to_str().unwrap_or_default()
    }

    /// Returns an attribute of a device; 0 if the library does not know it.
    pub fn attribute(&self, number: c_int, device: RawDevice) -> c_int {
        let mut value = 0;
        let get = self.device_attribute.call;
        // SAFETY: room for a number.
        let status = unsafe { get(&raw mut value, number, device) };
        if status == SUCCESS { value } else { 0 }
    }
}

impl Context {
    /// Opens a device.
    pub(crate) fn open(driver: &'static dyn Driver, ordinal: u32) -> Result<Self, GpuError> {
        let process = Process::current();
        let count = initialise(driver)?;
        let number = c_int::try_from(ordinal).ok().filter(|_| ordinal < count);
        let Some(number) = number else {
            let platform = driver.loaded().platform;
            return Err(GpuError::NoDevice {
                platform,
                ordinal,
                count,
            });
        };
        Ok(Self {
            driver,
            opened: driver.open(number)?,
            ordinal,
            process,
        })
    }

    pub(crate) fn ordinal(&self) -> u32 {
        self.ordinal
    }

    /// Returns the device in the notation of the tools.
    pub(crate) fn name(&self) -> String {
        format!("{}:{}", self.driver.loaded().platform.name, self.ordinal)
    }

    /// Returns whether this is not the process that opened the device: no function of the library may be called.
    pub(crate) fn is_forked(&self) -> bool {
        !self.process.is_current()
    }

    /// Selects the device in this thread.
    pub(crate) fn enter(&self) -> Result<Current<'_>, DeviceError> {
        if self.is_forked() {
            let platform = self.driver.loaded().platform;
            let (call, name) = (platform.enter, platform.not_initialized);
            return Err(self.driver.error(call, NOT_INITIALIZED, name));
        }
        Ok(Current {
            driver: self.driver,
            before: self.driver.enter(self.opened)?,
            context: PhantomData,
            not_send: PhantomData,
        })
    }

    /// Returns the name of the product.
    pub(crate) fn product(&self) -> Result<String, DeviceError> {
        self.text(self.driver.loaded().functions.device_name)
    }

    /// Returns the PCI address of the device, in the notation of sysfs.
    pub(crate) fn pci_address(&self) -> Result<String, DeviceError> {
        let address = self.text(self.driver.loaded().functions.device_pci)?;
        Ok(address.to_ascii_lowercase())
    }

    fn text(
        &self,
        get: Function<unsafe extern "C" fn(*mut c_char, c_int, RawDevice) -> Status>,
    ) -> Result<String, DeviceError> {
        const CAPACITY: c_int = 128;
        let mut text = [0_u8; CAPACITY as usize];
        // SAFETY: room for `CAPACITY` bytes.
        let status = unsafe { (get.call)(text.as_mut_ptr().cast(), CAPACITY, self.opened.device) };
        self.driver.check(get.name, status)?;
        let text = CStr::from_bytes_until_nul(&text).unwrap_or_default();
        Ok(text.to_string_lossy().into_owned())
    }

    /// Returns the bytes of the device's memory.
    pub(crate) fn memory_bytes(&self) -> Result<usize, DeviceError> {
        let mut bytes = 0;
        let get = self.driver.loaded().functions.device_memory;
        // SAFETY: room for a number.
        let status = unsafe { (get.call)(&raw mut bytes, self.opened.device) };
        self.driver.check(get.name, status)?;
        Ok(bytes)
    }

    /// Returns whether the library says that it exports memory of the device.
    pub(crate) fn exports(&self) -> bool {
        self.driver.exports(self.opened.device)
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        if !self.is_forked() {
            self.driver.close(self.opened);
        }
    }
}

impl Drop for Current<'_> {
    fn drop(&mut self) {
        // Values are dropped in the thread that entered (not Send).
        self.driver.leave(self.before);
    }
}
