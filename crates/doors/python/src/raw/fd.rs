//! File descriptors by number.
//!
// UNSAFETY: a number that os.dup has returned becomes the owner of its descriptor.
#![allow(unsafe_code)]

use std::os::fd::{FromRawFd, OwnedFd};

use pyo3::prelude::*;

/// Duplicates the descriptor of a number, or of an object with `fileno()`.
pub(crate) fn duplicate(object: &Bound<'_, PyAny>) -> PyResult<OwnedFd> {
    let number: i32 = match object.extract() {
        Ok(number) => number,
        Err(_) => object.call_method0("fileno")?.extract()?,
    };
    let copy = object.py().import("os")?.call_method1("dup", (number,))?;
    let copy: i32 = copy.extract()?;
    // SAFETY: os.dup has returned a new descriptor, which nobody else knows.
    Ok(unsafe { OwnedFd::from_raw_fd(copy) })
}
