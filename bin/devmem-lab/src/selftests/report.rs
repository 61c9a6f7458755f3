//! What a guest prints for each program.

use serde::{Deserialize, Serialize};

/// Result of a program: one line of JSON from the guest.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ProgramEnd {
    /// The program, by its path below the folder of the tests.
    pub program: String,
    /// Exit code of the program, or of timeout(1) if the program exceeded its limit.
    pub code: i32,
    pub seconds: f64,
    /// The last part of its output.
    pub output: String,
    /// The first warning or error that the kernel logged during the program. After an error, the guest runs no other program.
    pub complaint: Option<String>,
}
