//! Sums of vectors, computed by a device.
//!
// UNSAFETY: device code that is run with the addresses of checked ranges of memory.
#![allow(unsafe_code)]

use std::fmt;
use std::sync::Arc;

use netmem::{DeviceError, DeviceState, Exporter};

use crate::allocation::Allocation;
use crate::device::Device;
use crate::error::GpuError;
use crate::sys::copies::out_of_range;
use crate::sys::module::Module;

const FLOAT_BYTES: usize = size_of::<f32>();

/// Floats in memory of a device, of the device's byte order: from a byte of the memory on, whose address is a multiple of 4.
#[derive(Clone, Copy, Debug)]
pub struct Floats<'a> {
    /// The memory.
    pub memory: &'a Allocation,
    /// Offset of the first byte.
    pub offset: usize,
}

/// Adds vectors of floats (binary32) in the memory of a device.
///
/// Invariant: the module is that of [`Driver::add_kernel`](crate::driver::Driver::add_kernel).
pub struct Adder {
    module: Module,
}

impl fmt::Debug for Adder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Adder({})", self.module.lanes.context.name())
    }
}

impl Device {
    /// Loads the code that adds vectors.
    ///
    /// # Errors
    ///
    /// [`GpuError::NoAddition`]: there is no such code for the vendor. [`GpuError`] of the driver, which refuses the code.
    pub fn adder(&self) -> Result<Adder, GpuError> {
        let lanes = &self.lanes;
        let platform = self.platform();
        let kernel = lanes.context.driver.add_kernel();
        let kernel = kernel.ok_or(GpuError::NoAddition { platform })?;
        let module = Module::load(lanes, kernel)?;
        Ok(Adder { module })
    }
}

impl Adder {
    /// Adds each of `count` summands to the sum of the same number, and waits: afterwards the device's copies see the sums. Each is rounded to
    /// nearest, ties to even, and subnormal numbers are kept, as the CPU adds; a NaN may have other bits.
    ///
    /// The memory is not received into, nor sent from, meanwhile.
    ///
    /// # Errors
    ///
    /// [`GpuError`]: a range is not inside its memory, or not of this device, or not aligned; the ranges overlap; the memory has been revoked; the
    /// driver refuses.
    pub fn add(
        &self,
        sums: Floats<'_>,
        summands: Floats<'_>,
        count: usize,
    ) -> Result<(), GpuError> {
        let addresses = [self.address(sums, count)?, self.address(summands, count)?];
        if count == 0 {
            return Ok(());
        }
        // In bounds: both ranges are inside of memory.
        if addresses[0].abs_diff(addresses[1]) < (count * FLOAT_BYTES) as u64 {
            return Err(refused("the sums and the summands overlap").into());
        }
        let memories = [sums.memory.memory(), summands.memory.memory()];
        let arguments = [addresses[0], addresses[1], count as u64];
        // SAFETY: the function of the module (invariant) takes three arguments, and accesses `count` floats at both addresses and nothing else
        // (contract of `Driver`), which are inside of the two memories, of this device (`address`).
        let added = unsafe { self.module.run(memories, count, arguments) };
        Ok(added?)
    }

    /// Returns the address of floats, which are inside their memory.
    fn address(&self, floats: Floats<'_>, count: usize) -> Result<u64, DeviceError> {
        let memory = floats.memory.memory();
        let len = count.checked_mul(FLOAT_BYTES).filter(|len| {
            let end = floats.offset.checked_add(*len);
            // The allocation may be longer than what was asked for.
            end.is_some_and(|end| end <= floats.memory.size())
        });
        let address = len.and_then(|len| memory.at(floats.offset, len));
        match address.filter(|_| Arc::ptr_eq(&memory.lanes, &self.module.lanes)) {
            None => Err(out_of_range()),
            // The device would be lost.
            Some(address) if !address.is_multiple_of(FLOAT_BYTES as u64) => {
                Err(refused("the address of a float is not a multiple of 4"))
            }
            Some(address) => Ok(address),
        }
    }
}

/// Returns the error of floats that cannot be added.
fn refused(name: &'static str) -> DeviceError {
    DeviceError {
        call: "add",
        name,
        code: 1,
        state: DeviceState::Usable,
        remedy: "a program error: report it with what the program did",
    }
}
