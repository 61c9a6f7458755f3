// UNSAFETY: functions that a C caller, or ctypes, calls with its pointers.

//! The interface of the versions up to 0.15: one request at a time, whose bytes go to one buffer without gaps.
//!
//! # Safety
//! As in `calls.rs`.
#![allow(
    clippy::missing_safety_doc,
    reason = "one sentence, above, holds for all"
)]

use std::collections::BTreeMap;
use std::ffi::{c_char, c_int, c_uint, c_void};

use super::calls::wanted;
use super::values::{answer, list, path_of, streamer, text, texts, write};
use crate::code::{Code, text_of};
use crate::registry;
use crate::streamer::Streamer;
use crate::submission::FileWanted;

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn runai_start(out: *mut *mut c_void) -> c_int {
    answer(|| {
        if out.is_null() {
            return Err(Code::InvalidParameter);
        }
        let number = registry::add(Streamer::start());
        // SAFETY: room for a pointer.
        unsafe { write(out, std::ptr::without_provenance_mut(number)) };
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn runai_end(handle: *mut c_void) {
    answer(|| {
        if let Some(streamer) = registry::remove(handle.addr()) {
            streamer.end();
        }
        Ok(())
    });
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn runai_request(
    handle: *mut c_void,
    num_files: c_uint,
    paths: *const *const c_char,
    offsets: *const usize,
    sizes: *const usize,
    destinations: *const *mut c_void,
    num_parts: *const c_uint,
    part_sizes: *const *const usize,
    key: *const c_char,
    secret: *const c_char,
    token: *const c_char,
    region: *const c_char,
    endpoint: *const c_char,
) -> c_int {
    answer(|| {
        let streamer = streamer(handle)?;
        if streamer.is_busy() {
            return Err(Code::Busy);
        }
        let count = num_files as usize;
        // SAFETY: lists of the caller, of this length; of the destinations the first one is the buffer for all files.
        let paths = unsafe { texts(paths, count)? };
        // SAFETY: as above.
        let offsets = unsafe { list(offsets, count)? };
        // SAFETY: as above.
        let sizes = unsafe { list(sizes, count)? };
        // SAFETY: as above.
        let counts = unsafe { list(num_parts, count)? };
        // SAFETY: as above.
        let parts_of = unsafe { list(part_sizes, count)? };
        // SAFETY: as above.
        let buffer = unsafe { list(destinations, count.min(1))? };
        let mut to = buffer.first().copied().unwrap_or(std::ptr::null_mut());
        let mut files = Vec::with_capacity(count);
        for (at, path) in paths.iter().enumerate() {
            // SAFETY: a list of the caller.
            let parts = unsafe { list(parts_of[at], counts[at] as usize)? };
            let (mut start, mut ranges) = (offsets[at], Vec::with_capacity(parts.len()));
            for len in parts {
                // SAFETY: the caller lends the buffer until all is answered, or the streamer ended.
                ranges.push(unsafe { wanted(start, *len, to)? });
                start = start.checked_add(*len).ok_or(Code::InvalidParameter)?;
                to = to.cast::<u8>().wrapping_add(*len).cast();
            }
            if start - offsets[at] != sizes[at] {
                return Err(Code::InvalidParameter);
            }
            files.push(FileWanted {
                path: path_of(path),
                ranges,
            });
        }
        // SAFETY: texts of the caller.
        let given = [key, secret, token, region, endpoint].map(|it| unsafe { text(it) });
        set_credentials(&streamer, given)?;
        streamer.submit(files).map(drop)
    })
}

/// Sets the credentials that come with a request, in the order of its arguments.
fn set_credentials(streamer: &Streamer, given: [Option<&[u8]>; 5]) -> Result<(), Code> {
    let keys = [
        "access_key_id",
        "secret_access_key",
        "session_token",
        "region",
        "endpoint",
    ];
    let mut credentials = BTreeMap::new();
    for (key, value) in keys.iter().zip(given) {
        if let Some(value) = value {
            let value = String::from_utf8(value.to_vec()).map_err(|_| Code::InvalidParameter)?;
            credentials.insert((*key).to_owned(), value);
        }
    }
    match credentials.is_empty() {
        true => Ok(()),
        false => streamer.set_credentials(credentials),
    }
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn runai_response(
    handle: *mut c_void,
    file: *mut c_uint,
    part: *mut c_uint,
) -> c_int {
    answer(|| {
        let streamer = streamer(handle)?;
        if !streamer.is_busy() {
            return Err(Code::Finished);
        }
        let next = streamer.next_answer(None)?;
        // SAFETY: room for a number.
        unsafe { write(file, next.file) };
        // SAFETY: as above.
        unsafe { write(part, next.range) };
        match next.code {
            Code::Success => Ok(()),
            code => Err(code),
        }
    })
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn runai_response_str(code: c_int) -> *const c_char {
    text_of(code).as_ptr()
}
