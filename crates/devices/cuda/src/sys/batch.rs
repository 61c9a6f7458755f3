//! cuMemcpyBatchAsync: many copies by one call.
//!
// UNSAFETY: a function of the library whose parameters depend on the version of CUDA, and calls of it with arrays.
#![allow(unsafe_code)]

use std::ffi::{c_int, c_uint, c_void};

use devmem_gpu::driver::{CopyBatch, DevicePtr, Name, RawCopy, RawStream, Status};

use super::functions::{Find, find_versioned};

/// CUmemLocation: 1 is a device, 0 no hint.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub(super) struct Location {
    kind: c_int,
    id: c_int,
}

/// CUmemcpyAttributes.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub(super) struct CopyAttributes {
    source_order: c_uint,
    source: Location,
    destination: Location,
    flags: c_uint,
}

const _: () = assert!(size_of::<CopyAttributes>() == 24 && align_of::<CopyAttributes>() == 4);

/// CU_MEMCPY_SRC_ACCESS_ORDER_STREAM: the source is read when the stream gets to the copy.
const SOURCE_ORDER_STREAM: c_uint = 1;

/// cuMemcpyBatchAsync of CUDA 12.8: destinations, sources, sizes, their count, attributes, the first copy of each, their
/// count, room for the index of a copy that fails, stream.
type CopyBatch12 = unsafe extern "C" fn(
    *mut DevicePtr,
    *mut DevicePtr,
    *mut usize,
    usize,
    *mut CopyAttributes,
    *mut usize,
    usize,
    *mut usize,
    RawStream,
) -> Status;

/// cuMemcpyBatchAsync of CUDA 13.0: without the index.
type CopyBatch13 = unsafe extern "C" fn(
    *mut DevicePtr,
    *mut DevicePtr,
    *mut usize,
    usize,
    *mut CopyAttributes,
    *mut usize,
    usize,
    RawStream,
) -> Status;

/// The form of cuMemcpyBatchAsync that the driver has.
#[derive(Clone, Copy)]
pub(super) enum BatchCopy {
    V12(CopyBatch12),
    V13(CopyBatch13),
}

impl BatchCopy {
    /// Returns the form that the driver has.
    pub(super) fn find(find: Find) -> Option<Self> {
        let symbol = c"cuMemcpyBatchAsync";
        if let Some(found) = find_versioned(find, Name::new(symbol, 13, 0)) {
            // SAFETY: version 13.0 of the function has these parameters.
            return Some(Self::V13(unsafe {
                std::mem::transmute::<*mut c_void, CopyBatch13>(found)
            }));
        }
        let found = find_versioned(find, Name::new(symbol, 12, 8))?;
        // SAFETY: version 12.8 of the function has these parameters.
        Some(Self::V12(unsafe {
            std::mem::transmute::<*mut c_void, CopyBatch12>(found)
        }))
    }

    /// Starts the copies.
    pub(super) fn call(self, batch: &CopyBatch<'_>) -> Status {
        let copies = batch.copies();
        let mut to: Vec<u64> = copies.iter().map(RawCopy::destination).collect();
        let mut from: Vec<u64> = copies.iter().map(RawCopy::source).collect();
        let mut sizes: Vec<usize> = copies.iter().map(RawCopy::bytes).collect();
        let mut attributes = CopyAttributes {
            source_order: SOURCE_ORDER_STREAM,
            source: Location::default(),
            destination: Location::default(),
            flags: 0,
        };
        // The attributes are those of all copies from index 0 on.
        let (mut first, mut failed) = (0_usize, 0_usize);
        let (to, from, sizes) = (to.as_mut_ptr(), from.as_mut_ptr(), sizes.as_mut_ptr());
        let (attributes, first) = (&raw mut attributes, &raw mut first);
        let (count, stream) = (copies.len(), batch.stream());
        match self {
            // SAFETY: (1) three arrays of `count` entries, one attribute, and room for an index; (2) the stream exists, and
            // both sides of each copy stay until it is done (`CopyBatch`).
            Self::V12(copy) => unsafe {
                let failed = &raw mut failed;
                copy(to, from, sizes, count, attributes, first, 1, failed, stream)
            },
            // SAFETY: as above, without the index.
            Self::V13(copy) => unsafe {
                copy(to, from, sizes, count, attributes, first, 1, stream)
            },
        }
    }
}
