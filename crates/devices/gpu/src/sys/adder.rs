//! Sums of vectors, computed by a device.
//!
// UNSAFETY: device code that is loaded, and started with the addresses of checked ranges of memory whose owners wait for the lanes before
// they free it.
#![allow(unsafe_code)]

use std::ffi::{CStr, c_char, c_uint, c_void};
use std::fmt;
use std::ptr;
use std::sync::Arc;

use netmem::{DeviceError, DeviceState, Exporter};

use super::context::Current;
use super::functions::RawStream;
use super::lanes::Lanes;
use super::memory::out_of_range;
use crate::allocation::Allocation;
use crate::device::Device;
use crate::error::GpuError;
use crate::function_table;

/// Device code that was loaded.
pub type RawModule = *mut c_void;
/// A function of device code.
pub type RawFunction = *mut c_void;

function_table! {
    KernelNames, KernelFunctions;
    /// Loads device code: room for the module, its image.
    module_load(*mut RawModule, *const c_void);
    /// Unloads a module.
    module_unload(RawModule);
    /// Finds a function: room for it, the module, a name.
    module_function(*mut RawFunction, RawModule, *const c_char);
    /// Starts a function: blocks in three dimensions, threads of a block in three dimensions, bytes of shared memory, stream, addresses of the
    /// arguments, other arguments.
    launch(RawFunction, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, RawStream, *mut *mut c_void, *mut *mut c_void);
}

/// A vendor's device code that adds floats, and the functions that load and start it.
#[derive(Clone, Copy, Debug)]
pub struct AddKernel {
    /// The functions of the library.
    pub functions: KernelFunctions,
    /// The code, as the library takes it.
    pub image: &'static CStr,
    /// The name of the function: it takes the addresses of the sums and of the summands, and the number of floats, 8 bytes each. With any number of
    /// blocks and of threads in the first dimension, it adds each summand to the sum of the same number, and accesses nothing else.
    pub entry: &'static CStr,
}

/// Threads of a block: a multiple of the 32 or 64 that run together, and no more than any device takes.
const BLOCK_THREADS: usize = 256;

/// Most blocks of a call: more than the largest devices run at a time. A thread adds several floats of a longer vector.
const BLOCKS_MAX: usize = 4096;

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
/// Invariant: the module is loaded in the context of the lanes, `function` is the function `entry` of it, and `drop` unloads it.
pub struct Adder {
    module: RawModule,
    function: RawFunction,
    kernel: &'static AddKernel,
    lanes: Arc<Lanes>,
}

// SAFETY: modules and functions belong to the context, not to a thread, and the library's functions may be called by any.
unsafe impl Send for Adder {}
// SAFETY: as above; nothing is changed by `add`.
unsafe impl Sync for Adder {}

impl fmt::Debug for Adder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Adder({})", self.lanes.context.name())
    }
}

impl Device {
    /// Loads the code that adds vectors.
    ///
    /// # Errors
    ///
    /// [`GpuError::NoAddition`]: there is no such code for the vendor. [`GpuError`] of the driver, which refuses the code.
    pub fn adder(&self) -> Result<Adder, GpuError> {
        let lanes = &self.engine.lanes;
        let driver = lanes.context.driver;
        let platform = self.platform();
        let kernel = driver
            .add_kernel()
            .ok_or(GpuError::NoAddition { platform })?;
        let _current = lanes.enter()?;
        let mut module = ptr::null_mut();
        let load = kernel.functions.module_load;
        // SAFETY: room for a pointer; the image is one that the library takes (contract of `Driver`), and ends with a NUL.
        let status = unsafe { (load.call)(&raw mut module, kernel.image.as_ptr().cast()) };
        lanes.note(driver.check(load.name, status))?;
        // From here on unloaded by `drop`.
        let mut adder = Adder {
            module,
            function: ptr::null_mut(),
            kernel,
            lanes: Arc::clone(lanes),
        };
        let find = kernel.functions.module_function;
        let (found, name) = (&raw mut adder.function, kernel.entry.as_ptr());
        // SAFETY: room for a pointer; a loaded module; a terminated string.
        let status = unsafe { (find.call)(found, module, name) };
        lanes.note(driver.check(find.name, status))?;
        Ok(adder)
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
        let added = self.lanes.run_and_wait(memories, |current, stream| {
            self.start(current, stream, addresses, count)
        });
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
        match address.filter(|_| Arc::ptr_eq(&memory.lanes, &self.lanes)) {
            None => Err(out_of_range()),
            // The device would be lost.
            Some(address) if !address.is_multiple_of(FLOAT_BYTES as u64) => {
                Err(refused("the address of a float is not a multiple of 4"))
            }
            Some(address) => Ok(address),
        }
    }

    /// Starts the function on `count` floats at the addresses of sums and summands, at least one.
    fn start(
        &self,
        current: &Current<'_>,
        stream: RawStream,
        [sums, summands]: [u64; 2],
        count: usize,
    ) -> Result<(), DeviceError> {
        let blocks = count.div_ceil(BLOCK_THREADS).min(BLOCKS_MAX);
        // At most the two constants.
        let (blocks, threads) = (blocks as c_uint, BLOCK_THREADS as c_uint);
        let mut arguments = [sums, summands, count as u64];
        let mut places = arguments
            .each_mut()
            .map(|argument| ptr::from_mut(argument).cast::<c_void>());
        let (places, function) = (places.as_mut_ptr(), self.function);
        let launch = self.kernel.functions.launch;
        // SAFETY: (1) the function is loaded (invariant) and takes three numbers of 8 bytes, which the library copies before it returns; (2) it
        // accesses `count` floats at both addresses and nothing else (`AddKernel::entry`), which are inside of device memory that stays until the
        // lane is done (`Lanes::run_and_wait`); (3) the stream exists.
        let status = unsafe {
            (launch.call)(
                function,
                blocks,
                1,
                1,
                threads,
                1,
                1,
                0,
                stream,
                places,
                ptr::null_mut(),
            )
        };
        current.driver.check(launch.name, status)
    }
}

impl Drop for Adder {
    fn drop(&mut self) {
        if self.lanes.context.is_forked() {
            return;
        }
        if let Ok(_current) = self.lanes.context.enter() {
            // SAFETY: loaded by `adder`, unloaded here only; each `add` has waited for its function. Errors: the driver has unloaded it.
            let _ = unsafe { (self.kernel.functions.module_unload.call)(self.module) };
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
