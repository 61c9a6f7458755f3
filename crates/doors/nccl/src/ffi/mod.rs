// UNSAFETY: the functions that NCCL calls, with its pointers to read and write; each says what it takes for granted.

//! The functions of the plugin, as NCCL calls them.
//!
//! # Safety
//! Of every function: the pointers lead to what NCCL's network interface says, or are null where it allows that.
#![allow(
    unsafe_code,
    clippy::missing_safety_doc,
    missing_docs,
    reason = "the island; one sentence, above, holds for all, and the names are NCCL's"
)]

mod connections;
mod memory;
mod setup;
mod tables;
mod transfers;

use std::ffi::{c_int, c_void};

use crate::failure::{Code, Failure};

/// Returns the number behind a pointer that NCCL got from this library; 0 for NULL.
fn number(pointer: *mut c_void) -> u64 {
    pointer.addr() as u64
}

/// Returns what NCCL takes for a pointer.
fn pointer(number: Option<u64>) -> *mut c_void {
    // Numbers come from this process, whose addresses have the same width.
    std::ptr::without_provenance_mut(number.map_or(0, |number| number as usize))
}

/// Writes an out-parameter.
///
/// # Safety
/// `out` is null or leads to room for a `T`.
unsafe fn write<T>(out: *mut T, value: T) -> Result<(), Failure> {
    if out.is_null() {
        return Err(Failure::new(Code::Internal, "an out-parameter is NULL"));
    }
    // SAFETY: not null, so by the contract there is room.
    unsafe { out.write(value) };
    Ok(())
}

/// Returns a device index of NCCL.
fn device(device: c_int) -> Result<usize, Failure> {
    usize::try_from(device)
        .map_err(|_| Failure::new(Code::Argument, format!("there is no device {device}")))
}
