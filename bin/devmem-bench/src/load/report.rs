//! The report of `bench load`.

use std::fmt;

use serde::Serialize;

use super::rows::{Kind, LoadReading, PAIRS, Row};
use crate::chart::{Bar, Chart, Series};
use crate::meter::MeterReading;
use crate::repetitions::OutOf;
use crate::sample::spread;
use tool::rate::Rate;
use tool::size::Size;

/// The report. The field names are those of the JSON.
#[derive(Clone, Debug, Serialize)]
pub struct LoadReport {
    bytes: u64,
    repetitions: usize,
    rows: Vec<Figures>,
}

/// The figures of one row.
#[derive(Clone, Debug, Serialize)]
struct Figures {
    name: &'static str,
    #[serde(skip)]
    kind: Kind,
    gbit_per_s: Vec<f64>,
    cpu_s_per_gb: Vec<f64>,
    server_s_per_gb: Vec<f64>,
}

impl LoadReport {
    pub fn new(rows: &[Row], bytes: u64, repetitions: usize) -> Self {
        let figures = |row: &Row| Figures {
            name: row.name,
            kind: row.kind,
            gbit_per_s: Vec::new(),
            cpu_s_per_gb: Vec::new(),
            server_s_per_gb: Vec::new(),
        };
        Self {
            bytes,
            repetitions,
            rows: rows.iter().map(figures).collect(),
        }
    }

    /// Adds a run of a row.
    pub fn add(&mut self, row: usize, reading: LoadReading) {
        let LoadReading { meter, server } = reading;
        let MeterReading {
            bytes,
            elapsed,
            cpu,
        } = meter;
        let figures = &mut self.rows[row];
        figures
            .gbit_per_s
            .push(Rate::of(bytes, elapsed).gbit_per_s());
        let gigabytes = bytes as f64 / 1e9;
        figures.cpu_s_per_gb.push(cpu.as_secs_f64() / gigabytes);
        let server = server.as_secs_f64() / gigabytes;
        figures.server_s_per_gb.push(server);
    }

    /// Returns the rows that were measured.
    fn measured(&self) -> impl Iterator<Item = &Figures> {
        self.rows.iter().filter(|row| !row.gbit_per_s.is_empty())
    }

    /// Returns the CPU times as a chart.
    pub fn chart(&self) -> Chart {
        let bar = |row: &Figures| {
            let (min, median, max) = spread(&row.cpu_s_per_gb);
            Bar {
                name: row.name.to_owned(),
                value: median,
                min,
                max,
                series: match row.kind {
                    Kind::Ours(_) => Series::Ours,
                    Kind::Curl | Kind::Recv | Kind::Floor | Kind::Nbdcopy(..) => Series::Other,
                },
            }
        };
        Chart {
            title: "load, CPU time of the receiving process per 10^9 bytes".to_owned(),
            unit: "s",
            bars: self.measured().map(bar).collect(),
        }
    }
}

impl fmt::Display for LoadReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let size = Size(self.bytes);
        let runs = |row: &Figures| row.gbit_per_s.len();
        let repetitions = OutOf {
            done: self.rows.iter().map(runs).max().unwrap_or(0),
            wanted: self.repetitions,
        };
        writeln!(
            f,
            "{size} in {repetitions} repetitions, median (minimum to maximum)"
        )?;
        for row in self.measured() {
            let (rate, cpu) = (spread(&row.gbit_per_s), spread(&row.cpu_s_per_gb));
            let server = spread(&row.server_s_per_gb);
            writeln!(
                f,
                "{:>40}  {:5.1} Gbit/s ({:.1} to {:.1})  {:.3} s/GB ({:.3} to {:.3}), server {:.3}",
                row.name, rate.1, rate.0, rate.2, cpu.1, cpu.0, cpu.2, server.1
            )?;
        }
        let median = |name: &str| {
            let row = self.measured().find(|row| row.name == name)?;
            Some((spread(&row.gbit_per_s).1, spread(&row.cpu_s_per_gb).1))
        };
        for &(ours, other) in PAIRS {
            if let (Some(mine), Some(theirs)) = (median(ours), median(other)) {
                let (rate, cpu) = (mine.0 / theirs.0, mine.1 / theirs.1);
                writeln!(
                    f,
                    "{ours} runs at {rate:.2}x the rate of {other}, with {cpu:.2}x of its CPU time"
                )?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::load::rows::ROWS;

    #[test]
    fn ours_is_compared_with_the_others() {
        let mut report = LoadReport::new(ROWS, 1 << 30, 1);
        for (index, row) in ROWS.iter().enumerate() {
            let ours = matches!(row.kind, Kind::Ours(_));
            let meter = MeterReading {
                bytes: 1_000_000_000,
                elapsed: Duration::from_secs(if ours { 1 } else { 2 }),
                cpu: Duration::from_millis(if ours { 250 } else { 500 }),
            };
            let server = Duration::from_millis(125);
            report.add(index, LoadReading { meter, server });
        }
        let text = report.to_string();
        let expected = "ours runs at 2.00x the rate of curl, with 0.50x of its CPU time";
        assert!(text.contains(expected), "{text}");
        assert!(
            text.contains("of nbdcopy/nbdkit/tmpfs, with 0.50x"),
            "{text}"
        );
        assert!(text.contains("server 0.125"), "{text}");
    }
}
