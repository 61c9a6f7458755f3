//! Draws a chart as SVG: horizontal bars with the names at their left and the values at their right.

use anyhow::{Result, anyhow};
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

use super::{Bar, Chart, Series};

/// Size of the picture in pixels, for one bar and in all.
const WIDTH: u32 = 860;
const BAR_HEIGHT: i32 = 18;
const BAR_GAP: i32 = 8;
/// Space for the title, and below the bars.
const TOP: i32 = 44;
const BOTTOM: i32 = 12;
/// Space of the names and of the values, and the gap between them and the bars.
const NAMES_WIDTH: i32 = 260;
const VALUES_WIDTH: i32 = 170;
const GAP: i32 = 8;
/// Size of text in pixels.
const TEXT: i32 = 13;
const TITLE: i32 = 16;

/// Colours that differ in brightness, too.
const OURS: RGBColor = RGBColor(0x1f, 0x5f, 0xa8);
const OTHER: RGBColor = RGBColor(0xa9, 0xb4, 0xbf);
const RANGE: RGBColor = RGBColor(0x20, 0x20, 0x20);

/// Returns the SVG document.
///
/// # Errors
///
/// The plotting library fails, which it has no reason for in memory.
pub fn draw(chart: &Chart) -> Result<String> {
    let mut svg = String::new();
    draw_to(chart, &mut svg).map_err(|error| anyhow!("draw the chart: {error}"))?;
    Ok(svg)
}

type DrawResult<'a> =
    Result<(), DrawingAreaErrorKind<<SVGBackend<'a> as DrawingBackend>::ErrorType>>;

fn draw_to<'a>(chart: &Chart, svg: &'a mut String) -> DrawResult<'a> {
    let rows = i32::try_from(chart.bars.len()).unwrap_or(i32::MAX);
    let height = rows
        .saturating_mul(BAR_HEIGHT + BAR_GAP)
        .saturating_add(TOP + BOTTOM);
    let size = (WIDTH, u32::try_from(height).unwrap_or(u32::MAX));
    let area = SVGBackend::with_string(svg, size).into_drawing_area();
    area.fill(&WHITE)?;
    let title = format!("{} ({})", chart.title, chart.unit);
    let style = ("sans-serif", TITLE).into_font().color(&BLACK);
    area.draw(&Text::new(title, (GAP, GAP), style))?;
    let room = WIDTH as i32 - NAMES_WIDTH - VALUES_WIDTH;
    let scale = f64::from(room) / chart.largest();
    for (row, bar) in (0..).zip(&chart.bars) {
        let top = TOP + row * (BAR_HEIGHT + BAR_GAP);
        for shape in shapes(bar, top, scale) {
            area.draw(&shape)?;
        }
        for text in texts(bar, top, scale) {
            area.draw(&text)?;
        }
    }
    area.present()
}

/// Returns the bar, and the line of its range.
fn shapes(bar: &Bar, top: i32, scale: f64) -> [Rectangle<(i32, i32)>; 2] {
    let x = |value: f64| NAMES_WIDTH + (value * scale) as i32;
    let color = match bar.series {
        Series::Ours => OURS,
        Series::Other => OTHER,
    };
    let middle = top + BAR_HEIGHT / 2;
    [
        Rectangle::new(
            [(x(0.0), top), (x(bar.value), top + BAR_HEIGHT)],
            color.filled(),
        ),
        Rectangle::new(
            [(x(bar.min), middle - 1), (x(bar.max), middle + 1)],
            RANGE.filled(),
        ),
    ]
}

/// Returns the name of a bar, and its value with the range.
fn texts(bar: &Bar, top: i32, scale: f64) -> [Text<'static, (i32, i32), String>; 2] {
    let font = |side| {
        let font = ("sans-serif", TEXT).into_font().color(&BLACK);
        font.pos(Pos::new(side, VPos::Center))
    };
    let Bar {
        name,
        value,
        min,
        max,
        series: _,
    } = bar;
    let middle = top + BAR_HEIGHT / 2;
    let right = NAMES_WIDTH + (max.max(*value) * scale) as i32 + GAP;
    let label = match min < max {
        true => format!("{value:.1} [{min:.1}-{max:.1}]"),
        false => format!("{value:.1}"),
    };
    [
        Text::new(name.clone(), (NAMES_WIDTH - GAP, middle), font(HPos::Right)),
        Text::new(label, (right, middle), font(HPos::Left)),
    ]
}
