// UNSAFETY: functions that C calls with its pointers.

//! The functions of `devmem_tcp.h`.
//!
//! # Safety
//! Of every function: each pointer is valid for the accesses that the header describes, or null where the header allows it.
#![allow(
    unsafe_code,
    clippy::missing_safety_doc,
    reason = "the island; the section above applies to every function"
)]

mod device;
mod memory;
mod nic;
mod opaque;
mod shards;
mod socket;

pub use device::*;
pub use memory::*;
pub use nic::*;
pub use opaque::*;
pub use shards::*;
pub use socket::*;
