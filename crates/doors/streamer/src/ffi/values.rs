// UNSAFETY: reads what the caller passes by pointer, and writes where it says.

//! Arguments and results.

use std::ffi::{CStr, OsStr, OsString, c_char, c_int, c_void};
use std::os::unix::ffi::OsStrExt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use crate::code::Code;
use crate::log;
use crate::registry;
use crate::streamer::Streamer;

/// Calls, and returns the number of the outcome. No panic crosses into C.
pub(super) fn answer(call: impl FnOnce() -> Result<(), Code>) -> c_int {
    let outcome = catch_unwind(AssertUnwindSafe(call)).unwrap_or_else(|_panic| {
        log::failure("a call", &"it panicked, which is a fault of the library");
        Err(Code::Unknown)
    });
    outcome.err().unwrap_or(Code::Success).number()
}

/// Returns the streamer that a caller means.
pub(super) fn streamer(handle: *mut c_void) -> Result<Arc<Streamer>, Code> {
    match handle.addr() {
        0 => Err(Code::InvalidParameter),
        // It was ended.
        number => registry::get(number).ok_or(Code::Finished),
    }
}

/// Returns a list of the caller.
///
/// # Safety
/// `list` is null, or leads to `count` elements that nobody changes while the result is used.
pub(super) unsafe fn list<'a, T>(list: *const T, count: usize) -> Result<&'a [T], Code> {
    match (list.is_null(), count) {
        (_, 0) => Ok(&[]),
        (true, _) => Err(Code::InvalidParameter),
        // SAFETY: not null, so by the contract there are that many.
        (false, _) => Ok(unsafe { std::slice::from_raw_parts(list, count) }),
    }
}

/// Returns a text of the caller; `None` if there is none.
///
/// # Safety
/// `text` is null, or leads to a text with a NUL at its end that nobody changes while the result is used.
pub(super) unsafe fn text<'a>(text: *const c_char) -> Option<&'a [u8]> {
    match text.is_null() {
        true => None,
        // SAFETY: not null, so by the contract it is a text.
        false => Some(unsafe { CStr::from_ptr(text) }.to_bytes()),
    }
}

/// Returns texts of the caller.
///
/// # Safety
/// As of [`list`], and each element as of [`text`].
pub(super) unsafe fn texts<'a>(
    texts: *const *const c_char,
    count: usize,
) -> Result<Vec<&'a [u8]>, Code> {
    // SAFETY: as this function's.
    let all = unsafe { list(texts, count)? };
    let all = all.iter().map(|one| {
        // SAFETY: as this function's.
        unsafe { text(*one) }.ok_or(Code::InvalidParameter)
    });
    all.collect()
}

pub(super) fn path_of(text: &[u8]) -> OsString {
    OsStr::from_bytes(text).to_owned()
}

/// Writes a result, unless the caller does not want it.
///
/// # Safety
/// `out` is null or leads to room for a `T`.
pub(super) unsafe fn write<T>(out: *mut T, value: T) {
    if !out.is_null() {
        // SAFETY: not null, so by the contract there is room.
        unsafe { out.write(value) };
    }
}
