// UNSAFETY: registered memory, memory of other processes, and lists of the C library are used by their addresses.

//! What touches memory by its address. Nothing here knows peers or transfers.
#![allow(unsafe_code, reason = "the island")]

pub(crate) mod addresses;
pub(crate) mod gpu;
pub(crate) mod process;
pub(crate) mod region;
pub(crate) mod scatter;
