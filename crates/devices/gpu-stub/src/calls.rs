//! The functions.
//!
// UNSAFETY: C functions that write to addresses of their caller, with the contracts of NVIDIA's and AMD's functions of these
// names.
#![allow(unsafe_code, non_snake_case, missing_docs, clippy::missing_safety_doc)]

use std::ffi::{c_char, c_int, c_uint, c_void};

use crate::hip::{LAST_ERROR, select_first};
use crate::host;
use crate::machine::{
    ILLEGAL_ADDRESS, INVALID_HANDLE, INVALID_VALUE, Machine, NOT_INITIALIZED, machine,
};
use crate::streams::{Event, Stream};

pub(crate) const NOT_SUPPORTED: i32 = 801;

/// Runs a function of the driver: logs it, and fails if the plan says so, or the state of the driver.
pub(crate) fn call(
    name: &str,
    arguments: &str,
    body: impl FnOnce(&mut Machine) -> Result<(), i32>,
) -> c_int {
    let code = run(name, arguments, body);
    if name.starts_with("hip") && code != 0 {
        LAST_ERROR.set(code);
    }
    code
}

fn run(name: &str, arguments: &str, body: impl FnOnce(&mut Machine) -> Result<(), i32>) -> c_int {
    let mut machine = machine();
    machine.plan.log(&format!("{name} {arguments}"));
    if name.starts_with("hip") {
        select_first();
    }
    if let Some(code) = machine.plan.failure(name) {
        return code;
    }
    let is_ours = machine.initialised == Some(std::process::id());
    if !is_ours && !name.ends_with("Init") {
        return NOT_INITIALIZED;
    }
    let frees = [
        "Free",
        "Unregister",
        "Unload",
        "Destroy",
        "Release",
        "Pop",
        "Push",
        "Device",
    ];
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

/// Defines a function that runs a body.
macro_rules! function {
    ([$($attribute:tt)*] $visibility:vis $name:ident ($($arg:ident: $kind:ty),*) |$machine:ident| $body:block) => {
        $($attribute)*
        $visibility unsafe extern "C" fn $name($($arg: $kind),*) -> c_int {
            let arguments: &[String] = &[$(format!("{:?}", $arg)),*];
            $crate::calls::call(stringify!($name), &arguments.join(" "), |$machine| $body)
        }
    };
}
/// Defines functions of CUDA, which `find` finds, and those of HIP that do the same, which are symbols.
macro_rules! functions {
    ($($name:ident [$($hip:ident)?] $arguments:tt |$machine:ident| $body:block)*) => {
        $(
            $crate::calls::function!([] $name $arguments |$machine| $body);
            $($crate::calls::function!([#[unsafe(no_mangle)]] pub $hip $arguments |$machine| $body);)?
        )*

        /// Returns a function of CUDA by name.
        pub(crate) fn find(name: &str) -> Option<*const c_void> {
            match name {
                $(stringify!($name) => Some($name as *const c_void),)*
                _ => None,
            }
        }
    };
}

pub(crate) use {function, functions};

functions! {
    cuInit [hipInit] (_flags: c_uint) |machine| {
        match machine.initialised {
            // A child of a process that has initialised it.
            Some(process) if process != std::process::id() => Err(NOT_INITIALIZED),
            _ => {
                machine.initialised = Some(std::process::id());
                Ok(())
            }
        }
    }
    cuDeviceGetCount [hipGetDeviceCount] (out: *mut c_int) |machine| {
        // SAFETY: as the function's contract says.
        unsafe { put(out, machine.plan.devices) };
        Ok(())
    }
    cuDeviceGetName [hipDeviceGetName] (out: *mut c_char, _len: c_int, device: c_int) |_machine| {
        let name = format!("Stub {device}\0");
        // SAFETY: the caller gave room for more.
        unsafe { out.copy_from_nonoverlapping(name.as_ptr().cast(), name.len()) };
        Ok(())
    }
    cuDeviceGetPCIBusId [hipDeviceGetPCIBusId] (out: *mut c_char, _len: c_int, device: c_int) |_machine| {
        let address = format!("0000:0{device}:00.0\0");
        // SAFETY: the caller gave room for more.
        unsafe { out.copy_from_nonoverlapping(address.as_ptr().cast(), address.len()) };
        Ok(())
    }
    cuDeviceTotalMem [hipDeviceTotalMem] (out: *mut usize, _device: c_int) |machine| {
        // SAFETY: as the function's contract says.
        unsafe { put(out, machine.plan.memory) };
        Ok(())
    }
    cuDeviceGetAttribute [hipDeviceGetAttribute] (out: *mut c_int, attribute: c_int, _device: c_int) |machine| {
        let value = match attribute {
            // The numbers of CUDA and of HIP.
            124 | 93 => c_int::from(machine.plan.dmabuf),
            _ => return Err(INVALID_VALUE),
        };
        // SAFETY: as the function's contract says.
        unsafe { put(out, value) };
        Ok(())
    }
    cuCtxGetStreamPriorityRange [hipDeviceGetStreamPriorityRange] (least: *mut c_int, greatest: *mut c_int) |machine| {
        machine.current()?;
        // SAFETY: as the function's contract says.
        unsafe { put(least, 0) };
        // SAFETY: as the function's contract says.
        unsafe { put(greatest, -5) };
        Ok(())
    }
    cuMemAlloc [hipMalloc] (out: *mut u64, size: usize) |machine| {
        let address = machine.alloc(size)?;
        // SAFETY: as the function's contract says.
        unsafe { put(out, address) };
        Ok(())
    }
    cuMemFree [hipFree] (address: u64) |machine| {
        machine.current()?;
        machine.free(address)
    }
    cuMemGetHandleForAddressRange [hipMemGetHandleForAddressRange] (out: *mut c_int, address: u64, size: usize, _kind: c_int, flags: u64) |machine| {
        machine.current()?;
        let (start, memory) = machine.find(address).ok_or(INVALID_VALUE)?;
        if !machine.plan.dmabuf {
            return Err(NOT_SUPPORTED);
        }
        // As an older driver: it does not know the flag. Ranges are whole pages.
        if flags != 0 || !size.is_multiple_of(4096) || !address.is_multiple_of(4096) {
            return Err(INVALID_VALUE);
        }
        let fd = match machine.plan.udmabuf {
            true => host::udmabuf(memory.file, address - start, size as u64)?,
            // SAFETY: a descriptor of this allocation; the copy belongs to the caller.
            false => unsafe { libc::fcntl(memory.file, libc::F_DUPFD_CLOEXEC, 3) },
        };
        // SAFETY: as the function's contract says.
        unsafe { put(out, fd) };
        Ok(())
    }
    cuMemHostRegister [hipHostRegister] (start: *mut c_void, size: usize, _flags: c_uint) |machine| {
        machine.current()?;
        match machine.registered.insert(start.expose_provenance(), size) {
            Some(_) => Err(712),
            None => Ok(()),
        }
    }
    cuMemHostUnregister [hipHostUnregister] (start: *mut c_void) |machine| {
        machine.current()?;
        machine.registered.remove(&start.addr()).map(drop).ok_or(713)
    }
    cuStreamCreateWithPriority [hipStreamCreateWithPriority] (out: *mut *mut c_void, _flags: c_uint, _priority: c_int) |machine| {
        machine.current()?;
        let handle = machine.handle();
        machine.streams.insert(handle, Stream::default());
        // SAFETY: as the function's contract says.
        unsafe { put(out, std::ptr::without_provenance_mut(handle)) };
        Ok(())
    }
    cuStreamDestroy [hipStreamDestroy] (stream: *mut c_void) |machine| {
        machine.current()?;
        machine.streams.remove(&stream.addr()).map(drop).ok_or(INVALID_HANDLE)?;
        if machine.streams.is_empty() {
            machine.log_left();
        }
        Ok(())
    }
    cuStreamSynchronize [hipStreamSynchronize] (stream: *mut c_void) |machine| {
        machine.current()?;
        match stream.addr() {
            // The default streams of the application, on which nothing waits.
            0..=2 => Ok(()),
            stream => machine.synchronize_stream(stream),
        }
    }
    cuStreamWaitEvent [hipStreamWaitEvent] (_stream: *mut c_void, event: *mut c_void, _flags: c_uint) |machine| {
        machine.current()?;
        machine.synchronize_event(event.addr())
    }
    cuEventCreate [hipEventCreateWithFlags] (out: *mut *mut c_void, _flags: c_uint) |machine| {
        machine.current()?;
        let handle = machine.handle();
        machine.events.insert(handle, Event::default());
        // SAFETY: as the function's contract says.
        unsafe { put(out, std::ptr::without_provenance_mut(handle)) };
        Ok(())
    }
    cuEventDestroy [hipEventDestroy] (event: *mut c_void) |machine| {
        machine.current()?;
        machine.events.remove(&event.addr()).map(drop).ok_or(INVALID_HANDLE)
    }
    cuEventRecord [hipEventRecord] (event: *mut c_void, stream: *mut c_void) |machine| {
        machine.current()?;
        machine.submissions += 1;
        machine.record(event.addr(), stream.addr())
    }
    cuEventQuery [hipEventQuery] (event: *mut c_void) |machine| {
        machine.current()?;
        machine.query(event.addr())
    }
    cuEventSynchronize [hipEventSynchronize] (event: *mut c_void) |machine| {
        machine.current()?;
        machine.synchronize_event(event.addr())
    }
    cuMemcpyHtoDAsync [hipMemcpyHtoDAsync] (to: u64, from: *const c_void, len: usize, stream: *mut c_void) |machine| {
        copy(machine, to, from.expose_provenance() as u64, len, stream)
    }
    cuMemcpyDtoHAsync [hipMemcpyDtoHAsync] (to: *mut c_void, from: u64, len: usize, stream: *mut c_void) |machine| {
        copy(machine, to.expose_provenance() as u64, from, len, stream)
    }
    cuMemcpyDtoDAsync [hipMemcpyDtoDAsync] (to: u64, from: u64, len: usize, stream: *mut c_void) |machine| {
        copy(machine, to, from, len, stream)
    }
    cuPointerSetAttribute [hipPointerSetAttribute] (_value: *const c_void, _attribute: c_int, address: u64) |machine| {
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
