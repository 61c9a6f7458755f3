// UNSAFETY: the C interface, which the C++ part of the plugin calls with its pointers.

//! The C interface (`shim/devmem_nixl.h`).
#![allow(unsafe_code, reason = "the island")]

mod calls;
mod memories;
#[cfg(feature = "test-util")]
pub mod scene;
#[cfg(has_shim)]
mod shim;
mod text;
mod transfers;
