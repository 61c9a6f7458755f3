//! Loading the library of a vendor.
//!
// UNSAFETY: dlopen and dlsym.
#![allow(unsafe_code)]

use std::env;
use std::ffi::{CStr, CString, OsStr, c_int, c_void};
use std::os::unix::ffi::OsStrExt;
use std::ptr::NonNull;

use super::functions::{Name, SUCCESS, Status};
use crate::driver::{Platform, Version};
use crate::error::LoadError;

/// A loaded library. It is never unloaded: it has threads and exit handlers.
#[derive(Debug)]
pub struct Library {
    handle: NonNull<c_void>,
    platform: &'static Platform,
}

impl Library {
    /// Loads the file that the environment variable of the platform names, or the first of `names` that exists.
    ///
    /// # Errors
    ///
    /// [`LoadError::NoLibrary`] with the reason for the first name.
    ///
    /// # Safety
    ///
    /// The code of the library runs: `names` are names of the vendor's library.
    pub unsafe fn open(platform: &'static Platform, names: &[&str]) -> Result<Self, LoadError> {
        if let Some(name) = env::var_os(platform.variable) {
            // SAFETY: the contract, for the file that the user has named.
            return unsafe { Self::load(platform, &name) };
        }
        let mut first = None;
        for name in names {
            // SAFETY: the contract is the same.
            match unsafe { Self::load(platform, OsStr::new(name)) } {
                Ok(library) => return Ok(library),
                Err(error) => first = first.or(Some(error)),
            }
        }
        Err(first.unwrap_or_else(|| missing(platform, OsStr::new(""), "no name".to_owned())))
    }

    unsafe fn load(platform: &'static Platform, name: &OsStr) -> Result<Self, LoadError> {
        let path = CString::new(name.as_bytes())
            .map_err(|_nul| missing(platform, name, "a NUL byte".to_owned()))?;
        // SAFETY: a terminated string; the library's constructors may run, by the contract.
        let handle = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
        match NonNull::new(handle) {
            Some(handle) => Ok(Self { handle, platform }),
            None => Err(missing(platform, name, last_error())),
        }
    }

    /// Returns a function.
    ///
    /// # Errors
    ///
    /// [`LoadError::NoFunction`].
    pub fn symbol(&self, name: Name) -> Result<*mut c_void, LoadError> {
        // SAFETY: a handle of dlopen that is never closed, and a terminated string.
        let found = unsafe { libc::dlsym(self.handle.as_ptr(), name.symbol.as_ptr()) };
        match found.is_null() {
            true => Err(self.lacks(name)),
            false => Ok(found),
        }
    }

    /// Returns the number that a function returns; `None` if it fails.
    ///
    /// # Errors
    ///
    /// [`LoadError::NoFunction`].
    ///
    /// # Safety
    ///
    /// The function has one parameter: room for a number.
    pub unsafe fn number(&self, name: Name) -> Result<Option<u32>, LoadError> {
        type Get = unsafe extern "C" fn(*mut c_int) -> Status;
        let found = self.symbol(name)?;
        // SAFETY: the parameter is that of the contract.
        let get = unsafe { std::mem::transmute::<*mut c_void, Get>(found) };
        let mut number = 0;
        // SAFETY: room for a number.
        let status = unsafe { get(&raw mut number) };
        Ok(u32::try_from(number).ok().filter(|_| status == SUCCESS))
    }

    /// Refuses a version.
    ///
    /// # Errors
    ///
    /// [`LoadError::Old`], if it is older than `oldest`.
    pub fn require(&self, version: Version, oldest: Version) -> Result<(), LoadError> {
        match version < oldest {
            true => Err(LoadError::Old {
                platform: self.platform,
                version,
                oldest,
            }),
            false => Ok(()),
        }
    }

    /// Returns the error of a function that is missing.
    pub fn lacks(&self, name: Name) -> LoadError {
        LoadError::NoFunction {
            platform: self.platform,
            name: name.text(),
            since: name.since,
        }
    }
}

fn missing(platform: &'static Platform, name: &OsStr, reason: String) -> LoadError {
    LoadError::NoLibrary {
        platform,
        name: name.to_string_lossy().into_owned(),
        reason,
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
