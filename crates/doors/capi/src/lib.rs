//! The user-space stack for C programs: `libdevmemtcp.so` and `devmem_tcp.h`.
//!
//! Key types: [`OpenStack`] (a stack with its thread) and [`Handles`] (the handles of C programs). A C program never holds a
//! pointer to our data: a handle is a number in a pointer type, looked up in each call. An invalid or closed handle is EBADF,
//! one of the parent process EOWNERDEAD. The functions are in `ffi/`, the only unsafe code here; none of them lets a panic
//! through.
//!
//! `devices` makes memory of GPUs. `nics` sets up and binds interfaces of the kernel; their sockets are those of libc. `failure`
//! keeps the last failed call of each thread for `dmt_error`.
//!
//! Calls that move data are those of `cabi`, which the packetdrill door uses, too. The header documents each function;
//! `install.sh` installs a library with versioned symbols, and a pkg-config file.

mod devices;
mod failure;
mod ffi;
mod handles;
mod nics;
mod settings;
mod stacks;

pub use ffi::*;
pub use handles::Handles;
pub use settings::{SettingsError, parse};
pub use stacks::OpenStack;
