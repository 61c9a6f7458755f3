//! Memory of other libraries: their buffers, and their tensors by DLPack.
//!
// UNSAFETY: a buffer of Python and a structure of DLPack are pointers with a length, and an obligation to release them.
#![allow(unsafe_code)]

use std::ffi::c_int;
use std::ptr::NonNull;

use pyo3::exceptions::PyTypeError;
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::PyDict;

use super::dlpack::{DlTensor, LEGACY, Legacy, READ_ONLY, VERSIONED, Versioned};
use crate::dtype::Dtype;
use crate::error::Error;

/// What the memory is taken for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Use {
    Read,
    Write,
}

/// Contiguous host memory of another library, borrowed until the drop. Invariant: `at` is the beginning of `len` bytes that
/// the lender keeps until then, initialised, and writable if it was taken for [`Use::Write`]; not null unless `len` is 0.
///
/// As with `socket.recv_into`, the program must not use the bytes in other threads during a call.
pub(crate) struct Foreign {
    at: *mut u8,
    len: usize,
    // Its drop releases the memory.
    _lender: Lender,
}

// SAFETY: the pointer is only an address of the process; the lender is dropped with Python's lock by its own means.
unsafe impl Send for Foreign {}
// SAFETY: the fields never change.
unsafe impl Sync for Foreign {}

/// The lender of the memory, and what must be given back to it.
enum Lender {
    Buffer(Box<ffi::Py_buffer>),
    Versioned(NonNull<Versioned>),
    Legacy(NonNull<Legacy>),
}

impl Foreign {
    /// Borrows the memory of `object`: a buffer (bytes, bytearray, memoryview, a numpy array), or a tensor of the CPU that
    /// has `__dlpack__` (torch, jax).
    pub(crate) fn of(object: &Bound<'_, PyAny>, wanted: Use) -> PyResult<Self> {
        // SAFETY: `object` is a valid object, and Python's lock is held.
        if unsafe { ffi::PyObject_CheckBuffer(object.as_ptr()) } == 1 {
            return Self::of_buffer(object, wanted);
        }
        if object.hasattr("__dlpack__")? {
            return Self::of_dlpack(object, wanted);
        }
        let name = object.get_type().name()?;
        Err(PyTypeError::new_err(format!(
            "{name} is neither a buffer nor a tensor: it lacks __dlpack__"
        )))
    }

    fn of_buffer(object: &Bound<'_, PyAny>, wanted: Use) -> PyResult<Self> {
        let flags: c_int = match wanted {
            // Both mean: contiguous, in the order of C.
            Use::Read => ffi::PyBUF_SIMPLE,
            Use::Write => ffi::PyBUF_WRITABLE,
        };
        let mut view = Box::new(ffi::Py_buffer::new());
        // SAFETY: `object` is a valid object; `view` is for this call to fill, and does not move until it is released.
        let status = unsafe { ffi::PyObject_GetBuffer(object.as_ptr(), &raw mut *view, flags) };
        if status != 0 {
            return Err(PyErr::fetch(object.py()));
        }
        let (at, len) = (view.buf.cast(), usize::try_from(view.len).unwrap_or(0));
        Ok(Self {
            at,
            len,
            _lender: Lender::Buffer(view),
        })
    }

    fn of_dlpack(object: &Bound<'_, PyAny>, wanted: Use) -> PyResult<Self> {
        let py = object.py();
        let options = PyDict::new(py);
        options.set_item("max_version", (1, 0))?;
        let capsule = match object.call_method("__dlpack__", (), Some(&options)) {
            // Libraries from before version 1 know no such argument.
            Err(error) if error.is_instance_of::<PyTypeError>(py) => {
                object.call_method0("__dlpack__")?
            }
            result => result?,
        };
        let capsule = capsule.as_ptr();
        // SAFETY: a valid object; one that is no capsule of this name is not valid, and no error.
        if unsafe { ffi::PyCapsule_IsValid(capsule, VERSIONED.as_ptr()) } == 1 {
            // SAFETY: the capsule is valid under this name.
            let at = unsafe { ffi::PyCapsule_GetPointer(capsule, VERSIONED.as_ptr()) };
            // SAFETY: a valid capsule; the new name, which is static, says that the structure has a new owner.
            unsafe { ffi::PyCapsule_SetName(capsule, c"used_dltensor_versioned".as_ptr()) };
            let at = NonNull::new(at.cast::<Versioned>()).ok_or_else(|| PyErr::fetch(py))?;
            let lender = Lender::Versioned(at);
            // SAFETY: a capsule of this name has such a structure, which is ours until its deleter is called.
            let managed = unsafe { at.as_ref() };
            if managed.version.major != 1 {
                return Err(Error::buffer("its DLPack is newer than version 1").into());
            }
            if wanted == Use::Write && managed.flags & READ_ONLY != 0 {
                return Err(Error::buffer("the tensor is read-only").into());
            }
            return Ok(Self::of_tensor(&managed.tensor, lender)?);
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
        let lender = Lender::Legacy(at);
        // SAFETY: a capsule of this name has such a structure, which is ours until its deleter is called.
        let managed = unsafe { at.as_ref() };
        Ok(Self::of_tensor(&managed.tensor, lender)?)
    }

    fn of_tensor(tensor: &DlTensor, lender: Lender) -> Result<Self, Error> {
        if tensor.device_type != 1 {
            return Err(Error::buffer(
                "the tensor is not in host memory\n  use a tensor over Dmabuf.cuda or Dmabuf.hip, which the GPU copies to",
            ));
        }
        let dtype = (tensor.lanes == 1).then(|| Dtype::of_dlpack(tensor.code, tensor.bits));
        let Some(dtype) = dtype.flatten() else {
            return Err(Error::buffer(
                "the type of the tensor's elements is unknown",
            ));
        };
        let (shape, strides) = extents_of(tensor)?;
        let (mut elements, mut is_contiguous) = (1usize, true);
        for (at, extent) in shape.iter().enumerate().rev() {
            if let Some(stride) = strides.get(at).filter(|_| *extent != 1) {
                is_contiguous &= usize::try_from(*stride) == Ok(elements);
            }
            let extent = usize::try_from(*extent).ok();
            let total = extent.and_then(|extent| elements.checked_mul(extent));
            elements = total.ok_or_else(invalid_shape)?;
        }
        if !is_contiguous && elements > 0 {
            return Err(Error::buffer(
                "the tensor is not contiguous\n  make a contiguous copy, in the order of C",
            ));
        }
        let offset = usize::try_from(tensor.byte_offset).unwrap_or(usize::MAX);
        let len = elements.checked_mul(dtype.bytes());
        let len = len.ok_or_else(invalid_shape)?;
        Ok(Self {
            at: tensor.data.cast::<u8>().wrapping_add(offset),
            len,
            _lender: lender,
        })
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Returns whether the memory has a byte in common with `len` bytes at `address`.
    pub(crate) fn overlaps(&self, address: usize, len: usize) -> bool {
        let at = self.at.addr();
        let apart = at.saturating_add(self.len) <= address || address.saturating_add(len) <= at;
        !apart && len > 0 && self.len > 0
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        if self.len == 0 {
            return &[];
        }
        // SAFETY: the invariant; the lender keeps the bytes while `self` is borrowed.
        unsafe { std::slice::from_raw_parts(self.at, self.len) }
    }

    /// Returns the bytes of memory that was taken for [`Use::Write`].
    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        if self.len == 0 {
            return &mut [];
        }
        // SAFETY: the invariant; the lender keeps the bytes while `self` is borrowed, and this is its only reference.
        unsafe { std::slice::from_raw_parts_mut(self.at, self.len) }
    }
}

fn invalid_shape() -> Error {
    Error::buffer("the shape of the tensor is invalid")
}

/// Returns shape and strides of a tensor; no strides if it does not say them: then it is contiguous.
fn extents_of(tensor: &DlTensor) -> Result<(&[i64], &[i64]), Error> {
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

impl std::fmt::Debug for Foreign {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let len = &self.len;
        f.debug_struct("Foreign")
            .field("len", len)
            .finish_non_exhaustive()
    }
}

impl Drop for Lender {
    fn drop(&mut self) {
        // Python's lock: a lender is Python's, or calls into it.
        Python::attach(|_py| match self {
            // SAFETY: filled by PyObject_GetBuffer, and released once.
            Self::Buffer(view) => unsafe { ffi::PyBuffer_Release(&raw mut **view) },
            Self::Versioned(at) => {
                // SAFETY: the structure is ours until its deleter is called.
                let deleter = unsafe { at.as_ref() }.deleter;
                if let Some(deleter) = deleter {
                    // SAFETY: called once, with the structure that it is in.
                    unsafe { deleter(at.as_ptr()) };
                }
            }
            Self::Legacy(at) => {
                // SAFETY: the structure is ours until its deleter is called.
                let deleter = unsafe { at.as_ref() }.deleter;
                if let Some(deleter) = deleter {
                    // SAFETY: called once, with the structure that it is in.
                    unsafe { deleter(at.as_ptr()) };
                }
            }
        });
    }
}
