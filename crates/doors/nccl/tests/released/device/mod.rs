//! A GPU for NCCL: its memory is memory of this process, its streams are threads, and its kernels are played by threads.

mod kernel;
mod layout;
mod memory;
mod pipe;
mod rings;
mod runtime;
mod streams;

pub use kernel::Version;
pub use layout::{FLOAT, LAYOUTS, PLAYED, ROWS};
pub use memory::allocations;
pub use runtime::{STREAMS, VERSION, functions};
pub use streams::{is_done, wait};
