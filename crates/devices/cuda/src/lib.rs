//! Memory of NVIDIA GPUs: allocated or adopted, exported as dma-bufs, and copied by the GPU.
//!
//! - [`Device`] is a GPU, opened: its primary context (which the CUDA runtime and the frameworks use, too) and three streams,
//!   for copies in, copies out and gathering. It is a [`CopyEngine`](netmem::CopyEngine): the user-space stack receives
//!   payload into pinned host memory, and the GPU copies it from there.
//! - [`Allocation`] is memory of a device: an [`Exporter`](netmem::Exporter) whose dma-buf a kernel NIC can be bound to. It is
//!   freed when the last of its users is dropped, in any order.
//! - [`CudaError`] names the call that failed, its error and what to do.
//!
//! The driver's library is loaded at run time (`libcuda.so.1`, or the file that `DEVMEM_LIBCUDA` names), by dlopen: a program
//! with this crate needs no CUDA to be built, and runs without a GPU. Any thread may call anything; each call makes the
//! context current and restores the thread's own. After fork(2), a child gets errors, and frees nothing.
//!
//! In the walks of ARCHITECTURE.md, the crate does the copies of a staged packet, on the way in and on the way out. It knows
//! no packets. It does not launch kernels, and does not import memory of other processes.

mod allocation;
mod device;
mod error;
mod sys;

pub use allocation::Allocation;
pub use device::{Device, DeviceInfo, devices};
pub use error::{CudaError, LoadError};
