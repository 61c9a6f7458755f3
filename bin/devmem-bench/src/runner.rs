//! Runs all rows of `bench rx` or `bench tx` one after another, repeatedly.

use std::time::Duration;

use anyhow::{Result, anyhow};
use devmem_linux::{cpu, netns};
use netmem::Dmabuf;

use crate::accounting::softirq_threads;
use crate::network::require_tap;
use crate::plan::{MeasureArgs, Plan};
use crate::processors::first_two;
use crate::repetitions::Repetitions;
use crate::report::{Report, Settings, Subject};
use crate::row::{self, Case, Cores};
use crate::sample::{Sample, quietest};
use tool::memory::MEM_SIZE;
use tool::output::{Failure, note};

/// Minimum number of repetitions for a meaningful range.
const REPS_ADVISED: usize = 5;

/// Runs a benchmark and prints its report, or lists its rows. `cases` are the existing rows; `run_once` runs one row once.
///
/// # Errors
///
/// An invalid option; the network cannot be set up; a row has no figures at the end.
pub fn run<C: Case>(
    args: &MeasureArgs,
    cases: &[C],
    subject: Subject,
    run_once: impl Fn(&Bench, &C) -> Result<Sample>,
) -> Result<(), Failure> {
    let plan = Plan::new(args, cases)?;
    if plan.list {
        row::list(&plan.cases);
        return Ok(());
    }
    let wanted = plan.repetitions;
    if wanted < REPS_ADVISED {
        note(format_args!(
            "{wanted} repetitions are too few to show the spread; use at least {REPS_ADVISED}"
        ));
    }
    if plan.cases.iter().any(Case::uses_tap) {
        require_tap()?;
    }
    let repetitions = Repetitions::new("repetition", "--reps", wanted as u64)?;
    let bench = Bench::new(&plan)?;
    let rows = plan.cases.iter().map(Case::row_name);
    let mut report = Report::new(bench.settings(&plan), subject, rows);
    let measure = |_, case: &C| {
        let run = || repetitions.check().and_then(|()| run_once(&bench, case));
        Ok(quietest(run))
    };
    let progress = repetitions.run(&plan.cases, measure, |row, measured| match measured {
        Ok(sample) => report.add(row, sample),
        // The other rows run nevertheless: the machine may lack only the congestion control of this row.
        Err(error) => report.fail(row, format!("{error:#}")),
    })?;
    plan.form.print(progress, &report, &report.chart())?;
    match report.rows_without_samples() {
        0 => Ok(()),
        failed => Err(anyhow!("{failed} rows have no figures").into()),
    }
}

/// State shared by all runs.
pub struct Bench {
    /// Duration of each run.
    pub time: Duration,
    /// Largest IP packet.
    pub mtu: u16,
    /// The device memory.
    pub memory: Dmabuf,
    /// Processor of the receiver.
    pub receiver_cpu: usize,
    /// Processor of the sender, in rows with two cores.
    sender_cpu: usize,
    /// The kernel's softirq threads.
    pub softirq_threads: Vec<u32>,
}

impl Bench {
    fn new<C>(plan: &Plan<C>) -> Result<Self, Failure> {
        // Before any thread is started, because an unprivileged caller also enters a user namespace.
        netns::enter_new()?;
        let (receiver_cpu, sender_cpu) = match plan.cpus {
            Some(chosen) => chosen,
            None => first_two(&cpu::allowed_cpus())?,
        };
        Ok(Self {
            time: plan.time,
            mtu: plan.mtu,
            memory: plan.memory.allocate(plan.mem_bytes, MEM_SIZE)?,
            receiver_cpu,
            sender_cpu,
            softirq_threads: softirq_threads(),
        })
    }

    /// Returns the processor of the sender.
    pub fn sender_cpu(&self, cores: Cores) -> usize {
        match cores {
            Cores::Two => self.sender_cpu,
            Cores::One => self.receiver_cpu,
        }
    }

    fn settings<C>(&self, plan: &Plan<C>) -> Settings {
        Settings {
            seconds: self.time.as_secs_f64(),
            repetitions: plan.repetitions,
            mtu: self.mtu,
            mem_bytes: self.memory.size(),
            memory: plan.memory.to_string(),
            page_kind: self.memory.page_kind().to_string(),
            receiver_cpu: self.receiver_cpu,
            sender_cpu: self.sender_cpu,
        }
    }
}
