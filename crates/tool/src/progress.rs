//! Progress of a long operation, for people: a bar on a terminal, a line otherwise.

use std::io::IsTerminal;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use crate::output::note;

/// Updates per second: enough for smooth progress, at no noticeable cost.
const UPDATES_PER_SECOND: u8 = 10;
/// Bytes of a transfer between two updates.
const STEP_BYTES: u64 = 16 << 20;

/// Kind of a long operation.
#[derive(Debug, Clone, Copy)]
enum Shape {
    /// A stream, with its rate. Prints nothing without a terminal, because a report follows.
    Transfer(Option<u64>),
    /// A number of bytes, with a name.
    Bytes(&'static str, u64),
    /// A number of steps, with a name.
    Count(&'static str, u64),
    /// An operation of unknown length, by name.
    Spinner(&'static str),
}

impl Shape {
    const fn template(self) -> &'static str {
        match self {
            Self::Transfer(None) => "{binary_bytes:>11}  {msg}",
            Self::Transfer(Some(_)) | Self::Bytes(..) => {
                "{bar:32} {binary_bytes:>11} of {binary_total_bytes}  {msg}"
            }
            Self::Count(..) => "{bar:32} {pos:>4} of {len}  {msg}",
            Self::Spinner(_) => "{spinner} {msg}",
        }
    }

    const fn total(self) -> Option<u64> {
        match self {
            Self::Transfer(total) => total,
            Self::Bytes(_, total) | Self::Count(_, total) => Some(total),
            Self::Spinner(_) => None,
        }
    }

    const fn name(self) -> Option<&'static str> {
        match self {
            Self::Transfer(_) => None,
            Self::Bytes(name, _) | Self::Count(name, _) | Self::Spinner(name) => Some(name),
        }
    }

    /// Returns the line to print without a terminal.
    fn line(self) -> Option<String> {
        match self {
            Self::Bytes(name, total) => Some(format!("{name}: {} MB", total.div_ceil(1_000_000))),
            other => other.name().map(str::to_owned),
        }
    }

    fn bar(self) -> ProgressBar {
        let target = ProgressDrawTarget::stderr_with_hz(UPDATES_PER_SECOND);
        let style =
            ProgressStyle::with_template(self.template()).expect("the template is well-formed");
        let bar = ProgressBar::with_draw_target(self.total(), target).with_style(style);
        if let Some(name) = self.name() {
            bar.set_message(name);
            // Drawn at regular intervals, because steps may take long; a transfer is drawn when it proceeds.
            bar.enable_steady_tick(Duration::from_secs(1) / u32::from(UPDATES_PER_SECOND));
        }
        bar
    }
}

/// Display of progress.
#[derive(Debug)]
pub struct Progress {
    /// `None` without a terminal.
    bar: Option<ProgressBar>,
    /// Bytes of a transfer at the last update.
    shown: u64,
}

impl Progress {
    /// Starts the display of a transfer of `total` bytes, or of a byte counter. Prints nothing without a terminal.
    pub fn transfer(total: Option<u64>) -> Self {
        Self::new(Shape::Transfer(total))
    }

    /// Starts the display of an operation on a number of bytes.
    pub fn bytes(name: &'static str, total: u64) -> Self {
        Self::new(Shape::Bytes(name, total))
    }

    /// Starts the display of an operation with a number of steps.
    pub fn count(name: &'static str, total: u64) -> Self {
        Self::new(Shape::Count(name, total))
    }

    /// Starts the display of an operation of unknown length.
    pub fn spinner(name: &'static str) -> Self {
        Self::new(Shape::Spinner(name))
    }

    fn new(shape: Shape) -> Self {
        let bar = std::io::stderr().is_terminal().then(|| shape.bar());
        if let (None, Some(line)) = (&bar, shape.line()) {
            note(line);
        }
        Self { bar, shown: 0 }
    }

    /// Sets the progress, in bytes or steps.
    pub fn at(&self, position: u64) {
        if let Some(bar) = &self.bar {
            bar.set_position(position);
        }
    }

    /// Sets the total bytes of a transfer, `elapsed` after its first byte.
    pub fn transferred(&mut self, bytes: u64, elapsed: Duration) {
        let Some(bar) = &self.bar else { return };
        if bytes.saturating_sub(self.shown) < STEP_BYTES {
            return;
        }
        self.shown = bytes;
        bar.set_message(format!("{:.1} Gbit/s", gbit_per_s(bytes, elapsed)));
        bar.set_position(bytes);
    }

    /// Removes the bar.
    pub fn finish(self) {
        if let Some(bar) = self.bar {
            bar.finish_and_clear();
        }
    }
}

/// Returns a rate in 10^9 bits per second; 0 if no time has elapsed.
pub fn gbit_per_s(bytes: u64, elapsed: Duration) -> f64 {
    if elapsed.is_zero() {
        return 0.0;
    }
    bytes as f64 * 8.0 / elapsed.as_secs_f64() / 1e9
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHAPES: [Shape; 5] = [
        Shape::Transfer(None),
        Shape::Transfer(Some(1)),
        Shape::Bytes("fetching", 2_000_001),
        Shape::Count("unpacking", 3),
        Shape::Spinner("reading"),
    ];

    #[test]
    fn a_rate_counts_bits_and_powers_of_ten() {
        assert_eq!(gbit_per_s(1_250_000_000, Duration::from_secs(1)), 10.0);
        assert_eq!(gbit_per_s(5, Duration::ZERO), 0.0);
    }

    #[test]
    fn without_a_terminal_a_line_names_the_operation() {
        let lines = SHAPES.map(Shape::line);
        let lines = lines.each_ref().map(Option::as_deref);
        let named = [Some("fetching: 3 MB"), Some("unpacking"), Some("reading")];
        assert_eq!(lines[..2], [None, None]);
        assert_eq!(lines[2..], named);
    }

    #[test]
    fn every_bar_can_be_drawn() {
        for shape in SHAPES {
            shape.bar().finish_and_clear();
        }
    }
}
