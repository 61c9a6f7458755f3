//! The functions.
//!
// UNSAFETY: C functions that write to addresses of their caller, with the contracts of NVIDIA's functions of these names.
#![allow(unsafe_code, non_snake_case, missing_docs, clippy::missing_safety_doc)]

use std::ffi::{c_char, c_int, c_uint, c_void};

use crate::machine::{
    CURRENT, Event, ILLEGAL_ADDRESS, INVALID_CONTEXT, INVALID_HANDLE, INVALID_VALUE, Machine,
    NOT_INITIALIZED, Stream, machine,
};

pub(crate) const NOT_SUPPORTED: i32 = 801;

/// Runs a function of the driver: logs it, and fails if the plan says so, or the state of the driver.
pub(crate) fn call(
    name: &str,
    arguments: &str,
    body: impl FnOnce(&mut Machine) -> Result<(), i32>,
) -> c_int {
    let mut machine = machine();
    machine.plan.log(&format!("{name} {arguments}"));
    if let Some(code) = machine.plan.failure(name) {
        return code;
    }
    let is_ours = machine.initialised == Some(std::process::id());
    if !is_ours && name != "cuInit" {
        return NOT_INITIALIZED;
    }
    let frees = ["Free", "Unregister", "Destroy", "Release", "Pop", "Push"];
    if machine.is_lost() && !frees.iter().any(|part| name.contains(part)) {
        return ILLEGAL_ADDRESS;
    }
    match body(&mut machine) {
        Ok(()) => 0,
        Err(code) => code,
    }
}

/// Writes a result.
pub(crate) unsafe fn put<T>(to: *mut T, value: T) {
    // SAFETY: the caller of the function gave room for a value.
    unsafe { to.write_unaligned(value) };
}

macro_rules! functions {
    ($($name:ident($($arg:ident: $kind:ty),*) |$machine:ident| $body:block)*) => {
        $(unsafe extern "C" fn $name($($arg: $kind),*) -> c_int {
            let arguments: &[String] = &[$(format!("{:?}", $arg)),*];
            call(stringify!($name), &arguments.join(" "), |$machine| $body)
        })*

        /// Returns a function by name.
        pub(crate) fn find(name: &str) -> Option<*const c_void> {
            match name {
                $(stringify!($name) => Some($name as *const c_void),)*
                _ => None,
            }
        }
    };
}

functions! {
    cuInit(_flags: c_uint) |machine| {
        match machine.initialised {
            // A child of a process that has initialised it.
            Some(process) if process != std::process::id() => Err(NOT_INITIALIZED),
            _ => {
                machine.initialised = Some(std::process::id());
                Ok(())
            }
        }
    }
    cuDeviceGetCount(out: *mut c_int) |machine| {
        // SAFETY: as the function's contract says.
        unsafe { put(out, machine.plan.devices) };
        Ok(())
    }
    cuDeviceGet(out: *mut c_int, ordinal: c_int) |machine| {
        if ordinal >= machine.plan.devices {
            return Err(101);
        }
        // SAFETY: as the function's contract says.
        unsafe { put(out, ordinal) };
        Ok(())
    }
    cuDeviceGetName(out: *mut c_char, _len: c_int, device: c_int) |_machine| {
        let name = format!("Stub {device}\0");
        // SAFETY: the caller gave room for more.
        unsafe { out.copy_from_nonoverlapping(name.as_ptr().cast(), name.len()) };
        Ok(())
    }
    cuDeviceGetPCIBusId(out: *mut c_char, _len: c_int, device: c_int) |_machine| {
        let address = format!("0000:0{device}:00.0\0");
        // SAFETY: the caller gave room for more.
        unsafe { out.copy_from_nonoverlapping(address.as_ptr().cast(), address.len()) };
        Ok(())
    }
    cuDeviceTotalMem(out: *mut usize, _device: c_int) |machine| {
        // SAFETY: as the function's contract says.
        unsafe { put(out, machine.plan.memory) };
        Ok(())
    }
    cuDeviceGetAttribute(out: *mut c_int, attribute: c_int, _device: c_int) |machine| {
        let value = match attribute {
            124 => c_int::from(machine.plan.dmabuf),
            _ => return Err(INVALID_VALUE),
        };
        // SAFETY: as the function's contract says.
        unsafe { put(out, value) };
        Ok(())
    }
    cuDevicePrimaryCtxRetain(out: *mut *mut c_void, device: c_int) |machine| {
        let number = device as usize + 1;
        *machine.retained.entry(number).or_default() += 1;
        // SAFETY: as the function's contract says.
        unsafe { put(out, std::ptr::without_provenance_mut(number)) };
        Ok(())
    }
    cuDevicePrimaryCtxRelease(device: c_int) |machine| {
        let count = machine.retained.get_mut(&(device as usize + 1)).ok_or(INVALID_CONTEXT)?;
        *count -= 1;
        let left = format!(
            "left memory={} registered={} streams={} events={} contexts={count}",
            machine.memory.len(), machine.registered.len(), machine.streams.len(), machine.events.len(),
        );
        machine.plan.log(&left);
        Ok(())
    }
    cuCtxPushCurrent(context: *mut c_void) |_machine| {
        CURRENT.with_borrow_mut(|stack| stack.push(context.addr()));
        Ok(())
    }
    cuCtxPopCurrent(out: *mut *mut c_void) |_machine| {
        let popped = CURRENT.with_borrow_mut(Vec::pop).ok_or(INVALID_CONTEXT)?;
        // SAFETY: as the function's contract says.
        unsafe { put(out, std::ptr::without_provenance_mut(popped)) };
        Ok(())
    }
    cuCtxGetStreamPriorityRange(least: *mut c_int, greatest: *mut c_int) |machine| {
        machine.current()?;
        // SAFETY: as the function's contract says.
        unsafe { put(least, 0) };
        // SAFETY: as the function's contract says.
        unsafe { put(greatest, -5) };
        Ok(())
    }
    cuMemAlloc(out: *mut u64, size: usize) |machine| {
        let address = machine.alloc(size)?;
        // SAFETY: as the function's contract says.
        unsafe { put(out, address) };
        Ok(())
    }
    cuMemFree(address: u64) |machine| {
        machine.current()?;
        machine.free(address)
    }
    cuMemGetHandleForAddressRange(out: *mut c_int, address: u64, size: usize, _kind: c_int, flags: u64) |machine| {
        machine.current()?;
        let (_, memory) = machine.find(address).ok_or(INVALID_VALUE)?;
        if !machine.plan.dmabuf {
            return Err(NOT_SUPPORTED);
        }
        // As an older driver: it does not know the flag. Ranges are whole pages.
        if flags != 0 || !size.is_multiple_of(4096) || !address.is_multiple_of(4096) {
            return Err(INVALID_VALUE);
        }
        // SAFETY: a descriptor of this allocation; the copy belongs to the caller.
        let fd = unsafe { libc::fcntl(memory.file, libc::F_DUPFD_CLOEXEC, 3) };
        // SAFETY: as the function's contract says.
        unsafe { put(out, fd) };
        Ok(())
    }
    cuMemHostRegister(start: *mut c_void, size: usize, _flags: c_uint) |machine| {
        machine.current()?;
        match machine.registered.insert(start.expose_provenance(), size) {
            Some(_) => Err(712),
            None => Ok(()),
        }
    }
    cuMemHostUnregister(start: *mut c_void) |machine| {
        machine.current()?;
        machine.registered.remove(&start.addr()).map(drop).ok_or(713)
    }
    cuStreamCreateWithPriority(out: *mut *mut c_void, _flags: c_uint, _priority: c_int) |machine| {
        machine.current()?;
        let handle = machine.handle();
        machine.streams.insert(handle, Stream::default());
        // SAFETY: as the function's contract says.
        unsafe { put(out, std::ptr::without_provenance_mut(handle)) };
        Ok(())
    }
    cuStreamDestroy(stream: *mut c_void) |machine| {
        machine.current()?;
        machine.streams.remove(&stream.addr()).map(drop).ok_or(INVALID_HANDLE)
    }
    cuStreamSynchronize(stream: *mut c_void) |machine| {
        machine.current()?;
        machine.synchronize_stream(stream.addr())
    }
    cuStreamWaitEvent(_stream: *mut c_void, event: *mut c_void, _flags: c_uint) |machine| {
        machine.current()?;
        machine.synchronize_event(event.addr())
    }
    cuEventCreate(out: *mut *mut c_void, _flags: c_uint) |machine| {
        machine.current()?;
        let handle = machine.handle();
        machine.events.insert(handle, Event::default());
        // SAFETY: as the function's contract says.
        unsafe { put(out, std::ptr::without_provenance_mut(handle)) };
        Ok(())
    }
    cuEventDestroy(event: *mut c_void) |machine| {
        machine.current()?;
        machine.events.remove(&event.addr()).map(drop).ok_or(INVALID_HANDLE)
    }
    cuEventRecord(event: *mut c_void, stream: *mut c_void) |machine| {
        machine.current()?;
        machine.submissions += 1;
        machine.record(event.addr(), stream.addr())
    }
    cuEventQuery(event: *mut c_void) |machine| {
        machine.current()?;
        machine.query(event.addr())
    }
    cuEventSynchronize(event: *mut c_void) |machine| {
        machine.current()?;
        machine.synchronize_event(event.addr())
    }
    cuMemcpyHtoDAsync(to: u64, from: *const c_void, len: usize, stream: *mut c_void) |machine| {
        copy(machine, to, from.expose_provenance() as u64, len, stream)
    }
    cuMemcpyDtoHAsync(to: *mut c_void, from: u64, len: usize, stream: *mut c_void) |machine| {
        copy(machine, to.expose_provenance() as u64, from, len, stream)
    }
    cuMemcpyDtoDAsync(to: u64, from: u64, len: usize, stream: *mut c_void) |machine| {
        copy(machine, to, from, len, stream)
    }
    cuPointerGetAttribute(out: *mut c_void, attribute: c_int, address: u64) |machine| {
        machine.current()?;
        let (start, memory) = machine.find(address).ok_or(INVALID_VALUE)?;
        let value = match attribute {
            2 => 2,
            8 => 0,
            9 => memory.device as u64 - 1,
            11 => start,
            12 => memory.size as u64,
            _ => return Err(INVALID_VALUE),
        };
        match attribute {
            // SAFETY: the attribute has 8 bytes.
            11 | 12 => unsafe { put(out.cast(), value) },
            // SAFETY: the attribute has 4 bytes.
            _ => unsafe { put(out.cast(), value as u32) },
        }
        Ok(())
    }
    cuPointerSetAttribute(_value: *const c_void, _attribute: c_int, address: u64) |machine| {
        machine.current()?;
        machine.find(address).map(drop).ok_or(INVALID_VALUE)
    }
}

/// Queues a copy. A side that is neither device memory nor registered makes it synchronous, as pageable memory does.
pub(crate) fn copy(
    machine: &mut Machine,
    to: u64,
    from: u64,
    len: usize,
    stream: *mut c_void,
) -> Result<(), i32> {
    machine.current()?;
    if len == 0 {
        return Err(INVALID_VALUE);
    }
    let mut is_pageable = false;
    let mut side = |address: u64| -> Result<usize, i32> {
        if machine.find(address).is_some() {
            return machine.device_bytes(address, len);
        }
        is_pageable |= !machine.is_registered(address as usize, len);
        Ok(address as usize)
    };
    let (to, from) = (side(to)?, side(from)?);
    machine.enqueue(stream.addr(), to, from, len)?;
    match is_pageable {
        true => machine.synchronize_stream(stream.addr()),
        false => Ok(()),
    }
}
