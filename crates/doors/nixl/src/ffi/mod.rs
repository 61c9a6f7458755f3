// UNSAFETY: the C interface, which the C++ part of the plugin calls with its pointers.

//! The C interface (`shim/devmem_nixl.h`), and what else touches memory by its address.
#![allow(unsafe_code, reason = "the island")]

pub(crate) mod addresses;
mod calls;
pub(crate) mod process;
pub(crate) mod region;
pub(crate) mod scatter;
#[cfg(feature = "test-util")]
pub mod scene;
#[cfg(has_shim)]
mod shim;
mod text;
mod transfers;
