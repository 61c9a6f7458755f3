//! The report of `bench lossy`.

use std::fmt;
use std::time::Duration;

use serde::Serialize;

use super::congestion::Congestion;
use super::sender_counters::SenderCounters;
use crate::chart::{Bar, Chart, Series};

/// The whole report. The field names are those of the JSON and must not change.
#[derive(Debug, Serialize)]
pub struct LossyReport {
    congestion: Congestion,
    seconds: f64,
    mtu: u16,
    rows: Vec<LossyRow>,
}

/// One cable.
#[derive(Debug, Serialize)]
struct LossyRow {
    impair: String,
    samples: Vec<Sample>,
    /// Our bytes divided by the kernel's, over all seeds.
    ratio: f64,
}

/// One seed.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Sample {
    /// The cable's seed.
    pub seed: u64,
    /// Bytes of the kernel's sender that arrived in order and correct.
    pub kernel_bytes: u64,
    /// Bytes of our sender.
    pub our_bytes: u64,
    /// Counters of the kernel's sender.
    pub kernel: SenderCounters,
    /// Counters of our sender.
    pub ours: SenderCounters,
}

impl LossyReport {
    /// Returns a report without samples.
    pub fn new(congestion: Congestion, time: Duration, mtu: u16, cables: &[String]) -> Self {
        let row = |cable: &String| LossyRow {
            impair: cable.clone(),
            samples: Vec::new(),
            ratio: 0.0,
        };
        Self {
            congestion,
            seconds: time.as_secs_f64(),
            mtu,
            rows: cables.iter().map(row).collect(),
        }
    }

    /// Adds a sample to a row.
    pub fn add(&mut self, row: usize, sample: Sample) {
        let row = &mut self.rows[row];
        row.samples.push(sample);
        let sum = |bytes: fn(&Sample) -> u64| row.samples.iter().map(bytes).sum::<u64>() as f64;
        row.ratio = sum(|s| s.our_bytes) / sum(|s| s.kernel_bytes);
    }

    /// Returns the rates as a chart: two bars for each cable.
    pub fn chart(&self) -> Chart {
        let bars = self.measured().flat_map(|row| {
            let kernel = self.rates(row, |s| s.kernel_bytes);
            let ours = self.rates(row, |s| s.our_bytes);
            Rates::bars(&row.impair, kernel, ours)
        });
        Chart {
            title: format!(
                "rate of {:?} senders by cable, MTU {}",
                self.congestion, self.mtu
            ),
            unit: "Mbit/s",
            bars: bars.collect(),
        }
    }

    /// Returns the rows with samples.
    fn measured(&self) -> impl Iterator<Item = &LossyRow> {
        self.rows.iter().filter(|row| !row.samples.is_empty())
    }

    fn rates(&self, row: &LossyRow, bytes: fn(&Sample) -> u64) -> Rates {
        let bytes = row.samples.iter().map(bytes);
        Rates::of(bytes.map(|bytes| bytes as f64 * 8.0 / 1e6 / self.seconds))
    }
}

impl fmt::Display for LossyReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            congestion,
            seconds,
            mtu,
            rows,
        } = self;
        let seeds = rows.first().map_or(0, |row| row.samples.len());
        writeln!(
            f,
            "{congestion:?}, {seeds} seeds, {seconds} s each, MTU {mtu}; every byte checked\n"
        )?;
        writeln!(
            f,
            "{:<24} {:<24} {:>6}  cable",
            "kernel Mbit/s [min-max]", "ours Mbit/s [min-max]", "ratio"
        )?;
        for row in self.measured() {
            writeln!(
                f,
                "{:<24} {:<24} {:>6.2}  {}",
                self.rates(row, |s| s.kernel_bytes).to_string(),
                self.rates(row, |s| s.our_bytes).to_string(),
                row.ratio,
                row.impair
            )?;
        }
        writeln!(
            f,
            "\n{:<24} {:<24}         all seeds: retransmitted/recoveries/probes/timeouts",
            "kernel", "ours"
        )?;
        for row in self.measured() {
            let sum = |of: fn(&Sample) -> SenderCounters| {
                let sum: SenderCounters = row.samples.iter().map(of).sum();
                sum.to_string()
            };
            let (kernel, ours) = (sum(|s| s.kernel), sum(|s| s.ours));
            writeln!(f, "{kernel:<24} {ours:<24}         {}", row.impair)?;
        }
        Ok(())
    }
}

/// Mean, minimum and maximum.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rates {
    pub mean: f64,
    pub min: f64,
    pub max: f64,
}

impl Rates {
    /// Returns those of at least one rate.
    pub fn of(rates: impl Iterator<Item = f64> + Clone) -> Self {
        let count = rates.clone().count().max(1) as f64;
        Self {
            mean: rates.clone().sum::<f64>() / count,
            min: rates.clone().fold(f64::INFINITY, f64::min),
            max: rates.fold(0.0, f64::max),
        }
    }

    /// Returns the bars of both senders for the row `name`.
    pub fn bars(name: &str, kernel: Self, ours: Self) -> [Bar; 2] {
        [
            kernel.bar(format!("kernel, {name}"), Series::Other),
            ours.bar(format!("ours, {name}"), Series::Ours),
        ]
    }

    /// Returns these rates as a bar.
    pub fn bar(self, name: String, series: Series) -> Bar {
        let Self { mean, min, max } = self;
        Bar {
            name,
            value: mean,
            min,
            max,
            series,
        }
    }
}

impl fmt::Display for Rates {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { mean, min, max } = self;
        write!(f, "{mean:.1} [{min:.1}-{max:.1}]")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ratio_is_of_the_bytes_of_all_seeds() {
        let cables = ["loss=1%".to_owned()];
        let mut report = LossyReport::new(Congestion::Cubic, Duration::from_secs(1), 1500, &cables);
        for (seed, kernel_bytes, our_bytes) in
            [(1, 1_000_000, 4_000_000), (2, 3_000_000, 2_000_000)]
        {
            let sample = Sample {
                seed,
                kernel_bytes,
                our_bytes,
                kernel: SenderCounters {
                    timeouts: 2,
                    ..SenderCounters::default()
                },
                ours: SenderCounters {
                    retransmitted: 3,
                    ..SenderCounters::default()
                },
            };
            report.add(0, sample);
        }
        assert_eq!(report.rows[0].ratio, 1.5);
        let text = report.to_string();
        assert!(text.contains("16.0 [8.0-24.0]"), "{text}");
        assert!(text.contains("24.0 [16.0-32.0]"), "{text}");
        let sender_counters = "0/0/0/4                  6/0/0/0 ";
        assert!(text.contains(sender_counters), "{text}");
        let json = serde_json::to_value(&report).unwrap();
        assert_eq!(json["rows"][0]["samples"][1]["our_bytes"], 2_000_000);
    }
}
