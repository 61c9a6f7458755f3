//! The table for people.

use std::fmt;

use crate::repetitions::OutOf;
use crate::spread::Spread;

use super::{End, Figures, Machine, Ratio, Report, Row, Settings};

/// Widths of the first columns: the longest name of a row, and the usual ones of a ratio.
const NAMES: usize = 25;
const RATIOS: usize = 40;

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Machine {
            kernel,
            processor,
            processors,
            build,
        } = &self.machine;
        writeln!(
            f,
            "Linux {kernel}, {processors} x {processor}, {build} build"
        )?;
        let Settings {
            seconds,
            repetitions,
            mtu,
            mem_bytes,
            memory,
            page_kind,
            receiver_cpu,
            sender_cpu,
        } = &self.settings;
        let runs = |row: &Row| row.samples.len() + row.errors.len();
        let repetitions = OutOf {
            done: self.rows.iter().map(runs).max().unwrap_or(0),
            wanted: *repetitions,
        };
        writeln!(
            f,
            "{repetitions} repetitions of {seconds} s, MTU {mtu}, {} MiB of {memory} memory ({page_kind}), receiver \
             on CPU {receiver_cpu}, sender on {sender_cpu}\n",
            mem_bytes >> 20
        )?;
        let end = self.subject.end;
        writeln!(
            f,
            "{:<NAMES$} {:>24} {:>14} {:>11}",
            "row",
            "Gbit/s median [min-max]",
            format!("{end} s/GB"),
            "total s/GB"
        )?;
        for row in &self.rows {
            row.fmt_line(end, f)?;
        }
        let ratios = self.ratios();
        if !ratios.is_empty() {
            let end = format!("{end} CPU");
            writeln!(
                f,
                "\n{:<RATIOS$} {:>10} {:>10} {end:>14} {:>11}",
                "ratio of medians", "Gbit/s", "(paired)", "total CPU"
            )?;
        }
        for ratio in ratios {
            ratio.fmt_line(self.subject.end, f)?;
        }
        Ok(())
    }
}

impl Ratio {
    fn fmt_line(&self, end: End, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            row,
            against,
            gbit_per_s,
            paired_gbit_per_s,
            sender_cpu_s_per_gb,
            receiver_cpu_s_per_gb,
            total_cpu_s_per_gb,
        } = self;
        let what = format!("{row} : {against}");
        let paired = paired_gbit_per_s.map_or_else(|| "-".to_owned(), |p| format!("{p:.2}"));
        let cpu = match end {
            End::Sender => sender_cpu_s_per_gb,
            End::Receiver => receiver_cpu_s_per_gb,
        };
        writeln!(
            f,
            "{what:<RATIOS$} {gbit_per_s:>10.2} {paired:>10} {cpu:>14.2} {total_cpu_s_per_gb:>11.2}"
        )
    }
}

impl fmt::Display for End {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Sender => "sender",
            Self::Receiver => "receiver",
        })
    }
}

impl Row {
    fn fmt_line(&self, end: End, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            name,
            what,
            variant,
            samples,
            disturbed,
            errors,
        } = self;
        match self.figures() {
            Some(Figures {
                name: _,
                gbit_per_s: Spread { median, min, max },
                sender_cpu_s_per_gb,
                receiver_cpu_s_per_gb,
                total_cpu_s_per_gb,
            }) => {
                let rate = format!("{median:.1} [{min:.1}-{max:.1}]");
                let cpu = match end {
                    End::Sender => sender_cpu_s_per_gb.median,
                    End::Receiver => receiver_cpu_s_per_gb.median,
                };
                let total = total_cpu_s_per_gb.median;
                write!(
                    f,
                    "{name:<NAMES$} {rate:>24} {cpu:>14.3} {total:>11.3}  {what}"
                )?;
            }
            None => write!(
                f,
                "{name:<NAMES$} {:>24} {:>14} {:>11}  {what}",
                "-", "-", "-"
            )?,
        }
        if !variant.is_empty() {
            write!(f, ", {variant}")?;
        }
        if *disturbed > 0 {
            write!(f, " ({disturbed} of {} disturbed)", samples.len())?;
        }
        if let Some(error) = errors.first() {
            write!(f, " ({} failed: {error})", errors.len())?;
        }
        writeln!(f)
    }
}
