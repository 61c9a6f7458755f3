// UNSAFETY: the functions that C calls, with C's pointers to pass on; each says what it takes for granted.

//! The functions of `devmem_tcp.h`.
//!
//! # Safety
//! Of every function: what the header says its pointers lead to is there, or they are null where it allows that.
#![allow(
    unsafe_code,
    clippy::missing_safety_doc,
    reason = "the island; one sentence, above, holds for all"
)]

mod memory;
mod nic;
mod socket;

pub use memory::*;
pub use nic::*;
pub use socket::*;

/// What C takes for a pointer to a stack: its number.
#[derive(Debug)]
#[repr(C)]
pub struct DmtStack {
    _opaque: [u8; 0],
}

/// What C takes for a pointer to a memory: its number.
#[derive(Debug)]
#[repr(C)]
pub struct DmtMemory {
    _opaque: [u8; 0],
}

/// What C takes for a pointer to an interface of the kernel: its number.
#[derive(Debug)]
#[repr(C)]
pub struct DmtNic {
    _opaque: [u8; 0],
}
