//! The lab: a stock Linux guest in QEMU with our emulated gVNICs, in which the Linux kernel runs device memory TCP. It
//! needs no root and runs on any machine.
//!
//! Steps of a run: `kit` (finds or fetches QEMU, `kernel` and tools) -> `guest_files` (an archive of them, by `initramfs`) -> `nics` and `shares`
//! (start their `servers`) -> `machine` (runs the guest with `qemu`, and receives output over the control port) -> `klog`
//! (checks the kernel's log). In the guest, `guest` is process 1; `job`, `frame` and `conversation` are the protocol between
//! host and guest. `pair` runs two guests on one wire. The acceptance tests, and what runs the kernel's own, are the program
//! `devmem-lab`, which is built on this crate; `command` hands their commands over to it.
//!
//! Key types: [`kit::Kit`] (QEMU, kernel and tools), [`machine_plan::MachinePlan`] (configuration of a guest), [`job::Job`]
//! (what the guest runs). The lab changes nothing on this machine outside its cache folder and a temporary folder.

#![forbid(unsafe_code)]
#![deny(clippy::print_stderr, clippy::print_stdout)]

pub mod accel;
pub mod apt;
mod apt_errors;
pub mod args;
pub mod boot;
pub mod cache;
mod command;
pub mod conversation;
pub mod disks;
pub mod elf;
pub mod frame;
#[cfg(test)]
mod fuzz_replay;
pub mod group;
pub mod guest;
mod guest_files;
mod image;
pub mod initramfs;
pub mod job;
pub mod kernel;
pub mod kit;
pub mod klog;
pub mod machine;
pub mod machine_plan;
pub mod nics;
pub mod pair;
pub mod pass_on;
pub mod plan;
pub mod qemu;
pub mod resolve;
pub mod scratch;
pub mod servers;
pub mod shares;
mod vmlinux;

pub use command::run;
