//! The report of `bench fairness`.

use std::fmt;
use std::time::Duration;

use serde::Serialize;

use super::pair::Whose;
use super::{First, Row};
use crate::chart::{Bar, Chart, Series};
use crate::lossy::{Rates, SenderCounters};
use crate::receiver::TwoReceived;

/// The whole report. The field names are those of the JSON and must not change.
#[derive(Debug, Serialize)]
pub struct FairnessReport {
    seconds: f64,
    rows: Vec<FairnessRow>,
}

/// Two senders with one congestion control on one cable. In a pair of one kind, `kernel_` stands for the first sender and `our_` for
/// the second.
#[derive(Debug, Serialize)]
struct FairnessRow {
    #[serde(flatten)]
    row: Row,
    samples: Vec<Sample>,
    /// The second's bytes divided by the first's, over all samples.
    ratio: f64,
}

/// One repetition.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Sample {
    first: First,
    kernel_mbit_per_s: f64,
    our_mbit_per_s: f64,
    /// The second's divided by the first's.
    ratio: f64,
    /// Counters of the kernel's senders and of ours, from their beginning on.
    kernel: SenderCounters,
    ours: SenderCounters,
}

impl Sample {
    /// Returns the sample of a repetition.
    pub fn new(
        first: First,
        received: &TwoReceived,
        kernel: SenderCounters,
        ours: SenderCounters,
    ) -> Self {
        let rate = |bytes: u64| bytes as f64 * 8e3 / received.elapsed_ns.max(1) as f64;
        Self {
            first,
            kernel_mbit_per_s: rate(received.kernel_bytes),
            our_mbit_per_s: rate(received.our_bytes),
            ratio: received.our_bytes as f64 / received.kernel_bytes as f64,
            kernel,
            ours,
        }
    }
}

impl FairnessReport {
    /// Returns a report without samples.
    pub fn new(time: Duration, rows: &[Row]) -> Self {
        let row = |row: &Row| FairnessRow {
            row: row.clone(),
            samples: Vec::new(),
            ratio: 0.0,
        };
        Self {
            seconds: time.as_secs_f64(),
            rows: rows.iter().map(row).collect(),
        }
    }

    /// Adds a sample to a row.
    pub fn add(&mut self, row: usize, sample: Sample) {
        let row = &mut self.rows[row];
        row.samples.push(sample);
        let sum = |rate: fn(&Sample) -> f64| row.samples.iter().map(rate).sum::<f64>();
        row.ratio = sum(|s| s.our_mbit_per_s) / sum(|s| s.kernel_mbit_per_s);
    }

    /// Returns the rates as a chart: two bars for each row.
    pub fn chart(&self) -> Chart {
        let bars = self.measured().flat_map(FairnessRow::bars);
        Chart {
            title: "rates of two senders that share a cable".to_owned(),
            unit: "Mbit/s",
            bars: bars.collect(),
        }
    }

    /// Returns the rows with samples.
    fn measured(&self) -> impl Iterator<Item = &FairnessRow> {
        self.rows.iter().filter(|row| !row.samples.is_empty())
    }
}

impl FairnessRow {
    fn bars(&self) -> [Bar; 2] {
        let rates = [
            self.rates(|s| s.kernel_mbit_per_s),
            self.rates(|s| s.our_mbit_per_s),
        ];
        let [first, second] = self.row.pair.whose();
        let bar = |whose: Whose, rates: Rates| {
            let series = match whose {
                Whose::Kernel => Series::Other,
                Whose::Ours => Series::Ours,
            };
            rates.bar(format!("{}, {}", whose.name(), self.name()), series)
        };
        [bar(first, rates[0]), bar(second, rates[1])]
    }

    fn name(&self) -> String {
        let Row {
            congestion,
            pair,
            impair,
        } = &self.row;
        let [first, second] = pair.whose().map(Whose::name);
        format!("{congestion:?}, {first} and {second}, {impair}")
    }

    fn rates(&self, rate: fn(&Sample) -> f64) -> Rates {
        Rates::of(self.samples.iter().map(rate))
    }

    /// Returns retransmitted packets, recoveries, probes and timeouts of all samples.
    fn counters(&self, of: fn(&Sample) -> SenderCounters) -> String {
        let sum: SenderCounters = self.samples.iter().map(of).sum();
        sum.to_string()
    }
}

impl fmt::Display for FairnessReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let seconds = self.seconds;
        let samples = self.rows.first().map_or(0, |row| row.samples.len());
        writeln!(
            f,
            "both at the same time, {samples} repetitions, {seconds} s each; every byte checked\n"
        )?;
        writeln!(
            f,
            "{:<24} {:<24} {:<18} congestion control, cable",
            "first Mbit/s [min-max]", "second Mbit/s [min-max]", "second/first"
        )?;
        for row in self.measured() {
            let ratios = row.rates(|s| s.ratio);
            writeln!(
                f,
                "{:<24} {:<24} {:<18} {}",
                row.rates(|s| s.kernel_mbit_per_s).to_string(),
                row.rates(|s| s.our_mbit_per_s).to_string(),
                format!("{:.2} [{:.2}-{:.2}]", row.ratio, ratios.min, ratios.max),
                row.name(),
            )?;
        }
        writeln!(
            f,
            "\n{:<24} {:<24} all repetitions, from the start on: retransmitted/recoveries/probes/timeouts",
            "kernel", "ours"
        )?;
        for row in self.measured() {
            let (kernel, ours) = (row.counters(|s| s.kernel), row.counters(|s| s.ours));
            writeln!(f, "{kernel:<24} {ours:<24} {}", row.name())?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fairness::pair::Pair;
    use crate::lossy::Congestion;

    #[test]
    fn a_ratio_is_of_all_repetitions_and_its_range_of_single_ones() {
        let row = Row {
            congestion: Congestion::Reno,
            pair: Pair::Mixed,
            impair: "rate=1gbit".to_owned(),
        };
        let mut report = FairnessReport::new(Duration::from_secs(1), &[row]);
        let retransmitted = |retransmitted| SenderCounters {
            retransmitted,
            ..SenderCounters::default()
        };
        for (first, kernel_bytes, our_bytes) in [
            (First::Ours, 1_000_000, 2_000_000),
            (First::Kernel, 3_000_000, 1_500_000),
        ] {
            let received = TwoReceived {
                kernel_bytes,
                our_bytes,
                elapsed_ns: 1_000_000_000,
            };
            let sample = Sample::new(first, &received, retransmitted(2), retransmitted(7));
            report.add(0, sample);
        }
        let text = report.to_string();
        assert!(text.contains("16.0 [8.0-24.0]"), "{text}");
        assert!(text.contains("14.0 [12.0-16.0]"), "{text}");
        assert!(text.contains("0.88 [0.50-2.00]"), "{text}");
        assert!(
            text.contains("4/0/0/0                  14/0/0/0 "),
            "{text}"
        );
        let json = serde_json::to_value(&report).unwrap();
        let row = &json["rows"][0];
        assert_eq!(row["congestion"], "reno");
        assert_eq!(row["samples"][1]["first"], "kernel");
        assert_eq!(row["ratio"], 0.875);
    }
}
