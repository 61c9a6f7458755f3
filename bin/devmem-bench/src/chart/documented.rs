//! The chart at the beginning of BENCHMARKS.md has the figures of the table below it.

use std::path::PathBuf;
use std::{env, fs};

use super::{Bar, Chart, Series, svg};

fn book(file: &str) -> PathBuf {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/src");
    PathBuf::from(folder).join(file)
}

/// Returns the bar of `63.5 [57.5-67.5]`, or of a value without a range.
fn bar(name: &str, cell: &str, series: Series) -> Bar {
    let (value, range) = cell.split_once(" [").unwrap_or((cell, ""));
    let number = |text: &str| text.parse::<f64>().expect(cell);
    let (min, max) = match range.trim_end_matches(']').split_once('-') {
        Some((min, max)) => (number(min), number(max)),
        None => (number(value), number(value)),
    };
    Bar {
        name: name.to_owned(),
        value: number(value),
        min,
        max,
        series,
    }
}

/// Returns two bars for each row of the first table: this project, and what it is compared with.
fn chart(text: &str) -> Chart {
    let rows = text.lines().skip_while(|line| !line.starts_with("|---"));
    let rows = rows.skip(1).take_while(|line| line.starts_with('|'));
    let bars = rows.flat_map(|row| {
        let cells: Vec<_> = row.split('|').map(str::trim).collect();
        [
            bar(cells[1], cells[2], Series::Ours),
            bar(cells[3], cells[4], Series::Other),
        ]
    });
    Chart {
        title: "Rates, each beside what it is compared with".to_owned(),
        unit: "Gbit/s",
        bars: bars.collect(),
    }
}

#[test]
fn the_chart_has_the_figures_of_the_table() {
    let text = fs::read_to_string(book("BENCHMARKS.md")).unwrap();
    let chart = chart(&text);
    assert!(chart.bars.len() >= 10, "{chart:?}");
    let (drawn, picture) = (svg::draw(&chart).unwrap(), book("pictures/benchmarks.svg"));
    if env::var_os("DEVMEM_DRAW").is_some() {
        fs::write(&picture, &drawn).unwrap();
    }
    let kept = fs::read_to_string(&picture).unwrap_or_default();
    assert!(
        kept == drawn,
        "the table has changed: DEVMEM_DRAW=1 cargo test -p devmem-bench documented"
    );
}
