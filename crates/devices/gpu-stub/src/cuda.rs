//! The functions of the driver that HIP does not have, or has with other parameters.
//!
// UNSAFETY: C functions that write to addresses of their caller, with the contracts of NVIDIA's functions of these names.
#![allow(unsafe_code, non_snake_case)]

use std::ffi::{c_int, c_void};

use crate::calls::{functions, put};
use crate::machine::{CAPTURE_MODE, CURRENT, DEINITIALIZED, INVALID_CONTEXT, INVALID_VALUE};

functions! {
    cuDeviceGet [] (out: *mut c_int, ordinal: c_int) |machine| {
        if ordinal >= machine.plan.devices {
            return Err(101);
        }
        // SAFETY: as the function's contract says.
        unsafe { put(out, ordinal) };
        Ok(())
    }
    cuDevicePrimaryCtxRetain [] (out: *mut *mut c_void, device: c_int) |machine| {
        let number = device as usize + 1;
        *machine.retained.entry(number).or_default() += 1;
        // SAFETY: as the function's contract says.
        unsafe { put(out, std::ptr::without_provenance_mut(number)) };
        Ok(())
    }
    cuDevicePrimaryCtxRelease [] (device: c_int) |machine| {
        let count = machine.retained.get_mut(&(device as usize + 1)).ok_or(INVALID_CONTEXT)?;
        *count -= 1;
        if *count == 0 {
            machine.retained.remove(&(device as usize + 1));
        }
        machine.log_left();
        Ok(())
    }
    cuCtxPushCurrent [] (context: *mut c_void) |_machine| {
        let pushed = CURRENT.try_with(|stack| stack.borrow_mut().push(context.addr()));
        // At the end of the process a library that is unloaded calls the driver, which is gone by then.
        pushed.map_err(|_| DEINITIALIZED)
    }
    cuCtxPopCurrent [] (out: *mut *mut c_void) |_machine| {
        let popped = CURRENT.with_borrow_mut(Vec::pop).ok_or(INVALID_CONTEXT)?;
        // SAFETY: as the function's contract says.
        unsafe { put(out, std::ptr::without_provenance_mut(popped)) };
        Ok(())
    }
    cuCtxGetDevice [] (out: *mut c_int) |machine| {
        let device = machine.current()? as c_int - 1;
        // SAFETY: as the function's contract says.
        unsafe { put(out, device) };
        Ok(())
    }
    cuThreadExchangeStreamCaptureMode [] (mode: *mut c_int) |_machine| {
        // SAFETY: as the function's contract says.
        let wanted = unsafe { mode.read() };
        // SAFETY: as the function's contract says.
        unsafe { put(mode, CAPTURE_MODE.replace(wanted)) };
        Ok(())
    }
    cuPointerGetAttribute [] (out: *mut c_void, attribute: c_int, address: u64) |machine| {
        machine.current()?;
        let (start, memory) = machine.find(address).ok_or(INVALID_VALUE)?;
        let value = match attribute {
            2 => 2,
            8 => u64::from(machine.plan.managed),
            9 => memory.device as u64 - 1,
            7 => memory.id,
            11 => start,
            12 => memory.size as u64,
            _ => return Err(INVALID_VALUE),
        };
        match attribute {
            // SAFETY: the attribute has 8 bytes.
            7 | 11 | 12 => unsafe { put(out.cast(), value) },
            // SAFETY: the attribute has 4 bytes.
            _ => unsafe { put(out.cast(), value as u32) },
        }
        Ok(())
    }
}
