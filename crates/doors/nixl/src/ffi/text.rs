// UNSAFETY: reads what C passes by pointer, and calls back with pointers.

//! Arguments and results of the C interface.

use std::ffi::c_void;
use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::log::warn;
use crate::status::{Failure, Status};

/// Bytes of the caller, valid during the call; of any content. May be null with length 0.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct Text {
    bytes: *const u8,
    len: usize,
}

impl Text {
    pub(super) fn of(bytes: &[u8]) -> Self {
        Self {
            bytes: bytes.as_ptr(),
            len: bytes.len(),
        }
    }

    /// # Safety
    /// `bytes` is null, or leads to `len` bytes that nobody changes while the result is used.
    pub(super) unsafe fn bytes<'a>(self) -> &'a [u8] {
        match self.bytes.is_null() {
            true => &[],
            // SAFETY: not null, so by the contract there are that many bytes.
            false => unsafe { std::slice::from_raw_parts(self.bytes, self.len) },
        }
    }

    /// # Safety
    /// As of [`bytes`](Self::bytes).
    pub(super) unsafe fn name<'a>(self) -> Result<&'a str, Failure> {
        // SAFETY: as this function's.
        let bytes = unsafe { self.bytes() };
        std::str::from_utf8(bytes).map_err(|_| {
            Failure::new(
                Status::InvalidParam,
                "the name of an agent, or a parameter, is not UTF-8",
            )
        })
    }
}

/// Takes a result: bytes that are valid during the call.
pub type Put = unsafe extern "C" fn(to: *mut c_void, text: Text);

/// Returns a list of the caller.
///
/// # Safety
/// `list` is null, or leads to `count` elements that nobody changes while the result is used.
pub(super) unsafe fn list<'a, T>(list: *const T, count: usize) -> &'a [T] {
    match list.is_null() {
        true => &[],
        // SAFETY: not null, so by the contract there are that many.
        false => unsafe { std::slice::from_raw_parts(list, count) },
    }
}

/// Writes a result.
///
/// # Safety
/// `out` is null or leads to room for a `T`.
pub(super) unsafe fn write<T>(out: *mut T, value: T) -> Result<(), Failure> {
    if out.is_null() {
        return Err(Failure::new(
            Status::InvalidParam,
            "an out-parameter is NULL",
        ));
    }
    // SAFETY: not null, so by the contract there is room.
    unsafe { out.write(value) };
    Ok(())
}

/// Calls, and returns the number of the status. A failure is logged; no panic leaves.
pub(super) fn status(call: impl FnOnce() -> Result<Status, Failure>) -> i32 {
    let status = match catch_unwind(AssertUnwindSafe(call)) {
        Ok(Ok(status)) => status,
        Ok(Err(failure)) => {
            warn(&failure.to_string());
            failure.status
        }
        // The panic was printed.
        Err(_) => Status::Backend,
    };
    status.code()
}

/// As [`status`], of a call that is done when it returns.
pub(super) fn done(call: impl FnOnce() -> Result<(), Failure>) -> i32 {
    status(|| call().map(|()| Status::Success))
}
