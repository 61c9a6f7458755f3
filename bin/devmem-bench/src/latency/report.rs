//! The report of `bench latency`.

use std::fmt;

use serde::Serialize;

use super::rows::{Near, PAIRS, Row, Work};
use super::run::Sample;
use crate::chart::{Bar, Chart, Series};
use crate::processes::RowsReport;
use crate::repetitions::OutOf;
use crate::spread::Spread;

/// The report. The field names are those of the JSON.
#[derive(Clone, Debug, Serialize)]
pub struct LatencyReport {
    seconds: f64,
    repetitions: usize,
    rows: Vec<Figures>,
    ratios: Vec<Ratio>,
}

/// The figures of one row, one value for each repetition.
#[derive(Clone, Debug, Serialize)]
struct Figures {
    name: &'static str,
    #[serde(skip)]
    row: Row,
    /// Round trips, or connections, per second.
    per_second: Vec<f64>,
    /// Median and 99th percentile of their times.
    p50_us: Vec<f64>,
    p99_us: Vec<f64>,
    /// CPU time for each, at this end and at the other.
    near_cpu_us: Vec<f64>,
    far_cpu_us: Vec<f64>,
}

/// Two rows, by the median over the repetitions.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
struct Ratio {
    row: &'static str,
    against: &'static str,
    /// Of the median times of round trips, or of the connections per second.
    ratio: f64,
    /// Of the CPU time at this end.
    cpu: f64,
}

impl Figures {
    fn is_rate(&self) -> bool {
        !matches!(self.row.work, Work::RoundTrips(_))
    }

    /// What is compared: times of round trips, rates of connections.
    fn compared(&self) -> Option<Spread> {
        let values = match self.is_rate() {
            true => &self.per_second,
            false => &self.p50_us,
        };
        Spread::of(values.iter().copied())
    }

    fn median(values: &[f64]) -> f64 {
        Spread::of(values.iter().copied()).map_or(0.0, |spread| spread.median)
    }
}

/// Returns the value below which `share` of the sorted `times` lie, in microseconds.
fn percentile(times: &[u64], share: f64) -> f64 {
    let at = ((times.len() as f64 * share) as usize).min(times.len().saturating_sub(1));
    times.get(at).map_or(0.0, |nanos| *nanos as f64 / 1e3)
}

impl RowsReport for LatencyReport {
    type Row = Row;
    type Sample = Sample;

    fn new(rows: &[&Row], seconds: f64, repetitions: usize) -> Self {
        let figures = |row: &&Row| Figures {
            name: row.name,
            row: **row,
            per_second: Vec::new(),
            p50_us: Vec::new(),
            p99_us: Vec::new(),
            near_cpu_us: Vec::new(),
            far_cpu_us: Vec::new(),
        };
        Self {
            seconds,
            repetitions,
            rows: rows.iter().map(figures).collect(),
            ratios: Vec::new(),
        }
    }

    fn add(&mut self, row: usize, sample: Sample) {
        let count = sample.times.len().max(1) as f64;
        let total = sample.times.iter().sum::<u64>().max(1) as f64 / 1e9;
        let figures = &mut self.rows[row];
        figures.per_second.push(sample.times.len() as f64 / total);
        figures.p50_us.push(percentile(&sample.times, 0.5));
        figures.p99_us.push(percentile(&sample.times, 0.99));
        figures.near_cpu_us.push(1e6 * sample.near_cpu / count);
        figures.far_cpu_us.push(1e6 * sample.far_cpu / count);
        self.ratios = self.compare();
    }

    /// Returns the round trips as a chart, or the connections if only those were measured.
    fn chart(&self) -> Chart {
        let has_round_trips = self.rows.iter().any(|row| !row.is_rate());
        let (title, unit) = match has_round_trips {
            true => ("message and its return, median", "us"),
            false => ("connections of 1 KiB", "per second"),
        };
        let shown = self
            .rows
            .iter()
            .filter(|row| row.is_rate() != has_round_trips);
        let bar = |it: &Figures| {
            let series = match it.row.near {
                Near::Kernel => Series::Other,
                _ => Series::Ours,
            };
            Some(Bar::new(it.name, it.compared()?, series))
        };
        Chart {
            title: title.to_owned(),
            unit,
            bars: shown.filter_map(bar).collect(),
        }
    }
}

impl LatencyReport {
    fn compare(&self) -> Vec<Ratio> {
        let row = |name: &str| self.rows.iter().find(|it| it.name == name);
        let pairs = PAIRS.iter().filter_map(|(ours, other)| {
            let (ours, other) = (row(ours)?, row(other)?);
            let cpu = |it: &Figures| Figures::median(&it.near_cpu_us);
            Some(Ratio {
                row: ours.name,
                against: other.name,
                ratio: ours.compared()?.median / other.compared()?.median,
                cpu: cpu(ours) / cpu(other),
            })
        });
        pairs.collect()
    }
}

impl fmt::Display for LatencyReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let seconds = self.seconds;
        let repetitions = OutOf {
            done: self
                .rows
                .iter()
                .map(|row| row.p50_us.len())
                .max()
                .unwrap_or(0),
            wanted: self.repetitions,
        };
        writeln!(
            f,
            "{repetitions} repetitions of {seconds} s, median (minimum to maximum); CPU time at this end, at the other"
        )?;
        for row in &self.rows {
            let Some(Spread { median, min, max }) = row.compared() else {
                continue;
            };
            let (near, far) = (
                Figures::median(&row.near_cpu_us),
                Figures::median(&row.far_cpu_us),
            );
            let p99 = Figures::median(&row.p99_us);
            let name = row.name;
            match row.is_rate() {
                false => writeln!(
                    f,
                    "{name:>17}  {median:7.1} us there and back ({min:.1} to {max:.1}), 99 %: {p99:.1} us; {near:.1} us, {far:.1} us"
                )?,
                true => writeln!(
                    f,
                    "{name:>17}  {median:7.0} connections per second ({min:.0} to {max:.0}), 99 %: {p99:.0} us; {near:.1} us, {far:.1} us"
                )?,
            }
        }
        for it in &self.ratios {
            let of = match self
                .rows
                .iter()
                .any(|row| row.name == it.row && row.is_rate())
            {
                true => "the connections",
                false => "the time",
            };
            writeln!(
                f,
                "{} has {:.2}x {of} of {}, with {:.2}x of its CPU time",
                it.row, it.ratio, it.against, it.cpu
            )?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::rows::ROWS;
    use super::*;

    #[test]
    fn times_and_rates_are_compared_with_the_kernels() {
        let rows: Vec<_> = ROWS.iter().collect();
        let mut report = LatencyReport::new(&rows, 1.0, 1);
        for (index, row) in ROWS.iter().enumerate() {
            let nanos = match row.near {
                Near::Kernel => 20_000,
                _ => 10_000,
            };
            let mut times = vec![nanos; 199];
            times.push(1_000_000);
            let sample = Sample {
                times,
                near_cpu: nanos as f64 * 2e-7,
                far_cpu: 1e-3,
            };
            report.add(index, sample);
        }
        let of = |name: &str| *report.ratios.iter().find(|it| it.row == name).unwrap();
        assert_eq!((of("packet/8").ratio, of("packet/8").cpu), (0.5, 0.5));
        assert!(of("packet/connect").ratio > 1.5);
        let text = report.to_string();
        for part in [
            "packet/8     10.0 us there and back (10.0 to 10.0), 99 %: 10.0 us",
            "packet/8 has 0.50x the time of kernel/8, with 0.50x of its CPU time",
            "connections per second",
        ] {
            assert!(text.contains(part), "{text}");
        }
        assert_eq!(report.chart().bars.len(), 17);
    }

    #[test]
    fn a_percentile_is_one_of_the_values() {
        let times: Vec<u64> = (1..=100).map(|us| us * 1000).collect();
        assert_eq!(
            [percentile(&times, 0.5), percentile(&times, 0.99)],
            [51.0, 100.0]
        );
        assert_eq!(percentile(&[], 0.5), 0.0);
    }
}
