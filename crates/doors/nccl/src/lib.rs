//! A network plugin for NCCL on device memory TCP: `libnccl-net-devmem.so`.
//!
//! NCCL loads it with `dlopen` and takes one of the structures `ncclNetPlugin_v8` to `ncclNetPlugin_v12`, whose functions
//! are those of `ffi/`; unsafe code is there and in `raw/`, which has NCCL's structures and what touches its memory. All versions share
//! one implementation: `contexts`, `devices` (opened NICs), `listeners` and `dials` (connections in the making), `comm` (connections and
//! requests), `memory` (registered memory), `gpu` (memory of GPUs), `unpack` (lists for NCCL's kernels). The transfers are those of
//! `devmem_exchange`.
//!
//! A pointer that NCCL gets from this library is a number, looked up in every call: a wrong or closed one is an error, not
//! an access to freed memory. What NCCL is done with is closed without a further call: by the exchange, or by `watch`. No function waits for the network, and no panic crosses into C. A call that fails says so once in NCCL's
//! log, with a reason and a remedy.
//!
//! # What it does not do
//!
//! It takes GPU memory only where the driver exports dma-bufs, the NIC can send from them, and NCCL does not use its protocol LL128
//! (`ptrSupport` is 5, else 1): copies of a GPU promise no order of their bytes. It takes memory of NVIDIA's GPUs only. A receive is
//! done when the copies of its gathers are, for which no call waits; so it needs no flush. With
//! UNPACK it holds frags as long as kernels need them, and does not look whether the pool is large enough for all that is posted.
//! It has run on one GPU, with two ranks: tests run the released NCCL with a stand-in for CUDA, and have a stub of the driver, whose memory the CPU
//! cannot access.

mod comm;
mod config;
mod contexts;
mod devices;
mod dials;
mod failure;
mod ffi;
mod gpu;
mod listeners;
mod memory;
mod numbers;
mod raw;
mod unpack;
mod watch;

pub use raw::abi;
