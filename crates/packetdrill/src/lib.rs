//! A shared object through which [packetdrill](https://github.com/google/packetdrill) judges the user-space stack.
//!
//! packetdrill loads it (`--so_filename`), calls `packetdrill_interface_init` with the text of `--so_flags`, and gets
//! a structure of functions: the socket calls, and `netdev_send` and `netdev_receive`, which stand for the wire. Key
//! types: [`Instance`] (a stack on a link that the script holds, in virtual time), [`Flags`] (what `--so_flags` may
//! say) and [`Interface`] (the structure).
//!
//! Time is virtual: it moves when the script sleeps, and when it waits for a packet and none is there; then it jumps
//! to the stack's next timer. A script takes no longer than its computing, and runs the same each time.
//!
//! The stack's address is whatever the script uses; there is no neighbour discovery. With `devmem=1` payload is
//! received into bound device memory that the CPU must not read, and copied out when the script reads.
//!
//! # What it does not do
//!
//! - splice copies; a script's sysctl lines act on the host, not here: see [`Flags`].

mod ffi;
mod flags;
mod instance;
mod link;
mod sysctls;

pub use ffi::{Interface, packetdrill_interface_init};
pub use flags::{Flags, FlagsError};
pub use instance::Instance;
