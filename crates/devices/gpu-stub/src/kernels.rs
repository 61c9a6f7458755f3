//! Device code: modules, and functions that are started.
//!
// UNSAFETY: C functions that read and write addresses of their caller, with the contracts of NVIDIA's functions of these names.
#![allow(unsafe_code, non_snake_case)]

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::sync::Arc;

use crate::calls::{functions, put};
use crate::machine::{INVALID_HANDLE, INVALID_VALUE};
use crate::ptx::{Grid, Program};
use crate::streams::Launch;

const INVALID_PTX: i32 = 218;
const NOT_FOUND: i32 = 500;

/// Most threads of a block.
const BLOCK_THREADS_MAX: u32 = 1024;

functions! {
    cuModuleLoadData [] (out: *mut *mut c_void, image: *const c_void) |machine| {
        machine.current()?;
        // SAFETY: PTX ends with a NUL, by the contract; other images are not passed.
        let text = unsafe { CStr::from_ptr(image.cast()) };
        let program = text.to_str().ok().and_then(Program::parse);
        let handle = machine.handle();
        machine.modules.insert(handle, Arc::new(program.ok_or(INVALID_PTX)?));
        // SAFETY: as the function's contract says.
        unsafe { put(out, std::ptr::without_provenance_mut(handle)) };
        Ok(())
    }
    cuModuleUnload [] (module: *mut c_void) |machine| {
        machine.current()?;
        machine.functions.retain(|_, of| *of != module.addr());
        machine.modules.remove(&module.addr()).map(drop).ok_or(INVALID_HANDLE)
    }
    cuModuleGetFunction [] (out: *mut *mut c_void, module: *mut c_void, name: *const c_char) |machine| {
        machine.current()?;
        let program = machine.modules.get(&module.addr()).ok_or(INVALID_HANDLE)?;
        // SAFETY: a terminated string, by the contract.
        if unsafe { CStr::from_ptr(name) }.to_bytes() != program.entry().as_bytes() {
            return Err(NOT_FOUND);
        }
        let handle = machine.handle();
        machine.functions.insert(handle, module.addr());
        // SAFETY: as the function's contract says.
        unsafe { put(out, std::ptr::without_provenance_mut(handle)) };
        Ok(())
    }
    cuLaunchKernel [] (function: *mut c_void, blocks: c_uint, blocks_y: c_uint, blocks_z: c_uint, threads: c_uint, threads_y: c_uint,
        threads_z: c_uint, shared: c_uint, stream: *mut c_void, arguments: *mut *mut c_void, extra: *mut *mut c_void) |machine| {
        machine.current()?;
        let module = machine.functions.get(&function.addr()).ok_or(INVALID_HANDLE)?;
        let program = Arc::clone(machine.modules.get(module).ok_or(INVALID_HANDLE)?);
        let is_usual = [blocks_y, blocks_z, threads_y, threads_z] == [1; 4] && shared == 0 && extra.is_null();
        if !is_usual || blocks == 0 || !(1..=BLOCK_THREADS_MAX).contains(&threads) || arguments.is_null() {
            return Err(INVALID_VALUE);
        }
        let argument = |at: usize| {
            // SAFETY: as many addresses as the function has parameters, by the contract.
            let place = unsafe { arguments.wrapping_add(at).read() };
            // SAFETY: each parameter has 8 bytes (`Program::parse`), by the contract.
            unsafe { place.cast::<u64>().read_unaligned() }
        };
        let arguments = (0..program.parameters()).map(argument).collect();
        let grid = Grid { blocks, threads };
        machine.plan.log(&format!("launched {}", program.entry()));
        machine.enqueue_kernel(stream.addr(), Launch { program, grid, arguments })
    }
}
