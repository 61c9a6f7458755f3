//! A library with the functions of NVIDIA's driver that `devmem-cuda` calls, and those of ROCm that `devmem-hip` calls, for
//! tests without a GPU.
//!
//! - `Machine` is the state of the driver: memory, streams, events, and what is still allocated at the end.
//! - `Plan` is how it behaves: the environment variable `STUB_GPU`, such as `driver=12040,devices=2,fail=cuMemAlloc:2`; for
//!   measurements `copies=0`.
//! - `Program` is device code: an interpreter of the few PTX instructions that `devmem-cuda` uses, which refuses all others. So a test runs the text
//!   that a GPU would be given.
//! - `Stream` holds the copies that are not done. `STUB_GPU_LOG` names a file for a log of all calls.
//!
//! The address of "device memory" is a range that nobody can access: an access of the CPU is SIGSEGV, a system call fails
//! with EFAULT. The bytes are in a memory file that only the copies and functions here use. A copy is done when a later
//! event of its stream has been queried as often as the plan says, or is waited for.
//!
//! It does not show that the libraries of the vendors have the same
//! parameters, nor their timing.

mod calls;
mod cuda;
mod entry;
mod hip;
mod host;
mod kernels;
mod machine;
mod plan;
#[doc(hidden)]
pub mod ptx;
mod streams;

pub use entry::{cuDriverGetVersion, cuGetProcAddress_v2};
pub use hip::hipRuntimeGetVersion;
