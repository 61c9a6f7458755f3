//! DLPack: capsules for other libraries, in both versions.
//!
// UNSAFETY: a capsule is a pointer to a structure of C, which its consumer reads, and frees through a function pointer in it.
#![allow(unsafe_code)]

use std::ffi::{CStr, c_void};

use pyo3::ffi;
use pyo3::prelude::*;

use crate::error::Error;
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
    pub(super) device_id: i32,
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

/// Either structure.
trait Managed: Sized {
    /// The name of a capsule with it.
    const NAME: &'static CStr;

    /// Returns the structure for a tensor. `context` is the box that it is in, which its deleter frees.
    fn new(tensor: DlTensor, context: *mut c_void, flags: u64) -> Self;

    fn context(&self) -> *mut c_void;
}

impl Managed for Legacy {
    const NAME: &'static CStr = LEGACY;

    fn new(tensor: DlTensor, context: *mut c_void, _flags: u64) -> Self {
        Self {
            tensor,
            context,
            deleter: Some(delete::<Self>),
        }
    }

    fn context(&self) -> *mut c_void {
        self.context
    }
}

impl Managed for Versioned {
    const NAME: &'static CStr = VERSIONED;

    fn new(tensor: DlTensor, context: *mut c_void, flags: u64) -> Self {
        Self {
            version: VERSION,
            context,
            deleter: Some(delete::<Self>),
            flags,
            tensor,
        }
    }

    fn context(&self) -> *mut c_void {
        self.context
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

/// What one capsule owns: the structure for its consumer, what that points to, and the memory.
struct Owned<M> {
    /// Set once the box has its place.
    managed: Option<M>,
    shape: Vec<i64>,
    strides: Vec<i64>,
    source: Source,
}

/// Describes a view.
fn tensor_of(view: &View, address: usize, shape: *mut i64, strides: *mut i64) -> DlTensor {
    let (device_type, device_id) = view.source().place().dlpack();
    let data = match view.bytes() {
        0 => 0,
        _ => address,
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
        shape,
        strides,
        byte_offset: 0,
    }
}

/// Returns a capsule of the view, whose memory must have addresses. Its deleter drops a clone of the view's [`Source`]: it
/// needs no lock of Python, and may be called by any thread.
pub(crate) fn capsule<'py>(
    py: Python<'py>,
    view: &View,
    is_versioned: IsVersioned,
    is_copied: IsCopied,
) -> PyResult<Bound<'py, PyAny>> {
    let copied = match is_copied {
        IsCopied::Yes => IS_COPIED,
        IsCopied::No => 0,
    };
    match (is_versioned, view.source().is_read_only()) {
        (IsVersioned::Yes, true) => make::<Versioned>(py, view, copied | READ_ONLY),
        (IsVersioned::Yes, false) => make::<Versioned>(py, view, copied),
        (IsVersioned::No, false) => make::<Legacy>(py, view, copied),
        (IsVersioned::No, true) => Err(Error::buffer(
            "the tensor is read-only, which DLPack before version 1 does not tell\n  use a library that asks for version 1",
        )
        .into()),
    }
}

fn make<'py, M: Managed>(py: Python<'py>, view: &View, flags: u64) -> PyResult<Bound<'py, PyAny>> {
    let address = view.address();
    let address = address.ok_or_else(|| Error::buffer(view.source().place().no_address()))?;
    let owned = Box::into_raw(Box::new(Owned::<M> {
        managed: None,
        shape: view.shape().to_vec(),
        strides: view.strides(),
        source: view.source().clone(),
    }));
    // SAFETY: `owned` was leaked just now, and nobody else knows it.
    let inner = unsafe { &mut *owned };
    let (shape, strides) = (inner.shape.as_mut_ptr(), inner.strides.as_mut_ptr());
    let tensor = tensor_of(view, address, shape, strides);
    let managed = inner.managed.insert(M::new(tensor, owned.cast(), flags));
    let managed: *mut M = managed;
    // SAFETY: (1) the name is static; (2) `managed` is valid until its deleter is called, by `destroy` or the consumer.
    let made = unsafe { ffi::PyCapsule_New(managed.cast(), M::NAME.as_ptr(), Some(destroy::<M>)) };
    // SAFETY: the result is a new reference, or null with an exception; without a capsule the box stays leaked.
    unsafe { Bound::from_owned_ptr_or_err(py, made) }
}

/// The deleter of a structure.
///
/// # Safety
/// `managed` is null or of a capsule of [`make`], and is used no more.
unsafe extern "C" fn delete<M: Managed>(managed: *mut M) {
    // SAFETY: the caller's promise: a structure is valid until its deleter is called.
    let Some(context) = (unsafe { managed.as_ref() }).map(M::context) else {
        return;
    };
    // SAFETY: `make` has set `context` to the leaked box, which is freed here only, once.
    let owned = unsafe { Box::from_raw(context.cast::<Owned<M>>()) };
    drop(owned.source);
}

/// Destructor of a capsule. A consumer that takes the structure over renames the capsule, and calls the
/// deleter itself.
///
/// # Safety
/// Python calls it, with its lock, for a capsule of [`make`].
unsafe extern "C" fn destroy<M: Managed>(capsule: *mut ffi::PyObject) {
    // SAFETY: the caller's promise; a capsule of another name is no error here.
    if unsafe { ffi::PyCapsule_IsValid(capsule, M::NAME.as_ptr()) } == 1 {
        // SAFETY: the capsule is valid under this name.
        let managed = unsafe { ffi::PyCapsule_GetPointer(capsule, M::NAME.as_ptr()) };
        // SAFETY: nobody took the structure out of the capsule, which ends here.
        unsafe { delete::<M>(managed.cast()) };
    }
}
