//! `devmem-tcp bench`: runs the benchmark program, which is in the same directory as this one.

use tool::beside;
use tool::output::Failure;

use crate::args::Bench;

/// Replaces this process by the benchmark program.
///
/// # Errors
///
/// It is not in the directory of this program, or cannot be run.
pub fn run(args: &Bench) -> Result<(), Failure> {
    beside::become_program("devmem-bench", &args.arguments)
}
