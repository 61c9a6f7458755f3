//! The lab: a stock Linux guest in QEMU, with our emulated gVNICs as its network cards, in which the real kernel runs
//! device memory TCP. Without root, on any machine.
//!
//! A run goes `kit` (what a guest is made of: found or fetched) -> `initramfs` (its files) -> `nics` (device servers) ->
//! `machine` (a guest of `qemu`, and what comes back over the control port) -> `klog` (the kernel's log, judged). On the other side
//! `guest` is process 1; `job`, `frame` and `conversation` are what the two say to each other. `suite` is what the lab is for: the
//! acceptance tests.
//!
//! Key types: [`kit::Kit`] (QEMU, kernel and tools), [`machine::MachinePlan`] (a guest), [`job::Job`] (what it does).
//! What it does not do: it changes nothing on this machine outside of its cache folder and a scratch folder.

#![forbid(unsafe_code)]
#![deny(clippy::print_stderr, clippy::print_stdout)]

pub mod accel;
pub mod apt;
pub mod args;
pub mod cache;
mod command;
pub mod conversation;
pub mod elf;
pub mod frame;
#[cfg(test)]
mod fuzz_replay;
pub mod guest;
mod image;
pub mod initramfs;
pub mod job;
pub mod kit;
pub mod klog;
pub mod machine;
pub mod nics;
pub mod plan;
pub mod progress;
pub mod qemu;
pub mod scratch;
pub mod suite;

pub use command::run;
