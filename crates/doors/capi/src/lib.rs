//! The user-space stack for C programs: `libdevmemtcp.so` and `devmem_tcp.h`.
//!
//! Key types: [`OpenStack`] (a stack with its thread) and [`Handles`] (what C holds of it). A C program never holds a
//! pointer to anything of ours: what looks like one is a number, looked up in each call, so that one that was closed,
//! or made up, is an errno, and so is one of a process that forked this one (EOWNERDEAD). The functions are in `ffi/`, the only unsafe code here; each lets no panic through.
//!
//! Calls that move data are those of `cabi`, which the packetdrill door uses, too. The header says what each does;
//! `install.sh` makes a library with versioned symbols, and a pkg-config file.

mod ffi;
mod handles;
mod settings;
mod stacks;

pub use ffi::*;
pub use handles::Handles;
pub use settings::{SettingsError, parse};
pub use stacks::OpenStack;
