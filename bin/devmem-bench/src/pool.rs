//! `bench pool`: measures the page pool as the kernel's benchmark measures the kernel's.

mod cycles;

use std::{fmt, fs};

use clap::Args;
use cycles::{BenchCase, BenchMemory, CASES, Length, Pools};
use devmem_linux::cpu;
use serde::Serialize;

use crate::chart::{Bar, Chart, Series};
use crate::form::FormArgs;
use crate::repetitions::Repetitions;
use crate::spread::Spread;
use tool::output::Failure;

/// Measure the page pool: fast path, return ring and slow path, for host pages and net_iovs
///
/// Runs the three cases of the kernel's page_pool benchmark, in nanoseconds and CPU cycles per element. Cycles are
/// nanoseconds times the clock rate in /proc/cpuinfo, which on a virtual machine is that of the time stamp counter.
#[derive(Debug, Args)]
pub struct PoolArgs {
    /// Repetitions of all cases
    #[arg(long, value_name = "N", default_value_t = 7)]
    reps: usize,
    #[command(flatten)]
    form: FormArgs,
}

#[derive(Debug, Serialize)]
struct PoolReport {
    clock_mhz: Option<f64>,
    repetitions: usize,
    rows: Vec<PoolRow>,
}

#[derive(Debug, PartialEq, Serialize)]
struct PoolRow {
    case: String,
    memory: String,
    median_ns: f64,
    min_ns: f64,
    max_ns: f64,
    median_cycles: Option<f64>,
}

/// Runs the benchmark and prints its report.
///
/// # Errors
///
/// The memory of the pools cannot be allocated.
pub fn run(args: &PoolArgs) -> Result<(), Failure> {
    if let Some(&cpu) = cpu::allowed_cpus().first() {
        cpu::pin_current_thread(cpu)?;
    }
    let repetitions = Repetitions::new("repetition", "--reps", args.reps as u64)?;
    let mut pools = Pools::new()?;
    let mut figures = CASES.map(|_| Vec::with_capacity(args.reps));
    let measure = |_, &(case, memory): &_| Ok(pools.time(case, memory, Length::default()));
    let progress = repetitions.run(&CASES, measure, |row, time| figures[row].push(time))?;
    let clock_mhz = clock_mhz(&fs::read_to_string("/proc/cpuinfo").unwrap_or_default());
    let rows = CASES.into_iter().zip(figures);
    let row = |(case, times)| Some(PoolRow::new(case, Spread::of(times)?, clock_mhz));
    let report = PoolReport {
        clock_mhz,
        repetitions: args.reps,
        rows: rows.filter_map(row).collect(),
    };
    args.form.print(progress, &report, &report.chart())
}

impl PoolReport {
    /// Returns the times as a chart.
    fn chart(&self) -> Chart {
        let bar = |row: &PoolRow| Bar {
            name: format!("{}, {}", row.case, row.memory),
            value: row.median_ns,
            min: row.min_ns,
            max: row.max_ns,
            series: Series::Ours,
        };
        Chart {
            title: "page pool, time per element".to_owned(),
            unit: "ns",
            bars: self.rows.iter().map(bar).collect(),
        }
    }
}

impl PoolRow {
    fn new(
        (case, memory): (BenchCase, BenchMemory),
        Spread { median, min, max }: Spread,
        clock_mhz: Option<f64>,
    ) -> Self {
        Self {
            case: case.to_string(),
            memory: memory.to_string(),
            median_ns: median,
            min_ns: min,
            max_ns: max,
            median_cycles: clock_mhz.map(|mhz| median * mhz / 1000.0),
        }
    }
}

impl fmt::Display for PoolReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "{:<12} {:<8} {:>10} {:>26}",
            "case", "memory", "cycles", "ns per element [min-max]"
        )?;
        for PoolRow {
            case,
            memory,
            median_ns,
            min_ns,
            max_ns,
            median_cycles,
        } in &self.rows
        {
            let cycles = median_cycles.map(|cycles| format!("{cycles:.1}"));
            let cycles = cycles.unwrap_or_else(|| "-".to_owned());
            let range = format!("{median_ns:.2} [{min_ns:.2}-{max_ns:.2}]");
            writeln!(f, "{case:<12} {memory:<8} {cycles:>10} {range:>26}")?;
        }
        Ok(())
    }
}

/// Parses the clock rate of the first processor.
fn clock_mhz(cpuinfo: &str) -> Option<f64> {
    let line = cpuinfo.lines().find(|line| line.starts_with("cpu MHz"))?;
    line.split(':').nth(1)?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_clock_rate_is_parsed() {
        assert_eq!(
            clock_mhz("processor\t: 0\ncpu MHz\t\t: 2595.124\n"),
            Some(2595.124)
        );
        assert_eq!(clock_mhz("processor\t: 0\nBogoMIPS\t: 50.00\n"), None);
    }

    #[test]
    fn a_table_has_a_line_per_row_and_a_dash_for_unknown_cycles() {
        let row = PoolRow {
            case: "fast_path".to_owned(),
            memory: "host".to_owned(),
            median_ns: 1.5,
            min_ns: 1.25,
            max_ns: 2.0,
            median_cycles: None,
        };
        let report = PoolReport {
            clock_mhz: None,
            repetitions: 1,
            rows: vec![row],
        };
        let text = report.to_string();
        assert_eq!(text.lines().count(), 2);
        assert!(
            text.ends_with("fast_path    host              -           1.50 [1.25-2.00]\n"),
            "{text}"
        );
    }
}
