//! `bench latency`: how long a message and its return take, and how many short connections fit into a second, beside the kernel's
//! sockets.

mod far;
mod line;
mod report;
mod rows;
mod run;
mod work;

use clap::Args;
use tool::output::Failure;

use crate::processes::RowsArgs;
use report::LatencyReport;
use rows::ROWS;

pub use far::{FarArgs, run as run_far};

/// Measure round trips of small messages and short connections, beside the kernel's sockets
///
/// The other end of each row is the kernel's TCP in a process of its own, behind a veth pair; for `tap`, behind the TAP; for `shared`,
/// our stack, on a wire that shares memory. Rows with `/spin` ask again and again at both ends instead of sleeping. `connect` opens
/// connections, sends 1 KiB on each and waits for its end; `accept` takes such connections from the kernel. Every repetition runs
/// all rows one after another.
#[derive(Debug, Args)]
pub struct LatencyArgs {
    #[command(flatten)]
    rows: RowsArgs,
}

/// Runs the benchmark and prints its report.
///
/// # Errors
///
/// The network cannot be set up, or a row fails.
pub fn run(args: &LatencyArgs) -> Result<(), Failure> {
    args.rows.run::<LatencyReport>(ROWS, || Ok(()), run::run)
}
