// UNSAFETY: functions that C calls, with its pointers to read and write.

//! Transfers and notifications. `shim/devmem_nixl.h` says what each function does.
//!
//! # Safety
//! As of `calls`; a transfer is one of `devmem_nixl_prepare` that was not released.
#![allow(
    clippy::missing_safety_doc,
    reason = "one sentence, above, holds for all"
)]

use std::ffi::{c_int, c_void};
use std::sync::Arc;

use super::calls::engine;
use super::text::{Text, done, list, status, write};
use crate::agent::Range;
use crate::engine::Engine;
use crate::status::{Failure, Status};
use crate::transfer::{Op, Transfer};

/// Takes a notification: texts that are valid during the call.
pub type Notice = unsafe extern "C" fn(to: *mut c_void, from: Text, message: Text);

/// # Safety
/// `transfer` is null, or one of `devmem_nixl_prepare` that nobody releases meanwhile.
unsafe fn transfer<'a>(transfer: *const Arc<Transfer>) -> Result<&'a Arc<Transfer>, Failure> {
    let null = || Failure::new(Status::InvalidParam, "the transfer is NULL");
    // SAFETY: as this function's.
    unsafe { transfer.as_ref() }.ok_or_else(null)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn devmem_nixl_prepare(
    it: *const Engine,
    is_write: c_int,
    peer: Text,
    locals: *const Range,
    remotes: *const Range,
    count: usize,
    out: *mut *mut Arc<Transfer>,
) -> c_int {
    done(|| {
        // SAFETY: an engine of the caller.
        let engine = unsafe { engine(it)? };
        // SAFETY: a text of the caller.
        let peer = unsafe { peer.name()? };
        // SAFETY: a list of the caller.
        let locals = unsafe { list(locals, count) };
        // SAFETY: a list of the caller.
        let remotes = unsafe { list(remotes, count) };
        let op = match is_write {
            0 => Op::Read,
            _ => Op::Write,
        };
        let prepared = engine.with(|agent| agent.prepare(op, peer, locals, remotes))?;
        let prepared = Box::into_raw(Box::new(prepared));
        // SAFETY: room for a pointer.
        unsafe { write(out, prepared) }
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn devmem_nixl_post(
    it: *const Engine,
    posted: *const Arc<Transfer>,
    notification: *const Text,
) -> c_int {
    status(|| {
        // SAFETY: an engine of the caller.
        let engine = unsafe { engine(it)? };
        // SAFETY: a transfer of the caller.
        let posted = unsafe { transfer(posted)? };
        // SAFETY: null, or a text of the caller.
        let notification = unsafe { notification.as_ref() };
        // SAFETY: as above.
        let message = notification.map(|text| unsafe { text.bytes() }.to_vec());
        engine.post(posted, message)
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn devmem_nixl_check(it: *const Engine, checked: *const Arc<Transfer>) -> c_int {
    status(|| {
        // SAFETY: an engine of the caller.
        let engine = unsafe { engine(it)? };
        // SAFETY: a transfer of the caller.
        engine.check(unsafe { transfer(checked)? })
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn devmem_nixl_release(it: *const Engine, released: *mut Arc<Transfer>) -> c_int {
    done(|| {
        if released.is_null() {
            return Ok(());
        }
        // SAFETY: of `devmem_nixl_prepare`, which made it by `Box::into_raw`, and released once.
        let released = unsafe { Box::from_raw(released) };
        // SAFETY: an engine of the caller.
        let engine = unsafe { engine(it)? };
        if released.status() != Status::InProgress {
            return Ok(());
        }
        engine.cancel(&released)
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn devmem_nixl_notify(it: *const Engine, peer: Text, message: Text) -> c_int {
    done(|| {
        // SAFETY: an engine of the caller.
        let engine = unsafe { engine(it)? };
        // SAFETY: a text of the caller.
        let peer = unsafe { peer.name()? };
        // SAFETY: a text of the caller.
        engine.notify(peer, unsafe { message.bytes() })
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn devmem_nixl_notifications(
    it: *const Engine,
    notice: Notice,
    to: *mut c_void,
) -> c_int {
    done(|| {
        // SAFETY: an engine of the caller.
        let taken = unsafe { engine(it)? }.notifications()?;
        for it in taken {
            let (from, message) = (Text::of(it.from.as_bytes()), Text::of(&it.message));
            // SAFETY: the caller's function, with the caller's pointer.
            unsafe { notice(to, from, message) };
        }
        Ok(())
    })
}
