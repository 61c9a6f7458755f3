//! Tensors in host memory as buffers of Python.
//!
// UNSAFETY: the buffer protocol of Python fills a structure of C with pointers, and takes it back later.
#![allow(unsafe_code)]

use std::ffi::{c_int, c_void};

use pyo3::exceptions::PyBufferError;
use pyo3::ffi;
use pyo3::prelude::*;

use crate::device::Access;
use crate::view::View;

/// The part of a tensor that gives buffers: Python finds it as the base class.
#[pyclass(frozen, subclass, module = "devmem_tcp._native", name = "_Buffer")]
#[derive(Debug)]
pub(crate) struct Exported {
    view: View,
}

/// What the pointers of one buffer point to.
struct Shown {
    shape: Vec<ffi::Py_ssize_t>,
    strides: Vec<ffi::Py_ssize_t>,
}

impl Exported {
    pub(crate) fn new(view: View) -> Self {
        Self { view }
    }

    pub(crate) fn view(&self) -> &View {
        &self.view
    }
}

#[pymethods]
impl Exported {
    /// Python's `bf_getbuffer`.
    ///
    /// # Safety
    /// `buffer` is null or points to a structure for this call to fill.
    unsafe fn __getbuffer__(
        slf: Bound<'_, Self>,
        buffer: *mut ffi::Py_buffer,
        flags: c_int,
    ) -> PyResult<()> {
        if buffer.is_null() {
            return Err(PyBufferError::new_err("no place for the buffer"));
        }
        let view = &slf.get().view;
        let Access::Cpu(first) = view.source().place().access else {
            let text = "the CPU cannot access this memory: copy it with tobytes(), or use DLPack";
            return Err(PyBufferError::new_err(text));
        };
        let format = view.dtype().format()?;
        let wants = |flag: c_int| flags & flag == flag;
        if wants(ffi::PyBUF_F_CONTIGUOUS) && view.shape().len() > 1 {
            return Err(PyBufferError::new_err("the tensor is in the order of C"));
        }
        let size = |of: i64| ffi::Py_ssize_t::try_from(of).unwrap_or(ffi::Py_ssize_t::MAX);
        let item = size(view.dtype().bytes().try_into().unwrap_or(i64::MAX));
        let shown = Box::new(Shown {
            shape: view.shape().iter().copied().map(size).collect(),
            strides: view
                .strides()
                .into_iter()
                .map(|stride| size(stride) * item)
                .collect(),
        });
        let shown = Box::into_raw(shown);
        // SAFETY: leaked just now; `__releasebuffer__` frees it.
        let pointers = unsafe { &mut *shown };
        let if_wanted = |flag, pointer| {
            if wants(flag) {
                pointer
            } else {
                std::ptr::null_mut()
            }
        };
        let filled = ffi::Py_buffer {
            buf: std::ptr::with_exposed_provenance_mut(first.wrapping_add(view.offset())),
            len: size(view.bytes().try_into().unwrap_or(i64::MAX)),
            itemsize: item,
            readonly: 0,
            ndim: c_int::try_from(view.shape().len()).unwrap_or(c_int::MAX),
            format: match wants(ffi::PyBUF_FORMAT) {
                true => format.as_ptr().cast_mut().cast(),
                false => std::ptr::null_mut(),
            },
            shape: if_wanted(ffi::PyBUF_ND, pointers.shape.as_mut_ptr()),
            strides: if_wanted(ffi::PyBUF_STRIDES, pointers.strides.as_mut_ptr()),
            internal: shown.cast::<c_void>(),
            // The buffer holds the tensor, and with it the memory.
            obj: slf.into_any().into_ptr(),
            ..ffi::Py_buffer::new()
        };
        // SAFETY: the caller's promise.
        unsafe { buffer.write(filled) };
        Ok(())
    }

    /// Python's `bf_releasebuffer`.
    ///
    /// # Safety
    /// `buffer` was filled by `__getbuffer__`, and is used no more.
    unsafe fn __releasebuffer__(&self, buffer: *mut ffi::Py_buffer) {
        // SAFETY: the caller's promise.
        let shown = unsafe { (*buffer).internal };
        // SAFETY: `__getbuffer__` has put a leaked box there; Python releases a buffer once.
        drop(unsafe { Box::from_raw(shown.cast::<Shown>()) });
    }
}
