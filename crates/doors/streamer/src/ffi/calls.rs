// UNSAFETY: functions that a C caller, or ctypes, calls with its pointers.

//! The interface of 0.17: several submissions at a time, each of any ranges.
//!
//! # Safety
//! Of every function: texts end with a NUL; lists have as many elements as their counts say; results are null or have room.
#![allow(
    clippy::missing_safety_doc,
    reason = "one sentence, above, holds for all"
)]

use std::collections::BTreeMap;
use std::ffi::{CString, c_char, c_int, c_uint, c_void};
use std::path::Path;
use std::ptr;
use std::time::Duration;

use super::target::Target;
use super::values::{answer, list, path_of, streamer, text, texts, write};
use crate::code::{Code, text_of};
use crate::listing::{self, Depth};
use crate::log;
use crate::registry;
use crate::streamer::Streamer;
use crate::submission::{FileWanted, Place, Wanted};

/// What destinations have to be a multiple of: that of disks. Reads here need none.
const BLOCK_BYTES: usize = 512;

/// RunaiFileStreamerDevice: the memory that is filled.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Device {
    /// 0: the host, 1: a CUDA device.
    kind: c_int,
    /// Its number.
    ordinal: c_int,
}

/// The host's memory.
#[cfg(test)]
pub(super) fn host() -> Device {
    Device {
        kind: 0,
        ordinal: 0,
    }
}

/// Memory of a GPU.
#[cfg(test)]
pub(super) fn cuda() -> Device {
    Device {
        kind: 1,
        ordinal: 0,
    }
}

type OnFile = unsafe extern "C" fn(path: *const c_char, bytes: usize, user: *mut c_void);

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn runai_file_streamer_start(out: *mut *mut c_void) -> c_int {
    answer(|| {
        if out.is_null() {
            return Err(Code::InvalidParameter);
        }
        let number = registry::add(Streamer::start());
        // SAFETY: room for a pointer.
        unsafe { write(out, ptr::without_provenance_mut(number)) };
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn runai_file_streamer_end(handle: *mut c_void) {
    answer(|| {
        if let Some(streamer) = registry::remove(handle.addr()) {
            streamer.end();
        }
        Ok(())
    });
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn runai_file_streamer_set_credentials(
    handle: *mut c_void,
    keys: *const *const c_char,
    values: *const *const c_char,
    count: c_uint,
) -> c_int {
    answer(|| {
        let streamer = streamer(handle)?;
        // SAFETY: a list of texts of the caller.
        let keys = unsafe { texts(keys, count as usize)? };
        // SAFETY: as above.
        let values = unsafe { texts(values, count as usize)? };
        let owned =
            |text: &[u8]| String::from_utf8(text.to_vec()).map_err(|_| Code::InvalidParameter);
        let pairs = keys.iter().zip(values);
        let given = pairs.map(|(key, value)| Ok((owned(key)?, owned(value)?)));
        streamer.set_credentials(given.collect::<Result<BTreeMap<_, _>, Code>>()?)
    })
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn runai_file_streamer_set_fs_strategy(
    handle: *mut c_void,
    name: *const c_char,
) -> c_int {
    answer(|| {
        let streamer = streamer(handle)?;
        // SAFETY: a text of the caller.
        let name = unsafe { text(name) }.ok_or(Code::InvalidParameter)?;
        streamer.set_strategy(name)
    })
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn runai_file_streamer_request(
    handle: *mut c_void,
    out: *mut u64,
    num_files: c_uint,
    paths: *const *const c_char,
    num_ranges: *const c_uint,
    offsets: *const usize,
    sizes: *const usize,
    destinations: *const *mut c_void,
    device: Device,
) -> c_int {
    answer(|| {
        let streamer = streamer(handle)?;
        if device.kind != 0 {
            let Device { kind, ordinal } = device;
            let why = format!("device {ordinal} of type {kind}: only host memory is filled");
            log::failure("a request", &why);
            return Err(Code::DeviceNotSupported);
        }
        // SAFETY: a list of texts of the caller, of this length.
        let paths = unsafe { texts(paths, num_files as usize)? };
        // SAFETY: a list of the caller, of this length.
        let counts = unsafe { list(num_ranges, num_files as usize)? };
        let total = counts
            .iter()
            .try_fold(0_usize, |all, count| all.checked_add(*count as usize));
        let total = total.ok_or(Code::InvalidParameter)?;
        // SAFETY: a list of the caller, with an element for each range.
        let offsets = unsafe { list(offsets, total)? };
        // SAFETY: as above.
        let sizes = unsafe { list(sizes, total)? };
        // SAFETY: as above.
        let destinations = unsafe { list(destinations, total)? };
        let mut ranges = offsets.iter().zip(sizes).zip(destinations);
        let mut files = Vec::with_capacity(paths.len());
        for (path, count) in paths.iter().zip(counts) {
            let of_file = ranges.by_ref().take(*count as usize);
            // SAFETY: the caller lends the memory of each range until it is answered, or the streamer ended.
            let of_file = of_file.map(|((at, size), to)| unsafe { wanted(*at, *size, *to) });
            files.push(FileWanted {
                path: path_of(path),
                ranges: of_file.collect::<Result<_, _>>()?,
            });
        }
        let submission = streamer.submit(files)?;
        // SAFETY: room for a number.
        unsafe { write(out, submission) };
        Ok(())
    })
}

/// # Safety
/// As of [`Target::new`].
pub(super) unsafe fn wanted(start: usize, len: usize, to: *mut c_void) -> Result<Wanted, Code> {
    let start = start as u64;
    let fits = start.checked_add(len as u64).is_some() && isize::try_from(len).is_ok();
    if !fits || (to.is_null() && len > 0) {
        return Err(Code::InvalidParameter);
    }
    // SAFETY: as this function's.
    let target = unsafe { Target::new(to.cast(), len) };
    Ok(Wanted { start, target })
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn runai_file_streamer_response(
    handle: *mut c_void,
    submission: *mut u64,
    file: *mut c_uint,
    range: *mut c_uint,
    is_done: *mut c_int,
    timeout_ms: c_uint,
) -> c_int {
    answer(|| {
        let streamer = streamer(handle)?;
        let limit = Some(timeout_ms).filter(|limit| *limit > 0);
        let limit = limit.map(|limit| Duration::from_millis(limit.into()));
        let next = streamer.next_answer(limit)?;
        // SAFETY: room for each.
        unsafe { write(submission, next.submission) };
        // SAFETY: as above.
        unsafe { write(file, next.file) };
        // SAFETY: as above.
        unsafe { write(range, next.range) };
        // SAFETY: as above.
        unsafe { write(is_done, c_int::from(next.is_last)) };
        match next.code {
            Code::Success => Ok(()),
            code => Err(code),
        }
    })
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn runai_file_streamer_response_str(code: c_int) -> *const c_char {
    text_of(code).as_ptr()
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn runai_file_streamer_probe_direct_block_size(
    handle: *mut c_void,
    _paths: *const *const c_char,
    _count: c_uint,
    out: *mut usize,
) -> c_int {
    answer(|| {
        // SAFETY: room for a number.
        unsafe { write(out, BLOCK_BYTES) };
        streamer(handle).map(drop)
    })
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn runai_file_streamer_list_files(
    handle: *mut c_void,
    prefix: *const c_char,
    is_recursive: c_int,
    allowed: *const *const c_char,
    num_allowed: c_uint,
    ignored: *const *const c_char,
    num_ignored: c_uint,
    on_file: Option<OnFile>,
    user: *mut c_void,
) -> c_int {
    answer(|| {
        streamer(handle)?;
        // SAFETY: a text of the caller.
        let prefix = unsafe { text(prefix) }.ok_or(Code::InvalidParameter)?;
        // SAFETY: lists of texts of the caller.
        let allowed = unsafe { texts(allowed, num_allowed as usize)? };
        // SAFETY: as above.
        let ignored = unsafe { texts(ignored, num_ignored as usize)? };
        let on_file = on_file.ok_or(Code::InvalidParameter)?;
        if Place::of(prefix)? == Place::Object {
            return Err(Code::S3NotSupported);
        }
        let depth = if is_recursive == 0 {
            Depth::One
        } else {
            Depth::All
        };
        let folder = path_of(prefix);
        let files = listing::files_in(Path::new(&folder), depth).map_err(|error| {
            log::failure(&folder.to_string_lossy(), &error);
            Code::FileAccess
        })?;
        for (path, bytes) in files {
            if !listing::is_chosen(&path, &allowed, &ignored, has_pattern) {
                continue;
            }
            // A name has no NUL.
            let name = CString::new(path.into_os_string().into_encoded_bytes());
            let name = name.map_err(|_| Code::Unknown)?;
            // SAFETY: the caller's function, with a text that is valid during the call, and its own pointer.
            unsafe {
                on_file(
                    name.as_ptr(),
                    usize::try_from(bytes).unwrap_or(usize::MAX),
                    user,
                )
            };
        }
        Ok(())
    })
}

/// Returns whether a name has a pattern of a shell (fnmatch(3)), in which `*` stands for any characters.
fn has_pattern(pattern: &[u8], name: &[u8]) -> bool {
    let (Ok(pattern), Ok(name)) = (CString::new(pattern), CString::new(name)) else {
        return false;
    };
    // SAFETY: two texts with a NUL at their end.
    unsafe { libc::fnmatch(pattern.as_ptr(), name.as_ptr(), 0) == 0 }
}
