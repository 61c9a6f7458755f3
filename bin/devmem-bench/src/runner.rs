//! Runs all rows of a benchmark one after another, repeatedly.

use std::{fmt, io};

use anyhow::{Context, Result, anyhow};
use clap::Args;
use devmem_linux::{cpu, netns, probe};
use netmem::Dmabuf;
use serde::Serialize;

use super::accounting::softirq_threads;
use super::chart::{Chart, PlotArgs};
use super::plan::Plan;
use super::report::{Case, Report, Settings, Subject};
use super::sample::{Sample, quietest};
use tool::memory::MEM_SIZE;
use tool::output::{Failure, note, print_json, tell};
use tool::signals::StopFlag;
use tool::terminal;

/// Minimum number of repetitions for a meaningful range.
const REPS_ADVISED: usize = 5;

/// Indentation of the continued lines of a table.
const TABLE_INDENT: usize = 4;

/// Runs a benchmark and prints its report; `run_once` runs one row once.
///
/// # Errors
///
/// The network cannot be set up, or a row has no figures at the end.
pub fn run<C: Case>(
    plan: &Plan<C>,
    subject: Subject,
    run_once: impl Fn(&Bench<'_, C>, &C) -> Result<Sample>,
) -> Result<(), Failure> {
    if plan.repetitions < REPS_ADVISED {
        let repetitions = plan.repetitions;
        note(format_args!(
            "{repetitions} repetitions are too few to show the spread; use at least {REPS_ADVISED}"
        ));
    }
    if plan.cases.iter().any(Case::uses_tap) {
        require_tap()?;
    }
    let bench = Bench::new(plan)?;
    let rows = plan.cases.iter().map(Case::row_name);
    let mut report = Report::new(bench.settings(), subject, rows);
    let stop = StopFlag::install().context("install signal handlers")?;
    for repetition in 1..=plan.repetitions {
        for (row, case) in plan.cases.iter().enumerate() {
            match quietest(|| run_once(&bench, case)) {
                // It may have disturbed the row, and ends the processes of the other end.
                _ if stop.is_set() => break,
                Ok(sample) => report.add(row, sample),
                // The other rows run nevertheless: the machine may lack only the congestion control of this row.
                Err(error) => report.fail(row, format!("{error:#}")),
            }
        }
        if stop.is_set() {
            break;
        }
        note(format_args!(
            "repetition {repetition} of {} done",
            plan.repetitions
        ));
    }
    let chart = report.chart();
    tell_report(&report, &chart);
    if plan.json {
        print_json(&report.json())?;
    }
    plan.plot.write(&chart)?;
    match report.rows_without_samples() {
        _ if stop.is_set() => Err(Failure::interrupted()),
        0 => Ok(()),
        failed => Err(anyhow!("{failed} rows have no figures").into()),
    }
}

/// Returns the error of a machine without TAPs before anything is measured: a run takes minutes.
pub fn require_tap() -> Result<(), Failure> {
    match probe::tap_in_namespace() {
        probe::Verdict::Works => Ok(()),
        missing => Err(Failure::unsupported(missing)),
    }
}

/// Options for the form of the figures, shared by most benchmarks.
#[derive(Clone, Debug, Args)]
pub struct FormArgs {
    /// Print one JSON object to stdout at the end
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    plot: PlotArgs,
}

impl FormArgs {
    /// Prints a report and its chart in the requested forms.
    ///
    /// # Errors
    ///
    /// Stdout or the file of the chart cannot be written.
    pub fn print(
        &self,
        report: &(impl fmt::Display + Serialize),
        chart: &Chart,
    ) -> Result<(), Failure> {
        tell_report(report, chart);
        if self.json {
            print_json(report)?;
        }
        self.plot.write(chart)
    }
}

/// Prints the table of a report and its chart, as wide as the terminal.
pub fn tell_report(report: &impl fmt::Display, chart: &Chart) {
    let width = terminal::width(io::stderr());
    let mut text = report.to_string();
    if let Some(bars) = chart.text(width) {
        text = text + "\n" + &bars;
    }
    tell(match width {
        Some(width) => terminal::fold(&text, width, TABLE_INDENT),
        None => text,
    });
}

/// State shared by all runs.
pub struct Bench<'a, C> {
    /// The plan.
    pub plan: &'a Plan<C>,
    /// The device memory.
    pub memory: Dmabuf,
    /// Processor of the receiver.
    pub receiver_cpu: usize,
    /// Processor of the sender, in rows with two cores.
    pub sender_cpu: usize,
    /// The kernel's softirq threads.
    pub softirq_threads: Vec<u32>,
}

impl<'a, C> Bench<'a, C> {
    fn new(plan: &'a Plan<C>) -> Result<Self, Failure> {
        // Before any thread is started, because an unprivileged caller also enters a user namespace.
        netns::enter_new()?;
        let (receiver_cpu, sender_cpu) = match plan.cpus {
            Some(chosen) => chosen,
            None => first_two(&cpu::allowed_cpus())?,
        };
        Ok(Self {
            plan,
            memory: plan.memory.allocate(plan.mem_bytes, MEM_SIZE)?,
            receiver_cpu,
            sender_cpu,
            softirq_threads: softirq_threads(),
        })
    }

    fn settings(&self) -> Settings {
        Settings {
            seconds: self.plan.time.as_secs_f64(),
            repetitions: self.plan.repetitions,
            mtu: self.plan.mtu,
            mem_bytes: self.memory.size(),
            memory: self.plan.memory.to_string(),
            page_kind: self.memory.page_kind().to_string(),
            receiver_cpu: self.receiver_cpu,
            sender_cpu: self.sender_cpu,
        }
    }
}

/// Returns the processors of receiver and sender, the same for both if there is only one.
pub fn first_two(allowed: &[usize]) -> Result<(usize, usize)> {
    let receiver = *allowed
        .first()
        .context("this process may run on no processor")?;
    Ok((receiver, allowed.get(1).copied().unwrap_or(receiver)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_ends_share_a_processor_if_there_is_only_one() {
        assert_eq!(first_two(&[3]).unwrap(), (3, 3));
        assert_eq!(first_two(&[3, 5, 7]).unwrap(), (3, 5));
        assert!(first_two(&[]).is_err());
    }
}
