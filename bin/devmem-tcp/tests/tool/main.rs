//! Runs the tool, in one program. The tests that need a NIC of the kernel are programs that the lab runs in its guest:
//! `lab_nic` and `lab_backend`.

#[path = "../common/mod.rs"]
mod common;

mod backend;
mod broker;
mod cli;
mod completion;
mod demo;
mod doctor;
mod gpu;
mod load_file;
mod load_https;
mod ncdevmem;
mod nic;
mod recv;
mod restore;
mod samples;
mod send;
mod signals;
mod vulkan;
#[cfg(feature = "watch")]
mod watch;
mod wire;
