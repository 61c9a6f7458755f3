//! One suite for both backends: the same scenarios, run on the user-space stack and on this machine's kernel, and what
//! an application observes compared line by line.
//!
//! The kernel's side is its loopback, so that any machine can run it: bytes in host memory, sends from host memory. With
//! device memory it takes a NIC that can (`device.rs`); what only such a NIC shows is in `kernel_nic.rs`.

mod common;
#[path = "shared/device.rs"]
mod device;
#[path = "shared/halves.rs"]
mod halves;
#[path = "shared/pollers.rs"]
mod pollers;
#[path = "shared/receiving.rs"]
mod receiving;
#[path = "shared/sending.rs"]
mod sending;
#[path = "shared/waiting.rs"]
mod waiting;
#[path = "shared/world.rs"]
mod world;
