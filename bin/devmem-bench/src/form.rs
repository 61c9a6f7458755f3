//! The forms of a report: a table and a chart for people, JSON for programs, and a file with the chart.

use std::{fmt, io};

use clap::Args;
use serde::Serialize;
use tool::output::{Failure, note, print_json, tell};
use tool::terminal;

use crate::chart::{Chart, PlotArgs};
use crate::repetitions::Progress;

/// Indentation of the continued lines of a table.
const TABLE_INDENT: usize = 4;

/// Options for the form of the figures, shared by all benchmarks.
#[derive(Clone, Debug, Args)]
pub struct FormArgs {
    /// Print one JSON object to stdout at the end
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    plot: PlotArgs,
}

/// The JSON object.
#[derive(Serialize)]
struct Json<'a, R> {
    #[serde(flatten)]
    report: &'a R,
    interrupted: bool,
}

impl FormArgs {
    /// Prints a report and its chart in the requested forms.
    ///
    /// # Errors
    ///
    /// Stdout or the file of the chart cannot be written; a signal came before everything was measured.
    pub fn print(
        &self,
        progress: Progress,
        report: &(impl fmt::Display + Serialize),
        chart: &Chart,
    ) -> Result<(), Failure> {
        let has_figures = progress.measured > 0;
        match has_figures {
            true => tell_report(report, chart),
            false => note("nothing was measured"),
        }
        if self.json {
            print_json(&Json {
                report,
                interrupted: progress.is_interrupted,
            })?;
        }
        if has_figures {
            self.plot.write(chart)?;
        }
        progress.verdict()
    }
}

/// Prints the table of a report and its chart, as wide as the terminal.
fn tell_report(report: &impl fmt::Display, chart: &Chart) {
    let width = terminal::width(io::stderr());
    let mut text = report.to_string();
    if let Some(bars) = chart.text(width) {
        text = text + "\n" + &bars;
    }
    tell(match width {
        Some(width) => terminal::fold(&text, width, TABLE_INDENT),
        None => text,
    });
}
