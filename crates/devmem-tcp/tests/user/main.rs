//! The library over NICs in user space, on in-memory wires. One program: each of them links the whole library. A test whose subject is
//! the process (its memory, descriptors, control group, forks) has a program of its own.

mod api;
mod awaited;
mod awaited_halves;
#[path = "../common/bench.rs"]
mod bench;
#[path = "../common/mod.rs"]
mod common;
mod direct;
mod errors;
mod held;
mod in_use;
mod loopback;
mod send;
mod streams;
