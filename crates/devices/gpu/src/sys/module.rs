//! A kernel that was loaded: it is started on a stream, and unloaded.
//!
// UNSAFETY: device code that is loaded, and started with arguments that its callers have checked.
#![allow(unsafe_code)]

use std::ffi::{c_uint, c_void};
use std::fmt;
use std::ptr;
use std::sync::Arc;

use netmem::DeviceError;

use super::context::Current;
use super::functions::RawStream;
use super::kernel::{Kernel, RawFunction, RawModule};
use super::lanes::Lanes;
use super::memory::DeviceMemory;

/// Threads of a block: a multiple of the 32 or 64 that run together, and no more than any device takes.
const BLOCK_THREADS: usize = 256;

/// Most blocks of a call: more than the largest devices run at a time. A thread does several items of a longer job.
const BLOCKS_MAX: usize = 4096;

/// A loaded kernel.
///
/// Invariant: the module is loaded in the context of the lanes, `function` is the function `entry` of it, and `drop` unloads it.
pub(crate) struct Module {
    module: RawModule,
    function: RawFunction,
    kernel: &'static Kernel,
    pub(crate) lanes: Arc<Lanes>,
}

// SAFETY: modules and functions belong to the context, not to a thread, and the library's functions may be called by any.
unsafe impl Send for Module {}
// SAFETY: as above; nothing is changed by `run`.
unsafe impl Sync for Module {}

impl fmt::Debug for Module {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Module({:?})", self.kernel.entry)
    }
}

impl Module {
    /// Loads a kernel of the library of `lanes`.
    ///
    /// # Errors
    ///
    /// [`DeviceError`] of the driver, which refuses the code.
    pub(crate) fn load(lanes: &Arc<Lanes>, kernel: &'static Kernel) -> Result<Self, DeviceError> {
        let driver = lanes.context.driver;
        let _current = lanes.enter()?;
        let mut module = ptr::null_mut();
        let load = kernel.functions.module_load;
        // SAFETY: room for a pointer; the image is one that the library takes (contract of `Driver`), and ends with a NUL.
        let status = unsafe { (load.call)(&raw mut module, kernel.image.as_ptr().cast()) };
        lanes.note(driver.check(load.name, status))?;
        // From here on unloaded by `drop`.
        let mut loaded = Self {
            module,
            function: ptr::null_mut(),
            kernel,
            lanes: Arc::clone(lanes),
        };
        let find = kernel.functions.module_function;
        let (found, name) = (&raw mut loaded.function, kernel.entry.as_ptr());
        // SAFETY: room for a pointer; a loaded module; a terminated string.
        let status = unsafe { (find.call)(found, module, name) };
        lanes.note(driver.check(find.name, status))?;
        Ok(loaded)
    }

    /// Runs the function for `items`, at least one, and waits: afterwards the device's copies see what it has written. Each item has a thread, unless
    /// there are more items than [`BLOCKS_MAX`] blocks have threads.
    ///
    /// # Errors
    ///
    /// [`DeviceError`]: one of the memories has been revoked; the driver refuses.
    ///
    /// # Safety
    ///
    /// The function takes `N` arguments. With these it accesses bytes inside of the two memories, which are of the device, and nothing else.
    pub(crate) unsafe fn run<const N: usize>(
        &self,
        memories: [&DeviceMemory; 2],
        items: usize,
        arguments: [u64; N],
    ) -> Result<(), DeviceError> {
        let revocations = memories.map(DeviceMemory::revocation);
        self.lanes.run_and_wait(revocations, |current, stream| {
            // SAFETY: (1) the arguments are right, by the contract; (2) the memories stay until the lane is done (`Lanes::run_and_wait`); (3) the
            // stream is that of the lane.
            unsafe { self.start(current, stream, items, arguments) }
        })
    }

    /// Starts the function.
    ///
    /// # Safety
    ///
    /// As for [`run`](Self::run); the memories stay until the work of the stream, which exists, is done.
    pub(super) unsafe fn start<const N: usize>(
        &self,
        current: &Current<'_>,
        stream: RawStream,
        items: usize,
        mut arguments: [u64; N],
    ) -> Result<(), DeviceError> {
        let blocks = items.div_ceil(BLOCK_THREADS).min(BLOCKS_MAX);
        // At most the two constants.
        let (blocks, threads) = (blocks as c_uint, BLOCK_THREADS as c_uint);
        let mut places = arguments
            .each_mut()
            .map(|argument| ptr::from_mut(argument).cast::<c_void>());
        let (places, function) = (places.as_mut_ptr(), self.function);
        let launch = self.kernel.functions.launch;
        // SAFETY: (1) the function is loaded (invariant) and takes numbers of 8 bytes (`Kernel::entry`), `N` of them by the contract, which the
        // library copies before it returns; (2) it accesses nothing but memory that stays until the stream is done, by the contract; (3) the stream
        // exists, by the contract.
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

impl Drop for Module {
    fn drop(&mut self) {
        if self.lanes.context.is_forked() {
            return;
        }
        if let Ok(_current) = self.lanes.context.enter() {
            // SAFETY: loaded by `load`, unloaded here only; each `run` has waited for its function. Errors: the driver has unloaded it.
            let _ = unsafe { (self.kernel.functions.module_unload.call)(self.module) };
        }
    }
}
