//! `bench exchange`: messages between two processes, compared with a bare stream of the same link and with an exchange over
//! the kernel's sockets.

mod bare;
mod link;
mod messages;
mod ours;
mod rank;
mod report;
mod rows;
mod run;
mod sockets;

use std::time::Duration;

use anyhow::Context;
use clap::Args;
use devmem_linux::{cpu, netns};
use tool::output::Failure;

use crate::form::FormArgs;
use crate::network::require_tap;
use crate::processors::first_two;
use crate::repetitions::Repetitions;
use report::ExchangeReport;
use rows::{ROWS, Row};

pub use rank::{RankArgs, run as run_rank};

/// Durations of a run.
const SECONDS: std::ops::RangeInclusive<f64> = 0.05..=60.0;

/// Measure messages between two processes against a bare stream and against kernel sockets
///
/// Rows named `ours` send messages of 4 MiB, or return messages of a few bytes, from and into host memory by the exchange of
/// devmem-transfer; `device` sends from and receives into device memory; `stream` does the same as `ours` with one TCP connection of
/// the same stack on the same link. All rows use four buffers in turn. `tap` is a TAP for each process, between which the kernel
/// forwards; `veth` is a packet socket for each process, on the two ends of a veth pair; `unix` is a UNIX socket for each process
/// and a cable process between them; `shared` is a UNIX socket between the processes, which let each other read what they send from (`device/shared` uses memory files
/// that are marked as shared); `copied` is the same without asking for that: what is sent is copied to memory of the wire first. `sockets/veth` is an exchange made for this benchmark over the kernel's TCP and a veth pair: each message is cut into
/// pieces for four connections, and the thread polls, as NCCL's own transport does. Every repetition runs all rows one
/// after another.
#[derive(Debug, Args)]
pub struct ExchangeArgs {
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
pub fn run(args: &ExchangeArgs) -> Result<(), Failure> {
    let ExchangeArgs {
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
    link::forward_packets()?;
    let cpus = first_two(&cpu::allowed_cpus())?;
    let mut report = ExchangeReport::new(&rows, *seconds, *reps);
    let time = Duration::from_secs_f64(*seconds);
    let measure = |_, row: &&Row| {
        let sample = run::run(row, time, cpus, repetitions.stop());
        sample.with_context(|| row.name)
    };
    let progress = repetitions.run(&rows, measure, |row, sample| report.add(row, sample))?;
    form.print(progress, &report, &report.chart())
}
