//! The report of `bench exchange`.

use std::fmt;

use serde::Serialize;

use super::rows::{Kind, PAIRS, Row, Work};
use super::run::Sample;
use crate::chart::{Bar, Chart, Series};
use crate::processes::RowsReport;
use crate::repetitions::OutOf;
use crate::spread::Spread;

/// The report. The field names are those of the JSON.
#[derive(Clone, Debug, Serialize)]
pub struct ExchangeReport {
    seconds: f64,
    repetitions: usize,
    /// Processes that were ready to run, on average of the minute before the end.
    load: f64,
    rows: Vec<Figures>,
    ratios: Vec<Ratio>,
}

/// The figures of one row, one value for each repetition.
#[derive(Clone, Debug, Serialize)]
struct Figures {
    name: &'static str,
    #[serde(skip)]
    row: Row,
    message_bytes: usize,
    /// Rate of the payload, of rows with one direction.
    gbit_per_s: Vec<f64>,
    /// Time of a message and its return, of the other rows.
    round_trip_us: Vec<f64>,
    /// CPU time of both ranks per message, or per message and its return.
    cpu_us_per_message: Vec<f64>,
}

/// Two rows, by the median over the repetitions of what is measured.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
struct Ratio {
    row: &'static str,
    against: &'static str,
    /// Of the rates, or of the round-trip times.
    ratio: f64,
    cpu_per_byte: f64,
}

/// What was measured of a row.
struct Measured<'a> {
    row: &'a Row,
    /// Rates or round-trip times.
    values: Spread,
    /// Median of the CPU time per message.
    cpu_us: f64,
}

impl Figures {
    /// Returns one value for each repetition.
    fn values(&self) -> &[f64] {
        match self.row.work {
            Work::Rate => &self.gbit_per_s,
            Work::RoundTrip => &self.round_trip_us,
        }
    }

    /// Returns `None` if nothing was measured.
    fn measured(&self) -> Option<Measured<'_>> {
        Some(Measured {
            row: &self.row,
            values: Spread::of(self.values().iter().copied())?,
            cpu_us: Spread::of(self.cpu_us_per_message.iter().copied())?.median,
        })
    }
}

impl RowsReport for ExchangeReport {
    type Row = Row;
    type Sample = Sample;

    fn new(rows: &[&Row], seconds: f64, repetitions: usize) -> Self {
        let figures = |row: &&Row| Figures {
            name: row.name,
            row: **row,
            message_bytes: row.bytes,
            gbit_per_s: Vec::new(),
            round_trip_us: Vec::new(),
            cpu_us_per_message: Vec::new(),
        };
        Self {
            seconds,
            repetitions,
            load: 0.0,
            rows: rows.iter().map(figures).collect(),
            ratios: Vec::new(),
        }
    }

    fn add(&mut self, row: usize, sample: Sample) {
        let Sample { active, passive } = sample;
        let figures = &mut self.rows[row];
        let messages = active.messages as f64;
        match figures.row.work {
            Work::Rate => {
                let bits = 8.0 * messages * figures.message_bytes as f64;
                figures.gbit_per_s.push(bits / active.seconds / 1e9);
            }
            Work::RoundTrip => figures.round_trip_us.push(1e6 * active.seconds / messages),
        }
        let cpu = active.cpu_seconds + passive.cpu_seconds;
        figures.cpu_us_per_message.push(1e6 * cpu / messages);
        self.load = load_of(&std::fs::read_to_string("/proc/loadavg").unwrap_or_default());
        self.ratios = self.compare();
    }

    /// Returns the rates as a chart, or the round trips if only those were measured.
    fn chart(&self) -> Chart {
        let has_rates = self.rows.iter().any(|row| row.row.work == Work::Rate);
        let (work, title, unit) = match has_rates {
            true => (Work::Rate, "rate of messages of 4 MiB", "Gbit/s"),
            false => (Work::RoundTrip, "message and its return", "us"),
        };
        let bar = |it: Measured<'_>| {
            let series = match it.row.kind {
                Kind::Ours | Kind::Device => Series::Ours,
                Kind::Stream | Kind::Sockets => Series::Other,
            };
            Bar::new(it.row.name, it.values, series)
        };
        let rows = self.measured().filter(|it| it.row.work == work);
        Chart {
            title: title.to_owned(),
            unit,
            bars: rows.map(bar).collect(),
        }
    }
}

impl ExchangeReport {
    /// Returns the rows that were measured.
    fn measured(&self) -> impl Iterator<Item = Measured<'_>> {
        self.rows.iter().filter_map(Figures::measured)
    }

    fn compare(&self) -> Vec<Ratio> {
        let row = |name: &str| self.measured().find(|it| it.row.name == name);
        let pairs = PAIRS.iter().filter_map(|(ours, other)| {
            let (ours, other) = (row(ours)?, row(other)?);
            let cpu = |it: &Measured<'_>| it.cpu_us / it.row.bytes as f64;
            Some(Ratio {
                row: ours.row.name,
                against: other.row.name,
                ratio: ours.values.median / other.values.median,
                cpu_per_byte: cpu(&ours) / cpu(&other),
            })
        });
        pairs.collect()
    }
}

/// Returns the first number of /proc/loadavg; 0 if there is none.
fn load_of(loadavg: &str) -> f64 {
    let first = loadavg.split_whitespace().next();
    first.and_then(|text| text.parse().ok()).unwrap_or(0.0)
}

impl fmt::Display for ExchangeReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (seconds, load) = (self.seconds, self.load);
        let runs = |row: &Figures| row.values().len();
        let repetitions = OutOf {
            done: self.rows.iter().map(runs).max().unwrap_or(0),
            wanted: self.repetitions,
        };
        writeln!(
            f,
            "{repetitions} repetitions of {seconds} s, median (minimum to maximum), load {load:.1} at the end"
        )?;
        for Measured {
            row,
            values: Spread { median, min, max },
            cpu_us,
        } in self.measured()
        {
            let unit = match row.work {
                Work::Rate => "Gbit/s",
                Work::RoundTrip => "us there and back",
            };
            writeln!(
                f,
                "{:>14}  {median:7.1} {unit} ({min:.1} to {max:.1})  {cpu_us:.1} us of CPU time per message",
                row.name
            )?;
        }
        for it in &self.ratios {
            let Ratio {
                row,
                against,
                ratio,
                cpu_per_byte,
            } = it;
            let figures = self.rows.iter().find(|figures| figures.name == *row);
            let of = match figures.map(|figures| figures.row.work) {
                Some(Work::RoundTrip) => "the round-trip time",
                _ => "the rate",
            };
            writeln!(
                f,
                "{row} has {ratio:.2}x {of} of {against}, with {cpu_per_byte:.2}x of its CPU time"
            )?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::rank::RankReport;
    use super::super::rows::ROWS;
    use super::*;

    #[test]
    fn rates_and_round_trips_are_compared_with_the_other_row() {
        let rows: Vec<_> = ROWS.iter().collect();
        let mut report = ExchangeReport::new(&rows, 1.0, 1);
        for (index, row) in ROWS.iter().enumerate() {
            let one = RankReport {
                messages: match row.kind {
                    Kind::Ours | Kind::Device => 200,
                    Kind::Stream | Kind::Sockets => 100,
                },
                seconds: 1.0,
                cpu_seconds: 0.5,
            };
            let sample = Sample {
                active: one,
                passive: one,
            };
            report.add(index, sample);
        }
        let expected = Ratio {
            row: "ours/tap",
            against: "stream/tap",
            ratio: 2.0,
            cpu_per_byte: 0.5,
        };
        assert_eq!(report.ratios[0], expected);
        let text = report.to_string();
        for part in [
            "ours/8 has 0.50x the round-trip time of stream/8, with 0.50x of its CPU time",
            "5000.0 us there and back (5000.0 to 5000.0)",
        ] {
            assert!(text.contains(part), "{text}");
        }
        assert_eq!(report.chart().bars.len(), 14);
    }

    #[test]
    fn the_load_is_the_first_number() {
        assert_eq!(load_of("4.37 7.40 8.35 5/312 9999\n"), 4.37);
        assert_eq!(load_of(""), 0.0);
    }
}
