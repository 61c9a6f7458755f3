//! `devmem-tcp lab selftests`: runs the NIC tests of a Linux source tree on our NIC.
//!
//! `tree` finds the programs and the files that they need, `host` starts a guest with them. In the guest, `guest` runs one
//! program after another in a root file system made of packages (Python, iproute2, socat), with the peer's network
//! namespace as the remote end. `ktap` reads the output of a program.

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

/// Result of a program: one line of JSON from the guest.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct ProgramEnd {
    /// The program, by its path below the folder of the tests.
    program: String,
    /// Exit code of the program, or of timeout(1) if the program exceeded its limit.
    code: i32,
    seconds: f64,
    /// The last part of its output.
    output: String,
    /// The first warning or error that the kernel logged during the program. After an error, the guest runs no other program.
    complaint: Option<String>,
}
