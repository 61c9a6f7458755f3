//! Loading the library of a vendor.
//!
// UNSAFETY: runs code of a library, and calls a function that is found by its name.
#![allow(unsafe_code)]

use std::env;
use std::ffi::{OsStr, c_int, c_void};
use std::mem::ManuallyDrop;

use libloading::os::unix::{self, RTLD_LOCAL, RTLD_NOW};

use super::functions::{Name, SUCCESS, Status};
use crate::error::LoadError;
use crate::platform::{Platform, Version};

/// A loaded library. It is never unloaded: it has threads and exit handlers.
#[derive(Debug)]
pub struct Library {
    loaded: ManuallyDrop<unix::Library>,
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
        // SAFETY: the library's constructors may run, by the contract.
        match unsafe { unix::Library::open(Some(name), RTLD_NOW | RTLD_LOCAL) } {
            Ok(loaded) => Ok(Self {
                loaded: ManuallyDrop::new(loaded),
                platform,
            }),
            Err(error) => Err(missing(platform, name, error.to_string())),
        }
    }

    /// Returns a function.
    ///
    /// # Errors
    ///
    /// [`LoadError::NoFunction`].
    pub fn symbol(&self, name: Name) -> Result<*mut c_void, LoadError> {
        let symbol = name.symbol.to_bytes_with_nul();
        // SAFETY: the address of a symbol, which may be null.
        match unsafe { self.loaded.get::<*mut c_void>(symbol) } {
            Ok(found) if !found.is_null() => Ok(*found),
            Ok(_) | Err(_) => Err(self.lacks(name)),
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
