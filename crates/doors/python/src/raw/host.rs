//! Host memory for bytes that are in no device memory, and for copies.
//!
// UNSAFETY: the memory is allocated here, aligned as vectors of the CPU need it, and its bytes are reached through a pointer,
// because consumers of DLPack write to them while this value is shared.
#![allow(unsafe_code)]

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::ptr::NonNull;

use crate::error::Error;

/// What jax and vector instructions ask for.
const ALIGNMENT: usize = 64;

/// Zeroed host memory. Invariants: `at` is the beginning of `layout.size()` allocated and initialised bytes, which only this
/// value frees, in its drop; no Rust reference to them outlives a call.
#[derive(Debug)]
pub(crate) struct HostBytes {
    at: NonNull<u8>,
    layout: Layout,
    len: usize,
}

// SAFETY: the memory belongs to the process, and the fields never change.
unsafe impl Send for HostBytes {}
// SAFETY: the fields never change, and `&self` gives only the address.
unsafe impl Sync for HostBytes {}

impl HostBytes {
    /// Allocates `len` zero bytes.
    pub(crate) fn new(len: usize) -> Result<Self, Error> {
        let refused = || Error::value(format!("{len} bytes do not fit into memory"));
        // An allocation of no bytes is undefined.
        let layout = Layout::from_size_align(len.max(1), ALIGNMENT).map_err(|_size| refused())?;
        // SAFETY: the size of `layout` is 1 or more.
        let at = unsafe { alloc_zeroed(layout) };
        let at = NonNull::new(at).ok_or_else(refused)?;
        Ok(Self { at, layout, len })
    }

    /// Allocates memory and has `write` fill it.
    pub(crate) fn filled(
        len: usize,
        write: impl FnOnce(&mut [u8]) -> Result<(), Error>,
    ) -> Result<Self, Error> {
        let bytes = Self::new(len)?;
        // SAFETY: (1) `len` initialised bytes are there (invariant); (2) nobody else knows the address yet; (3) the
        // reference ends with the call.
        write(unsafe { std::slice::from_raw_parts_mut(bytes.at.as_ptr(), len) })?;
        Ok(bytes)
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    pub(crate) fn address(&self) -> usize {
        self.at.as_ptr().expose_provenance()
    }

    /// Copies from `offset` to all of `out`. The program must not write to the bytes meanwhile, as for every copy from an array.
    pub(crate) fn copy_out(&self, offset: usize, out: &mut [u8]) -> Result<(), Error> {
        self.check(offset, out.len())?;
        // SAFETY: `check`, so the sum is inside the allocation.
        let from = unsafe { self.at.add(offset) };
        // SAFETY: (1) `check`: the bytes are inside the allocation and initialised; (2) `out` is a reference, so it is
        // not this memory, to which there are none (invariant).
        unsafe { from.copy_to_nonoverlapping(NonNull::from(&mut *out).cast(), out.len()) };
        Ok(())
    }

    /// Copies `bytes` to `offset`. The program must not use the bytes meanwhile.
    pub(crate) fn copy_in(&self, offset: usize, bytes: &[u8]) -> Result<(), Error> {
        self.check(offset, bytes.len())?;
        // SAFETY: `check`, so the sum is inside the allocation.
        let to = unsafe { self.at.add(offset) };
        // SAFETY: (1) `check`: the bytes are inside the allocation; (2) `bytes` may be a buffer over this memory, so the
        // copy is one that may overlap.
        unsafe { to.copy_from(NonNull::from(bytes).cast(), bytes.len()) };
        Ok(())
    }

    fn check(&self, offset: usize, len: usize) -> Result<(), Error> {
        let inside = offset.checked_add(len).is_some_and(|end| end <= self.len);
        inside.then_some(()).ok_or_else(|| {
            Error::value(format!(
                "{len} bytes at offset {offset} are not inside {} bytes",
                self.len
            ))
        })
    }
}

impl Drop for HostBytes {
    fn drop(&mut self) {
        // SAFETY: allocated with this layout, and freed once (invariant).
        unsafe { dealloc(self.at.as_ptr(), self.layout) };
    }
}
