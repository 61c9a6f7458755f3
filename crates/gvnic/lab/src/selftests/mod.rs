//! `devmem-tcp lab selftests`: the test programs for NICs of a Linux source tree, on our NIC.
//!
//! `tree` finds the programs and what they need, `host` starts a guest with it, and `guest` runs there one program after
//! another, in a root file system of packages (Python, iproute2, socat), with the peer's network namespace as the remote
//! end. `ktap` reads what a program prints.

pub mod guest;
pub mod host;
mod ktap;
pub mod tree;

use serde::{Deserialize, Serialize};

/// Root file system of the programs in the guest.
pub const ROOT: &str = "/lab/root";
/// Minimum memory in MiB of a guest with that root file system.
pub const MIN_MEMORY_MIB: u32 = 2048;
/// Path of the source tree in that root file system.
pub const TREE: &str = "/linux";

/// How a program ended, as the guest tells it: one line.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Ended {
    /// The program, by its path below the folder of the tests.
    program: String,
    /// Its exit code; that of timeout(1) if it took too long.
    code: i32,
    seconds: f64,
    /// The end of what it printed.
    output: String,
    /// The first warning or error that the kernel logged meanwhile. After an error, the guest runs no further program.
    complaint: Option<String>,
}
