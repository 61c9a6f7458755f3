// UNSAFETY: functions that C calls, with its pointers to read and write.

//! Engines and peers. `shim/devmem_nixl.h` says what each function does.
//!
//! # Safety
//! Of every function: an engine is one of `devmem_nixl_open` that was not closed; texts, lists and out-parameters are as
//! `shim/devmem_nixl.h` says.
#![allow(
    clippy::missing_safety_doc,
    reason = "one sentence, above, holds for all"
)]

use std::ffi::{OsStr, c_int, c_void};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use super::text::{Put, Text, done, list, write};
use crate::abi;
use crate::engine::{self, Engine, Progress};
use crate::info::AgentInfo;
use crate::log::info;
use crate::settings::{PARAMETERS, Settings};
use crate::status::{Failure, Status};

/// A parameter of the backend.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct Parameter {
    key: Text,
    value: Text,
}

/// Returns the engine of a pointer.
///
/// # Safety
/// `engine` is null, or one that `devmem_nixl_open` made and nobody closes meanwhile.
pub(super) unsafe fn engine<'a>(engine: *const Engine) -> Result<&'a Engine, Failure> {
    let null = || Failure::new(Status::InvalidParam, "the engine is NULL");
    // SAFETY: as this function's.
    unsafe { engine.as_ref() }.ok_or_else(null)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn devmem_nixl_check_abi(libnixl: Text, table_bytes: usize) -> c_int {
    done(|| {
        // SAFETY: a text of the caller.
        let path = Path::new(OsStr::from_bytes(unsafe { libnixl.bytes() }));
        let path = (!path.as_os_str().is_empty()).then_some(path);
        abi::check(path, table_bytes as u64)
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn devmem_nixl_open(
    agent: Text,
    parameters: *const Parameter,
    count: usize,
    has_thread: c_int,
    out: *mut *mut Engine,
) -> c_int {
    done(|| {
        // SAFETY: a text of the caller.
        let agent = unsafe { agent.name()? };
        // SAFETY: a list of the caller.
        let parameters = unsafe { list(parameters, count) };
        let mut given = Vec::with_capacity(parameters.len());
        for it in parameters {
            // SAFETY: a text of the caller.
            let key = unsafe { it.key.name()? };
            // SAFETY: a text of the caller.
            let value = unsafe { it.value.name()? };
            given.push((key, value));
        }
        let progress = match has_thread {
            0 => Progress::Calls,
            _ => Progress::Thread,
        };
        let engine = Engine::open(agent, Settings::parse(given)?, progress)?;
        let addresses = engine.with(|agent| Ok(agent.addresses()))?;
        info(&format!(
            "the agent {} listens at {addresses}; a line says which way is used when a peer is connected",
            agent.escape_debug()
        ));
        let engine = Box::into_raw(Box::new(engine));
        // SAFETY: room for a pointer.
        unsafe { write(out, engine) }
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn devmem_nixl_close(engine: *mut Engine) {
    done(|| {
        if !engine.is_null() {
            // SAFETY: of `devmem_nixl_open`, which made it by `Box::into_raw`, and closed once.
            drop(unsafe { Box::from_raw(engine) });
        }
        Ok(())
    });
}

#[unsafe(no_mangle)]
unsafe extern "C" fn devmem_nixl_info(it: *const Engine, put: Put, to: *mut c_void) -> c_int {
    done(|| {
        // SAFETY: an engine of the caller.
        let bytes = unsafe { engine(it)? }.with(|agent| Ok(agent.info().to_bytes()))?;
        // SAFETY: the caller's function, with the caller's pointer.
        unsafe { put(to, Text::of(&bytes)) };
        Ok(())
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn devmem_nixl_load_agent(it: *const Engine, name: Text, bytes: Text) -> c_int {
    done(|| {
        // SAFETY: an engine of the caller.
        let engine = unsafe { engine(it)? };
        // SAFETY: a text of the caller.
        let name = unsafe { name.name()? };
        // SAFETY: a text of the caller.
        let loaded = AgentInfo::from_bytes(unsafe { bytes.bytes() })?;
        engine.with(|agent| agent.load_agent(name, loaded))
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn devmem_nixl_connect(it: *const Engine, peer: Text) -> c_int {
    done(|| {
        // SAFETY: a text of the caller.
        let peer = unsafe { peer.name()? };
        // SAFETY: an engine of the caller.
        unsafe { engine(it)? }.connect(peer)
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn devmem_nixl_disconnect(it: *const Engine, peer: Text) -> c_int {
    done(|| {
        // SAFETY: a text of the caller.
        let peer = unsafe { peer.name()? };
        // SAFETY: an engine of the caller.
        unsafe { engine(it)? }.with(|agent| agent.disconnect(peer))
    })
}

/// Returns 0 and a parameter with its default, or 1 if there are no more.
#[unsafe(no_mangle)]
unsafe extern "C" fn devmem_nixl_parameter(index: usize, out: *mut Parameter) -> c_int {
    let Some((key, value)) = PARAMETERS.get(index) else {
        return 1;
    };
    let it = Parameter {
        key: Text::of(key.as_bytes()),
        value: Text::of(value.as_bytes()),
    };
    // SAFETY: room for a parameter.
    done(|| unsafe { write(out, it) })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn devmem_nixl_paths(put: Put, to: *mut c_void) -> c_int {
    done(|| {
        let lines = engine::paths();
        // SAFETY: the caller's function, with the caller's pointer.
        unsafe { put(to, Text::of(lines.as_bytes())) };
        Ok(())
    })
}
