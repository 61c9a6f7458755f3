//! Report of `bench rx` and `bench tx`: a table for people, one JSON object for programs.

mod table;

use std::fs;

use serde::{Serialize, Serializer};

use crate::chart::{Bar, Chart, Series};
use crate::row::RowName;
use crate::sample::Sample;
use crate::spread::Spread;

/// Settings of all rows.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Settings {
    /// Duration of sending in each run.
    pub seconds: f64,
    /// Repetitions of all rows.
    pub repetitions: usize,
    /// Largest IP packet.
    pub mtu: u16,
    /// Bytes of device memory, or of the memory that a row uses in its place.
    pub mem_bytes: usize,
    /// Kind of that memory, as --memory names it.
    pub memory: String,
    /// Kind of pages of that memory.
    pub page_kind: String,
    /// Processor of the receiver.
    pub receiver_cpu: usize,
    /// Processor of the sender, in rows with two cores.
    pub sender_cpu: usize,
}

/// The end that is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// The sender.
    Sender,
    /// The receiver.
    Receiver,
}

/// Subject of a benchmark.
#[derive(Clone, Copy, Debug)]
pub struct Subject {
    /// The end to show the CPU time of.
    pub end: End,
    /// The comparisons to report: a row, and other rows; it is compared with the fastest of them.
    pub ratios: &'static [(&'static str, &'static [&'static str])],
}

/// The report of a benchmark.
#[derive(Debug)]
pub struct Report {
    machine: Machine,
    settings: Settings,
    subject: Subject,
    rows: Vec<Row>,
}

/// The JSON object: samples, figures and ratios.
#[derive(Serialize)]
struct Whole<'a> {
    machine: &'a Machine,
    settings: &'a Settings,
    rows: &'a [Row],
    figures: Vec<Figures>,
    ratios: Vec<Ratio>,
}

impl Serialize for Report {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let Self {
            machine,
            settings,
            subject: _,
            rows,
        } = self;
        let whole = Whole {
            machine,
            settings,
            rows,
            figures: rows.iter().filter_map(Row::figures).collect(),
            ratios: self.ratios(),
        };
        whole.serialize(serializer)
    }
}

/// The machine of the measurement.
#[derive(Debug, Serialize)]
struct Machine {
    kernel: String,
    processor: String,
    processors: usize,
    build: &'static str,
}

/// One row.
#[derive(Debug, Serialize)]
struct Row {
    name: &'static str,
    what: &'static str,
    variant: String,
    /// A sample of each repetition that did not fail.
    samples: Vec<Sample>,
    disturbed: usize,
    errors: Vec<String>,
}

/// Figures of a row, for JSON.
#[derive(Debug, Serialize)]
struct Figures {
    name: &'static str,
    gbit_per_s: Spread,
    sender_cpu_s_per_gb: Spread,
    receiver_cpu_s_per_gb: Spread,
    total_cpu_s_per_gb: Spread,
}

/// Ratio of two rows, by their medians.
#[derive(Debug, PartialEq, Serialize)]
struct Ratio {
    row: &'static str,
    against: &'static str,
    gbit_per_s: f64,
    /// Median of the ratios of each repetition, which is less sensitive to disturbances of a whole repetition. `None` if a
    /// repetition lacks one of the rows.
    paired_gbit_per_s: Option<f64>,
    sender_cpu_s_per_gb: f64,
    receiver_cpu_s_per_gb: f64,
    total_cpu_s_per_gb: f64,
}

impl Report {
    /// Returns a report without samples.
    pub fn new(settings: Settings, subject: Subject, rows: impl Iterator<Item = RowName>) -> Self {
        let row = |RowName {
                       name,
                       what,
                       variant,
                   }| Row {
            name,
            what,
            variant,
            samples: Vec::new(),
            disturbed: 0,
            errors: Vec::new(),
        };
        Self {
            machine: Machine::read(),
            settings,
            subject,
            rows: rows.map(row).collect(),
        }
    }

    /// Adds a sample to a row.
    pub fn add(&mut self, row: usize, sample: Sample) {
        let row = &mut self.rows[row];
        row.disturbed += usize::from(sample.is_disturbed());
        row.samples.push(sample);
    }

    /// Adds the error of a failed run to a row.
    pub fn fail(&mut self, row: usize, error: String) {
        self.rows[row].errors.push(error);
    }

    /// Returns the number of rows without samples.
    pub fn rows_without_samples(&self) -> usize {
        self.rows
            .iter()
            .filter(|row| row.samples.is_empty())
            .count()
    }

    /// Returns the rates as a chart.
    pub fn chart(&self) -> Chart {
        let bar = |row: &Row| {
            let series = match row.name.starts_with("ours") {
                true => Series::Ours,
                false => Series::Other,
            };
            Some(Bar::new(row.name, row.figures()?.gbit_per_s, series))
        };
        Chart {
            title: format!("rate by {}, MTU {}", self.subject.end, self.settings.mtu),
            unit: "Gbit/s",
            bars: self.rows.iter().filter_map(bar).collect(),
        }
    }

    fn ratios(&self) -> Vec<Ratio> {
        let ratios = self.subject.ratios.iter();
        ratios
            .filter_map(|(row, against)| {
                let row = self.row(row)?;
                let rivals = against.iter().filter_map(|name| self.row(name));
                let median = |row: &Row| row.figures().map_or(0.0, |f| f.gbit_per_s.median);
                row.against(rivals.max_by(|a, b| median(a).total_cmp(&median(b)))?)
            })
            .collect()
    }

    fn row(&self, name: &str) -> Option<&Row> {
        self.rows.iter().find(|row| row.name == name)
    }
}

impl Row {
    fn against(&self, rival: &Self) -> Option<Ratio> {
        let (ours, theirs) = (self.figures()?, rival.figures()?);
        let of = |value: fn(&Figures) -> Spread| value(&ours).median / value(&theirs).median;
        let is_whole = self.errors.is_empty() && rival.errors.is_empty();
        let pairs = self.samples.iter().zip(&rival.samples);
        let paired = Spread::of(pairs.map(|(ours, theirs)| ours.gbit_per_s / theirs.gbit_per_s));
        Some(Ratio {
            row: self.name,
            against: rival.name,
            gbit_per_s: of(|figures| figures.gbit_per_s),
            paired_gbit_per_s: paired.filter(|_| is_whole).map(|paired| paired.median),
            sender_cpu_s_per_gb: of(|figures| figures.sender_cpu_s_per_gb),
            receiver_cpu_s_per_gb: of(|figures| figures.receiver_cpu_s_per_gb),
            total_cpu_s_per_gb: of(|figures| figures.total_cpu_s_per_gb),
        })
    }

    fn figures(&self) -> Option<Figures> {
        let spread = |value: fn(&Sample) -> f64| Spread::of(self.samples.iter().map(value));
        Some(Figures {
            name: self.name,
            gbit_per_s: spread(|sample| sample.gbit_per_s)?,
            sender_cpu_s_per_gb: spread(|sample| sample.sender_cpu_s_per_gb)?,
            receiver_cpu_s_per_gb: spread(|sample| sample.receiver_cpu_s_per_gb)?,
            total_cpu_s_per_gb: spread(|sample| sample.total_cpu_s_per_gb)?,
        })
    }
}

impl Machine {
    fn read() -> Self {
        let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
        let cpuinfo = read("/proc/cpuinfo");
        let model = cpuinfo.lines().find(|line| line.starts_with("model name"));
        let processor = model
            .and_then(|line| line.split(':').nth(1))
            .unwrap_or("unknown")
            .trim();
        Self {
            kernel: read("/proc/sys/kernel/osrelease").trim().to_owned(),
            processor: processor.to_owned(),
            processors: cpuinfo
                .lines()
                .filter(|line| line.starts_with("processor"))
                .count(),
            build: if cfg!(debug_assertions) {
                "debug: the figures are meaningless"
            } else {
                "release"
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::row::Case;
    use crate::rx::cases::CASES;

    fn report() -> Report {
        let settings = Settings {
            seconds: 1.0,
            repetitions: 3,
            mtu: 1500,
            mem_bytes: 256 << 20,
            memory: "anonymous".to_owned(),
            page_kind: "huge".to_owned(),
            receiver_cpu: 0,
            sender_cpu: 1,
        };
        let subject = Subject {
            end: End::Receiver,
            ratios: &[
                ("ours", &["readv"]),
                ("ours", &["kernel-copy", "kernel-direct"]),
            ],
        };
        Report::new(settings, subject, CASES.iter().map(Case::row_name))
    }

    fn sample(gbit_per_s: f64) -> Sample {
        Sample {
            bytes: 1,
            seconds: 1.0,
            gbit_per_s,
            sender_cpu_s_per_gb: 0.04,
            receiver_cpu_s_per_gb: 0.05,
            total_cpu_s_per_gb: 0.1,
            other_cpus_busy: 0.0,
        }
    }

    fn row(name: &str) -> usize {
        CASES.iter().position(|case| case.name == name).unwrap()
    }

    #[test]
    fn ratios_compare_the_medians_of_rows_with_figures() {
        let mut report = report();
        for rate in [90.0, 100.0, 110.0] {
            report.add(row("ours"), sample(rate));
            report.add(row("readv"), sample(2.0 * rate));
        }
        let expected = Ratio {
            row: "ours",
            against: "readv",
            gbit_per_s: 0.5,
            paired_gbit_per_s: Some(0.5),
            sender_cpu_s_per_gb: 1.0,
            receiver_cpu_s_per_gb: 1.0,
            total_cpu_s_per_gb: 1.0,
        };
        assert_eq!(report.ratios(), [expected]);
        assert_eq!(report.rows_without_samples(), CASES.len() - 2);
    }

    #[test]
    fn a_ratio_is_with_the_fastest_of_the_rivals() {
        let mut report = report();
        report.add(row("ours"), sample(90.0));
        report.add(row("kernel-copy"), sample(45.0));
        report.add(row("kernel-direct"), sample(60.0));
        report.fail(row("kernel-direct"), "the second time it failed".to_owned());
        let ratios = report.ratios();
        assert_eq!(
            (ratios[0].against, ratios[0].gbit_per_s),
            ("kernel-direct", 1.5)
        );
        assert_eq!(ratios[0].paired_gbit_per_s, None, "a repetition is missing");
    }

    #[test]
    fn the_table_has_ranges_failures_and_disturbances() {
        let mut report = report();
        report.add(row("kernel-copy"), sample(83.0));
        report.add(
            row("kernel-copy"),
            Sample {
                other_cpus_busy: 1.0,
                ..sample(19.0)
            },
        );
        report.fail(
            row("kernel-copy/bbr"),
            "congestion control bbr: no such file".to_owned(),
        );
        let text = report.to_string();
        assert!(text.contains("51.0 [19.0-83.0]"), "{text}");
        assert!(text.contains("(1 of 2 disturbed)"), "{text}");
        assert!(
            text.contains("(1 failed: congestion control bbr: no such file)"),
            "{text}"
        );
    }

    #[test]
    fn the_json_has_samples_figures_and_ratios() {
        let mut report = report();
        report.add(row("ours"), sample(100.0));
        report.add(row("kernel-copy"), sample(80.0));
        let json: serde_json::Value = serde_json::to_value(&report).unwrap();
        assert_eq!(json["rows"][row("ours")]["samples"][0]["gbit_per_s"], 100.0);
        assert_eq!(json["figures"][1]["name"], "ours");
        assert_eq!(json["ratios"][0]["gbit_per_s"], 1.25);
        assert_eq!(json["settings"]["mtu"], 1500);
        assert!(json["machine"]["kernel"].is_string());
    }
}
