// UNSAFETY: functions that C calls, with its pointers to read and write; registers memory of the caller.

//! Memory, of this agent and of peers. `shim/devmem_nixl.h` says what each function does.
//!
//! # Safety
//! As of `calls`; memory that is registered stays valid until it is deregistered.
#![allow(
    clippy::missing_safety_doc,
    reason = "one sentence, above, holds for all"
)]

use std::ffi::{c_int, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};

use super::calls::engine;
use super::text::{Put, Text, done, write};
use crate::engine::Engine;
use crate::info::{MemoryKind, RegionInfo};
use crate::raw::gpu::{self, GpuMemory};
use crate::raw::region::Region;
use crate::status::{Failure, Status};

/// Returns 1 if a driver of this machine has a GPU.
#[unsafe(no_mangle)]
extern "C" fn devmem_nixl_has_gpu() -> c_int {
    catch_unwind(gpu::is_there).map_or(0, c_int::from)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn devmem_nixl_register(
    it: *const Engine,
    address: u64,
    len: u64,
    region: *mut u64,
) -> c_int {
    done(|| {
        // SAFETY: an engine of the caller.
        let engine = unsafe { engine(it)? };
        let (start, size) = range(address, len)?;
        let number = engine.with(|agent| {
            let key = agent.new_key()?;
            // SAFETY: the caller's memory, until it is deregistered: the contract of the function.
            let region = unsafe { Region::new(start, size, key) };
            agent.register(region.ok_or_else(|| no_memory(address, len))?)
        })?;
        // SAFETY: room for a number.
        unsafe { write(region, number) }
    })
}

/// Returns 1 if the engine takes memory of the host.
#[unsafe(no_mangle)]
unsafe extern "C" fn devmem_nixl_takes_host(it: *const Engine) -> c_int {
    let takes = || {
        // SAFETY: an engine of the caller.
        let engine = unsafe { engine(it)? };
        engine.with(|agent| agent.check_kind(MemoryKind::Host))
    };
    catch_unwind(AssertUnwindSafe(takes)).map_or(0, |taken| c_int::from(taken.is_ok()))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn devmem_nixl_register_gpu(
    it: *const Engine,
    address: u64,
    len: u64,
    device: u64,
    region: *mut u64,
) -> c_int {
    done(|| {
        // SAFETY: an engine of the caller.
        let engine = unsafe { engine(it)? };
        let (start, size) = range(address, len)?;
        engine.with(|agent| agent.check_kind(MemoryKind::Gpu))?;
        // SAFETY: the caller's memory, until it is deregistered: the contract of the function.
        let gpu = unsafe { GpuMemory::adopt(address, size, device)? };
        let number = engine.with(|agent| {
            let region = Region::of_gpu(start, size, agent.new_key()?, gpu);
            agent.register(region.ok_or_else(|| no_memory(address, len))?)
        })?;
        // SAFETY: room for a number.
        unsafe { write(region, number) }
    })
}

fn no_memory(address: u64, len: u64) -> Failure {
    let text = format!("{len} bytes at {address:#x} are no memory of a process");
    Failure::new(Status::InvalidParam, text)
}

fn range(address: u64, len: u64) -> Result<(usize, usize), Failure> {
    let start = usize::try_from(address).ok();
    let range = start.zip(usize::try_from(len).ok());
    range.ok_or_else(|| no_memory(address, len))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn devmem_nixl_deregister(it: *const Engine, region: u64) -> c_int {
    // SAFETY: an engine of the caller.
    done(|| unsafe { engine(it)? }.with(|agent| agent.deregister(region)))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn devmem_nixl_describe(
    it: *const Engine,
    region: u64,
    put: Put,
    to: *mut c_void,
) -> c_int {
    done(|| {
        // SAFETY: an engine of the caller.
        let described = unsafe { engine(it)? }.with(|agent| agent.describe(region))?;
        // SAFETY: the caller's function, with the caller's pointer.
        unsafe { put(to, Text::of(&described.to_bytes())) };
        Ok(())
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn devmem_nixl_load_region(
    it: *const Engine,
    peer: Text,
    bytes: Text,
    region: *mut u64,
) -> c_int {
    done(|| {
        // SAFETY: an engine of the caller.
        let engine = unsafe { engine(it)? };
        // SAFETY: a text of the caller.
        let peer = unsafe { peer.name()? };
        // SAFETY: a text of the caller.
        let loaded = RegionInfo::from_bytes(unsafe { bytes.bytes() })?;
        let number = engine.with(|agent| Ok(agent.load_region(peer, loaded)))?;
        // SAFETY: room for a number.
        unsafe { write(region, number) }
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn devmem_nixl_load_own(
    it: *const Engine,
    region: u64,
    remote: *mut u64,
) -> c_int {
    done(|| {
        // SAFETY: an engine of the caller.
        let number = unsafe { engine(it)? }.with(|agent| {
            let (name, described) = (agent.name().to_owned(), agent.describe(region)?);
            Ok(agent.load_region(&name, described))
        })?;
        // SAFETY: room for a number.
        unsafe { write(remote, number) }
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn devmem_nixl_unload_region(it: *const Engine, region: u64) -> c_int {
    done(|| {
        // SAFETY: an engine of the caller.
        unsafe { engine(it)? }.with(|agent| {
            agent.unload_region(region);
            Ok(())
        })
    })
}
