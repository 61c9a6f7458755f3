//! Memory of GPUs: allocated or adopted, exported as dma-bufs, and copied by the GPU.
//!
//! - [`Device`] is a GPU, opened: three streams, for copies in, copies out and gathering. It is a
//!   [`CopyEngine`](netmem::CopyEngine): the user-space stack receives payload into pinned host memory, and the GPU copies it
//!   from there.
//! - [`Allocation`] is memory of a device: an [`Exporter`](netmem::Exporter) whose dma-buf a kernel NIC can be bound to. It is
//!   freed when the last of its users is dropped, in any order. Memory of other libraries is adopted, with its dma-buf or without;
//!   [`Allocation::revoke`] ends all copies before its owner frees it.
//! - [`Adder`] adds vectors of floats on the device, where the vendor's crate has device code for it: what an all-reduce needs. The device
//!   also computes the CRC-32C of its memory ([`CopyEngine::crc32c`](netmem::CopyEngine::crc32c)), where there is code for that.
//! - [`Driver`](driver::Driver) is the library of a vendor: a table of the functions that all have, and what differs.
//!   `devmem-cuda` and `devmem-hip` implement it. [`GpuError`] names the call that failed, its error and what to do.
//!
//! A library is loaded at run time, by dlopen: a program with this crate is built without the vendor's files, and runs without
//! a GPU. Any thread may call anything; each call selects the device and restores the thread's own. After fork(2), a child gets
//! errors, and frees nothing.
//!
//! The crate copies packets between the ring of a queue and the memory of the device, in both directions
//! (`crates/core/nic/DECISIONS.md`, "Memory that the CPU cannot access"). It knows no headers.
//! It launches two kernels, the addition of an [`Adder`] and the checksums of a memory's chunks; it does not import memory of other
//! processes.

mod adder;
mod adopt;
mod allocation;
mod app_stream;
mod device;
pub mod driver;
mod engine;
mod error;
mod open;
mod place;
mod platform;
mod sys;

pub use adder::{Adder, Floats};
pub use allocation::Allocation;
pub use device::{Device, DeviceInfo};
pub use error::{GpuError, LoadError};
pub use open::devices;
pub use place::{Place, exporting, locate, selected};
pub use sys::shared::SharedWords;
