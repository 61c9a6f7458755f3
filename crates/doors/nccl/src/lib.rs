//! A network plugin for NCCL on device memory TCP: `libnccl-net-devmem.so`.
//!
//! NCCL loads it with `dlopen` and takes one of the structures `ncclNetPlugin_v8` to `ncclNetPlugin_v12`, whose functions
//! are those of `ffi/`, the only unsafe code here. All versions share one implementation: `state` (devices and contexts),
//! `comm` (connections and requests), `memory` (registered memory). The transfers are those of
//! `devmem_transfer::exchange`.
//!
//! A pointer that NCCL gets from this library is a number, looked up in every call: a wrong or closed one is an error, not
//! an access to freed memory. No function waits, and no panic crosses into C. A call that fails says so once in NCCL's
//! log, with a reason and a remedy.
//!
//! # What it does not do
//!
//! It takes host memory and dma-bufs that the CPU can map. It does not take GPU pointers (`ptrSupport` is 1), has no UNPACK
//! device type, and needs no flush.

mod comm;
mod config;
mod failure;
mod ffi;
mod gpu;
mod memory;
mod numbers;
mod state;
mod unpack;

pub use ffi::abi;
