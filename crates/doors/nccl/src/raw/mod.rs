// UNSAFETY: declares what NCCL and this library share, and holds what touches memory of NCCL; each file says what it takes for granted.

//! NCCL's structures, its log, and the memory that it registers: what the rest of the plugin stands on.
#![allow(unsafe_code, missing_docs, reason = "an island; the names are NCCL's")]

pub mod abi;
pub(crate) mod gpu;
pub(crate) mod host;
pub mod kernels;
pub(crate) mod log;
