//! Loading the driver's library, and its functions.
//!
// UNSAFETY: dlopen, dlsym, and the driver's own functions to find others.
#![allow(unsafe_code)]

use std::env;
use std::ffi::{CStr, CString, OsString, c_char, c_int, c_void};
use std::os::unix::ffi::OsStrExt;
use std::ptr;
use std::sync::OnceLock;

use super::functions::{BatchCopy, CopyBatch12, CopyBatch13, Functions, SUCCESS, Status};
use crate::error::LoadError;

/// Where the library is looked for first: a file name, for a driver that the loader does not find.
const OVERRIDE: &str = "DEVMEM_LIBCUDA";

/// The library of the driver. `libcuda.so` is a link of the development kit, perhaps to a library that does nothing.
const LIBRARY: &str = "libcuda.so.1";

/// The loaded driver. It is never unloaded: it has threads and exit handlers.
pub(crate) struct Driver {
    pub(crate) functions: Functions,
    pub(crate) batch: Option<BatchCopy>,
    /// As cuDriverGetVersion returns it: 13000 is CUDA 13.0.
    pub(crate) version: i32,
}

impl Driver {
    /// Returns the driver of this machine; loads it at the first call.
    pub(crate) fn get() -> Result<&'static Driver, LoadError> {
        static DRIVER: OnceLock<Result<Driver, LoadError>> = OnceLock::new();
        DRIVER
            .get_or_init(Driver::load)
            .as_ref()
            .map_err(Clone::clone)
    }

    fn load() -> Result<Driver, LoadError> {
        let name = env::var_os(OVERRIDE).unwrap_or_else(|| LIBRARY.into());
        let library = Library::open(name)?;
        Ok(Driver {
            functions: Functions::find(&library)?,
            batch: library.batch_copy(),
            version: library.version,
        })
    }
}

/// cuGetProcAddress of CUDA 12: name, room for the function, version, flags, room for a status.
type Find = unsafe extern "C" fn(*const c_char, *mut *mut c_void, c_int, u64, *mut c_int) -> Status;

/// The library, and the driver's own function that finds the others.
pub(crate) struct Library {
    find: Find,
    version: c_int,
}

impl Library {
    fn open(name: OsString) -> Result<Self, LoadError> {
        let shown = name.to_string_lossy().into_owned();
        let missing = |reason: String| LoadError::NoLibrary {
            name: shown.clone(),
            reason,
        };
        let path =
            CString::new(name.as_bytes()).map_err(|_nul| missing("a NUL byte".to_owned()))?;
        // SAFETY: a terminated string. The library's constructors run: it is the driver of this machine.
        let handle = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
        if handle.is_null() {
            return Err(missing(last_error()));
        }
        let version = version(symbol(handle, c"cuDriverGetVersion", 2020)?);
        if version < LoadError::OLDEST {
            return Err(LoadError::Old { version });
        }
        let found = symbol(handle, c"cuGetProcAddress_v2", LoadError::OLDEST)?;
        // SAFETY: the function of this name has these parameters since CUDA 12.0.
        let find = unsafe { std::mem::transmute::<*mut c_void, Find>(found) };
        Ok(Self { find, version })
    }

    /// Returns a function in the version of a CUDA release.
    pub(crate) fn find(
        &self,
        name: &'static CStr,
        version: c_int,
    ) -> Result<*mut c_void, LoadError> {
        self.versioned(name, version)
            .ok_or_else(|| no_function(name, version))
    }

    fn versioned(&self, name: &CStr, version: c_int) -> Option<*mut c_void> {
        let (mut found, mut status) = (ptr::null_mut(), 0);
        let (name, found_at, status_at) = (name.as_ptr(), &raw mut found, &raw mut status);
        // SAFETY: a terminated string, and room for a pointer and a status.
        let result = unsafe { (self.find)(name, found_at, version, 0, status_at) };
        (result == SUCCESS && !found.is_null()).then_some(found)
    }

    fn batch_copy(&self) -> Option<BatchCopy> {
        let name = c"cuMemcpyBatchAsync";
        if let Some(found) = self.versioned(name, 13_000) {
            // SAFETY: version 13.0 of the function has these parameters.
            return Some(BatchCopy::V13(unsafe {
                std::mem::transmute::<*mut c_void, CopyBatch13>(found)
            }));
        }
        let found = self.versioned(name, 12_080)?;
        // SAFETY: version 12.8 of the function has these parameters.
        Some(BatchCopy::V12(unsafe {
            std::mem::transmute::<*mut c_void, CopyBatch12>(found)
        }))
    }
}

/// Returns a symbol of the library.
fn symbol(
    handle: *mut c_void,
    name: &'static CStr,
    version: c_int,
) -> Result<*mut c_void, LoadError> {
    // SAFETY: a handle of dlopen that is never closed, and a terminated string.
    let found = unsafe { libc::dlsym(handle, name.as_ptr()) };
    match found.is_null() {
        true => Err(no_function(name, version)),
        false => Ok(found),
    }
}

/// Returns what cuDriverGetVersion returns, which needs no initialisation; 0 if it fails.
fn version(found: *mut c_void) -> c_int {
    type Get = unsafe extern "C" fn(*mut c_int) -> Status;
    // SAFETY: cuDriverGetVersion has this parameter since CUDA 2.2.
    let get = unsafe { std::mem::transmute::<*mut c_void, Get>(found) };
    let mut version = 0;
    // SAFETY: room for a number.
    let status = unsafe { get(&raw mut version) };
    if status == SUCCESS { version } else { 0 }
}

fn no_function(name: &'static CStr, version: c_int) -> LoadError {
    LoadError::NoFunction {
        name: name.to_str().unwrap_or_default(),
        version,
    }
}

/// Returns the reason why dlopen failed.
fn last_error() -> String {
    // SAFETY: returns null, or a terminated string that is valid until the next call of this thread.
    let text = unsafe { libc::dlerror() };
    if text.is_null() {
        return "unknown".to_owned();
    }
    // SAFETY: not null, so a terminated string.
    unsafe { CStr::from_ptr(text) }
        .to_string_lossy()
        .into_owned()
}
