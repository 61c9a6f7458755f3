//! Emulated gVNICs for virtual machines, and a cable between two hosts: the commands `nic` and `wire`.
//!
//! Key types: [`plan::GvnicPlan`] and [`plan::WirePlan`] (validated command lines), [`nic::OpenPort`] (one end of a wire: a
//! TAP, a packet socket or a UNIX socket). In `crates/gvnic/DECISIONS.md`, "One doorbell", it connects the device (`gve`) to the
//! protocol (`vfio-user`) and to a wire. It does not start virtual machines: `lab` does.

#![forbid(unsafe_code)]
#![deny(clippy::print_stderr, clippy::print_stdout)]

pub mod args;
pub mod cable;
pub mod nic;
pub mod plan;
