// UNSAFETY: functions that NCCL calls, with its pointers and descriptors.

//! regMr, regMrDmaBuf, deregMr.

use std::ffi::{c_int, c_void};
use std::os::fd::BorrowedFd;

use super::{number, pointer, write};
use crate::comm::comm;
use crate::failure::{Code, Failure, finish};
use crate::memory;
use crate::raw::abi::{POINTER_CUDA, POINTER_HOST};
use crate::raw::gpu::{Exported, GpuRange};
use crate::raw::host::HostRange;

pub(super) unsafe extern "C" fn reg_mr(
    communicator: *mut c_void,
    data: *mut c_void,
    size: usize,
    kind: c_int,
    handle: *mut *mut c_void,
) -> c_int {
    finish("regMr", || {
        // SAFETY: NCCL gives room for the pointer.
        unsafe { write(handle, pointer(None)) }?;
        let comm = comm(number(communicator))?;
        if kind == POINTER_CUDA {
            // SAFETY: NCCL keeps `size` bytes at `data` allocated until deregMr.
            let range = unsafe { GpuRange::new(data.addr() as u64, size) };
            let made = memory::register_gpu(&comm, range)?;
            // SAFETY: as above.
            return unsafe { write(handle, pointer(Some(made))) };
        }
        if kind != POINTER_HOST {
            return Err(no_such_type(kind));
        }
        // SAFETY: NCCL keeps `size` bytes at `data` valid until deregMr, and leaves alone what a request uses.
        let range = unsafe { HostRange::new(data.cast(), size) };
        let made = memory::register_host(&comm, range)?;
        // SAFETY: as above.
        unsafe { write(handle, pointer(Some(made))) }
    })
}

pub(super) unsafe extern "C" fn reg_mr_dma_buf(
    communicator: *mut c_void,
    data: *mut c_void,
    size: usize,
    kind: c_int,
    offset: u64,
    fd: c_int,
    handle: *mut *mut c_void,
) -> c_int {
    finish("regMrDmaBuf", || {
        // SAFETY: NCCL gives room for the pointer.
        unsafe { write(handle, pointer(None)) }?;
        if kind != POINTER_CUDA && kind != POINTER_HOST {
            return Err(no_such_type(kind));
        }
        let start = usize::try_from(offset).ok();
        let range = start.and_then(|start| Some(start..start.checked_add(size)?));
        let range = range.filter(|_| fd >= 0);
        let range = range.ok_or_else(|| {
            Failure::new(
                Code::Internal,
                format!("{size} bytes at {offset} of descriptor {fd} do not exist"),
            )
        })?;
        // SAFETY: not negative, and NCCL keeps it open until this call returns; it is duplicated.
        let fd = unsafe { BorrowedFd::borrow_raw(fd) };
        let comm = comm(number(communicator))?;
        let made = if kind == POINTER_CUDA && memory::is_on_gpu(&comm, data.addr() as u64) {
            // SAFETY: NCCL keeps `size` bytes at `data` allocated until deregMr.
            let gpu = unsafe { GpuRange::new(data.addr() as u64, size) };
            let offset = range.start;
            memory::register_exported(&comm, gpu, Exported { fd, offset })?
        } else {
            memory::register_dmabuf(&comm, data.addr(), range, fd)?
        };
        // SAFETY: as above.
        unsafe { write(handle, pointer(Some(made))) }
    })
}

fn no_such_type(kind: c_int) -> Failure {
    Failure::new(Code::Internal, format!("there is no memory of type {kind}"))
}

/// Kernels need nothing to use registered memory.
pub(super) unsafe extern "C" fn get_device_mr(
    _communicator: *mut c_void,
    _handle: *mut c_void,
    out: *mut *mut c_void,
) -> c_int {
    // SAFETY: NCCL gives room for the pointer.
    finish("getDeviceMr", || unsafe { write(out, pointer(None)) })
}

pub(super) unsafe extern "C" fn dereg_mr(_communicator: *mut c_void, handle: *mut c_void) -> c_int {
    finish("deregMr", || match number(handle) {
        0 => Ok(()),
        number => memory::deregister(number),
    })
}
