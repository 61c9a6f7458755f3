//! Host memory of other libraries: their buffers, and their tensors by DLPack.
//!
// UNSAFETY: a buffer of Python and a structure of DLPack are pointers with a length, and an obligation to release them.
#![allow(unsafe_code)]

use std::ffi::c_int;

use pyo3::exceptions::PyTypeError;
use pyo3::ffi;
use pyo3::prelude::*;

use super::lent::Lent;
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
    Dlpack { _lent: Lent },
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
        let lent = Lent::of(object, None)?;
        let tensor = lent.tensor();
        if tensor.device_type != 1 {
            return Err(Error::buffer(
                "the tensor is not in host memory\n  send it from a binding: nic.bind_tx(Dmabuf.adopt(tensor)); or copy it to the host first",
            )
            .into());
        }
        if wanted == Use::Write && lent.is_read_only() {
            return Err(Error::buffer("the tensor is read-only").into());
        }
        let offset = usize::try_from(tensor.byte_offset).unwrap_or(usize::MAX);
        Ok(Self {
            at: tensor.data.cast::<u8>().wrapping_add(offset),
            len: lent.contiguous_bytes()?,
            _lender: Lender::Dlpack { _lent: lent },
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
        if let Self::Buffer(view) = self {
            // SAFETY: Python's lock is held; filled by PyObject_GetBuffer, and released once.
            Python::attach(|_py| unsafe { ffi::PyBuffer_Release(&raw mut **view) });
        }
    }
}
