//! DLPack: capsules for other libraries, in both versions.
//!
// UNSAFETY: a capsule is a pointer to a structure of C, which its consumer reads, and frees through a function pointer in it.
#![allow(unsafe_code)]

use std::ffi::{CStr, c_void};

use pyo3::ffi;
use pyo3::prelude::*;

use crate::source::Source;
use crate::view::View;

pub(super) const VERSIONED: &CStr = c"dltensor_versioned";
pub(super) const LEGACY: &CStr = c"dltensor";

/// The version of DLPack that these structures are of.
const VERSION: Version = Version { major: 1, minor: 1 };

/// dlpack.h DLPACK_FLAG_BITMASK_READ_ONLY.
pub(super) const READ_ONLY: u64 = 1;
/// dlpack.h DLPACK_FLAG_BITMASK_IS_COPIED.
const IS_COPIED: u64 = 2;

/// dlpack.h DLPackVersion.
#[repr(C)]
pub(super) struct Version {
    pub(super) major: u32,
    minor: u32,
}

/// dlpack.h DLTensor, with the fields of DLDevice and DLDataType in their places.
#[repr(C)]
pub(super) struct DlTensor {
    pub(super) data: *mut c_void,
    pub(super) device_type: i32,
    device_id: i32,
    pub(super) ndim: i32,
    pub(super) code: u8,
    pub(super) bits: u8,
    pub(super) lanes: u16,
    pub(super) shape: *mut i64,
    pub(super) strides: *mut i64,
    pub(super) byte_offset: u64,
}

/// dlpack.h DLManagedTensor.
#[repr(C)]
pub(super) struct Legacy {
    pub(super) tensor: DlTensor,
    context: *mut c_void,
    pub(super) deleter: Option<unsafe extern "C" fn(*mut Self)>,
}

/// dlpack.h DLManagedTensorVersioned.
#[repr(C)]
pub(super) struct Versioned {
    pub(super) version: Version,
    context: *mut c_void,
    pub(super) deleter: Option<unsafe extern "C" fn(*mut Self)>,
    pub(super) flags: u64,
    pub(super) tensor: DlTensor,
}

const _: () = assert!(size_of::<DlTensor>() == 48 && size_of::<Legacy>() == 64);
const _: () = assert!(size_of::<Versioned>() == 80);

/// What one capsule owns: the structure for its consumer, what that points to, and the memory. `context` of the structure
/// points to the whole box, so that the deleter can free it.
struct Owned<M> {
    managed: M,
    shape: Vec<i64>,
    strides: Vec<i64>,
    _source: Source,
}

impl<M> Owned<M> {
    /// Leaks a box, and returns it for the pointers in its structure. The deleter frees it.
    fn leak(managed: M, view: &View) -> *mut Self {
        Box::into_raw(Box::new(Self {
            managed,
            shape: view.shape().to_vec(),
            strides: view.strides(),
            _source: view.source().clone(),
        }))
    }
}

/// Describes a view; shape and strides come when their place is known.
fn tensor_of(view: &View) -> DlTensor {
    let (device_type, device_id) = view.source().place().device.dlpack();
    let data = match view.bytes() {
        0 => 0,
        _ => view.address(),
    };
    DlTensor {
        data: std::ptr::with_exposed_provenance_mut(data),
        device_type,
        device_id,
        // The number of dimensions is limited by `View`.
        ndim: i32::try_from(view.shape().len()).unwrap_or(i32::MAX),
        code: view.dtype().code(),
        bits: view.dtype().bits(),
        lanes: 1,
        shape: std::ptr::null_mut(),
        strides: std::ptr::null_mut(),
        byte_offset: 0,
    }
}

/// Returns a capsule of the view. Its deleter drops a clone of the view's [`Source`]: it needs no lock of Python, and may be
/// called by any thread.
pub(crate) fn capsule<'py>(
    py: Python<'py>,
    view: &View,
    is_versioned: IsVersioned,
    is_copied: IsCopied,
) -> PyResult<Bound<'py, PyAny>> {
    let tensor = tensor_of(view);
    match is_versioned {
        IsVersioned::Yes => {
            let managed = Versioned {
                version: VERSION,
                context: std::ptr::null_mut(),
                deleter: Some(delete_versioned),
                flags: match is_copied {
                    IsCopied::Yes => IS_COPIED,
                    IsCopied::No => 0,
                },
                tensor,
            };
            let owned = Owned::leak(managed, view);
            // SAFETY: `owned` was leaked just now, and nobody else knows it.
            let inner = unsafe { &mut *owned };
            inner.managed.context = owned.cast();
            inner.managed.tensor.shape = inner.shape.as_mut_ptr();
            inner.managed.tensor.strides = inner.strides.as_mut_ptr();
            let managed: *mut Versioned = &raw mut inner.managed;
            // SAFETY: (1) the name is static; (2) `managed` is valid until its deleter is called.
            let made = unsafe {
                ffi::PyCapsule_New(managed.cast(), VERSIONED.as_ptr(), Some(drop_versioned))
            };
            // SAFETY: the result is a new reference or null with an exception; without a capsule the box is leaked.
            unsafe { Bound::from_owned_ptr_or_err(py, made) }
        }
        IsVersioned::No => {
            let managed = Legacy {
                tensor,
                context: std::ptr::null_mut(),
                deleter: Some(delete_legacy),
            };
            let owned = Owned::leak(managed, view);
            // SAFETY: `owned` was leaked just now, and nobody else knows it.
            let inner = unsafe { &mut *owned };
            inner.managed.context = owned.cast();
            inner.managed.tensor.shape = inner.shape.as_mut_ptr();
            inner.managed.tensor.strides = inner.strides.as_mut_ptr();
            let managed: *mut Legacy = &raw mut inner.managed;
            // SAFETY: (1) the name is static; (2) `managed` is valid until its deleter is called.
            let made =
                unsafe { ffi::PyCapsule_New(managed.cast(), LEGACY.as_ptr(), Some(drop_legacy)) };
            // SAFETY: the result is a new reference or null with an exception; without a capsule the box is leaked.
            unsafe { Bound::from_owned_ptr_or_err(py, made) }
        }
    }
}

/// Which structure a capsule has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum IsVersioned {
    Yes,
    No,
}

/// Whether the consumer gets a copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum IsCopied {
    Yes,
    No,
}

/// The deleter of [`Versioned`].
///
/// # Safety
/// `managed` is null or came out of a capsule of ours, and its consumer uses it no more.
unsafe extern "C" fn delete_versioned(managed: *mut Versioned) {
    if managed.is_null() {
        return;
    }
    // SAFETY: the caller's promise: the structure is valid.
    let context = unsafe { (*managed).context };
    // SAFETY: `capsule` has set `context` to the leaked box, which is freed here only, once.
    drop(unsafe { Box::from_raw(context.cast::<Owned<Versioned>>()) });
}

/// The deleter of [`Legacy`].
///
/// # Safety
/// As [`delete_versioned`].
unsafe extern "C" fn delete_legacy(managed: *mut Legacy) {
    if managed.is_null() {
        return;
    }
    // SAFETY: the caller's promise: the structure is valid.
    let context = unsafe { (*managed).context };
    // SAFETY: `capsule` has set `context` to the leaked box, which is freed here only, once.
    drop(unsafe { Box::from_raw(context.cast::<Owned<Legacy>>()) });
}

/// Destructor of a capsule. A consumer renames a capsule that it took over, and calls the deleter itself.
///
/// # Safety
/// Python calls it, with its lock, for a capsule that `capsule` has made.
unsafe extern "C" fn drop_versioned(capsule: *mut ffi::PyObject) {
    // SAFETY: the caller's promise; a capsule of another name is no error here.
    if unsafe { ffi::PyCapsule_IsValid(capsule, VERSIONED.as_ptr()) } == 1 {
        // SAFETY: the capsule is valid under this name.
        let managed = unsafe { ffi::PyCapsule_GetPointer(capsule, VERSIONED.as_ptr()) };
        // SAFETY: nobody took the structure out of the capsule, which ends here.
        unsafe { delete_versioned(managed.cast()) };
    }
}

/// As [`drop_versioned`].
///
/// # Safety
/// As [`drop_versioned`].
unsafe extern "C" fn drop_legacy(capsule: *mut ffi::PyObject) {
    // SAFETY: the caller's promise; a capsule of another name is no error here.
    if unsafe { ffi::PyCapsule_IsValid(capsule, LEGACY.as_ptr()) } == 1 {
        // SAFETY: the capsule is valid under this name.
        let managed = unsafe { ffi::PyCapsule_GetPointer(capsule, LEGACY.as_ptr()) };
        // SAFETY: nobody took the structure out of the capsule, which ends here.
        unsafe { delete_legacy(managed.cast()) };
    }
}
