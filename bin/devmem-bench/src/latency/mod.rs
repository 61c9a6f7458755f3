//! `bench latency`: how long a message and its return take, and how many short connections fit into a second, beside the kernel's
//! sockets.

mod far;
mod line;
mod report;
mod rows;
mod run;
mod work;

use std::time::Duration;

use anyhow::Context;
use clap::Args;
use devmem_linux::{cpu, netns};
use tool::output::Failure;

use crate::form::FormArgs;
use crate::network::require_tap;
use crate::processors::first_two;
use crate::repetitions::Repetitions;
use report::LatencyReport;
use rows::{ROWS, Row};

pub use far::{FarArgs, run as run_far};

/// Durations of a run.
const SECONDS: std::ops::RangeInclusive<f64> = 0.05..=60.0;

/// Measure round trips of small messages and short connections, beside the kernel's sockets
///
/// The other end of each row is the kernel's TCP in a process of its own, behind a veth pair; for `tap`, behind the TAP; for `shared`,
/// our stack, on a wire that shares memory. Rows with `/spin` ask again and again at both ends instead of sleeping. `connect` opens
/// connections, sends 1 KiB on each and waits for its end; `accept` takes such connections from the kernel. Every repetition runs
/// all rows one after another.
#[derive(Debug, Args)]
pub struct LatencyArgs {
    /// Repetitions of all rows; use at least 5 to see the spread
    #[arg(long, value_name = "N", default_value_t = 5)]
    reps: usize,
    /// Duration of each run, in seconds
    #[arg(long, value_name = "S", default_value_t = 0.5)]
    seconds: f64,
    /// Run only the rows with these names or beginnings of names
    #[arg(long, value_name = "NAME,...", value_delimiter = ',')]
    only: Vec<String>,
    #[command(flatten)]
    form: FormArgs,
}

/// Runs the benchmark and prints its report.
///
/// # Errors
///
/// The network cannot be set up, or a row fails.
pub fn run(args: &LatencyArgs) -> Result<(), Failure> {
    let LatencyArgs {
        reps,
        seconds,
        only,
        form,
    } = args;
    if !SECONDS.contains(seconds) {
        return Err(Failure::usage(format_args!(
            "--seconds {seconds}: must be 0.05 to 60"
        )));
    }
    let is_wanted =
        |name: &str| only.is_empty() || only.iter().any(|wanted| name.starts_with(wanted.as_str()));
    let rows: Vec<_> = ROWS.iter().filter(|row| is_wanted(row.name)).collect();
    if rows.is_empty() {
        let names: Vec<_> = ROWS.iter().map(|row| row.name).collect();
        return Err(Failure::usage("--only: there is no such row")
            .with_remedy(format!("choose from {}", names.join(", "))));
    }
    let repetitions = Repetitions::new("repetition", "--reps", *reps as u64)?;
    require_tap()?;
    // Before any thread is started, because an unprivileged caller also enters a user namespace.
    netns::enter_new()?;
    let cpus = first_two(&cpu::allowed_cpus())?;
    let mut report = LatencyReport::new(&rows, *seconds, *reps);
    let time = Duration::from_secs_f64(*seconds);
    let measure = |_, row: &&Row| {
        let sample = run::run(row, time, cpus, repetitions.stop());
        sample.with_context(|| row.name)
    };
    let progress = repetitions.run(&rows, measure, |row, sample| report.add(row, &sample))?;
    form.print(progress, &report, &report.chart())
}
