//! The figures of a benchmark as bars: in the terminal, and in an SVG file (`--plot`).

#[cfg(test)]
mod documented;
mod svg;

use std::fs;
use std::path::PathBuf;

use anyhow::Context;
use clap::Args;
use tool::output::{Failure, note};

use crate::spread::Spread;

/// Most characters of a bar in the terminal, and the usual width of a terminal that does not report one.
const BAR_CHARS: usize = 50;
const USUAL_WIDTH: usize = 100;
/// Fewest characters of a bar that show anything.
const MIN_BAR_CHARS: usize = 8;

/// The option for a file with the chart, shared by all benchmarks.
#[derive(Clone, Debug, Args)]
pub struct PlotArgs {
    /// Draw the figures as bars with their ranges into an SVG file
    #[arg(long, value_name = "FILE.svg")]
    plot: Option<PathBuf>,
}

impl PlotArgs {
    /// Writes the chart to the file, if one was requested.
    ///
    /// # Errors
    ///
    /// The file cannot be written.
    pub fn write(&self, chart: &Chart) -> Result<(), Failure> {
        let Some(path) = &self.plot else {
            return Ok(());
        };
        let name = path.display();
        fs::write(path, svg::draw(chart)?).with_context(|| format!("write {name}"))?;
        note(format_args!("chart in {name}"));
        Ok(())
    }
}

/// A value of a chart: a median or mean with its range.
#[derive(Clone, Debug, PartialEq)]
pub struct Bar {
    /// The row.
    pub name: String,
    /// The value, and its range over the repetitions.
    pub value: f64,
    pub min: f64,
    pub max: f64,
    /// The implementation that is measured.
    pub series: Series,
}

impl Bar {
    /// Returns the bar of a row.
    pub fn new(name: impl Into<String>, spread: Spread, series: Series) -> Self {
        let Spread { median, min, max } = spread;
        Self {
            name: name.into(),
            value: median,
            min,
            max,
            series,
        }
    }
}

/// Whether a bar is of this workspace; bars of the two kinds have different colours.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Series {
    /// Of this workspace.
    Ours,
    /// Of what it is compared with.
    Other,
}

/// Bars with a common scale, which starts at 0.
#[derive(Clone, Debug, PartialEq)]
pub struct Chart {
    /// What is compared.
    pub title: String,
    /// Unit of the values.
    pub unit: &'static str,
    /// The bars, in the order of the table.
    pub bars: Vec<Bar>,
}

impl Chart {
    /// Returns the bars as lines of at most `width` characters, `None` without bars.
    pub fn text(&self, width: Option<usize>) -> Option<String> {
        let names = self.bars.iter().map(|bar| bar.name.chars().count()).max()?;
        let largest = self.largest();
        let fixed = names + " 1234.5 ".len();
        let room = width.unwrap_or(USUAL_WIDTH).saturating_sub(fixed);
        let chars = room.clamp(MIN_BAR_CHARS, BAR_CHARS);
        let mut text = format!("{} ({})\n", self.title, self.unit);
        for bar in &self.bars {
            let at = |value: f64| (value / largest * chars as f64).round() as usize;
            let (min, value, max) = (at(bar.min), at(bar.value), at(bar.max));
            let drawn = "#".repeat(min)
                + &"=".repeat(value.saturating_sub(min))
                + &"-".repeat(max.saturating_sub(value.max(min)));
            let (name, value) = (&bar.name, bar.value);
            text += &format!("{name:<names$} {value:>6.1} {drawn}\n");
        }
        text += "# to the minimum, = to the middle value, - to the maximum\n";
        Some(text)
    }

    /// Returns the upper end of the scale.
    fn largest(&self) -> f64 {
        let values = self.bars.iter().map(|bar| bar.max.max(bar.value));
        values.fold(f64::MIN_POSITIVE, f64::max)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bar(name: &str, min: f64, value: f64, max: f64) -> Bar {
        Bar {
            name: name.to_owned(),
            value,
            min,
            max,
            series: Series::Other,
        }
    }

    fn chart() -> Chart {
        Chart {
            title: "rate".to_owned(),
            unit: "Gbit/s",
            bars: vec![
                bar("kernel-copy", 5.0, 10.0, 20.0),
                bar("ours", 30.0, 40.0, 40.0),
            ],
        }
    }

    #[test]
    fn bars_have_the_scale_of_the_largest_and_show_their_ranges() {
        let text = chart().text(Some(39)).unwrap();
        let lines: Vec<_> = text.lines().collect();
        assert_eq!(lines[0], "rate (Gbit/s)");
        assert_eq!(lines[1], "kernel-copy   10.0 ###==-----");
        assert_eq!(lines[2], "ours          40.0 ###############=====");
    }

    #[test]
    fn bars_fit_the_terminal() {
        for width in [40, 60, 80] {
            let text = chart().text(Some(width)).unwrap();
            let bars = text.lines().filter(|line| line.ends_with(['#', '=', '-']));
            assert!(bars.clone().count() == 2, "{text}");
            assert!(bars.map(str::len).max() <= Some(width), "{width}:\n{text}");
        }
        let empty = Chart {
            bars: Vec::new(),
            ..chart()
        };
        assert_eq!(empty.text(None), None);
    }

    #[test]
    fn the_svg_has_every_row_value_and_unit_as_text() {
        let svg = svg::draw(&chart()).unwrap();
        assert!(svg.starts_with("<svg "), "{svg}");
        assert!(svg.trim_end().ends_with("</svg>"), "{svg}");
        for text in [
            "rate",
            "Gbit/s",
            "kernel-copy",
            "ours",
            "10.0 [5.0-20.0]",
            "40.0 [30.0-40.0]",
        ] {
            assert!(svg.contains(text), "no {text:?} in {svg}");
        }
    }
}
