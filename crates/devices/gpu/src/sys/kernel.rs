//! A vendor's device code, and the functions that load and start it.
//!
// UNSAFETY: functions of the library, with the parameters that are declared here; what is said of a kernel's arguments is part of the proof.
#![allow(unsafe_code)]

use std::ffi::{CStr, c_char, c_uint, c_void};

use super::functions::{RawStream, function_table};

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

/// A vendor's device code with one function, and the functions that load and start it.
#[derive(Clone, Copy, Debug)]
pub struct Kernel {
    /// The functions of the library.
    pub functions: KernelFunctions,
    /// The code, as the library takes it.
    pub image: &'static CStr,
    /// The name of the function. Its arguments are numbers of 8 bytes, and it is right with any number of blocks and of threads in the first
    /// dimension.
    pub entry: &'static CStr,
}
