//! `devmem-tcp lab selftests`: runs the NIC tests of a Linux source tree on our NIC.
//!
//! `tree` finds the programs and the files that they need, `host` starts a guest with them. In the guest, `guest` runs one
//! program after another in a root file system made of packages (Python, iproute2, socat), with the peer's network
//! namespace as the remote end. `ktap` reads the output of a program.

mod edits;
pub mod guest;
pub mod host;
mod ktap;
mod report;
pub mod tree;
