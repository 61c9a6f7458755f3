// UNSAFETY: functions that NCCL calls, with its pointers to write to.

//! listen, connect, accept, close.

use std::ffi::{c_int, c_void};

use exchange::TICKET_BYTES;

use super::{device, number, pointer, write};
use crate::comm;
use crate::config::{self, Unpack};
use crate::contexts::NO_CONTEXT;
use crate::dials;
use crate::failure::{Code, Failure, finish};
use crate::listeners::{self, Reader};
use crate::raw::kernels::NetDeviceHandle;
use crate::unpack;

/// Returns the bytes of a handle.
///
/// # Safety
/// `handle` is null or leads to 128 bytes that nobody else touches meanwhile.
unsafe fn bytes<'a>(handle: *mut c_void) -> Result<&'a mut [u8; TICKET_BYTES], Failure> {
    // SAFETY: by the contract; bytes have no alignment.
    let handle = unsafe { handle.cast::<[u8; TICKET_BYTES]>().as_mut() };
    handle.ok_or_else(|| Failure::new(Code::Internal, "the handle is NULL"))
}

pub(super) unsafe extern "C" fn listen(
    dev: c_int,
    handle: *mut c_void,
    listening: *mut *mut c_void,
) -> c_int {
    // SAFETY: as this function's.
    unsafe { listen_v11(pointer(Some(NO_CONTEXT)), dev, handle, listening) }
}

pub(super) unsafe extern "C" fn listen_v11(
    context: *mut c_void,
    dev: c_int,
    handle: *mut c_void,
    listening: *mut *mut c_void,
) -> c_int {
    finish("listen", || {
        // SAFETY: NCCL gives room for the pointer.
        unsafe { write(listening, pointer(None)) }?;
        // SAFETY: NCCL gives 128 bytes for the handle.
        let handle = unsafe { bytes(handle) }?;
        let made = listeners::listen(number(context), device(dev)?, handle)?;
        // SAFETY: as above.
        unsafe { write(listening, pointer(Some(made))) }
    })
}

pub(super) unsafe extern "C" fn connect(
    dev: c_int,
    handle: *mut c_void,
    sending: *mut *mut c_void,
    device_handle: *mut *mut c_void,
) -> c_int {
    let context = pointer(Some(NO_CONTEXT));
    // SAFETY: as this function's.
    unsafe { connect_v11(context, dev, handle, sending, device_handle) }
}

pub(super) unsafe extern "C" fn connect_v10(
    dev: c_int,
    _config: *mut c_void,
    handle: *mut c_void,
    sending: *mut *mut c_void,
    device_handle: *mut *mut c_void,
) -> c_int {
    // SAFETY: as this function's.
    unsafe { connect(dev, handle, sending, device_handle) }
}

/// The device handle belongs to other types of devices, and may hold garbage: it is left alone.
pub(super) unsafe extern "C" fn connect_v11(
    context: *mut c_void,
    dev: c_int,
    handle: *mut c_void,
    sending: *mut *mut c_void,
    _device_handle: *mut *mut c_void,
) -> c_int {
    finish("connect", || {
        // SAFETY: NCCL gives room for the pointer.
        unsafe { write(sending, pointer(None)) }?;
        // SAFETY: NCCL gives the 128 bytes of the handle, and keeps them between the calls.
        let handle = unsafe { bytes(handle) }?;
        let made = dials::connect(number(context), device(dev)?, handle)?;
        // SAFETY: as above.
        unsafe { write(sending, pointer(made)) }
    })
}

pub(super) unsafe extern "C" fn accept(
    listening: *mut c_void,
    receiving: *mut *mut c_void,
    device_handle: *mut *mut c_void,
) -> c_int {
    finish("accept", || {
        // SAFETY: NCCL gives room for the pointer.
        unsafe { write(receiving, pointer(None)) }?;
        // SAFETY: NCCL gives a pointer to a pointer to room for a handle; both may be NULL.
        let handle = unsafe { room_for_handle(device_handle) }?;
        let reader = match handle.is_null() {
            true => Reader::Other,
            false => Reader::Kernels,
        };
        let Some(made) = listeners::accept(number(listening), reader)? else {
            return Ok(());
        };
        if let Some(address) = made.handle {
            let filled = NetDeviceHandle {
                device_type: unpack::TYPE,
                device_version: unpack::VERSION,
                handle: pointer(Some(address)),
                size: unpack::HANDLE_BYTES,
                needs_proxy_progress: 1,
            };
            // SAFETY: not NULL, so NCCL gives room.
            unsafe { write(handle, filled) }?;
        }
        // SAFETY: as above.
        unsafe { write(receiving, pointer(Some(made.number))) }
    })
}

/// Returns where the handle for kernels is to be written; NULL: nowhere. For the other device type NCCL may leave garbage
/// there, which is not followed.
///
/// # Safety
/// If kernels unpack, `device_handle` is null or leads to a pointer, which is null or leads to room for a handle.
unsafe fn room_for_handle(
    device_handle: *mut *mut c_void,
) -> Result<*mut NetDeviceHandle, Failure> {
    if config::current()?.unpack == Unpack::Here {
        return Ok(std::ptr::null_mut());
    }
    // SAFETY: by the contract.
    let room = unsafe { device_handle.as_ref() };
    Ok(room.map_or(std::ptr::null_mut(), |room| room.cast()))
}

pub(super) unsafe extern "C" fn close(communicator: *mut c_void) -> c_int {
    finish("close", || match number(communicator) {
        0 => Ok(()),
        number => comm::close(number),
    })
}

pub(super) unsafe extern "C" fn close_listen(listening: *mut c_void) -> c_int {
    finish("closeListen", || match number(listening) {
        0 => Ok(()),
        number => listeners::close(number),
    })
}
