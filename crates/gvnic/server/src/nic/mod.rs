//! One emulated gVNIC: a virtual machine on one side, a wire on the other, one poll loop between them.
//!
//! `gvnic.rs` is the device as the machine's PCI bus sees it, `wire.rs` the wire with whatever is wrong with it,
//! `port.rs` what is at its end (a TAP, or a UNIX wire, both of the crate `nic`), `serve.rs` the loop, `control.rs` what
//! may be asked of a running device, `report.rs` what is told about it.

mod control;
mod gvnic;
mod port;
mod report;
mod serve;
mod wire;

pub use port::{FRAME_BUFFER_BYTES, Port};
pub use serve::serve;
