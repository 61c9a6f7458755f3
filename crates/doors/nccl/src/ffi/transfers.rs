// UNSAFETY: functions that NCCL calls, with its arrays to read and its pointers to write to.

//! isend, irecv, iflush, test.

use std::ffi::{c_int, c_void};
use std::ops::Range;

use exchange::Region;

use super::{number, pointer, write};
use crate::comm::{self, MAX_RECVS, Outcome, RequestName, Wanted};
use crate::failure::{Code, Failure, finish};
use crate::memory::{Writing, registered};

/// In `*request` of irecv, since version 9: the GPU polls the memory (NCCL_NET_OPTIONAL_RECV_COMPLETION).
const OPTIONAL_MARK: usize = 1;

/// Returns the memory of a message; `None` for an empty one, which may have none.
fn memory(
    data: *mut c_void,
    size: usize,
    handle: *mut c_void,
    writing: Writing,
) -> Result<Option<(Region, Range<usize>)>, Failure> {
    if size == 0 {
        return Ok(None);
    }
    registered(number(handle))?
        .part(data.addr(), size, writing)
        .map(Some)
}

/// Number of bytes, as a version of the interface has it: an `int` in version 8, a `size_t` since version 9.
pub(super) trait Size: Copy {
    /// Whether NCCL marks the receives that a GPU polls; without marks, it may poll any.
    const HAS_MARKS: bool;

    fn bytes(self) -> Result<usize, Failure>;
}

impl Size for c_int {
    const HAS_MARKS: bool = false;

    fn bytes(self) -> Result<usize, Failure> {
        usize::try_from(self)
            .map_err(|_| Failure::new(Code::Internal, format!("a message has {self} bytes")))
    }
}

impl Size for usize {
    const HAS_MARKS: bool = true;

    fn bytes(self) -> Result<usize, Failure> {
        Ok(self)
    }
}

pub(super) unsafe extern "C" fn isend<S: Size>(
    communicator: *mut c_void,
    data: *mut c_void,
    size: S,
    tag: c_int,
    handle: *mut c_void,
    request: *mut *mut c_void,
) -> c_int {
    finish("isend", || {
        // SAFETY: NCCL gives room for the request.
        unsafe { write(request, pointer(None)) }?;
        let memory = memory(data, size.bytes()?, handle, Writing::Any)?;
        let name = number(communicator);
        let posted = comm::comm(name)?.send(name, memory, tag)?;
        // SAFETY: as above.
        unsafe { write(request, pointer(posted.map(|posted| posted.0))) }
    })
}

pub(super) unsafe extern "C" fn isend_v10(
    communicator: *mut c_void,
    data: *mut c_void,
    size: usize,
    tag: c_int,
    handle: *mut c_void,
    _profiled: *mut c_void,
    request: *mut *mut c_void,
) -> c_int {
    // SAFETY: as this function's.
    unsafe { isend(communicator, data, size, tag, handle, request) }
}

pub(super) unsafe extern "C" fn irecv<S: Size>(
    communicator: *mut c_void,
    parts: c_int,
    data: *mut *mut c_void,
    sizes: *mut S,
    tags: *mut c_int,
    handles: *mut *mut c_void,
    request: *mut *mut c_void,
) -> c_int {
    finish("irecv", || {
        // SAFETY: NCCL gives a pointer to a pointer.
        let writing = unsafe { marked::<S>(request) };
        // SAFETY: the same pointer.
        unsafe { write(request, pointer(None)) }?;
        let parts = usize::try_from(parts).unwrap_or(0);
        if !(1..=MAX_RECVS).contains(&parts) {
            let text =
                format!("a receive has {parts} parts; the properties allow 1 to {MAX_RECVS}");
            return Err(Failure::new(Code::Internal, text));
        }
        let mut wanted = Vec::with_capacity(parts);
        for index in 0..parts {
            // SAFETY: NCCL gives arrays of `parts` elements.
            let data = unsafe { element(data, index) }?;
            // SAFETY: as above.
            let size = unsafe { element(sizes, index) }?;
            // SAFETY: as above.
            let tag = unsafe { element(tags, index) }?;
            // SAFETY: as above. Empty messages may have no handles.
            let handle = unsafe { element(handles, index) }.unwrap_or(pointer(None));
            wanted.push(Wanted {
                region: memory(data, size.bytes()?, handle, writing)?,
                tag,
            });
        }
        let name = number(communicator);
        let posted = comm::comm(name)?.receive(name, wanted)?;
        // SAFETY: as above.
        unsafe { write(request, pointer(posted.map(|posted| posted.0))) }
    })
}

pub(super) unsafe extern "C" fn irecv_v10(
    communicator: *mut c_void,
    parts: c_int,
    data: *mut *mut c_void,
    sizes: *mut usize,
    tags: *mut c_int,
    handles: *mut *mut c_void,
    _profiled: *mut *mut c_void,
    request: *mut *mut c_void,
) -> c_int {
    // SAFETY: as this function's.
    unsafe { irecv(communicator, parts, data, sizes, tags, handles, request) }
}

/// Returns how to write, by the mark that NCCL leaves in the request.
///
/// # Safety
/// `request` is null or leads to a pointer.
unsafe fn marked<S: Size>(request: *mut *mut c_void) -> Writing {
    // SAFETY: by the contract.
    let request = unsafe { request.as_ref() };
    match request.is_some_and(|request| request.addr() == OPTIONAL_MARK) || !S::HAS_MARKS {
        true => Writing::Ordered,
        false => Writing::Any,
    }
}

/// Reads an element of an array.
///
/// # Safety
/// `array` is null or has more than `index` elements.
unsafe fn element<T: Copy>(array: *mut T, index: usize) -> Result<T, Failure> {
    if array.is_null() {
        return Err(Failure::new(
            Code::Internal,
            "an array of a receive is NULL",
        ));
    }
    // SAFETY: by the contract.
    Ok(unsafe { array.wrapping_add(index).read() })
}

/// Nothing is to be flushed: a receive is done when the CPU has written the bytes, or copies of the GPU are complete.
pub(super) unsafe extern "C" fn iflush(
    _communicator: *mut c_void,
    _parts: c_int,
    _data: *mut *mut c_void,
    _sizes: *mut c_int,
    _handles: *mut *mut c_void,
    request: *mut *mut c_void,
) -> c_int {
    // SAFETY: NCCL gives room for the request.
    finish("iflush", || unsafe { write(request, pointer(None)) })
}

pub(super) unsafe extern "C" fn test(
    request: *mut c_void,
    done: *mut c_int,
    sizes: *mut c_int,
) -> c_int {
    finish("test", || {
        // SAFETY: NCCL gives room for the flag.
        unsafe { write(done, 0) }?;
        let name = RequestName(number(request));
        let Outcome::Done(lens) = comm::comm_of(name)?.test(name)? else {
            return Ok(());
        };
        if !sizes.is_null() {
            for (index, len) in lens.iter().enumerate() {
                let len = c_int::try_from(*len).unwrap_or(c_int::MAX);
                // SAFETY: NCCL gives room for one size per part of the request.
                unsafe { sizes.wrapping_add(index).write(len) };
            }
        }
        // SAFETY: as above.
        unsafe { write(done, 1) }
    })
}

/// A kernel has unpacked what a request received.
pub(super) unsafe extern "C" fn irecv_consumed(
    communicator: *mut c_void,
    _parts: c_int,
    request: *mut c_void,
) -> c_int {
    finish("irecvConsumed", || {
        let name = number(communicator);
        comm::comm(name)?.consumed(name, RequestName(number(request)))
    })
}
