//! One emulated gVNIC: connects a virtual machine to a wire with one poll loop.
//!
//! `gvnic.rs` is the PCI device, `wire.rs` the wire with its impairments, `port.rs` the port at its end (a TAP or
//! a UNIX socket), `serve.rs` the loop, `control.rs` the commands to a running device, `report.rs` its
//! statistics.

mod accepting;
mod control;
mod gvnic;
mod port;
mod report;
mod serve;
mod wire;

pub use port::{OpenPort, read_failed};
pub use serve::serve;
