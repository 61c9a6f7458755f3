//! Tensors that other libraries lend by DLPack.
//!
// UNSAFETY: a capsule is a pointer to a structure of C, which has pointers to numbers, and a function that frees it.
#![allow(unsafe_code)]

use std::ptr::NonNull;

use pyo3::exceptions::PyTypeError;
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::PyDict;

use super::dlpack::{DlTensor, LEGACY, Legacy, READ_ONLY, VERSIONED, Versioned};
use crate::dtype::Dtype;
use crate::error::Error;

/// A tensor of another library, lent until the drop. Invariant: the structure was taken out of its capsule, and is ours until
/// its deleter is called, in the drop.
pub(super) enum Lent {
    Versioned(NonNull<Versioned>),
    Legacy(NonNull<Legacy>),
}

// SAFETY: the structure belongs to no thread; the drop calls its deleter with Python's lock.
unsafe impl Send for Lent {}
// SAFETY: nothing changes the structure.
unsafe impl Sync for Lent {}

impl Lent {
    /// Borrows the tensor of an object that has `__dlpack__`. Its library makes `stream` wait for its work on the tensor.
    pub(super) fn of(object: &Bound<'_, PyAny>, stream: Option<i64>) -> PyResult<Self> {
        let py = object.py();
        let options = PyDict::new(py);
        if let Some(stream) = stream {
            options.set_item("stream", stream)?;
        }
        let latest = options.copy()?;
        latest.set_item("max_version", (1, 0))?;
        let capsule = match object.call_method("__dlpack__", (), Some(&latest)) {
            // Libraries from before version 1 know no such argument.
            Err(error) if error.is_instance_of::<PyTypeError>(py) => {
                object.call_method("__dlpack__", (), Some(&options))?
            }
            result => result?,
        };
        Self::take(&capsule)
    }

    fn take(capsule: &Bound<'_, PyAny>) -> PyResult<Self> {
        let (py, capsule) = (capsule.py(), capsule.as_ptr());
        // SAFETY: a valid object; one that is no capsule of this name is not valid, and no error.
        if unsafe { ffi::PyCapsule_IsValid(capsule, VERSIONED.as_ptr()) } == 1 {
            // SAFETY: the capsule is valid under this name.
            let at = unsafe { ffi::PyCapsule_GetPointer(capsule, VERSIONED.as_ptr()) };
            // SAFETY: a valid capsule; the new name, which is static, says that the structure has a new owner.
            unsafe { ffi::PyCapsule_SetName(capsule, c"used_dltensor_versioned".as_ptr()) };
            let at = NonNull::new(at.cast::<Versioned>()).ok_or_else(|| PyErr::fetch(py))?;
            let lent = Self::Versioned(at);
            // SAFETY: a capsule of this name has such a structure, which is ours (invariant).
            if unsafe { at.as_ref() }.version.major != 1 {
                return Err(Error::buffer("its DLPack is newer than version 1").into());
            }
            return Ok(lent);
        }
        // SAFETY: a valid object; one that is no capsule of this name is not valid, and no error.
        if unsafe { ffi::PyCapsule_IsValid(capsule, LEGACY.as_ptr()) } != 1 {
            return Err(PyTypeError::new_err("__dlpack__ returned no capsule"));
        }
        // SAFETY: the capsule is valid under this name.
        let at = unsafe { ffi::PyCapsule_GetPointer(capsule, LEGACY.as_ptr()) };
        // SAFETY: a valid capsule; the new name, which is static, says that the structure has a new owner.
        unsafe { ffi::PyCapsule_SetName(capsule, c"used_dltensor".as_ptr()) };
        let at = NonNull::new(at.cast::<Legacy>()).ok_or_else(|| PyErr::fetch(py))?;
        Ok(Self::Legacy(at))
    }

    pub(super) fn tensor(&self) -> &DlTensor {
        match self {
            // SAFETY: the structure is there until the drop (invariant).
            Self::Versioned(at) => &unsafe { at.as_ref() }.tensor,
            // SAFETY: as above.
            Self::Legacy(at) => &unsafe { at.as_ref() }.tensor,
        }
    }

    /// Returns whether its library says so; before version 1, none did.
    pub(super) fn is_read_only(&self) -> bool {
        match self {
            // SAFETY: the structure is there until the drop (invariant).
            Self::Versioned(at) => unsafe { at.as_ref() }.flags & READ_ONLY != 0,
            Self::Legacy(_) => false,
        }
    }

    /// Returns the bytes of the elements, if they are contiguous.
    pub(super) fn contiguous_bytes(&self) -> Result<usize, Error> {
        let tensor = self.tensor();
        let dtype = (tensor.lanes == 1).then(|| Dtype::of_dlpack(tensor.code, tensor.bits));
        let Some(dtype) = dtype.flatten() else {
            return Err(Error::buffer(
                "the type of the tensor's elements is unknown",
            ));
        };
        let (shape, strides) = self.extents()?;
        contiguous(shape, strides, 1)?
            .checked_mul(dtype.bytes())
            .ok_or_else(invalid_shape)
    }

    /// Returns shape and strides; no strides if the tensor does not say them: then it is contiguous.
    fn extents(&self) -> Result<(&[i64], &[i64]), Error> {
        let tensor = self.tensor();
        let dimensions = usize::try_from(tensor.ndim).map_err(|_negative| invalid_shape())?;
        if dimensions == 0 {
            return Ok((&[], &[]));
        }
        if tensor.shape.is_null() {
            return Err(invalid_shape());
        }
        // SAFETY: by DLPack, `shape` has `ndim` numbers, which live as long as the structure.
        let shape = unsafe { std::slice::from_raw_parts(tensor.shape, dimensions) };
        if tensor.strides.is_null() {
            return Ok((shape, &[]));
        }
        // SAFETY: by DLPack, `strides` is null or has `ndim` numbers, which live as long as the structure.
        let strides = unsafe { std::slice::from_raw_parts(tensor.strides, dimensions) };
        Ok((shape, strides))
    }
}

/// Returns the number of elements of a shape, if the strides, in units of which an element has `unit`, are those of a contiguous
/// array in the order of C; no strides are.
pub(super) fn contiguous(shape: &[i64], strides: &[i64], unit: usize) -> Result<usize, Error> {
    let (mut elements, mut is_contiguous) = (1usize, true);
    for (at, extent) in shape.iter().enumerate().rev() {
        if let Some(stride) = strides.get(at).filter(|_| *extent != 1) {
            let expected = elements.checked_mul(unit);
            is_contiguous &= usize::try_from(*stride).ok() == expected;
        }
        let extent = usize::try_from(*extent).ok();
        let total = extent.and_then(|extent| elements.checked_mul(extent));
        elements = total.ok_or_else(invalid_shape)?;
    }
    match is_contiguous || elements == 0 {
        true => Ok(elements),
        false => Err(Error::buffer(
            "the tensor is not contiguous\n  make a contiguous copy, in the order of C",
        )),
    }
}

fn invalid_shape() -> Error {
    Error::buffer("the shape of the tensor is invalid")
}

impl Drop for Lent {
    fn drop(&mut self) {
        // Python's lock: the deleter may call into Python.
        Python::attach(|_py| match self {
            Self::Versioned(at) => {
                // SAFETY: the structure is ours until its deleter is called (invariant).
                let deleter = unsafe { at.as_ref() }.deleter;
                if let Some(deleter) = deleter {
                    // SAFETY: called once, with the structure that it is in.
                    unsafe { deleter(at.as_ptr()) };
                }
            }
            Self::Legacy(at) => {
                // SAFETY: the structure is ours until its deleter is called (invariant).
                let deleter = unsafe { at.as_ref() }.deleter;
                if let Some(deleter) = deleter {
                    // SAFETY: called once, with the structure that it is in.
                    unsafe { deleter(at.as_ptr()) };
                }
            }
        });
    }
}
