//! Emulated gVNICs for virtual machines, and the cable between two hosts: the commands `nic` and `wire`.
//!
//! Key types: [`plan::GvnicPlan`] and [`plan::WirePlan`] (what to serve), [`nic::Port`] (the wire's end: a TAP or a UNIX
//! socket). Its part of ARCHITECTURE.md is "One gVNIC doorbell": it joins the device (`gve`) to the protocol
//! (`vfio-user`) and to a wire. It knows nothing of guests: `lab` starts those.

#![forbid(unsafe_code)]
#![deny(clippy::print_stderr, clippy::print_stdout)]

pub mod args;
pub mod cable;
pub mod nic;
pub mod plan;
