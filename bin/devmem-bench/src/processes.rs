//! The frame of `bench exchange` and `bench latency`: rows that are chosen by their names, and processes for their ends.

use std::fmt;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, anyhow};
use clap::{Args, ValueEnum};
use devmem_linux::helper::Helper;
use devmem_linux::{cpu, netns};
use serde::Serialize;
use tool::output::Failure;
use tool::peer::Peer;
use tool::signals::StopFlag;

use crate::chart::Chart;
use crate::form::FormArgs;
use crate::network::require_tap;
use crate::processors::first_two;
use crate::repetitions::Repetitions;

/// Durations of a run.
const SECONDS: std::ops::RangeInclusive<f64> = 0.05..=60.0;

/// Options of a benchmark.
#[derive(Debug, Args)]
pub struct RowsArgs {
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

/// A row of a benchmark.
pub trait Named {
    /// Returns its name in tables, in JSON and for `--only`.
    fn name(&self) -> &'static str;
}

/// The report of a benchmark.
pub trait RowsReport: fmt::Display + Serialize {
    type Row: Named + 'static;
    /// The figures of one run of a row.
    type Sample;

    /// Returns a report without samples.
    fn new(rows: &[&Self::Row], seconds: f64, repetitions: usize) -> Self;

    /// Adds a run of a row, by its index.
    fn add(&mut self, row: usize, sample: Self::Sample);

    /// Returns what was measured as a chart.
    fn chart(&self) -> Chart;
}

/// How a row is run.
#[derive(Clone, Copy, Debug)]
pub struct RunSetting<'a> {
    pub time: Duration,
    /// The processors of the two ends.
    pub cpus: (usize, usize),
    pub stop: &'a StopFlag,
}

impl RowsArgs {
    /// Measures the rows of `all` that are wanted by `measure`, in a network namespace that `prepare` has set up, and prints the
    /// report.
    ///
    /// # Errors
    ///
    /// An option is wrong; the network cannot be set up; a row fails.
    pub fn run<R: RowsReport>(
        &self,
        all: &'static [R::Row],
        prepare: impl FnOnce() -> Result<()>,
        measure: impl Fn(&R::Row, RunSetting<'_>) -> Result<R::Sample>,
    ) -> Result<(), Failure> {
        let Self {
            reps,
            seconds,
            only,
            form,
        } = self;
        if !SECONDS.contains(seconds) {
            return Err(Failure::usage(format_args!(
                "--seconds {seconds}: must be 0.05 to 60"
            )));
        }
        let rows = wanted(all, only)?;
        let repetitions = Repetitions::new("repetition", "--reps", *reps as u64)?;
        require_tap()?;
        // Before any thread is started, because an unprivileged caller also enters a user namespace.
        netns::enter_new()?;
        prepare()?;
        let setting = RunSetting {
            time: Duration::from_secs_f64(*seconds),
            cpus: first_two(&cpu::allowed_cpus())?,
            stop: repetitions.stop(),
        };
        let mut report = R::new(&rows, *seconds, *reps);
        let measure = |_, row: &&R::Row| measure(row, setting).with_context(|| row.name());
        let progress = repetitions.run(&rows, measure, |row, sample| report.add(row, sample))?;
        form.print(progress, &report, &report.chart())
    }
}

/// Returns the rows whose names begin with one of `only`; all if it is empty.
fn wanted<R: Named>(all: &'static [R], only: &[String]) -> Result<Vec<&'static R>, Failure> {
    let is_wanted = |name: &str| {
        only.is_empty()
            || only
                .iter()
                .any(|beginning| name.starts_with(beginning.as_str()))
    };
    let rows: Vec<_> = all.iter().filter(|row| is_wanted(row.name())).collect();
    if rows.is_empty() {
        let names: Vec<_> = all.iter().map(Named::name).collect();
        return Err(Failure::usage("--only: there is no such row")
            .with_remedy(format!("choose from {}", names.join(", "))));
    }
    Ok(rows)
}

/// Arguments that the process of every end has.
#[derive(Debug, Args)]
pub struct EndArgs {
    /// Length of a message.
    #[arg(long)]
    pub bytes: usize,
    #[arg(long)]
    pub seconds: f64,
    /// The processor that it is pinned to.
    #[arg(long)]
    pub cpu: usize,
    /// The UNIX socket of its link, if it has one.
    #[arg(long)]
    pub socket: Option<PathBuf>,
}

/// The process of an end, before it is started.
#[derive(Debug)]
pub struct EndProcess {
    name: &'static str,
    command: Command,
}

impl EndProcess {
    /// Prepares the hidden command `command` of this program; messages call the process `name`.
    pub fn new(name: &'static str, command: &str, args: &EndArgs) -> Self {
        let EndArgs {
            bytes,
            seconds,
            cpu,
            socket,
        } = args;
        let mut process = Helper::this_program();
        process.arg(command).stdin(Stdio::piped());
        process.args(["--bytes", &bytes.to_string()]);
        process.args(["--seconds", &seconds.to_string()]);
        process.args(["--cpu", &cpu.to_string()]);
        if let Some(socket) = socket {
            process.arg("--socket").arg(socket);
        }
        Self {
            name,
            command: process,
        }
    }

    /// Adds an option.
    #[must_use]
    pub fn with(mut self, option: &str, value: impl ValueEnum) -> Self {
        if let Some(value) = value.to_possible_value() {
            self.command.args([option, value.get_name()]);
        }
        self
    }

    /// Lets it start in a network namespace of its own.
    #[must_use]
    pub fn in_new_namespace(mut self) -> Self {
        netns::start_in_new(&mut self.command);
        self
    }

    /// Starts it.
    ///
    /// # Errors
    ///
    /// As [`Peer::start`].
    pub fn start(mut self) -> Result<Peer> {
        Peer::start(self.name, &mut self.command).map_err(of_peer)
    }
}

/// Returns the error of a process as one of its row.
pub fn of_peer(failure: Failure) -> anyhow::Error {
    anyhow!("{failure}")
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Row(&'static str);

    impl Named for Row {
        fn name(&self) -> &'static str {
            self.0
        }
    }

    #[test]
    fn rows_are_chosen_by_the_beginnings_of_their_names() {
        static ROWS: [Row; 3] = [Row("tap/8"), Row("tap/4096"), Row("shared/8")];
        let names = |only: &[&str]| -> Vec<&str> {
            let only: Vec<_> = only.iter().map(ToString::to_string).collect();
            let rows = wanted(&ROWS, &only).unwrap();
            rows.into_iter().map(Named::name).collect()
        };
        assert_eq!(names(&[]).len(), 3);
        assert_eq!(names(&["tap"]), ["tap/8", "tap/4096"]);
        assert_eq!(names(&["shared/8", "tap/8"]), ["tap/8", "shared/8"]);
        let unknown = wanted(&ROWS, &["veth".to_owned()]).err().unwrap();
        assert!(unknown.to_string().contains("--only"), "{unknown}");
    }
}
