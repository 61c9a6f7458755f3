//! The report of `bench load`.

use std::fmt;

use serde::Serialize;

use super::rows::{Kind, LoadReading, PAIRS, Row};
use crate::chart::{Bar, Chart, Series};
use crate::meter::MeterReading;
use crate::repetitions::OutOf;
use crate::spread::Spread;
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
    /// Share of the bytes that a NIC in user space received at their place.
    placed: Vec<f64>,
}

/// What was measured of a row.
struct Measured<'a> {
    row: &'a Figures,
    rate: Spread,
    cpu: Spread,
    server: Spread,
}

impl Figures {
    /// Returns `None` if nothing was measured.
    fn measured(&self) -> Option<Measured<'_>> {
        let spread = |values: &[f64]| Spread::of(values.iter().copied());
        Some(Measured {
            row: self,
            rate: spread(&self.gbit_per_s)?,
            cpu: spread(&self.cpu_s_per_gb)?,
            server: spread(&self.server_s_per_gb)?,
        })
    }
}

impl LoadReport {
    pub fn new(rows: &[Row], bytes: u64, repetitions: usize) -> Self {
        let figures = |row: &Row| Figures {
            name: row.name,
            kind: row.kind,
            gbit_per_s: Vec::new(),
            cpu_s_per_gb: Vec::new(),
            server_s_per_gb: Vec::new(),
            placed: Vec::new(),
        };
        Self {
            bytes,
            repetitions,
            rows: rows.iter().map(figures).collect(),
        }
    }

    /// Adds a run of a row.
    pub fn add(&mut self, row: usize, reading: LoadReading) {
        let LoadReading {
            meter,
            server,
            placed,
        } = reading;
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
        let share = |placed| placed as f64 / bytes as f64;
        figures.placed.extend(placed.map(share));
    }

    /// Returns the rows that were measured.
    fn measured(&self) -> impl Iterator<Item = Measured<'_>> {
        self.rows.iter().filter_map(Figures::measured)
    }

    /// Returns the CPU times as a chart.
    pub fn chart(&self) -> Chart {
        let bar = |it: Measured<'_>| {
            let series = match it.row.kind {
                Kind::Ours(_) | Kind::Sockets(..) => Series::Ours,
                Kind::Curl(_) | Kind::Recv | Kind::Floor | Kind::Nbdcopy(..) => Series::Other,
            };
            Bar::new(it.row.name, it.cpu, series)
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
        for it in self.measured() {
            let (name, server) = (it.row.name, it.server.median);
            let Spread { median, min, max } = it.rate;
            write!(f, "{name:>40}  {median:5.1} Gbit/s ({min:.1} to {max:.1})")?;
            let Spread { median, min, max } = it.cpu;
            write!(
                f,
                "  {median:.3} s/GB ({min:.3} to {max:.3}), server {server:.3}"
            )?;
            if let Some(placed) = Spread::of(it.row.placed.iter().copied()) {
                write!(f, ", {:.1} % placed", placed.median * 100.0)?;
            }
            if let Kind::Ours(ours) = it.row.kind
                && let Some(command) = ours.short_command()
            {
                let command = command as f64;
                let per_s = it.rate.median * 1e9 / 8.0 / command;
                let us = it.cpu.median * command / 1e3;
                write!(f, ", {per_s:.0} commands/s of {us:.2} us")?;
            }
            writeln!(f)?;
        }
        let row = |name: &str| self.measured().find(|it| it.row.name == name);
        for &(ours, other) in PAIRS {
            if let (Some(mine), Some(theirs)) = (row(ours), row(other)) {
                let rate = mine.rate.median / theirs.rate.median;
                let cpu = mine.cpu.median / theirs.cpu.median;
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
            let ours = matches!(row.kind, Kind::Ours(_) | Kind::Sockets(..));
            let meter = MeterReading {
                bytes: 1_000_000_000,
                elapsed: Duration::from_secs(if ours { 1 } else { 2 }),
                cpu: Duration::from_millis(if ours { 250 } else { 500 }),
            };
            let server = Duration::from_millis(125);
            let placed = ours.then_some(900_000_000);
            let reading = LoadReading {
                meter,
                server,
                placed,
            };
            report.add(index, reading);
        }
        let text = report.to_string();
        let expected = "ours runs at 2.00x the rate of curl, with 0.50x of its CPU time";
        assert!(text.contains(expected), "{text}");
        assert!(
            text.contains("of nbdcopy/nbdkit/tmpfs, with 0.50x"),
            "{text}"
        );
        assert!(text.contains("server 0.125, 90.0 % placed\n"), "{text}");
        // 8 Gbit/s are 244,141 times 4 KiB, and 250 ms of CPU time.
        let short = "90.0 % placed, 244141 commands/s of 1.02 us";
        assert!(text.contains(short), "{text}");
    }
}
